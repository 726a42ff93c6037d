"""Responses in the database of them: their tables, and the statements that read and change them."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence

import msgspec

from dragoman.core.decoding import UNDECODABLE
from dragoman.core.responses import MAX_CHAIN, MAX_CHAIN_BYTES, ChainTooLong, StoredResponse
from dragoman.serving import conversation_tables
from dragoman.serving.sqlite_file import check_whole, table_version

VERSION = 2
WITHOUT_CONVERSATIONS = 1
"""The version before there were conversations. Their tables are added to its file."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, previous TEXT NOT NULL, created_s REAL NOT NULL, used_ns INTEGER NOT NULL,
    bytes INTEGER NOT NULL, running INTEGER NOT NULL, hidden INTEGER NOT NULL DEFAULT 0, state BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX by_previous ON responses (tenant, previous);
CREATE INDEX by_use ON responses (tenant, used_ns, bytes);
CREATE INDEX by_age ON responses (created_s);
CREATE INDEX by_running ON responses (running) WHERE running;
CREATE TABLE journals (number INTEGER PRIMARY KEY, id TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX by_response ON journals (id);
{conversation_tables.SCHEMA}
PRAGMA user_version = {VERSION};
COMMIT;
"""

_MORE_SCHEMA = f"""
BEGIN IMMEDIATE;
{conversation_tables.SCHEMA}
PRAGMA user_version = {VERSION};
COMMIT;
"""

_CHILD = "SELECT 1 FROM responses AS child WHERE child.tenant = r.tenant AND child.previous = r.id"

_LEAST_USED = (
    "SELECT * FROM (SELECT r.id, r.used_ns, 0 FROM responses AS r INDEXED BY by_use "
    f"WHERE r.tenant = ?1 AND NOT r.running AND r.id != ?2 AND NOT EXISTS ({_CHILD}) ORDER BY r.used_ns LIMIT 1) "
    "UNION ALL SELECT * FROM (SELECT id, used_ns, 1 FROM conversations INDEXED BY conversations_by_use "
    "WHERE tenant = ?1 AND id != ?2 ORDER BY used_ns LIMIT 1) ORDER BY used_ns LIMIT 1"
)
"""What a tenant has used least recently, of what may be removed for want of room, and whether it is a conversation."""

_COUNTS = "tenant, count(*) AS entries, sum(bytes) AS bytes, min(used_ns) AS used_ns"
_HELD = (
    f"SELECT {_COUNTS} FROM responses INDEXED BY by_use GROUP BY tenant UNION ALL "
    f"SELECT {_COUNTS} FROM conversations INDEXED BY conversations_by_use GROUP BY tenant"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredResponse).decode


def prepare(database: sqlite3.Connection) -> None:
    """Check the database, and make its tables where they are missing."""
    check_whole(database)
    version = table_version(database, VERSION)
    is_empty = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_empty and version not in (VERSION, WITHOUT_CONVERSATIONS):
        raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")
    database.execute("PRAGMA journal_mode = WAL")
    if is_empty:
        database.executescript(_SCHEMA)
    elif version == WITHOUT_CONVERSATIONS:
        database.executescript(_MORE_SCHEMA)


def packed(stored: StoredResponse) -> bytes:
    """Return a response as the table has it."""
    return zlib.compress(_encode(stored), 1)


def unpacked(state: bytes) -> StoredResponse:
    """Return a response of the table."""
    return _decode(zlib.decompress(state))


def without_events(stored: StoredResponse) -> StoredResponse:
    """Return what those need that continue a response."""
    return msgspec.structs.replace(stored, events=b"", record=b"")


def find(database: sqlite3.Connection, tenant: str, id: str, oldest_s: float) -> StoredResponse | None:
    """Return a response that was made after a time, or still runs."""
    row = database.execute(
        "SELECT state FROM responses WHERE tenant = ? AND id = ? AND NOT hidden AND (running OR created_s > ?)",
        (tenant, id, oldest_s),
    ).fetchone()
    return None if row is None else unpacked(row[0])


def chain(database: sqlite3.Connection, last: StoredResponse) -> list[StoredResponse]:
    """Return the responses that the last one continues, and itself, without events. Raises ChainTooLong."""
    found, text_bytes = [without_events(last)], 0
    while previous := found[-1].previous:
        row = database.execute(
            "SELECT state FROM responses WHERE tenant = ? AND id = ?", (last.tenant, previous)
        ).fetchone()
        if row is None:
            break
        found.append(without_events(unpacked(row[0])))
        text_bytes += found[-1].text_bytes
        if len(found) > MAX_CHAIN or text_bytes > MAX_CHAIN_BYTES:
            raise ChainTooLong
    return found[::-1]


def touch(database: sqlite3.Connection, tenant: str, ids: Sequence[str]) -> None:
    """Note that responses of a tenant are used."""
    use = conversation_tables.next_use(database, tenant)
    rows = [(use, tenant, id) for id in ids]
    database.executemany("UPDATE responses SET used_ns = ? WHERE tenant = ? AND id = ?", rows)


def is_running(database: sqlite3.Connection, tenant: str, id: str) -> bool | None:
    """Return whether a response runs in the background; None where there is none, not even a hidden one."""
    row = database.execute("SELECT running FROM responses WHERE tenant = ? AND id = ?", (tenant, id)).fetchone()
    return None if row is None else bool(row[0])


def hide(database: sqlite3.Connection, tenant: str, id: str) -> None:
    """Remove a response; where others continue it, keep its text for them."""
    child = database.execute(
        "SELECT 1 FROM responses WHERE tenant = ? AND previous = ? LIMIT 1", (tenant, id)
    ).fetchone()
    if child is None:
        remove(database, tenant, id)
        return
    (state,) = database.execute("SELECT state FROM responses WHERE tenant = ? AND id = ?", (tenant, id)).fetchone()
    try:
        data = packed(without_events(msgspec.structs.replace(unpacked(state), is_running=False)))
    except (zlib.error, *UNDECODABLE):
        data = state  # a damaged one must not keep later ones from being stored
    database.execute(
        "UPDATE responses SET hidden = 1, running = 0, state = ?, bytes = ? WHERE tenant = ? AND id = ?",
        (data, len(data), tenant, id),
    )
    database.execute("DELETE FROM journals WHERE id = ?", (id,))


def remove(database: sqlite3.Connection, tenant: str, id: str) -> None:
    """Remove a response that none continues, and those before it that were only kept for it."""
    while True:
        row = database.execute(
            "DELETE FROM responses WHERE tenant = ? AND id = ? RETURNING previous", (tenant, id)
        ).fetchone()
        database.execute("DELETE FROM journals WHERE id = ?", (id,))
        if row is None or not row[0]:
            return
        id = row[0]
        kept = f"SELECT 1 FROM responses AS r WHERE tenant = ? AND id = ? AND hidden AND NOT EXISTS ({_CHILD})"
        if database.execute(kept, (tenant, id)).fetchone() is None:
            return


def sums(database: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of all responses and conversations, and their bytes."""
    query = f"SELECT coalesce(sum(entries), 0), coalesce(sum(bytes), 0) FROM ({_HELD})"
    entries, held = database.execute(query).fetchone()
    return entries, held


def tenants_by(database: sqlite3.Connection, size: str) -> list[str]:
    """Return the tenants, those with the most ``entries`` or ``bytes`` first."""
    query = f"SELECT tenant FROM ({_HELD}) GROUP BY tenant ORDER BY sum({size}) DESC, min(used_ns)"
    return [tenant for (tenant,) in database.execute(query).fetchall()]


def least_used(database: sqlite3.Connection, tenant: str, newest: str) -> tuple[str, bool] | None:
    """Return the id of what a tenant has used least recently, but for the newest, and whether it is a conversation;
    None where all of it runs, or is continued."""
    row = database.execute(_LEAST_USED, (tenant, newest)).fetchone()
    return None if row is None else (row[0], bool(row[2]))
