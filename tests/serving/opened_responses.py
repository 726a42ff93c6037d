"""A store of responses while a test uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman.serving.response_store import SqliteResponseStore
from dragoman.serving.settings import ResponseSettings

NOW = 1_000_000.0
"""The time of the store's clock."""


@asynccontextmanager
async def opened(
    file: Path | None = None,
    clock: Callable[[], float] = lambda: NOW,
    steady: Callable[[], float] | None = None,
    **limits: Any,
) -> AsyncIterator[SqliteResponseStore]:
    """``steady``: by default, nobody sets the clock."""
    store = SqliteResponseStore(ResponseSettings(**limits), file, clock=clock, steady=steady or clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
