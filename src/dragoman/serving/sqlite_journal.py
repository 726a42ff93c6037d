"""What SQLite does not tell of its journal (https://sqlite.org/fileformat.html#the_write_ahead_log): where a page of it
is damaged, it takes that for the journal's end, and what was committed after it is lost without a word."""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path

log = logging.getLogger("dragoman.server")

HEADER_BYTES = 32
FRAME_BYTES = 24
"""Of the head of a frame, which is before its page."""
MOST_BYTES = 64 << 20
"""Longer journals are not checked."""

LITTLE_ENDIAN, BIG_ENDIAN = 0x377F0682, 0x377F0683


def note_lost_commits(file: Path) -> bool:
    """Return whether commits in the journal of a database are lost. That is told, and the journal is kept beside it.

    To be called before the database is opened to write it, since that begins a new journal.
    """
    journal = file.with_name(f"{file.name}-wal")
    try:
        if not HEADER_BYTES < journal.stat().st_size <= MOST_BYTES:
            return False
        before = journal.read_bytes()
        committed = committed_frames(before)
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as database:
            found = _recovered_frames(database)
            if committed is not None and found >= committed:
                return False
            if journal.exists() and _header(journal) != before[:HEADER_BYTES]:
                return False  # another server has begun a new one
    except (OSError, sqlite3.OperationalError):  # opening it tells why
        return False
    kept = file.with_name(f"{file.name}.{time.strftime('%Y%m%dT%H%M%S')}-wal")
    try:
        with os.fdopen(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
            copy.write(before)
        where = f"the journal is kept as {kept}"
    except OSError as error:
        where = f"the journal cannot be kept: {error.strerror}"
    log.error("the journal of %s is damaged, and what was written last is lost; %s", file, where)
    return True


def committed_frames(journal: bytes) -> int | None:
    """Return the number of frames up to the last one that ends a transaction; None where the header is damaged."""
    magic, _, page_bytes = struct.unpack(">3I", journal[:12])
    if magic not in (LITTLE_ENDIAN, BIG_ENDIAN):
        return None
    words = struct.unpack("<6I" if magic == LITTLE_ENDIAN else ">6I", journal[:24])
    first = second = 0
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    if journal[24:HEADER_BYTES] != struct.pack(">2I", first, second):
        return None
    salts, committed = journal[16:24], 0
    step = FRAME_BYTES + page_bytes
    for number, at in enumerate(range(HEADER_BYTES, len(journal) - step + 1, step), 1):
        ends_transaction = journal[at + 4 : at + 8] != bytes(4)
        if ends_transaction and journal[at + 8 : at + 16] == salts:  # others are left from an earlier journal
            committed = number
    return committed


def _recovered_frames(database: sqlite3.Connection) -> int:
    """Return how many frames SQLite finds in the journal. Raises sqlite3.OperationalError where nobody can tell now."""
    try:
        return int(database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:  # all of the database is damaged, and closing it removes the journal
        return 0


def _header(journal: Path) -> bytes:
    with journal.open("rb") as opened:
        return opened.read(HEADER_BYTES)
