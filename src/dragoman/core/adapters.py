"""Adapters of the served model: those in memory, and those that can be loaded."""

from __future__ import annotations

from typing import Protocol

import msgspec


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A low-rank adapter of the served model.

    Attributes:
        name: the name that clients use; different from all models' names.
        loaded: in memory, so that requests may name it. The others can be loaded.
        rank: of the matrices of the largest of its modules. size_bytes: of memory. None where it is not loaded.
    """

    name: str
    loaded: bool
    rank: int | None = None
    size_bytes: int | None = None


class Adapters(Protocol):
    """The adapters of one served model."""

    def entries(self) -> tuple[AdapterEntry, ...]:
        """Return the loaded adapters, in the order of loading, and the available ones."""

    async def load(self, name: str, source: str | None = None, *, replace: bool = False) -> AdapterEntry:
        """Load the adapter that the operator offers under ``name``, or from ``source``.

        ``source``: a folder among those that the operator offers, or a repository of the hub where the operator
        allows downloads. Loading a loaded adapter changes nothing, unless ``replace``: then it takes the place of the
        loaded one when it has been read, and one that cannot be read leaves that as it is.
        Raises AdapterNotFound, Conflict where the name is a model's or another adapter's, LoadFailed. ``param`` of an
        error is the parameter here that is at fault.
        """

    async def unload(self, name: str) -> AdapterEntry:
        """Remove the adapter for new requests; those that run with it finish. Raises AdapterNotFound."""
