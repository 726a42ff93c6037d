"""``GET /resident-models`` and what changes them: which models are in memory, how much each takes, and which stay.

The operations that load, unload and pin models need the scope ``admin``.
"""

from __future__ import annotations

import msgspec

from dragoman.core.catalog import CatalogEntry, listed
from dragoman.core.errors import Conflict, DragomanError, Forbidden, LoadFailed, ModelNotFound
from dragoman.core.serving import Serving
from dragoman.dialects.api import Handler, Operation, RequestContext
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Boolean, String
from dragoman.serving.memory_budget import process_bytes

_NAME = String(minimum=1, maximum=512)
LOAD = Table(
    name="resident model",
    fields=(Field(name="model", kind=_NAME, required=True, note="Id or alias of the model."),),
)
PIN = Table(
    name="pin",
    fields=(
        Field(name="model", kind=_NAME, required=True, note="Id or alias of the model."),
        Field(name="pinned", kind=Boolean(), default=True, note="Whether it stays in memory once it is loaded."),
    ),
)
FAULTS = (ModelNotFound("model not found: x"), Forbidden("This server always serves the model it was started with."))


class ResidentModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory, or on its way into it; see ``core.catalog.ModelResidence``.

    ``pid``: of its engine's process. ``measured_bytes``: what that takes now, shared pages counted by their share; None
    where the system does not say.
    """

    id: str
    state: str
    is_default: bool
    is_pinned: bool
    progress: float
    running: int
    waiting: int
    idle_s: float | None
    idle_limit_s: float | None
    pid: int | None
    planned_bytes: int | None
    measured_bytes: int | None


class ResidentList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of all these operations. ``memory_bytes``: the budget of the server and all its models."""

    memory_bytes: int | None
    models: list[ResidentModel]


async def show(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /resident-models``."""
    catalog = serving.catalog
    residences = catalog.residences()

    def measured() -> list[int | None]:
        return [None if each.pid is None else process_bytes(each.pid) for each in residences]

    shown = [
        ResidentModel(
            id=each.id,
            state=each.state,
            is_default=each.is_default,
            is_pinned=each.is_pinned,
            progress=round(each.progress, 3),
            running=each.running,
            waiting=each.waiting,
            idle_s=each.idle_s,
            idle_limit_s=each.idle_limit_s,
            pid=each.pid,
            planned_bytes=each.planned_bytes,
            measured_bytes=size,
        )
        for each, size in zip(residences, await context.run_blocking(measured, "disk"), strict=True)
    ]
    await context.reply(ResidentList(memory_bytes=catalog.memory_bytes, models=shown))


async def load(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /resident-models/load``: the model becomes the current one; answers when it can generate."""
    entry = _known(serving, (await context.read(LOAD)).values["model"])
    await context.unless_gone(serving.catalog.load(entry.id, wait=True))
    await show(serving, context)


async def unload(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /resident-models/unload``: answers when the model's running requests are over, and it is freed."""
    entry = _known(serving, (await context.read(LOAD)).values["model"])
    if await context.unless_gone(serving.catalog.unload(entry.id)) is None:
        raise Conflict(f"The model {entry.id} is not loaded.")
    await show(serving, context)


async def pin(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /resident-models/pin``: loads nothing."""
    values = (await context.read(PIN)).values
    serving.catalog.pin(_known(serving, values["model"]).id, is_pinned=values["pinned"])
    await show(serving, context)


def _known(serving: Serving, name: str) -> CatalogEntry:
    entry = serving.catalog.find(name)
    if entry is None:
        there = listed(each.id for each in serving.catalog.entries())
        raise ModelNotFound(f"model not found: {name[:256]}; there are: {there}", param="model")
    return entry


def _change(path: str, summary: str, handler: Handler, table: Table, *faults: DragomanError) -> Operation:
    return Operation(
        method="POST",
        path=f"/resident-models/{path}",
        summary=summary,
        handler=handler,
        table=table,
        scope="admin",
        faults=(*FAULTS, *faults),
    )


OPERATIONS = (
    Operation(
        method="GET", path="/resident-models", summary="List the models in memory, and what each takes.", handler=show
    ),
    _change("load", "Load a model, and make it the current one.", load, LOAD, LoadFailed("It does not fit.")),
    _change("unload", "Free a model after its running requests.", unload, LOAD, Conflict("It is not loaded.")),
    _change("pin", "Keep a model in memory, or end that.", pin, PIN),
)
