"""``dragoman models suggest``: small models by short names, for this machine's memory and at this machine's speed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.cli.plan import measured_bandwidth
from dragoman.cli.settings import MachineSettings
from dragoman.models.short_names import KNOWN_MODELS, KnownModel

CONTEXT = 4096
"""Tokens of keys and values that a suggestion makes room for."""
FLUENT = 8.0
"""Tokens per second at which reading is fluent."""
WORKING_BYTES = 300e6
"""Bytes of programs, activations and tables, in addition to the weights."""


class SuggestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the list."""

    PANEL: ClassVar[str] = "Options"

    format: Annotated[
        Literal["table", "json"],
        Meta(description="A table to read, or JSON to process.", extra={"configurable": False}),
    ] = "table"


class Suggestion(NamedTuple):
    """A model at the best precision that memory holds; None: it holds none. ``tokens_per_s``: at most, one stream's;
    0: not measured."""

    model: KnownModel
    precision: str | None
    memory_bytes: float
    tokens_per_s: float


def suggest(asked: SuggestSettings, machine: MachineSettings) -> None:
    """List small models that are known to work, with the memory that each takes here and how fast it can be."""
    from dragoman.models import available_memory

    available, bandwidth = available_memory(), measured_bandwidth(machine.placement()) or 0.0
    found = [suggestion_of(model, available, bandwidth) for model in KNOWN_MODELS]
    best = best_of(found)
    if asked.format == "json":
        print(
            msgspec.json.format(msgspec.json.encode([_entry(each, each is best) for each in found]), indent=2).decode()
        )
        return
    table = console.table(("NAME", "PRECISION", "MEMORY", "TOKENS/S", "GOOD AT"), right=("MEMORY", "TOKENS/S"))
    for each in found:
        cells = (
            each.precision or "too large",
            console.size(each.memory_bytes),
            console.rate(each.tokens_per_s) if bandwidth else "-",
        )
        table.add_row(("* " if each is best else "  ") + each.model.name, *cells, each.model.good_at)
    out = console.output()
    speed = f"read at {console.size(bandwidth)}/s" if bandwidth else "too little to measure its speed"
    out.print(f"{console.size(available)} of memory available, {speed}\n")
    out.print(table)
    if best is not None:
        at = "" if best.precision == "bfloat16" else f" --precision {best.precision}"
        out.print(f"\n* the largest that is fluent here: dragoman run {best.model.name}{at}", markup=False)
    out.print("Tokens per second are those of one stream, at most. Any other model of the hub: owner/name.")


def suggestion_of(model: KnownModel, available: float, bandwidth: float) -> Suggestion:
    """Return the highest precision that memory holds and that is fluent; else the highest that memory holds."""
    fitting = []
    for precision in ("bfloat16", "int8", "int4"):
        weights = model.weight_bytes(precision)
        memory = weights + model.kv_bytes(min(CONTEXT, model.context)) + WORKING_BYTES
        each = Suggestion(model, precision, memory, bandwidth / weights)
        if memory <= available:
            fitting.append(each)
    fluent = [each for each in fitting if each.tokens_per_s >= FLUENT]
    return (fluent or fitting[-1:] or [each._replace(precision=None)])[0]


def best_of(found: list[Suggestion]) -> Suggestion | None:
    """Return the largest chat model that is fluent."""
    chats = [each for each in found if "coder" not in each.model.name]
    fluent = [each for each in chats if each.precision is not None and each.tokens_per_s >= FLUENT]
    return max(fluent, key=lambda each: each.model.parameters, default=None)


def _entry(each: Suggestion, is_best: bool) -> dict[str, Any]:
    return {
        "name": each.model.name,
        "repository": each.model.repository,
        "parameters": round(each.model.parameters * 1e6),
        "context": each.model.context,
        "precision": each.precision,
        "memory_bytes": round(each.memory_bytes),
        "tokens_per_second": round(each.tokens_per_s, 1) or None,
        "good_at": each.model.good_at,
        "suggested": is_best,
    }
