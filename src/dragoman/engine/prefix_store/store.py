"""The prefix cache on disk, as the engine uses it: an index of what is stored, and the thread that reads and writes.

The engine's loop never waits for the disk. It looks keys up in the index, queues what is to be written as a key and a
row of memory, and hands over rows to read into. The thread copies a row before it writes it, and looks before and
after the copy whether the row still has that key: named blocks do not change, so what it writes is whole.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.engine.prefix_store import segment
from dragoman.engine.prefix_store.folder import CacheFolder, FolderError, StoredSegment
from dragoman.engine.prefix_store.index import Location, RecordIndex
from dragoman.engine.prefix_store.segment import (
    HEAD_BYTES,
    RECORD_BYTES,
    STATES,
    Record,
    SegmentError,
    SegmentWriter,
)

log = logging.getLogger("dragoman.engine")

SEGMENT_BYTES = 64 << 20
MOST_QUEUED = 1 << 16
REFRESH_S = 10.0
"""Time after which segments of other processes are looked for again, when there is something to do."""
RETRY_S = 60.0
"""Time after which writing is tried again where the disk was full or failed."""
CLOSE_S = 1.0
"""Time to write what is queued when the engine stops."""
_REST = 9.0
"""While others compute, the thread pauses so many times as long as it has read or written."""
_LONGEST_REST_S = 0.25
START_PATIENCE_S = 3.0
"""Time for which the first requests wait for the index: a long prompt takes far longer to compute."""
PATIENCE_S = 30.0
"""Time after which a sequence does not wait any longer for a disk that does not answer."""
_FIRST_BANDWIDTH = 200e6
"""Bytes in a second that the disk is taken to give before anything was read."""

Bytes = NDArray[np.uint8]
IsCurrent = Callable[[bytes, int], bool]


class Load:
    """What is read for one request: keys and the rows that they go into, in order. ``read``: which of them were."""

    __slots__ = ("is_finished", "items", "keys", "read", "started")

    def __init__(self, items: Sequence[tuple[bytes, int]]) -> None:
        self.items = items
        self.keys = frozenset(key for key, _ in items)
        self.read = [False] * len(items)
        self.is_finished = False
        self.started = time.monotonic()

    @property
    def is_awaited(self) -> bool:
        """Whether sequences still wait for it."""
        return not self.is_finished and time.monotonic() < self.started + PATIENCE_S


class Counts:
    """What the thread has done. ``bytes``: that the whole folder has."""

    __slots__ = ("bytes", "damaged", "dropped", "read_blocks", "read_bytes", "read_s", "written_bytes", "written_s")

    def __init__(self) -> None:
        self.bytes = self.damaged = self.dropped = self.read_blocks = self.read_bytes = self.written_bytes = 0
        self.read_s = self.written_s = 0.0


def checksum_of(data: Bytes) -> int:
    """Return the checksum of a record's bytes, computed by the calling thread alone."""
    return segment.checksum_of(data.data, kernels.checksum)


class PrefixStore:
    """Blocks and states of one model on disk.

    Args:
        path: the folder. limit_bytes: that it may take; None: see ``CacheFolder.limit``.
        model: digest of everything that decides the bytes of a block besides its name, 32 bytes.
        pools: the memory of each group's blocks, ``[blocks, bytes]``. states: that of the states.
        is_current: tells whether a row has the bytes of a key; called by the thread.
        label: what people know the model as.
        compares: read and write only what takes longer to compute than to read.

    Attributes:
        is_busy: set by the engine while sequences run that should not be held up.
    """

    def __init__(
        self,
        path: Path,
        limit_bytes: int | None,
        model: bytes,
        pools: Sequence[Bytes],
        states: Bytes | None,
        is_current: IsCurrent,
        *,
        label: str = "",
        compares: bool = True,
    ) -> None:
        self._label, self._compares = label, compares
        self._path, self._limit_bytes, self._model = path, limit_bytes, model.hex()
        self._rows: dict[int, Bytes] = dict(enumerate(pools))
        if states is not None:
            self._rows[STATES] = states
        self._is_current = is_current
        row_bytes = {group: rows.shape[1] for group, rows in self._rows.items()}
        self._index = RecordIndex(self._model, row_bytes, self._report)
        self._reported: set[str] = set()
        self._queue: dict[bytes, tuple[int, float, int]] = {}
        self._loads: deque[Load] = deque()
        self._changed = threading.Condition()
        self._finished = threading.Event()
        self._folder: CacheFolder | None = None
        self._writer: SegmentWriter | None = None
        self._segment_bytes = SEGMENT_BYTES
        self._costs: dict[StoredSegment, float] = {}
        self._refreshed = 0.0
        self._closing_at: float | None = None
        self._is_open, self._ready = True, False
        self._writes_again_at = 0.0
        """When the disk that took no more is tried again, in seconds of the monotonic clock."""
        self._is_failing = False
        self._bandwidth = _FIRST_BANDWIDTH
        self._seconds_per_token = 0.0
        self.is_busy = False
        self.counts = Counts()
        self._asked_at = 0.0
        largest = max((rows.shape[1] for rows in self._rows.values()), default=0)
        self._buffer = np.empty(largest, np.uint8)
        self._thread = threading.Thread(target=self._run, name="prefix-store", daemon=True)
        self._thread.start()

    # For the engine --------------------------------------------------------------------------------------------------

    @property
    def is_starting(self) -> bool:
        """Whether the index is not complete yet, for ``START_PATIENCE_S`` at most after it was first asked for."""
        self._asked_at = self._asked_at or time.monotonic()
        return not self._ready and time.monotonic() < self._asked_at + START_PATIENCE_S

    @property
    def records(self) -> int:
        """Number of blocks and states that are stored for this model."""
        return len(self._index)

    def has(self, key: bytes) -> bool:
        """Return whether a record is stored, and can be read into a row. Blocks of no bytes always can."""
        return key in self._index or not self._rows[key[0]].shape[1]

    def nbytes(self, keys: Iterable[bytes]) -> int:
        """Return the bytes to read for these keys."""
        return sum(record.nbytes for record in self._index.records(keys))

    def is_cheaper(self, tokens: int, keys: Iterable[bytes]) -> bool:
        """Return whether reading these keys takes less time than computing so many tokens.

        Both are measured: reading as it goes, computing as it goes or, before there was a prompt, when the records
        were written.
        """
        if not self._compares:
            return True
        keys = list(keys)
        compute_s = tokens * self._seconds_per_token
        if not compute_s:
            compute_s = sum(record.cost_s for record in self._index.records(keys))
        read_s = self.nbytes(keys) / self._bandwidth
        return read_s * (1 + _REST if self.is_busy else 1) < compute_s

    def note_prompt(self, seconds: float, tokens: int) -> None:
        """Take note of how long a step with so many tokens of prompts took."""
        now = seconds / tokens
        before = self._seconds_per_token
        self._seconds_per_token = 0.8 * before + 0.2 * now if before else now

    def save(self, key: bytes, row: int, tokens: int, end: int) -> None:
        """Queue a row that has so many tokens, the last of which is token ``end``, unless it is stored."""
        if key in self._index or key in self._queue or time.monotonic() < self._writes_again_at:
            return
        nbytes, cost_s = self._rows[key[0]].shape[1], tokens * self._seconds_per_token
        if not nbytes or (self._compares and nbytes / self._bandwidth > cost_s):
            return
        if len(self._queue) >= MOST_QUEUED:
            self.counts.dropped += 1
            return
        with self._changed:
            self._queue[key] = (row, cost_s, end)
            self._changed.notify()

    def load(self, items: Sequence[tuple[bytes, int]]) -> Load:
        """Begin to read records into rows, which stay the thread's until ``is_finished``."""
        load = Load(items)
        self._finished.clear()
        with self._changed:
            if self._is_open:
                self._loads.append(load)
                self._changed.notify()
            else:
                load.is_finished = True
        return load

    def wait(self, seconds: float) -> None:
        """Wait until a load is finished, or the index is complete, at most so long."""
        self._finished.wait(seconds)
        self._finished.clear()

    def close(self) -> None:
        """Write what is queued, for a second at most, and end the thread."""
        with self._changed:
            self._closing_at = time.monotonic() + CLOSE_S
            self._changed.notify()
        self._thread.join(CLOSE_S + 0.5)

    # The thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._open()
            self._ready = True
            self._finished.set()
            while self._turn():
                pass
        except FolderError as error:
            log.warning("prompts are not cached on disk: %s", error.message)
        except Exception:
            log.exception("prompts are not cached on disk any more")
        finally:
            self._end()

    def _end(self) -> None:
        self._ready, self._writes_again_at = True, math.inf
        with self._changed:
            self._is_open = False
            self._queue.clear()
            self._index.clear()
            for load in self._loads:
                load.is_finished = True
            self._loads.clear()
        self._finished.set()
        if self._writer is not None:
            self._writer.close()
        if self._folder is not None:
            self._folder.close()

    def _open(self) -> None:
        self._folder = CacheFolder(self._path)
        segments = list(self._folder.segments())
        used = self.counts.bytes = sum(segment.nbytes for segment in segments)
        limit = self._folder.limit(self._limit_bytes, used)
        record = HEAD_BYTES + RECORD_BYTES + -(-len(self._buffer) // 64) * 64
        self._segment_bytes = max(record, min(SEGMENT_BYTES, limit // 16))
        self._refresh()
        log.info(
            "prompts are cached on disk: %d blocks of this model, %d of at most %d MB, in %s",
            len(self._index), used // 1_000_000, limit // 1_000_000, self._path,
        )  # fmt: skip

    def _turn(self) -> bool:
        """Do one piece of work, or wait for one. Returns False when the thread must end."""
        with self._changed:
            while not (self._loads or self._queue or self._closing_at is not None):
                self._changed.wait()
            load = self._loads[0] if self._loads else None
            is_closing = self._closing_at is not None
            entry = next(iter(self._queue.items())) if self._queue else None
        if is_closing:
            if entry is None or self._closing_at is None or time.monotonic() > self._closing_at:
                return False
        elif load is not None:
            self._read(load)
            with self._changed:
                self._loads.popleft()
            load.is_finished = True
            self._finished.set()
            return True
        if entry is not None:
            self._write(*entry)
            with self._changed:
                self._queue.pop(entry[0], None)
        if time.monotonic() > self._refreshed + REFRESH_S and not is_closing:
            with contextlib.suppress(OSError):
                self._refresh()
        return True

    def _rest(self, took_s: float) -> None:
        if self.is_busy and self._closing_at is None:
            time.sleep(min(_LONGEST_REST_S, took_s * _REST))

    def _refresh(self) -> None:
        """Bring the index and the size of the folder up to date."""
        assert self._folder is not None
        self._refreshed = time.monotonic()
        self.counts.bytes = sum(segment.nbytes for segment in self._folder.segments())
        self._index.refresh(self._folder, self._writer.name if self._writer is not None else "")

    def _report(self, name: str, reason: str) -> None:
        """Count a damaged record or segment, and log the first of each file."""
        self.counts.damaged += 1
        if name not in self._reported:
            self._reported.add(name)
            log.warning("%s in the prefix cache on disk is damaged: %s; what it has is computed again", name, reason)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _read(self, load: Load) -> None:
        found = self._index.find(key for key, _ in load.items)
        files: dict[str, int] = {}
        counts, began, before = self.counts, time.monotonic(), (self.counts.read_bytes, self.counts.read_s)
        try:
            for place, (key, _) in enumerate(load.items):
                load.read[place] = not self._rows[key[0]].shape[1]
            places = sorted((location, place) for place, location in enumerate(found) if location is not None)
            parts: dict[str, tuple[int, int]] = {}
            for location, _ in places:
                start = parts.get(location.segment, (location.at,))[0]
                parts[location.segment] = (start, location.at + location.record.stride)
            for location, place in places:
                key, row = load.items[place]
                target = self._rows[key[0]][row]
                if self._closing_at is not None:
                    return
                started = time.monotonic()
                load.read[place] = self._read_record(key, location, target, files, parts)
                took_s = time.monotonic() - started
                self.counts.read_s += took_s
                if load.read[place]:
                    self.counts.read_blocks += 1
                    self.counts.read_bytes += len(target)
                self._rest(took_s)
            nbytes, read_s = counts.read_bytes - before[0], counts.read_s - before[1]
            if nbytes > 1 << 20:
                self._bandwidth = 0.5 * (self._bandwidth + nbytes / max(read_s, 1e-6))
                log.info(
                    "%d of %d blocks, %d MB, came from disk in %.2f s, of which %.2f s were pauses for others",
                    sum(load.read), len(load.read), nbytes // 1_000_000, time.monotonic() - began,
                    time.monotonic() - began - read_s,
                )  # fmt: skip
        finally:
            assert self._folder is not None
            for name, file in files.items():
                os.close(file)
                self._folder.note_use(self._model, name)

    def _read_record(
        self, key: bytes, location: Location, target: Bytes, files: dict[str, int], parts: dict[str, tuple[int, int]]
    ) -> bool:
        """Read one record into a row. Return whether its bytes are those that were written. ``parts``: of the segments
        from which nothing was read yet, in order, from where to where records are wanted."""
        assert self._folder is not None
        name = location.segment
        try:
            if name not in files:
                files[name] = self._folder.open_segment(self._model, name)
            if name in parts:
                self._read_ahead(files, parts, name)
            reason = segment.read_bytes(files[name], location.at, location.record, target.data, kernels.checksum)
        except FileNotFoundError:  # removed by another process, which needed the room
            self._index.forget([name])
            return False
        except (OSError, FolderError, SegmentError) as error:
            reason = getattr(error, "message", None) or str(error)
        if reason:
            self._report(name, reason)
            self._index.remove(key)
        return not reason

    def _read_ahead(self, files: dict[str, int], parts: dict[str, tuple[int, int]], name: str) -> None:
        """Have the disk read a segment's part, and that of the next one: it reads on while what has come is checked."""
        assert self._folder is not None
        start, end = parts.pop(name)
        os.posix_fadvise(files[name], start, end - start, os.POSIX_FADV_WILLNEED)
        for following, (start, end) in itertools.islice(parts.items(), 1):
            with contextlib.suppress(OSError, FolderError, SegmentError):  # its own turn tells why
                files[following] = self._folder.open_segment(self._model, following)
                os.posix_fadvise(files[following], start, end - start, os.POSIX_FADV_WILLNEED)

    # Writing ---------------------------------------------------------------------------------------------------------

    def _write(self, key: bytes, entry: tuple[int, float, int]) -> None:
        if key in self._index:
            return
        row, cost_s, end = entry
        source = self._rows[key[0]][row]
        copy = self._buffer[: len(source)]
        started = time.monotonic()
        is_current = self._is_current(key, row)
        if is_current:
            np.copyto(copy, source)
        if not is_current or not self._is_current(key, row):
            self.counts.dropped += 1
            return
        record = Record(key, len(copy), cost_s, end, checksum_of(copy))
        try:
            writer = self._writer_for(record)
            at = writer.append(record, copy.data)
        except (OSError, FolderError) as error:
            self._pause_writing(getattr(error, "message", None) or str(error))
            return
        if self._is_failing:
            self._is_failing = False
            log.info("prompts are written to %s again", self._path)
        self._index.add(Location(writer.name, at, record), writer.size)
        took_s = time.monotonic() - started
        self.counts.bytes += record.stride
        self.counts.written_bytes += record.stride
        self.counts.written_s += took_s
        self._rest(took_s)

    def _writer_for(self, record: Record) -> SegmentWriter:
        """Return the segment to append to: a new one where it is full or was removed. Raises OSError, FolderError."""
        writer = self._writer
        if writer is not None:
            is_removed = not os.fstat(writer.file).st_nlink
            if not is_removed and writer.size + record.stride <= self._segment_bytes:
                return writer
            writer.close()
            self._writer = None
            if is_removed:
                self._index.forget([writer.name])
        assert self._folder is not None
        if not self._folder.exists:
            self._folder.close()
            self._folder = CacheFolder(self._path)
            self._index.clear()
        if not self._folder.make_room(self._segment_bytes, self._limit_bytes, self._costs):
            raise OSError(errno.ENOSPC, "there is no room for another segment")
        self._refresh()
        self._writer = self._folder.new_segment(self._model, self._label)
        return self._writer

    def _pause_writing(self, reason: str) -> None:
        self._writes_again_at = time.monotonic() + RETRY_S
        if not self._is_failing:
            self._is_failing = True
            log.warning("no prompts are written to %s now: %s; what is there is still read", self._path, reason)
        if self._writer is not None and self._writer.size > HEAD_BYTES:
            self._writer.close()  # a file may be all that can grow no more
            self._writer = None
        with self._changed:
            self._queue.clear()
