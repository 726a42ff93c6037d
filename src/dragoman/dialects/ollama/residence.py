"""Which model a request means: finding it, having it loaded, and how long it stays in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from dragoman.core.catalog import ModelState
from dragoman.core.errors import Conflict, EngineUnavailable, Forbidden, ModelNotFound
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import Reading
from dragoman.dialects.ollama.derived import DerivedModel, DerivedModels
from dragoman.dialects.ollama.durations import parsed
from dragoman.dialects.ollama.names import REMOTE, close_name, spellings
from dragoman.dialects.ollama.settings import OllamaSettings

ADMIN = "admin"


class Found(NamedTuple):
    """A model that a name means: one that is served now, under this name; or an offered one, by its id."""

    served: str | None
    offered: str | None


def derived_of(serving: Serving, derived: DerivedModels, name: str) -> DerivedModel | None:
    """Return the derived model that a name means; None: it means none, or one of the operator's."""
    return None if serving.catalog.named(name.strip()) is not None else derived.find(name)


def find(serving: Serving, name: str) -> Found:
    """Return the model that a name means. Raises ModelNotFound in Ollama's words."""
    wanted = name.strip()
    if not wanted or wanted.endswith(REMOTE):
        raise _unknown(name)
    served = {card.name for card in serving.models()}
    for spelling in spellings(wanted):
        if spelling in served:
            return Found(spelling, None)
        entry = serving.catalog.find(spelling)
        if entry is not None:
            return Found(entry.id, None) if entry.state is ModelState.LOADED else _of_entry(serving, entry.id)
    ids = [entry.id for entry in serving.catalog.entries()]
    close = close_name(wanted, (*ids, *served))
    if close is None:
        try:
            return Found(serving.model(wanted).name, None)
        except (ModelNotFound, EngineUnavailable):
            raise _unknown(name) from None
    return Found(close, None) if close in served else _of_entry(serving, close)


def _of_entry(serving: Serving, id: str) -> Found:
    now = serving.catalog.current() or serving.catalog.asleep
    if now is not None and now.id == id and (cards := serving.models()):
        return Found(cards[0].name, None)
    return Found(None, id)


async def model_of(serving: Serving, context: RequestContext, settings: OllamaSettings, name: str | None) -> ModelCard:
    """Return the card of the named model, which answers the request, and is loaded where it is not in memory; or of the
    current one.

    Raises ModelNotFound, Forbidden, LoadFailed, Overloaded.
    """
    catalog = serving.catalog
    if name is None:
        if not context.explains:
            await context.unless_gone(catalog.use(None))
        return serving.model(None)
    found = find(serving, name)
    if found.served is not None:
        id = catalog.named(found.served)
        if id is not None and not context.explains:
            await context.unless_gone(catalog.use(id))
        return serving.model(found.served)
    assert found.offered is not None
    if context.explains:
        raise Conflict(f"model '{name[:256]}' is not loaded")
    if settings.ollama_load == "never":
        raise _unknown(name)
    if settings.ollama_load == ADMIN and ADMIN not in context.scopes:
        raise Forbidden(f"model '{name[:256]}' is not loaded, and this API key may not change the model")
    await context.unless_gone(catalog.use(found.offered))
    return serving.model(None)


def keep(serving: Serving, context: RequestContext, settings: OllamaSettings, keep_alive: Any) -> bool:
    """Set how long the request's model stays in memory when it is idle. Return whether a request's own duration has an
    effect."""
    if context.explains:
        return True
    try:
        if keep_alive is None:
            serving.catalog.keep(parsed(settings.ollama_keep_alive), default=True)
            return True
        if ADMIN not in context.scopes:
            return False
        serving.catalog.keep(parsed(keep_alive))
    except Forbidden:
        return keep_alive is None or parsed(keep_alive) is None
    return True


def keep_as_asked(serving: Serving, context: RequestContext, settings: OllamaSettings, reading: Reading) -> None:
    """Keep the model in memory for as long as the request says, and report what has no effect."""
    if not keep(serving, context, settings, reading.values["keep_alive"]):
        reading = msgspec.structs.replace(reading, reported=(*reading.reported, "keep_alive"))
    context.report(reading)


async def unload(serving: Serving, context: RequestContext, name: str | None) -> None:
    """Let a model that is in memory, by default the current one, be unloaded as soon as it is idle. Raises
    Forbidden."""
    if ADMIN not in context.scopes:
        raise Forbidden("this API key may not unload the model")
    if context.explains:
        return
    if name is not None:
        id = serving.catalog.named(name)
        if id is None or not serving.catalog.is_resident(id):
            return
        await serving.catalog.use(id)
    serving.catalog.keep(0.0)


def served_card(serving: Serving, name: str) -> ModelCard:
    """Return the card of a model in memory, whichever answers the running request. Raises ModelNotFound."""
    return next((card for card in serving.models() if card.name == name), None) or serving.model(name)


def _unknown(name: str) -> ModelNotFound:
    return ModelNotFound(f"model '{name[:256]}' not found", param="model")
