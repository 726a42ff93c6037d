"""The interface between the pool of models and what loads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeVar

from dragoman.core.catalog import CatalogEntry, FileProgress, ModelDetails
from dragoman.serving.model_registry import ModelSource

Progress = Callable[[str, float], None]
"""Called with the stage of a load, and the share of it that is done."""


class PoolModel(Protocol):
    """A model in memory, with its engine. ``entry`` describes it."""

    @property
    def entry(self) -> CatalogEntry: ...

    async def close(self) -> None:
        """End the engine. Unfinished requests then fail."""


ModelT = TypeVar("ModelT", bound=PoolModel)


class PoolLoader(Protocol[ModelT]):
    """The interface that loads models into memory."""

    async def fits_beside(self, source: ModelSource, current: ModelT) -> bool:
        """Return whether memory holds both. Reads small files, downloads them where needed. Raises ModelError."""

    async def open(self, source: ModelSource, progress: Progress) -> ModelT:
        """Load a model; return when it can generate. Raises ModelError, EngineUnavailable."""

    async def details(self, source: ModelSource) -> ModelDetails:
        """Return the details of a model, loaded or not. Raises ModelError."""

    def download(self, source: ModelSource, ended: Callable[[], None]) -> AsyncGenerator[FileProgress, None]:
        """Bring its files to this machine, and yield how far each is; call ``ended`` at the end. Raises ModelError,
        Overloaded."""
