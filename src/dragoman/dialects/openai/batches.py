"""Batches of the OpenAI dialect: ``/v1/batches``."""

from __future__ import annotations

from typing import Any

from dragoman.core.batches import DAY_S, BatchIsOver, StoredBatch, UnknownBatch, UnknownFile
from dragoman.core.caller import current_caller
from dragoman.core.entropy import token_hex, wall_time
from dragoman.core.errors import BadRequest
from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Anything, String
from dragoman.dialects.openai.files import BATCH_INPUT, EXPIRY, limit_of, page, store_of
from dragoman.dialects.openai.responses.fields import Metadata

ENDPOINTS = ("/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/embeddings")

AZURE_ENDPOINTS = tuple(each.removeprefix("/v1") for each in ENDPOINTS)
"""As Azure's clients name them, beside the others."""

RESULTS_KEEP_S = 30 * DAY_S

_WINDOW = String(pattern=r"([1-9]\d?|[12]\d\d|3[0-2]\d|33[0-6])h")


def _batch_table(name: str, endpoints: tuple[str, ...]) -> Table:
    return Table(
        name=name,
        fields=(
            Field(
                name="input_file_id",
                kind=String(minimum=1, maximum=128),
                required=True,
                note="A file of the purpose `batch`, with one request a line.",
            ),
            Field(
                name="endpoint",
                kind=String(choices=endpoints),
                required=True,
                note="The path of all its requests.",
            ),
            Field(
                name="completion_window",
                kind=String(minimum=1, maximum=8),
                required=True,
                note="`24h`, or any from `1h` to `336h`: what is not done by then has expired.",
            ),
            Field(
                name="metadata",
                kind=Metadata(Anything(object_only=True, depth=3)),
                note="At most 16 strings of 512 characters under names of 64, which are kept and answered.",
            ),
            Field(
                name="output_expires_after", kind=EXPIRY, note="When the result files expire: by default after 30 days."
            ),
        ),
    )


BATCH = _batch_table("batch", ENDPOINTS)
AZURE_BATCH = _batch_table("azure_batch", (*ENDPOINTS, *AZURE_ENDPOINTS))


async def create(serving: Serving, context: RequestContext, table: Table = BATCH) -> None:
    """Handle ``POST /v1/batches``."""
    store = store_of(serving, context)
    values = (await context.read(table)).values
    window = _WINDOW.check(values["completion_window"], ("completion_window",))
    file = await store.file(context.tenant, values["input_file_id"])
    if file.purpose != BATCH_INPUT:
        raise BadRequest(f"File {file.id} has the purpose '{file.purpose}', not 'batch'.", param="input_file_id")
    now = int(wall_time())
    keep = values["output_expires_after"]
    batch = StoredBatch(
        id=f"batch_{token_hex(16)}",
        dialect="openai",
        tenant=context.tenant,
        endpoint=values["endpoint"],
        caller=current_caller.get(),
        input_file=file.id,
        window=window,
        metadata=values["metadata"],
        results_keep_s=RESULTS_KEEP_S if keep is None else keep["seconds"],
        created_s=now,
        expires_s=now + 3600 * int(window[:-1]),
    )
    try:
        created = await store.create(batch)
    except BadRequest as error:
        error.param = "input_file_id" if error.param == "input_file" else error.param
        raise
    await context.reply(rendered(created))


async def listed(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/batches``."""
    store, limit = store_of(serving, context), limit_of(context, 20, 100)
    found = await store.batches(context.tenant, after=context.query.get("after") or None, limit=limit + 1)
    await context.reply(page([rendered(batch) for batch in found], limit))


async def retrieve(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/batches/{id}``."""
    store = store_of(serving, context)
    await context.reply(rendered(await store.batch(context.tenant, context.path_params["id"])))


async def cancel(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/batches/{id}/cancel``."""
    store = store_of(serving, context)
    try:
        batch = await store.cancel(context.tenant, context.path_params["id"])
    except BatchIsOver as over:
        raise BadRequest(f"Cannot cancel a batch with status '{over.status}'.") from None
    await context.reply(rendered(batch))


def rendered(batch: StoredBatch) -> dict[str, Any]:
    """Return the batch object."""
    faults = [{"code": f.code, "message": f.message, "param": f.param, "line": f.line} for f in batch.faults]
    usage = batch.usage
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": faults} if faults else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": batch.created_s,
        "in_progress_at": batch.in_progress_s,
        "expires_at": batch.expires_s,
        "finalizing_at": batch.finalizing_s,
        "completed_at": batch.completed_s,
        "failed_at": batch.failed_s,
        "expired_at": batch.expired_s,
        "cancelling_at": batch.cancelling_s,
        "cancelled_at": batch.cancelled_s,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
        "metadata": batch.metadata,
    }


_UNKNOWN = UnknownBatch("No batch found with id 'batch_0'.")

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/batches",
        summary="Run the requests in a file while there is nothing else to do.",
        handler=create,
        table=BATCH,
        faults=(UnknownFile("No such File object: file-0", param="id"),),
    ),
    Operation(method="GET", path="/v1/batches", summary="List the caller's batches, the newest first.", handler=listed),
    Operation(method="GET", path="/v1/batches/{id}", summary="Describe a batch.", handler=retrieve, faults=(_UNKNOWN,)),
    Operation(
        method="POST", path="/v1/batches/{id}/cancel", summary="Cancel a batch.", handler=cancel, faults=(_UNKNOWN,)
    ),
)
