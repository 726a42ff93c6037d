"""Conversations in the database of responses: their tables, and the statements that read and change them."""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Sequence

from dragoman.core.responses import MAX_CHAIN_BYTES, ChainTooLong, NumberedItem, StoredConversation

SCHEMA = """
CREATE TABLE conversations (
    tenant TEXT NOT NULL, id TEXT NOT NULL, created_s REAL NOT NULL, used_s REAL NOT NULL, used_ns INTEGER NOT NULL,
    bytes INTEGER NOT NULL, metadata BLOB NOT NULL, PRIMARY KEY (tenant, id)
);
CREATE INDEX conversations_by_use ON conversations (tenant, used_ns, bytes);
CREATE INDEX conversations_by_age ON conversations (used_s);
CREATE TABLE conversation_items (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, conversation TEXT NOT NULL, id TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX items_by_conversation ON conversation_items (tenant, conversation, number);
"""


def next_use(database: sqlite3.Connection, tenant: str) -> int:
    """Return the number of a use that happens now: nanoseconds, and more than that of each earlier one of the tenant,
    of responses too. A clock that was set back would make the newest the first to leave for want of room."""
    newest = " ".join(
        f"SELECT coalesce((SELECT max(used_ns) FROM {table} WHERE tenant = ?1), 0) AS used_ns {joint}"
        for table, joint in (("responses", "UNION ALL"), ("conversations", ""))
    )
    used_ns: int = database.execute(f"SELECT max(used_ns) FROM ({newest})", (tenant,)).fetchone()[0]
    return max(time.time_ns(), used_ns + 1)


def keep(database: sqlite3.Connection, stored: StoredConversation, now_s: float) -> None:
    """Add a conversation, or replace its metadata."""
    use = next_use(database, stored.tenant)
    database.execute(
        "INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET metadata = excluded.metadata, used_s = excluded.used_s, used_ns = excluded.used_ns",
        (stored.tenant, stored.id, stored.created_s, now_s, use, len(stored.metadata), stored.metadata),
    )


def find(database: sqlite3.Connection, tenant: str, id: str, oldest_s: float) -> StoredConversation | None:
    """Return a conversation that was used after a time."""
    row = database.execute(
        "SELECT created_s, metadata, bytes FROM conversations WHERE tenant = ? AND id = ? AND used_s > ?",
        (tenant, id, oldest_s),
    ).fetchone()
    return (
        None
        if row is None
        else StoredConversation(id=id, tenant=tenant, created_s=row[0], metadata=row[1], bytes=row[2])
    )


def touch(database: sqlite3.Connection, tenant: str, id: str, now_s: float) -> None:
    """Note that a conversation is used."""
    database.execute(
        "UPDATE conversations SET used_s = ?, used_ns = ? WHERE tenant = ? AND id = ?",
        (now_s, next_use(database, tenant), tenant, id),
    )


def items(database: sqlite3.Connection, tenant: str, id: str, until: int | None) -> list[NumberedItem]:
    """Return the items of a conversation up to a number. Raises ChainTooLong where they have too many bytes."""
    rows = database.execute(
        "SELECT number, id, data FROM conversation_items WHERE tenant = ? AND conversation = ? AND number <= ? "
        "ORDER BY number",
        (tenant, id, 2**62 if until is None else until),
    )
    found, size = [], 0
    for number, item, data in rows:
        found.append(NumberedItem(number, item, zlib.decompress(data)))
        size += len(found[-1].data)
        if size > MAX_CHAIN_BYTES:
            raise ChainTooLong
    return found


def add(database: sqlite3.Connection, tenant: str, id: str, new: Sequence[tuple[str, bytes]]) -> bool:
    """Add items to a conversation. Return whether there is one."""
    rows = [(tenant, id, item, zlib.compress(data, 1)) for item, data in new]
    size = sum(len(data) for *_, data in rows)
    changed = database.execute(
        "UPDATE conversations SET bytes = bytes + ? WHERE tenant = ? AND id = ?", (size, tenant, id)
    )
    if not changed.rowcount:
        return False
    database.executemany("INSERT INTO conversation_items (tenant, conversation, id, data) VALUES (?, ?, ?, ?)", rows)
    return True


def delete_item(database: sqlite3.Connection, tenant: str, id: str, item: str) -> bool:
    """Delete the first item with an id. Return whether there was one."""
    row = database.execute(
        "SELECT number, length(data) FROM conversation_items WHERE tenant = ? AND conversation = ? AND id = ? "
        "ORDER BY number LIMIT 1",
        (tenant, id, item),
    ).fetchone()
    if row is None:
        return False
    database.execute("DELETE FROM conversation_items WHERE number = ?", (row[0],))
    database.execute("UPDATE conversations SET bytes = bytes - ? WHERE tenant = ? AND id = ?", (row[1], tenant, id))
    return True


def delete(database: sqlite3.Connection, tenant: str, id: str) -> bool:
    """Delete a conversation. Return whether there was one."""
    database.execute("DELETE FROM conversation_items WHERE tenant = ? AND conversation = ?", (tenant, id))
    return bool(database.execute("DELETE FROM conversations WHERE tenant = ? AND id = ?", (tenant, id)).rowcount)


def delete_old(database: sqlite3.Connection, oldest_s: float) -> int:
    """Delete the conversations that were not used after a time; return their number."""
    old = database.execute("SELECT tenant, id FROM conversations WHERE used_s <= ?", (oldest_s,)).fetchall()
    for tenant, id in old:
        delete(database, tenant, id)
    return len(old)
