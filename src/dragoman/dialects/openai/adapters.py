"""Operations that load and unload adapters while the server runs, with the paths and names of other engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.core.adapters import AdapterEntry
from dragoman.core.errors import DragomanError
from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Boolean, Integer, String

_NAME = Field(
    name="lora_name",
    kind=String(minimum=1, maximum=512),
    required=True,
    note="What requests call the adapter, in `model`.",
)

LOAD = Table(
    name="load_lora_adapter",
    fields=(
        _NAME,
        Field(
            name="lora_path",
            kind=String(minimum=1, maximum=4096),
            note="A folder in `--adapters-folder`, by its name or path; with `--offer-downloads` also a repository of "
            "the hub. Absent: what is offered under the name.",
        ),
        Field(
            name="load_inplace",
            kind=Boolean(),
            default=False,
            note="Put it in the place of the adapter that has the name already, which stays where this one cannot be "
            "read.",
        ),
    ),
)

UNLOAD = Table(
    name="unload_lora_adapter",
    fields=(
        _NAME,
        Field(
            name="lora_int_id",
            kind=Integer(),
            treatment=Treatment.REPORTED,
            note="No effect: an adapter is known by its name.",
        ),
    ),
)


FIELDS = {"name": "lora_name", "source": "lora_path"}
"""The fields that become the parameters of ``core.adapters.Adapters``."""


@contextmanager
def _own_fields() -> Iterator[None]:
    """Give errors about parameters the names of their fields."""
    try:
        yield
    except DragomanError as error:
        error.param = FIELDS.get(error.param or "", error.param)
        raise


async def load(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/load_lora_adapter``: answers when requests may name it."""
    values = (await context.read(LOAD)).values
    name = values["lora_name"]
    with _own_fields():
        await context.unless_gone(serving.adapters.load(name, values["lora_path"], replace=values["load_inplace"]))
    await context.reply_text(f"Success: LoRA adapter '{name}' added successfully.")


async def unload(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/unload_lora_adapter``: requests that run with it are finished."""
    name = (await context.read(UNLOAD)).values["lora_name"]
    with _own_fields():
        await serving.adapters.unload(name)
    await context.reply_text(f"Success: LoRA adapter '{name}' removed successfully.")


async def listed(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/lora_adapters``: the loaded adapters, and those that can be loaded."""
    await context.reply({"object": "list", "data": [_shown(entry) for entry in serving.adapters.entries()]})


def _shown(entry: AdapterEntry) -> dict[str, object]:
    shown = {"id": entry.name, "object": "lora_adapter", "loaded": entry.loaded}
    return shown | ({"rank": entry.rank, "size_bytes": entry.size_bytes} if entry.loaded else {})


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/lora_adapters",
        summary="List the adapters, loaded or not.",
        handler=listed,
    ),
    Operation(
        method="POST",
        path="/v1/load_lora_adapter",
        summary="Load an adapter.",
        handler=load,
        table=LOAD,
        scope="admin",
    ),
    Operation(
        method="POST",
        path="/v1/unload_lora_adapter",
        summary="Let no new request name an adapter.",
        handler=unload,
        table=UNLOAD,
        scope="admin",
    ),
)
