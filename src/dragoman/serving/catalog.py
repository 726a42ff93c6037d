"""The catalog of a server that always serves the model it was started with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

from dragoman.core.catalog import (
    CatalogEntry,
    FileProgress,
    ModelDetails,
    ModelResidence,
    ModelState,
    listed,
    without_tag,
)
from dragoman.core.errors import Forbidden, ModelNotFound
from dragoman.serving.model import ServedModel


class FixedCatalog:
    """One model, loaded for as long as the server runs."""

    def __init__(self, model: ServedModel) -> None:
        card, template = model.card, model.template.source
        self._details = ModelDetails(
            architecture="",
            format="safetensors",
            stored_as=card.precision,
            parameters=0,
            context_tokens=card.context_tokens,
            hidden_size=card.hidden_size,
            layers=0,
            heads=0,
            kv_heads=0,
            vocab_size=card.vocab_size,
            bos_token_id=model.tokenizer.bos_id,
            eos_token_ids=model.eos_ids,
            chat_template=template,
            tools=card.tool_calls is not None,
            reasoning=card.reasoning is not None,
            fill=card.has_fill_tokens,
        )
        self._entry = CatalogEntry(
            id=card.name,
            aliases=model.aliases,
            title=card.name,
            state=ModelState.LOADED,
            progress=1.0,
            precision=card.precision,
            context_tokens=card.context_tokens,
        )

    def entries(self) -> tuple[CatalogEntry, ...]:
        return (self._entry,)

    def current(self) -> CatalogEntry:
        return self._entry

    def find(self, name: str) -> CatalogEntry | None:
        return find(self.entries(), name)

    def named(self, name: str) -> str | None:
        return self._entry.id if name in (self._entry.id, *self._entry.aliases) else None

    def is_resident(self, id: str) -> bool:
        return id == self._entry.id

    async def fits_in(self, id: str, unused_s: float) -> bool:
        return self.is_resident(id)

    def residences(self) -> tuple[ModelResidence, ...]:
        return (ModelResidence(id=self._entry.id, is_default=True, state="loaded", is_pinned=True),)

    request_loads: Literal["admin", "any", "never"] = "never"
    asleep: None = None
    idle_s: None = None
    memory_bytes: None = None

    def keep(self, idle_s: float | None, *, default: bool = False) -> None:
        raise _always_served()

    def pin(self, name: str, *, is_pinned: bool) -> CatalogEntry:
        raise _always_served()

    async def use(self, name: str | None) -> None:
        if name is not None:
            self.begin_loading(name)

    async def details(self, name: str) -> ModelDetails:
        self.begin_loading(name)
        return self._details

    async def load(self, name: str, *, wait: bool = False) -> CatalogEntry:
        return self.begin_loading(name)

    def begin_loading(self, name: str) -> CatalogEntry:
        entry = self.find(name)
        if entry is None:
            there = listed(each.id for each in self.entries())
            raise ModelNotFound(f"model not found: {name[:256]}; there are: {there}", param="model")
        return entry

    async def download(self, name: str) -> AsyncGenerator[FileProgress, None]:
        self.begin_loading(name)
        return
        yield

    async def unload(self, name: str | None = None) -> CatalogEntry | None:
        raise _always_served()

    async def watch(self) -> AsyncGenerator[CatalogEntry, None]:
        await asyncio.Event().wait()
        yield self._entry


def _always_served() -> Forbidden:
    return Forbidden("This server always serves the model it was started with.")


def find(entries: tuple[CatalogEntry, ...], name: str) -> CatalogEntry | None:
    """Return the entry by id or alias, or by the last part of an id where only one fits, ignoring case. A name with
    ``:latest`` is also one without it."""
    return _find(entries, name) or (_find(entries, plain) if (plain := without_tag(name)) != name else None)


def _find(entries: tuple[CatalogEntry, ...], name: str) -> CatalogEntry | None:
    names = {entry.id: (entry.id, *entry.aliases) for entry in entries}
    for entry in entries:
        if name in names[entry.id]:
            return entry
    short = name.lower()
    close = [
        entry
        for entry in entries
        if any(short in (known.lower(), known.lower().rpartition("/")[2]) for known in names[entry.id])
    ]
    return close[0] if len(close) == 1 else None
