"""The store of conversations: apart by tenant, bounded with the responses, and added to together with a response."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from opened_responses import NOW, opened

from dragoman.core.errors import DragomanError
from dragoman.core.responses import MAX_CHAIN_BYTES, ChainTooLong, StoredConversation, StoredResponse
from dragoman.serving.response_store import SqliteResponseStore

pytestmark = pytest.mark.anyio


def conversation(id: str, tenant: str = "a", metadata: bytes = b"{}") -> StoredConversation:
    return StoredConversation(id=id, tenant=tenant, created_s=NOW, metadata=metadata)


def response(id: str, conversation: str = "", **more: Any) -> StoredResponse:
    fields: dict[str, Any] = {"input": b"[]", "response": b"{}", "created_s": NOW} | more
    return StoredResponse(id=id, tenant="a", conversation=conversation, **fields)


async def ids(store: SqliteResponseStore, id: str = "c", **which: Any) -> list[str]:
    return [item.id for item in await store.items("a", id, **which)]


async def test_a_conversation_comes_back_after_a_start(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    async with opened(file) as store:
        assert await store.keep_conversation(conversation("c"))
        assert await store.add_items("a", "c", [("1", b"one"), ("2", b"two")])
    async with opened(file) as store:
        found = await store.find_conversation("a", "c")
        assert found is not None
        assert found.bytes > 0
        assert [(item.id, item.data) for item in await store.items("a", "c")] == [("1", b"one"), ("2", b"two")]
        assert await store.keep_conversation(conversation("c", metadata=b'{"a":"b"}'))
        assert await ids(store) == ["1", "2"], "its metadata alone are replaced"


async def test_other_tenants_find_nothing() -> None:
    async with opened() as store:
        await store.keep_conversation(conversation("c"))
        await store.add_items("a", "c", [("1", b"one")])
        assert await store.find_conversation("b", "c") is None
        assert list(await store.items("b", "c")) == []
        assert not await store.add_items("b", "c", [("2", b"two")])
        assert not await store.delete_item("b", "c", "1")
        assert not await store.delete_conversation("b", "c")
        assert await ids(store) == ["1"]


async def test_a_response_and_what_it_says_are_kept_together() -> None:
    async with opened() as store:
        await store.keep_conversation(conversation("c"))
        await store.add_items("a", "c", [("1", b"one")])
        (first,) = await store.items("a", "c")
        assert await store.keep(response("r", "c"), [("2", b"two"), ("3", b"three")])
        assert await ids(store) == ["1", "2", "3"]
        assert await ids(store, until=first.number) == ["1"]
        assert await store.keep(response("s", "gone"), [("4", b"four")]), "its conversation was deleted meanwhile"


async def test_two_servers_with_one_store_add_what_a_response_says_once(tmp_path: Path) -> None:
    """After a start another server may go on with a response that the first one still generates."""
    file = tmp_path / "responses.sqlite3"
    async with opened(file) as store, opened(file) as other:
        await store.keep_conversation(conversation("c"))
        assert await store.keep(response("r", "c", is_running=True))
        assert await other.keep(response("r", "c"), [("1", b"one")])
        assert await store.keep(response("r", "c"), [("1", b"one")])
        assert await ids(store) == ["1"]


async def test_an_item_is_deleted_once() -> None:
    async with opened() as store:
        await store.keep_conversation(conversation("c"))
        await store.add_items("a", "c", [("1", b"a"), ("1", b"b")])
        assert await store.delete_item("a", "c", "1")
        assert [item.data for item in await store.items("a", "c")] == [b"b"]
        assert await store.delete_conversation("a", "c")
        assert await store.find_conversation("a", "c") is None
        assert await ids(store) == []


async def test_a_conversation_expires_after_its_last_use() -> None:
    now = NOW
    async with opened(clock=lambda: now, responses_ttl_s=100) as store:
        await store.keep_conversation(conversation("c"))
        for _ in range(3):
            now += 60
            assert await store.find_conversation("a", "c") is not None
        now += 101
        assert await store.find_conversation("a", "c") is None
        await store.keep(response("r", created_s=now))
        assert (store.entries, store.expired) == (1, 1)


async def test_both_leave_for_want_of_room() -> None:
    async with opened(responses_max_entries=2) as store:
        await store.keep_conversation(conversation("c"))
        await store.keep(response("r"))
        await store.keep(response("s"))
        assert await store.find_conversation("a", "c") is None
        await store.keep_conversation(conversation("d"))
        assert await store.find("a", "r") is None
        assert (await store.find("a", "s"), store.entries, store.evicted) == (response("s"), 2, 2)


async def test_those_of_the_tenant_with_the_most_leave_first() -> None:
    async with opened(responses_max_entries=3) as store:
        await store.keep_conversation(conversation("x", tenant="b"))
        await store.keep_conversation(conversation("c"))
        await store.keep(response("r"))
        await store.keep(response("s"))
        assert await store.find_conversation("a", "c") is None, "the least used of the one with three"
        assert await store.find_conversation("b", "x") is not None, "used longest ago, but of another"


async def test_a_conversation_with_too_much_text_is_not_read() -> None:
    async with opened(responses_max_bytes=1 << 30) as store:
        await store.keep_conversation(conversation("c"))
        await store.add_items("a", "c", [(str(i), bytes(MAX_CHAIN_BYTES // 4)) for i in range(4)])
        assert len(await store.items("a", "c")) == 4
        await store.add_items("a", "c", [("5", b"1")])
        with pytest.raises(ChainTooLong):
            await store.items("a", "c")
        assert await store.delete_item("a", "c", "5")
        assert len(await store.items("a", "c")) == 4


async def test_what_a_response_says_is_added_where_it_is_too_large() -> None:
    text = random.Random(1).randbytes(200_000)
    async with opened(responses_max_bytes=1 << 20) as store:
        await store.keep_conversation(conversation("c"))
        assert not await store.keep(response("r", "c", response=text), [("1", b"one")])
        assert await ids(store) == ["1"]
        assert await store.keep(response("s", "c", is_running=True))
        assert not await store.keep(response("s", "c", response=text), [("2", b"two")])
        assert await ids(store) == ["1"], "one in the background ends as a failure"


async def test_a_file_without_conversations_gets_them(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    async with opened(file) as store:
        await store.keep(response("r"))
    database = sqlite3.connect(file)
    database.executescript("DROP TABLE conversations; DROP TABLE conversation_items; PRAGMA user_version = 1;")
    database.close()
    async with opened(file) as store:
        assert await store.find("a", "r") == response("r")
        assert await store.keep_conversation(conversation("c"))
    assert sorted(each.name for each in tmp_path.iterdir()) == [file.name], "it is not set aside"


async def test_a_file_of_a_newer_release_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite3"
    async with opened(file) as store:
        await store.keep(response("r"))
    database = sqlite3.connect(file)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(DragomanError, match="its tables are of version 99"):
        async with opened(file):
            pass
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


async def test_nothing_is_kept_where_the_operator_wants_nothing() -> None:
    async with opened(responses_store="off") as store:
        assert not await store.keep_conversation(conversation("c"))
        assert await store.find_conversation("a", "c") is None
        assert not await store.add_items("a", "c", [("1", b"one")])
