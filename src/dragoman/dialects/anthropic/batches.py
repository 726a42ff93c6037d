"""Message batches of the Anthropic dialect: ``/v1/messages/batches``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Any

from dragoman.core.batches import DAY_S, BatchStatus, BatchStore, StorageFull, StoredBatch, UnknownBatch
from dragoman.core.caller import current_caller
from dragoman.core.entropy import token_hex, wall_time
from dragoman.core.errors import BadRequest, NotFound
from dragoman.core.serving import Serving
from dragoman.dialects.anthropic.batch_lines import MAX_REQUESTS, MESSAGES, line_of
from dragoman.dialects.anthropic.settings import AnthropicSettings
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Anything, ListOf, String

WINDOW_S = DAY_S
MAX_PAGE = 1000
PURPOSE = "message_batch"
PIECE_BYTES = 64 * 1024

REQUEST = Table(
    name="batch request",
    fields=(
        Field(
            name="custom_id",
            kind=String(pattern=r"[a-zA-Z0-9_-]{1,64}"),
            required=True,
            note="Names the request in the results: unique in its batch.",
        ),
        Field(
            name="params",
            kind=Anything(object_only=True),
            required=True,
            note="The body of `POST /v1/messages`, checked when its turn comes. No stream, and at least one token.",
        ),
    ),
)

BATCH = Table(
    name="message batch",
    fields=(
        Field(
            name="requests",
            kind=ListOf(REQUEST, minimum=1, maximum=MAX_REQUESTS),
            required=True,
            note="The requests, which run while there is nothing else to do.",
        ),
    ),
)


class BatchesApi:
    """The operations of message batches. Handlers are its methods: they need the operator's settings."""

    def __init__(self, settings: AnthropicSettings) -> None:
        self._keep_s = settings.batch_keep_s

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations."""
        path = "/v1/messages/batches"
        unknown = (UnknownBatch("No batch found with id 'msgbatch_0'."),)
        return (
            Operation(
                method="POST",
                path=path,
                summary="Run requests while there is nothing else to do.",
                handler=self.create,
                table=BATCH,
                faults=(StorageFull("There is no room."),),
            ),
            Operation(
                method="GET", path=path, summary="List the caller's batches, the newest first.", handler=self.list
            ),
            Operation(
                method="GET", path=f"{path}/{{id}}", summary="Describe a batch.", handler=self.retrieve, faults=unknown
            ),
            Operation(
                method="POST",
                path=f"{path}/{{id}}/cancel",
                summary="Cancel a batch.",
                handler=self.cancel,
                faults=unknown,
            ),
            Operation(
                method="GET",
                path=f"{path}/{{id}}/results",
                summary="Return the results of a batch that has ended, one a line.",
                handler=self.results,
                media=("application/x-jsonl",),
                faults=unknown,
            ),
            Operation(
                method="DELETE",
                path=f"{path}/{{id}}",
                summary="Delete a batch that has ended, with its results.",
                handler=self.delete,
                faults=unknown,
            ),
        )

    async def create(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/messages/batches``."""
        store = _store_of(serving, context)
        requests = (await context.read(BATCH)).values["requests"]
        lines = await context.run_blocking(lambda: _lines(requests))
        tenant, now = _tenant(context), int(wall_time())
        async with store.upload(tenant) as upload:
            for start in range(0, len(lines), PIECE_BYTES):
                await upload.write(lines[start : start + PIECE_BYTES])
            file = await upload.keep(filename="requests.jsonl", purpose=PURPOSE, expires_s=WINDOW_S)
        batch = StoredBatch(
            id=f"msgbatch_{token_hex(12)}",
            dialect="anthropic",
            tenant=tenant,
            endpoint=MESSAGES,
            caller=current_caller.get(),
            input_file=file.id,
            total=len(requests),
            results_keep_s=self._keep_s,
            created_s=now,
            expires_s=now + WINDOW_S,
        )
        try:
            created = await store.create(batch)
        except BaseException:
            await store.delete_file(tenant, file.id)
            raise
        await context.reply(self._rendered(created, context))

    async def list(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/messages/batches``."""
        store, query = _store_of(serving, context), context.query
        limit, after, before = page_of(query)
        found = await store.batches(_tenant(context), after=after, before=before, limit=limit + 1)
        # One more than is shown, on the side away from the named one.
        shown = found[-limit:] if before is not None and after is None else found[:limit]
        await context.reply(
            {
                "data": [self._rendered(batch, context) for batch in shown],
                "has_more": len(found) > limit,
                "first_id": shown[0].id if shown else None,
                "last_id": shown[-1].id if shown else None,
            }
        )

    async def retrieve(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/messages/batches/{id}``."""
        batch = await _store_of(serving, context).batch(_tenant(context), context.path_params["id"])
        await context.reply(self._rendered(batch, context))

    async def cancel(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/messages/batches/{id}/cancel``."""
        batch = await _store_of(serving, context).cancel(_tenant(context), context.path_params["id"])
        await context.reply(self._rendered(batch, context))

    async def results(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/messages/batches/{id}/results``."""
        store, tenant = _store_of(serving, context), _tenant(context)
        batch = await store.batch(tenant, context.path_params["id"])
        if not batch.status.is_over:
            raise BadRequest(f"Batch {batch.id} has no results before it has ended.")
        if _archived_s(batch) is not None:
            raise NotFound(f"The results of batch {batch.id} are not kept any more.")
        files = [await store.file(tenant, id) for id in (batch.output_file, batch.error_file) if id is not None]

        async def pieces() -> AsyncGenerator[bytes, None]:
            for file in files:
                async for piece in store.content(file):
                    yield piece

        headers = {"content-length": str(sum(file.bytes for file in files))}
        await context.stream(pieces(), content_type="application/x-jsonl", headers=headers)

    async def delete(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``DELETE /v1/messages/batches/{id}``."""
        id = context.path_params["id"]
        await _store_of(serving, context).delete_batch(_tenant(context), id)
        await context.reply({"id": id, "type": "message_batch_deleted"})

    def _rendered(self, batch: StoredBatch, context: RequestContext) -> dict[str, Any]:
        """Return the batch object. Its counts say what became of the requests when it has ended."""
        ended, archived = batch.ended_s, _archived_s(batch)
        url = None
        if ended is not None and archived is None:
            prefix, path, _ = context.path.partition("/v1/messages/batches")
            url = f"{context.base_url}{prefix}{path}/{batch.id}/results"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": _status(batch),
            "request_counts": _counts(batch),
            "ended_at": _time(ended),
            "created_at": _time(batch.created_s),
            "expires_at": _time(batch.expires_s),
            "archived_at": _time(archived),
            "cancel_initiated_at": _time(batch.cancelling_s),
            "results_url": url,
        }


def page_of(query: Mapping[str, str]) -> tuple[int, str | None, str | None]:
    """Return the parameters ``limit``, ``after_id`` and ``before_id`` of a list. Raises BadRequest."""
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 6 and 1 <= int(limit) <= MAX_PAGE):
        raise BadRequest(f"limit: Input should be from 1 to {MAX_PAGE}", param="limit")
    return int(limit), query.get("after_id") or None, query.get("before_id") or None


def _store_of(serving: Serving, context: RequestContext) -> BatchStore:
    """Return the store of batches. Raises NotFound where the server has none."""
    if not serving.batches.is_on:
        raise NotFound("Not found")
    return serving.batches


def _tenant(context: RequestContext) -> str:
    """Return who sees the caller's batches: the caller, in this dialect alone."""
    return f"{context.tenant}/anthropic"


def _lines(requests: tuple[dict[str, Any], ...]) -> bytes:
    """Return the requests as the input of a batch. Raises BadRequest for a ``custom_id`` that is there twice."""
    lines, seen = bytearray(), set[str]()
    for number, request in enumerate(requests):
        custom_id = request["custom_id"]
        if custom_id in seen:
            path = f"requests.{number}.custom_id"
            raise BadRequest(f"{path}: '{custom_id}' is that of an earlier request", param=path)
        seen.add(custom_id)
        lines += line_of(custom_id, request["params"])
    return bytes(lines)


def _archived_s(batch: StoredBatch) -> int | None:
    """Return since when the results of a batch are gone; None: they are there, or it has not ended."""
    if batch.ended_s is None:
        return None
    archived = batch.ended_s + batch.results_keep_s
    return archived if wall_time() >= archived else None


def _status(batch: StoredBatch) -> str:
    if batch.status.is_over:
        return "ended"
    return "in_progress" if batch.cancelling_s is None else "canceling"


def _counts(batch: StoredBatch) -> dict[str, int]:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if not batch.status.is_over:
        return counts | {"processing": batch.total}
    left = {BatchStatus.CANCELLED: "canceled", BatchStatus.EXPIRED: "expired"}.get(batch.status, "errored")
    counts |= {"succeeded": batch.completed, "errored": batch.failed}
    counts[left] += batch.total - batch.completed - batch.failed
    return counts


def _time(unix_s: int | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
