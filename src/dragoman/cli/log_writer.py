"""Writing lines to a file descriptor from a thread, so that the writer never waits for the reader."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

MAX_BYTES = 4 * 1024 * 1024
"""About 20,000 lines: ten seconds of a busy server."""
BATCH_BYTES = 64 * 1024
FLUSH_S = 2.0
"""Seconds for which the end of the process waits for a reader."""


class _Text(NamedTuple):
    """Text in the queue. ``lines``: the number of log lines that are lost with it; for a line that reports lost
    lines their number, which is counted already."""

    content: bytes
    lines: int
    is_counted: bool = False


class LogWriter:
    """Writes texts from a queue of ``max_bytes``. Text that finds no room there, or cannot be written (no process
    reads, the disk is full, the file is closed), is dropped and counted, and a line reports that when there is room
    again.

    ``note``: makes that line from a count. ``encoding``: that of the file; ``errors``: the handler for characters that
    it lacks.

    Attributes:
        dropped: lines that were not written.
    """

    def __init__(
        self,
        descriptor: int,
        note: Callable[[int], str],
        *,
        max_bytes: int = MAX_BYTES,
        encoding: str = "utf-8",
        errors: str = "backslashreplace",
    ) -> None:
        self.dropped = 0
        self.encoding, self._errors = encoding, errors
        self._descriptor, self._note, self._max_bytes = descriptor, note, max_bytes
        self._queue: deque[_Text] = deque()
        self._bytes = 0
        self._missed = 0
        """The number of dropped lines that were not reported yet."""
        self._is_writing = self._is_closed = False
        # Reentrant: the garbage collector may log while this thread has the lock.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Queue the text to be written soon, or drop it. Return at once."""
        content = text.encode(self.encoding, self._errors)
        lines = text.count("\n") or 1
        with self._changed:
            if self._bytes + len(content) > self._max_bytes or self._is_closed:
                self._drop(_Text(b"", lines))
                return
            self._tell_of_dropped()
            self._put(_Text(content, lines))
            if self._thread is None:
                self._start()

    def flush(self, limit_s: float = FLUSH_S) -> bool:
        """Wait until everything is written, for so long at most. Return whether it is."""
        end = time.monotonic() + limit_s
        with self._changed:
            while self._queue or self._is_writing:
                rest_s = end - time.monotonic()
                if rest_s <= 0:
                    return False
                if self._thread is None:
                    self._write_here(rest_s)
                else:
                    self._changed.wait(rest_s)
        return True

    def close(self, limit_s: float = FLUSH_S) -> None:
        """Write the rest, for so long at most; later texts are dropped."""
        self.flush(limit_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        """Start the thread. Where the system allows no other one (a limit of processes or of memory), write here what
        the reader takes at once: the error that tells of the limit has to be seen."""
        thread = threading.Thread(target=self._run, name="log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._write_here(0)
        else:
            self._thread = thread

    def _write_here(self, wait_s: float) -> None:
        """Write the queue from this thread, while the reader takes it. ``wait_s``: how long to wait for the reader
        before the first text."""
        while self._queue:
            with contextlib.suppress(OSError, ValueError):  # a closed file: writing drops the text
                if not select.select([], [self._descriptor], [], wait_s)[1]:
                    return
            wait_s = 0
            text = self._queue.popleft()
            self._bytes -= len(text.content)
            if not self._write_all(text.content):
                self._drop(text)

    def _put(self, text: _Text) -> None:
        self._queue.append(text)
        self._bytes += len(text.content)
        self._changed.notify_all()

    def _drop(self, text: _Text) -> None:
        self.dropped += 0 if text.is_counted else text.lines
        self._missed += text.lines

    def _tell_of_dropped(self) -> None:
        if self._missed:
            missed, self._missed = self._missed, 0
            # Should it be lost too, the next one reports the same lines.
            self._put(_Text(self._note(missed).encode(self.encoding, self._errors), missed, is_counted=True))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._is_closed:
                        return
                    self._changed.wait()
                batch: list[_Text] = []
                size = 0
                while self._queue and (not batch or size + len(self._queue[0].content) <= BATCH_BYTES):
                    batch.append(self._queue.popleft())
                    size += len(batch[-1].content)
                self._bytes -= size
                self._is_writing = True
            written = self._write_all(b"".join(text.content for text in batch))
            with self._changed:
                self._is_writing = False
                if not written:
                    for text in batch:
                        self._drop(text)
                elif not self._queue:
                    self._tell_of_dropped()
                self._changed.notify_all()

    def _write_all(self, content: bytes) -> bool:
        view = memoryview(content)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # another process that shares the descriptor made it non-blocking
                with contextlib.suppress(OSError):
                    select.select([], [self._descriptor], [], 1.0)
            except OSError:
                return False
        return True
