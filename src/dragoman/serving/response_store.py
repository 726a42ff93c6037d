"""The store of responses: an SQLite file, or memory; bounded in time and size, and apart by tenant.

All of SQLite happens in one thread of the store. A file that is damaged, or of an unknown older version, is set aside
with a warning. What runs in the background is on the disk before its client is told of it, with the number of its
server: another one with the same file goes on with it when that server has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dragoman.core.decoding import UNDECODABLE
from dragoman.core.elsewhere import note_elsewhere
from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.core.responses import (
    NumberedItem,
    StoredConversation,
    StoredResponse,
)
from dragoman.serving import conversation_tables, response_tables
from dragoman.serving.expiry_clock import ExpiryClock, steady_time
from dragoman.serving.owner_lock import NOBODY, OwnerLock
from dragoman.serving.settings import ResponseSettings
from dragoman.serving.sqlite_file import Database, close, in_place, open_own, transaction
from dragoman.serving.worker_pool import start_threads

log = logging.getLogger("dragoman.server")

Result = TypeVar("Result")

LOCKED_S = 5.0
HINT = "choose another folder with --state-dir, or keep responses in memory with --responses-store memory"
LARGEST_SHARE = 8
"""A response that takes more than this part of the store is not kept."""

IN_MEMORY = ResponseSettings(responses_store="memory")


class SqliteResponseStore:
    """``core.responses.ResponseStore``.

    ``file``: None keeps everything in memory. ``clock``, ``steady``: as for ``ExpiryClock``. Counts since it was
    opened: ``expired``, ``evicted`` (for want of room), ``failures`` (the file could not be written or read);
    ``entries``: what it holds.
    """

    def __init__(
        self,
        settings: ResponseSettings = IN_MEMORY,
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_time,
    ) -> None:
        self._settings, self._clock = settings, ExpiryClock(clock, steady)
        self._file = file if settings.responses_store == "disk" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-responses")
        self._database: Database | None = None
        self._owner: OwnerLock | None = None
        self.expired = self.evicted = self.failures = 0
        self.entries = self._bytes = 0

    @property
    def is_on(self) -> bool:
        return self._settings.responses_store != "off"

    @property
    def max_background(self) -> int:
        return self._settings.responses_max_background

    def gauges(self) -> dict[str, float]:
        """Return the current content, by the names of the metrics."""
        return {"responses_stored": self.entries, "responses_stored_bytes": self._bytes}

    def counters(self) -> dict[str, float]:
        """Return the counts, by the names of the metrics."""
        return {f"responses_{name}": getattr(self, name) for name in ("expired", "evicted", "failures")}

    async def open(self) -> None:
        """Start the thread, and check the file, if there is one. Raises DragomanError where it cannot be used."""
        if self.is_on:
            start_threads(self._thread, 1)
        if self._file is None or not await asyncio.to_thread(os.path.exists, self._file):
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._look)
        except sqlite3.Error as error:
            raise DragomanError(f"{self._file} cannot be used: {error}; {HINT}") from None

    async def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(RuntimeError):  # closed before
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    async def find(self, tenant: str, id: str) -> StoredResponse | None:
        if not self.is_on:
            return None
        found = await self._run(self._find, tenant, id)
        if found is None:
            note_elsewhere()
        return found

    async def chain(self, tenant: str, id: str) -> Sequence[StoredResponse]:
        if not self.is_on:
            return ()
        found = await self._run(self._chain, tenant, id)
        if not found:
            note_elsewhere()
        return found

    async def keep(self, stored: StoredResponse, said: Sequence[tuple[str, bytes]] = ()) -> bool:
        if not self.is_on:
            return False
        try:
            return await self._run(self._keep, stored, said)
        except GenerationFailed:
            return False

    async def delete(self, tenant: str, id: str) -> bool:
        return await self._run(self._delete, tenant, id) if self.is_on else False

    async def append(self, id: str, journal: bytes) -> None:
        with contextlib.suppress(GenerationFailed):  # it only saves work after a restart
            await self._run(self._append, id, journal)

    async def journal(self, id: str) -> bytes:
        return await self._run(self._journal, id)

    async def unfinished(self) -> Sequence[StoredResponse]:
        if not self.is_on or (self._file is not None and not await asyncio.to_thread(os.path.exists, self._file)):
            return ()
        return await self._run(self._unfinished)

    @property
    def max_conversation_bytes(self) -> int:
        return self._settings.responses_max_bytes // LARGEST_SHARE

    async def keep_conversation(self, stored: StoredConversation) -> bool:
        return self.is_on and await self._run(self._keep_conversation, stored)

    async def find_conversation(self, tenant: str, id: str) -> StoredConversation | None:
        if not self.is_on:
            return None
        found = await self._run(self._find_conversation, tenant, id)
        if found is None:
            note_elsewhere()
        return found

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        return self.is_on and await self._run(self._changed, conversation_tables.delete, tenant, id)

    async def items(self, tenant: str, id: str, *, until: int | None = None) -> Sequence[NumberedItem]:
        return await self._run(self._items, tenant, id, until) if self.is_on else ()

    async def add_items(self, tenant: str, id: str, items: Sequence[tuple[str, bytes]]) -> bool:
        return self.is_on and await self._run(self._changed, conversation_tables.add, tenant, id, items)

    async def delete_item(self, tenant: str, id: str, item: str) -> bool:
        return self.is_on and await self._run(self._changed, conversation_tables.delete_item, tenant, id, item)

    async def _run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run the work in the store's thread. Raises GenerationFailed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except (sqlite3.Error, OSError, zlib.error, *UNDECODABLE, DragomanError) as error:
            self.failures += 1
            log.error("the store of responses fails: %s", error)
            raise GenerationFailed("The stored responses cannot be reached: see the server's log.") from None

    # In the store's thread -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        with transaction(self._connected()) as database:
            self._forget_old(database)
            self._count(database)

    def _find(self, tenant: str, id: str) -> StoredResponse | None:
        database = self._connected()
        found = response_tables.find(database, tenant, id, self._oldest())
        if found is not None:
            self._touch(tenant, [id])
        return found

    def _chain(self, tenant: str, id: str) -> list[StoredResponse]:
        last = self._find(tenant, id)
        if last is None:
            return []
        found = response_tables.chain(self._connected(), last)
        self._touch(tenant, [each.id for each in found])
        return found

    def _touch(self, tenant: str, ids: Sequence[str]) -> None:
        # A file that cannot be written can still be read.
        with contextlib.suppress(sqlite3.OperationalError), transaction(self._connected()) as database:
            response_tables.touch(database, tenant, ids)

    def _keep(self, stored: StoredResponse, said: Sequence[tuple[str, bytes]]) -> bool:
        state, database = response_tables.packed(stored), self._connected()
        if len(state) > self._settings.responses_max_bytes // LARGEST_SHARE:
            with transaction(database):  # what ran until now does not run for ever
                is_running = response_tables.is_running(database, stored.tenant, stored.id)
                if is_running:
                    response_tables.hide(database, stored.tenant, stored.id)
                    self._count(database)
            if said and is_running is None:
                self._changed(conversation_tables.add, stored.tenant, stored.conversation, said)
            return False
        # What runs in the background is promised: it has to be on the disk.
        database.execute(f"PRAGMA synchronous = {'FULL' if stored.is_running or stored.record else 'NORMAL'}")
        with transaction(database):
            if stored.previous and response_tables.is_running(database, stored.tenant, stored.previous) is None:
                return False
            if said and response_tables.is_running(database, stored.tenant, stored.id) is False:
                said = ()  # another server has finished it, and added what it says
            use = conversation_tables.next_use(database, stored.tenant)
            values = (stored.tenant, stored.id, stored.previous, self._clock.stamp(), use, len(state))
            database.execute(
                "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)",
                (*values, self._number() if stored.is_running else 0, state),
            )
            if not stored.is_running:
                database.execute("DELETE FROM journals WHERE id = ?", (stored.id,))
            if said:
                conversation_tables.add(database, stored.tenant, stored.conversation, said)
                conversation_tables.touch(database, stored.tenant, stored.conversation, self._clock.stamp())
            self._forget_old(database)  # what this one continues stays for it
            self._count(database)
            self._make_room(database, stored.id)
        return True

    def _delete(self, tenant: str, id: str) -> bool:
        with transaction(self._connected()) as database:
            row = database.execute(
                "SELECT 1 FROM responses WHERE tenant = ? AND id = ? AND NOT hidden", (tenant, id)
            ).fetchone()
            if row is None:
                return False
            response_tables.hide(database, tenant, id)
            self._count(database)
            return True

    def _append(self, id: str, journal: bytes) -> None:
        with transaction(self._connected()) as database:
            runs = "EXISTS (SELECT 1 FROM responses WHERE id = ?2 AND running)"  # it may be deleted by now
            database.execute(f"INSERT INTO journals (id, data) SELECT ?2, ?1 WHERE {runs}", (journal, id))

    def _journal(self, id: str) -> bytes:
        rows = self._connected().execute("SELECT data FROM journals WHERE id = ? ORDER BY number", (id,))
        return b"".join(data for (data,) in rows)

    def _unfinished(self) -> list[StoredResponse]:
        with transaction(self._connected()) as database:
            rows = database.execute(
                "SELECT tenant, id, running, state FROM responses WHERE running ORDER BY created_s, rowid"
            ).fetchall()
            own = self._number() if rows else NOBODY
            theirs = {
                number for number in {row[2] for row in rows} if self._owner and self._owner.is_other_alive(number)
            }
            found = [row for row in rows if row[2] not in theirs]
            database.executemany(
                "UPDATE responses SET running = ? WHERE tenant = ? AND id = ?",
                [(own, tenant, id) for tenant, id, _, _ in found],
            )
            unfinished = []
            for _, id, _, state in found:
                try:
                    unfinished.append(response_tables.unpacked(state))
                except (zlib.error, *UNDECODABLE) as error:
                    log.error("response %s is damaged, and does not go on: %s", id, error)
                    database.execute("UPDATE responses SET running = 0 WHERE id = ?", (id,))
        return unfinished

    def _number(self) -> int:
        """Return what stands for this server in the rows of what it generates."""
        if self._file is None:
            return NOBODY
        if self._owner is None:
            self._owner = OwnerLock(self._file.parent, self._file.stem)
        return self._owner.number

    # Conversations ----------------------------------------------------------------------------------------------------

    def _keep_conversation(self, stored: StoredConversation) -> bool:
        with transaction(self._connected()) as database:
            self._forget_old(database)
            conversation_tables.keep(database, stored, self._clock.stamp())
            self._count(database)
            self._make_room(database, stored.id)
        return True

    def _find_conversation(self, tenant: str, id: str) -> StoredConversation | None:
        database = self._connected()
        found = conversation_tables.find(database, tenant, id, self._oldest())
        if found is not None:
            with contextlib.suppress(sqlite3.OperationalError), transaction(database):
                conversation_tables.touch(database, tenant, id, self._clock.stamp())
        return found

    def _items(self, tenant: str, id: str, until: int | None) -> list[NumberedItem]:
        return conversation_tables.items(self._connected(), tenant, id, until)

    def _changed(self, change: Callable[..., bool], tenant: str, id: str, *arguments: object) -> bool:
        """Return what a change of a conversation returns, in a transaction of its own."""
        with transaction(self._connected()) as database:
            is_changed = change(database, tenant, id, *arguments)
            conversation_tables.touch(database, tenant, id, self._clock.stamp())
            self._count(database)
            self._make_room(database, id)
            return is_changed

    # Room -------------------------------------------------------------------------------------------------------------

    def _oldest(self) -> float:
        """Return the time at which responses that expire now were made."""
        return self._clock.now() - self._settings.responses_ttl_s

    def _forget_old(self, database: sqlite3.Connection) -> None:
        rows = database.execute(
            "SELECT tenant, id FROM responses WHERE created_s <= ? AND NOT hidden AND NOT running", (self._oldest(),)
        ).fetchall()
        for tenant, id in rows:
            response_tables.hide(database, tenant, id)
            self.expired += 1
        self.expired += conversation_tables.delete_old(database, self._oldest())

    def _make_room(self, database: sqlite3.Connection, newest: str) -> None:
        """Remove the least recently used responses and conversations of the tenant with the most, so that none
        displaces those of others. What runs, and what others continue, stays."""
        limits = self._settings
        while self.entries > limits.responses_max_entries or self._bytes > limits.responses_max_bytes:
            size = "entries" if self.entries > limits.responses_max_entries else "bytes"
            for tenant in response_tables.tenants_by(database, size):
                found = response_tables.least_used(database, tenant, newest)
                if found is not None:
                    id, is_conversation = found
                    if is_conversation:
                        conversation_tables.delete(database, tenant, id)
                    else:
                        response_tables.remove(database, tenant, id)
                    self.evicted += 1
                    self._count(database)
                    break
            else:
                return

    def _count(self, database: sqlite3.Connection) -> None:
        self.entries, self._bytes = response_tables.sums(database)

    def _connected(self) -> Database:
        self._database = in_place(self._database)
        if self._database is None:
            self._leave()
            self._database = open_own(self._file, response_tables.prepare, locked_s=LOCKED_S, hint=HINT)
        return self._database

    def _disconnect(self) -> None:
        close(self._database)
        self._database = None
        self._leave()

    def _leave(self) -> None:
        """Let other servers go on with what this one generates."""
        if self._owner is not None:
            self._owner.close()
            self._owner = None
