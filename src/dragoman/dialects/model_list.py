"""The models that lists show: those in memory, and those that a request may have loaded by naming them."""

from __future__ import annotations

from typing import Any, NamedTuple

from dragoman.core.catalog import CatalogEntry, ModelState, may_have_loaded
from dragoman.core.serving import ModelCard, Serving

_VALUES = {ModelState.LOADED: "loaded", ModelState.LOADING: "loading", ModelState.AVAILABLE: "unloaded"}


class ListedModel(NamedTuple):
    """A model of a list. ``card``: None for a model that is not in memory, of which less is known."""

    name: str
    card: ModelCard | None
    entry: CatalogEntry

    @property
    def created(self) -> int:
        """Return the Unix time of the card, or else of its newest file; 0 where neither is known."""
        return int(self.entry.modified or 0) if self.card is None else self.card.created

    @property
    def status(self) -> dict[str, Any]:
        """Return whether it is in memory, in the form of llama.cpp's ``status``: ``loaded``, ``loading`` with the share
        that is done, or ``unloaded``, with ``failed`` where its last load did."""
        state = self.entry.state
        status: dict[str, Any] = {"value": _VALUES[state]}
        if state is ModelState.LOADING:
            status["progress"] = round(self.entry.progress, 3)
        if state is ModelState.AVAILABLE and self.entry.error:
            status["failed"] = True
        return status


def listed_models(serving: Serving, scopes: tuple[str, ...]) -> list[ListedModel]:
    """Return the models in memory under all their names, adapters among them, and then the others that a caller with
    these scopes may name in a request."""
    entries = serving.catalog.entries()
    by_name = {name: entry for entry in reversed(entries) for name in (*entry.aliases, entry.id)}
    found = []
    for card in serving.models():
        own = card.base or card.name
        found.append(ListedModel(card.name, card, by_name.get(own) or CatalogEntry(id=own)))
    if may_have_loaded(serving.catalog, scopes):
        there = {each.entry.id for each in found}
        found += [ListedModel(entry.id, None, entry) for entry in entries if entry.id not in there]
    return found


def listed_model(serving: Serving, scopes: tuple[str, ...], name: str) -> ListedModel:
    """Return one model as ``listed_models`` has it. Raises ModelNotFound for names of none, where these do not mean the
    default model."""
    listed = {each.name: each for each in listed_models(serving, scopes)}
    return listed[name] if name in listed else listed[serving.model(name).name]
