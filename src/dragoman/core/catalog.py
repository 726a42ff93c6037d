"""Which models there are: the served ones, and those that can be loaded in their place."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec


class ModelState(enum.StrEnum):
    """Where a model stands."""

    AVAILABLE = "available"
    """Known, and not in memory."""
    LOADING = "loading"
    LOADED = "loaded"


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that this server serves, or may be told to load.

    Attributes:
        id: the name that clients use. aliases: other names for it.
        title: for people.
        state, progress: where it stands; of loading, the share that is done, from 0 to 1.
        error: why it could not be loaded the last time; empty where that did not happen.
        parameters: how many weights it has. context_tokens: most tokens of prompt and output. size_bytes: of its files.
            memory_bytes: of memory, loaded. None, or empty, where nobody has looked yet.
    """

    id: str
    aliases: tuple[str, ...] = ()
    title: str = ""
    description: str = ""
    state: ModelState = ModelState.AVAILABLE
    progress: float = 0.0
    error: str = ""
    architecture: str = ""
    precision: str = ""
    parameters: int | None = None
    context_tokens: int | None = None
    size_bytes: int | None = None
    memory_bytes: int | None = None


class Catalog(Protocol):
    """The models of this server. One is current: the one that requests without a name are for."""

    def entries(self) -> tuple[CatalogEntry, ...]:
        """All that are known, the current one first."""

    def current(self) -> CatalogEntry | None:
        """None where nothing is loaded."""

    def find(self, name: str) -> CatalogEntry | None:
        """By id or alias, or by the last part of an id where only one fits, whatever the case of its letters."""

    async def load(self, name: str) -> CatalogEntry:
        """Load a model and make it the current one; returns when it can generate.

        Where it is loading already, waits for that. A failure leaves what was served before.
        Raises ModelNotFound, Conflict where another one is loading, LoadFailed.
        """

    def begin_loading(self, name: str) -> CatalogEntry:
        """Start ``load`` and return. Raises ModelNotFound or Conflict."""

    async def unload(self) -> CatalogEntry | None:
        """Free the current model, its running generations finished; None where nothing was loaded.

        Raises Forbidden where the server is meant to serve one model always.
        """

    def watch(self) -> AsyncGenerator[CatalogEntry, None]:
        """Each change of state of any model, from now on."""
