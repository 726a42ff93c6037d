"""Which adapter a request of this dialect runs with: ``adapter_id`` names one, and so may a chat's ``model``."""

from __future__ import annotations

import msgspec

from dragoman.core.errors import AdapterNotFound
from dragoman.core.serving import Serving
from dragoman.dialects.api import Exchange
from dragoman.dialects.field import Reading
from dragoman.dialects.tgi.errors import InvalidInput
from dragoman.dialects.tgi.parameters import Parameters
from dragoman.dialects.tgi.settings import Quirks


def adapter_of(asked: Parameters, serving: Serving, quirks: Quirks) -> str | None:
    """The loaded adapter to run with; None: the base model.

    A ``model`` that is no adapter's name is the base model: clients write anything there. So is an ``adapter_id`` while
    no adapter is loaded at all. Raises InvalidInput for one that names none of those that are.
    """
    name = asked.core.get("adapter")
    if name is None:
        return None
    try:
        return serving.adapter(name).name
    except AdapterNotFound:
        if asked.any_adapter or quirks.unknown_adapter_is_base or not has_adapters(serving):
            return None
    raise InvalidInput(f"adapter_id `{name[:256]}` is not loaded")


def has_adapters(serving: Serving) -> bool:
    """Whether any adapter is loaded."""
    return any(card.base is not None for card in serving.models())


def report_adapter(exchange: Exchange, reading: Reading, serving: Serving) -> None:
    """Name ``adapter_id`` in the answer where it has no effect."""
    name = reading.core.get("adapter")
    if name is None:
        return
    try:
        serving.adapter(name)
    except AdapterNotFound:
        reported = (*reading.reported, "parameters.adapter_id")
        exchange.report(msgspec.structs.replace(reading, reported=reported))
