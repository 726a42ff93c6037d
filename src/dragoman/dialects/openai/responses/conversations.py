"""Conversations: lists of items that responses continue and are added to, and the operations on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from dragoman.core.entropy import token_hex, wall_time
from dragoman.core.errors import BadRequest, NotFound
from dragoman.core.responses import ChainTooLong, NumberedItem, ResponseStore, StoredConversation, StoredResponse
from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.field import Field, Outline, Table
from dragoman.dialects.field_types import FieldError, FieldRule, ListOf
from dragoman.dialects.openai.errors import InvalidRequest, ObjectNotFound
from dragoman.dialects.openai.responses.content import (
    Placed,
    check_items,
    placed_items,
    with_files,
)
from dragoman.dialects.openai.responses.fields import ITEM, METADATA
from dragoman.dialects.openai.responses.response import COMPLETED, INCOMPLETE
from dragoman.dialects.openai.responses.stored import (
    ReferenceReader,
    asked_page,
    conversation_items,
    decoded,
    item_not_found,
    kept_items,
    page,
)
from dragoman.dialects.openai.text_files import FileReader
from dragoman.dialects.stored_files import StoredFiles

PATH = "/v1/conversations"
CONVERSATION_ID = "conv_"
MOST_ITEMS = 20
"""Most items that one call adds."""

ITEMS = Field(
    name="items",
    kind=ListOf(Outline(ITEM), maximum=MOST_ITEMS),
    note="Items, as `input` of a response has them.",
)
CONVERSATION = Table(name="conversation to create", fields=(ITEMS, METADATA))
CHANGE = Table(
    name="conversation to change",
    fields=(structs.replace(METADATA, note="At most 16 texts by name, or `null` for none; it must be there."),),
)
NEW_ITEMS = Table(name="conversation items", fields=(structs.replace(ITEMS, required=True),))


def not_found(id: str) -> NotFound:
    """Return the error of a conversation that is not there, or is another key's."""
    return ObjectNotFound(f"Conversation with id '{id[:128]}' not found.")


# In responses --------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """A conversation as a response has read it: its id, the number of its last item, and the items."""

    id: str
    end: int
    items: list[Placed]


NOTHING_READ = Read("", 0, [])


def id_of(value: str | Mapping[str, Any] | None) -> str:
    """Return the id that a request's ``conversation`` names; empty: none."""
    return str(value["id"]) if isinstance(value, Mapping) else value or ""


async def read(store: ResponseStore, tenant: str, values: Mapping[str, Any]) -> Read:
    """Return the conversation that a request continues. Raises BadRequest, NotFound."""
    id = id_of(values["conversation"])
    if not id:
        return NOTHING_READ
    if values["previous_response_id"] is not None:
        message = (
            "Mutually exclusive parameters: 'previous_response_id'. Ensure you are only providing one of: "
            "'previous_response_id' or 'conversation'."
        )
        raise InvalidRequest(message, param="previous_response_id", code="mutually_exclusive_parameters")
    found = await store.find_conversation(tenant, id)
    if found is None:
        error = not_found(id)
        error.param = "conversation"
        raise error
    _check_room(store, found)
    numbered = await _numbered(store, tenant, id)
    items = [Placed(item, ("conversation",)) for item in await decoded(numbered)]
    return Read(id, numbered[-1].number if numbered else 0, items)


def said(stored: StoredResponse) -> list[tuple[str, bytes]]:
    """Return the items that a response adds to its conversation: none before it has come to an end."""
    if not stored.conversation:
        return []
    response = msgspec.json.decode(stored.response)
    if response["status"] not in (COMPLETED, INCOMPLETE):
        return []
    return _packed([*msgspec.json.decode(stored.input), *response["output"]])


async def _numbered(store: ResponseStore, tenant: str, id: str) -> Sequence[NumberedItem]:
    """Return the items of a conversation. Raises BadRequest where they are too many or too large."""
    try:
        return await conversation_items(store, tenant, id)
    except ChainTooLong:
        raise InvalidRequest(f"The conversation '{id}' is too long: begin another one.", param="conversation") from None


def _check_room(store: ResponseStore, found: StoredConversation) -> None:
    if found.bytes >= store.max_conversation_bytes:
        message = f"The conversation '{found.id}' takes all the room that one may: begin another one."
        raise InvalidRequest(message, param="conversation")


def _packed(items: Sequence[Mapping[str, Any]]) -> list[tuple[str, bytes]]:
    return [(str(item["id"]), msgspec.json.encode(item)) for item in items]


# Operations ----------------------------------------------------------------------------------------------------------


def operations() -> tuple[Operation, ...]:
    """Return the operations."""
    one, faults = PATH + "/{id}", (not_found("conv_0"),)

    def operation(method: str, path: str, summary: str, handler: Any, table: Table | None = None) -> Operation:
        more = () if path == PATH else faults
        return Operation(method=method, path=path, summary=summary, handler=handler, table=table, faults=more)

    return (
        operation("POST", PATH, "Create a conversation.", create, CONVERSATION),
        operation("GET", one, "Return a conversation.", retrieve),
        operation("POST", one, "Replace the metadata of a conversation.", update, CHANGE),
        operation("DELETE", one, "Delete a conversation.", delete),
        operation("GET", one + "/items", "List the items of a conversation.", list_items),
        operation("POST", one + "/items", "Add items to a conversation.", add_items, NEW_ITEMS),
        operation("GET", one + "/items/{item}", "Return an item of a conversation.", retrieve_item),
        operation("DELETE", one + "/items/{item}", "Delete an item of a conversation.", delete_item),
    )


async def create(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/conversations``."""
    reading = await context.read(CONVERSATION)
    if not serving.responses.is_on:
        raise BadRequest("Conversations require a store, and this server has none.")
    items = await _new_items(serving, context, reading.values["items"])
    digits = token_hex(16)
    stored = StoredConversation(
        id=CONVERSATION_ID + digits,
        tenant=context.tenant,
        created_s=float(int(wall_time())),
        metadata=msgspec.json.encode(reading.values["metadata"] or {}),
    )
    await serving.responses.keep_conversation(stored)
    await serving.responses.add_items(context.tenant, stored.id, _packed(items))
    await context.reply(_shown(stored))


async def retrieve(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/conversations/{id}``."""
    await context.reply(_shown(await _found(serving, context)))


async def update(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/conversations/{id}``."""
    reading = await context.read(CHANGE)
    if METADATA.name not in await context.read_json():
        raise FieldError(FieldRule.MISSING, (METADATA.name,), bound=METADATA.name)
    found = await _found(serving, context)
    changed = structs.replace(found, metadata=msgspec.json.encode(reading.values["metadata"] or {}))
    await serving.responses.keep_conversation(changed)
    await context.reply(_shown(changed))


async def delete(serving: Serving, context: RequestContext) -> None:
    """Handle ``DELETE /v1/conversations/{id}``."""
    found = await _found(serving, context)
    await serving.responses.delete_conversation(context.tenant, found.id)
    await context.reply({"id": found.id, "object": "conversation.deleted", "deleted": True})


async def list_items(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/conversations/{id}/items``."""
    asked = asked_page(context.query)
    found = await _found(serving, context)
    numbered = await _numbered(serving.responses, context.tenant, found.id)
    shown = page([{"id": item.id, "number": item.number} for item in numbered], asked)
    by_number = {item.number: item for item in numbered}
    shown["data"] = await decoded([by_number[each["number"]] for each in shown["data"]])
    await context.reply(shown)


async def add_items(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/conversations/{id}/items``."""
    reading = await context.read(NEW_ITEMS)
    found = await _found(serving, context)
    _check_room(serving.responses, found)
    items = await _new_items(serving, context, reading.values["items"])
    await serving.responses.add_items(context.tenant, found.id, _packed(items))
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    await context.reply({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False})


async def retrieve_item(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/conversations/{id}/items/{item}``."""
    found, wanted = await _found(serving, context), context.path_params["item"]
    for item in await _numbered(serving.responses, context.tenant, found.id):
        if item.id == wanted:
            await context.reply(item.data)
            return
    raise item_not_found(wanted)


async def delete_item(serving: Serving, context: RequestContext) -> None:
    """Handle ``DELETE /v1/conversations/{id}/items/{item}``."""
    found, wanted = await _found(serving, context), context.path_params["item"]
    if not await serving.responses.delete_item(context.tenant, found.id, wanted):
        raise item_not_found(wanted)
    await context.reply(_shown(found))


async def _found(serving: Serving, context: RequestContext) -> StoredConversation:
    id = context.path_params["id"]
    found = await serving.responses.find_conversation(context.tenant, id)
    if found is None:
        raise not_found(id)
    return found


async def _new_items(
    serving: Serving, context: RequestContext, given: Sequence[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return items as they are kept. Raises BadRequest for what no response could read."""
    placed = await ReferenceReader(serving.responses, context.tenant).resolved(placed_items(given, "items"))
    card = serving.model(None)
    files = FileReader(StoredFiles(serving.batches, context), sees_images=card.images is not None)
    placed = await with_files(placed, files)
    check_items(placed, card)
    return kept_items(placed, token_hex(16))


def _shown(stored: StoredConversation) -> dict[str, Any]:
    return {
        "id": stored.id,
        "object": "conversation",
        "created_at": int(stored.created_s),
        "metadata": msgspec.json.decode(stored.metadata),
    }
