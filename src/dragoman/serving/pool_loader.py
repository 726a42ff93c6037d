"""The interface between the pool of models and what loads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Protocol, TypeVar

from dragoman.core.catalog import CatalogEntry, FileProgress, ModelDetails
from dragoman.serving.model_registry import ModelSource

Progress = Callable[[str, float], None]
"""Called with the stage of a load, and the share of it that is done."""


class ModelMemory(NamedTuple):
    """The most that a model takes, its engine's process included: while it serves, and before, while it is loaded."""

    serving_bytes: int
    peak_bytes: int


class PoolModel(Protocol):
    """A model in memory, with its engine. ``entry`` describes it."""

    @property
    def entry(self) -> CatalogEntry: ...

    @property
    def pid(self) -> int | None:
        """The process id of its engine; None where that runs elsewhere, or is being started."""

    def serves(self, name: str) -> bool:
        """Return whether requests may name it, or one of its adapters, so."""

    def set_threads(self, threads: int) -> None:
        """Have the engine compute with so many threads from its next step on."""

    async def close(self) -> None:
        """End the engine. Unfinished requests then fail."""


ModelT = TypeVar("ModelT", bound=PoolModel)
ModelT_co = TypeVar("ModelT_co", bound=PoolModel, covariant=True)


class PoolLoader(Protocol[ModelT_co]):
    """The interface that loads models into memory."""

    async def memory_of(self, source: ModelSource) -> ModelMemory:
        """Return the memory that a model needs. Reads small files, downloads them where needed. Raises ModelError."""

    async def measure(self, work: Callable[[], None]) -> None:
        """Run ``work``, which takes some milliseconds, without holding up the loop."""

    async def open(self, source: ModelSource, progress: Progress) -> ModelT_co:
        """Load a model; return when it can generate. Raises ModelError, EngineUnavailable."""

    async def details(self, source: ModelSource) -> ModelDetails:
        """Return the details of a model, loaded or not. Raises ModelError."""

    def download(self, source: ModelSource, ended: Callable[[], None]) -> AsyncGenerator[FileProgress, None]:
        """Bring its files to this machine, and yield how far each is; call ``ended`` at the end. Raises ModelError,
        Overloaded."""
