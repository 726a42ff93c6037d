"""Stored responses by their ids and those of their items: chains, references, and the lists of input items."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.core.errors import BadRequest, NotFound
from dragoman.core.responses import (
    MAX_CHAIN,
    MAX_CHAIN_BYTES,
    ChainTooLong,
    NumberedItem,
    ResponseStore,
    StoredResponse,
)
from dragoman.dialects.field_types import FieldError, FieldRule
from dragoman.dialects.openai.errors import InvalidRequest, ObjectNotFound
from dragoman.dialects.openai.responses.content import (
    CALLS,
    MESSAGE,
    REASONING,
    REFERENCE,
    RESULTS,
    TEXTS,
    Placed,
    reasoning_text,
)
from dragoman.dialects.openai.responses.fields import MAX_ITEMS
from dragoman.dialects.openai.responses.response import COMPLETED, INCOMPLETE, RESPONSE_ID
from dragoman.dialects.reasoning import MAX_HIDDEN_CHARS

_ITEM_ID = re.compile(r"[a-z]{2,8}_([0-9a-f]{32})_(i?)[0-9]{1,6}")

PREFIXES = {
    MESSAGE: "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    REASONING: "rs",
}
PAGE, MAX_PAGE = 20, 100
"""Items of a list: where the request does not say, and at most."""
DECODED_AT_ONCE = 1 << 16
"""Bytes of items that are decoded before others have their turn."""


def not_found(id: str) -> NotFound:
    """Return the error of a response that is not there, or is another key's."""
    return ObjectNotFound(f"Response with id '{id[:128]}' not found.")


def item_not_found(id: str, *, param: str | None = None) -> NotFound:
    """Return the error of an item that is not in a list."""
    return ObjectNotFound(f"Item with id '{id[:128]}' not found.", param=param)


async def chain_items(store: ResponseStore, tenant: str, previous: str) -> list[Placed]:
    """Return the items of a response and of those before it, the oldest first.

    Raises BadRequest where it is not there or has no end that can be continued.
    """
    param = "previous_response_id"
    chain = await _chain(store, tenant, previous, param)
    if not chain:
        message = f"Previous response with id '{previous[:128]}' not found."
        raise InvalidRequest(message, param=param, code="previous_response_not_found")
    status = msgspec.json.decode(chain[-1].response)["status"]
    if status not in (COMPLETED, INCOMPLETE):
        raise InvalidRequest(f"Previous response with id '{previous[:128]}' has status '{status}'.", param=param)
    before = await _conversation_before(store, chain, param)
    size = sum(each.text_bytes for each in chain) + sum(len(item.data) for item in before)
    if len(chain) >= MAX_CHAIN or size > MAX_CHAIN_BYTES:
        raise _too_long(param)
    return [Placed(item, (param,)) for item in await _items_of_all(before, chain, param)]


async def conversation_items(
    store: ResponseStore, tenant: str, id: str, *, until: int | None = None
) -> Sequence[NumberedItem]:
    """Return the items of a conversation, those up to a number. Raises ChainTooLong where they are too many or too
    large."""
    found = await store.items(tenant, id, until=until)
    if len(found) > MAX_ITEMS:
        raise ChainTooLong
    return found


async def decoded(items: Sequence[NumberedItem]) -> list[dict[str, Any]]:
    """Return the items of a conversation as they are read. In between others have their turn."""
    read, since = [], 0
    for item in items:
        read.append(msgspec.json.decode(item.data))
        since += len(item.data)
        if since > DECODED_AT_ONCE:
            await asyncio.sleep(0)
            since = 0
    return read


async def _conversation_before(
    store: ResponseStore, chain: Sequence[StoredResponse], param: str | None
) -> Sequence[NumberedItem]:
    """Return the items of the conversation that the first response of a chain has continued, as far as they are still
    there. Raises BadRequest where they are too many or too large."""
    if not chain or not chain[0].conversation:
        return ()
    first = chain[0]
    try:
        return await conversation_items(store, first.tenant, first.conversation, until=first.conversation_end)
    except ChainTooLong:
        raise _too_long(param) from None


async def input_items(store: ResponseStore, tenant: str, stored: StoredResponse) -> list[dict[str, Any]]:
    """Return the items that a response was generated from, the oldest first. Raises BadRequest."""
    chain = await _chain(store, tenant, stored.id, None)
    own: list[dict[str, Any]] = msgspec.json.decode(stored.input)
    before = await _conversation_before(store, chain, None)
    return await _items_of_all(before, chain[:-1], None) + own


async def _chain(store: ResponseStore, tenant: str, last: str, param: str | None) -> Sequence[StoredResponse]:
    try:
        return await store.chain(tenant, last)
    except ChainTooLong:
        raise _too_long(param) from None


async def _items_of_all(
    before: Sequence[NumberedItem], chain: Sequence[StoredResponse], param: str | None
) -> list[dict[str, Any]]:
    """Return the items of a conversation, and of the responses after it. Raises BadRequest where they are too many."""
    items = await decoded(before)
    for each in chain:
        items += msgspec.json.decode(each.input)
        items += msgspec.json.decode(each.response)["output"]
        if len(items) > MAX_ITEMS:
            raise _too_long(param)
        await asyncio.sleep(0)  # others have their turn: one may have megabytes
    return items


def _too_long(param: str | None) -> BadRequest:
    return InvalidRequest("The chain of responses is too long.", param=param)


class ReferenceReader:
    """Puts stored items in place of references to them. Each response is looked up once."""

    def __init__(self, store: ResponseStore, tenant: str) -> None:
        self._store, self._tenant = store, tenant
        self._hidden_left = MAX_HIDDEN_CHARS

    async def resolved(self, items: Sequence[Placed]) -> list[Placed]:
        """Return the items, with those that references mean. Raises NotFound, BadRequest."""
        named = [self._named(placed) for placed in items]
        found = await self._found(Counter(id for id in named if id is not None))
        resolved = []
        for placed, id in zip(items, named, strict=True):
            item = placed.item if id is None else found.get(id)
            if item is None and placed.type == REFERENCE:
                message = (
                    f"Item with id '{str(id)[:128]}' not found. Items are not persisted when `store` is set to false. "
                    "Try again with `store` set to true, or remove this item from your input."
                )
                raise ObjectNotFound(message, param="input")
            resolved.append(Placed(item or placed.item, placed.path))
        return resolved

    def _named(self, placed: Placed) -> str | None:
        """Return the id of the stored item that an item stands for; None: it has its content itself."""
        item, path = placed
        id = item.get("id")
        if placed.type == REFERENCE:
            if not isinstance(id, str):
                raise FieldError(FieldRule.MISSING, (*path, "id"), bound="id")
            return id
        if placed.type != REASONING or not isinstance(id, str):
            return None
        text = reasoning_text(item, path, self._hidden_left)
        if text is None:
            return id
        if item.get("encrypted_content") is not None:
            self._hidden_left -= len(text)
        return None

    async def _found(self, uses: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Return the stored items with these ids. Raises BadRequest where they are too large for as often as each is
        used."""
        wanted: dict[tuple[str, bool], set[str]] = {}
        for id in uses:
            if match := _ITEM_ID.fullmatch(id):
                wanted.setdefault((match[1], bool(match[2])), set()).add(id)
        found: dict[str, dict[str, Any]] = {}
        left = MAX_CHAIN_BYTES
        for (digits, is_input), ids in wanted.items():
            stored = await self._store.find(self._tenant, RESPONSE_ID + digits)
            if stored is None:
                continue
            listed = msgspec.json.decode(stored.input if is_input else stored.response)
            for item in listed if is_input else listed["output"]:
                id = item.get("id")
                if isinstance(id, str) and id in ids and id not in found:
                    found[id] = item
                    left -= uses[id] * len(msgspec.json.encode(item))
            if left < 0:
                message = f"The items that 'input' names have more than {MAX_CHAIN_BYTES} bytes."
                raise InvalidRequest(message, param="input")
        return found


def own_items(given: Any, resolved: Sequence[Placed], digits: str) -> bytes:
    """Return a request's own input as it is kept: every item with a type and an id. ``given``: the input, whose count
    may be less than that of ``resolved``, which the chain precedes."""
    count = 1 if isinstance(given, str) else len(given or ())
    own = resolved[len(resolved) - count :] if count else ()
    return msgspec.json.encode(kept_items(own, digits))


def kept_items(items: Sequence[Placed], digits: str) -> list[dict[str, Any]]:
    """Return items as they are listed, with all that their types require. ``digits``: a part of new ids."""
    return [_kept(placed.item, f"{digits}_i{i}") for i, placed in enumerate(items)]


def _kept(item: dict[str, Any], digits: str) -> dict[str, Any]:
    kept = dict(item)
    kind = kept["type"]
    if not isinstance(kept.get("id"), str):
        kept.pop("id", None)
        kept = {"id": f"{PREFIXES.get(kind, 'item')}_{digits}", **kept}
    if kind in (MESSAGE, *CALLS, *RESULTS) and not isinstance(kept.get("status"), str):
        kept["status"] = COMPLETED
    if kind == REASONING and not isinstance(kept.get("summary"), list):
        kept["summary"] = []
    if kind == MESSAGE:
        is_output = kept.get("role") == "assistant"
        content = kept.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        kept["content"] = [_kept_part(part, is_output=is_output) for part in parts]
    elif kind in RESULTS and isinstance(kept.get("output"), list):
        kept["output"] = [_kept_part(part, is_output=False) for part in kept["output"]]
    return kept


def _kept_part(part: dict[str, Any], *, is_output: bool) -> dict[str, Any]:
    """Return a part of a content as it is listed: a text has the type that the role of its message asks for."""
    match part.get("type"):
        case kind if kind in TEXTS and is_output:
            return {**part, "type": "output_text", "annotations": part.get("annotations") or []}
        case kind if kind in TEXTS:
            return {**part, "type": "input_text"}
        case "input_image" if part.get("detail") is None:
            return {**part, "detail": "auto"}
        case _:
            return part


class AskedPage(NamedTuple):
    """Which page of a list a request asks for. ``after``: the id of the last item that the client has."""

    limit: int
    is_ascending: bool
    after: str | None


def asked_page(query: Mapping[str, str]) -> AskedPage:
    """Return the page that a query asks for. Raises BadRequest."""
    limit = number_of(query, "limit", least=1, most=MAX_PAGE, default=PAGE)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise FieldError(FieldRule.CHOICE, ("order",), order, bound=("asc", "desc"))
    return AskedPage(limit, order == "asc", query.get("after") or None)


def number_of(query: Mapping[str, str], name: str, *, least: int, most: int | None = None, default: int) -> int:
    """Return a number of a query. Raises BadRequest."""
    value = query.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise InvalidRequest(f"Invalid '{name}': expected an integer {bounds}.", param=name, code="invalid_type")
    number = int(value)
    if number < least or (most is not None and number > most):
        raise InvalidRequest(f"Invalid '{name}': expected a value from {least} to {most}.", param=name)
    return number


def page(items: Sequence[dict[str, Any]], asked: AskedPage) -> dict[str, Any]:
    """Return a page of a list of items. Raises NotFound where ``after`` is none of them: its first page once more would
    have a client read the same items for ever."""
    listed = list(items) if asked.is_ascending else list(reversed(items))
    ids = [item.get("id") for item in listed]
    if asked.after is not None and asked.after not in ids:
        raise item_not_found(asked.after, param="after")
    first = 0 if asked.after is None else ids.index(asked.after) + 1
    shown = listed[first : first + asked.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0].get("id") if shown else None,
        "last_id": shown[-1].get("id") if shown else None,
        "has_more": first + len(shown) < len(listed),
    }
