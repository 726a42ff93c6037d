"""Recording of generations as capsules: which are recorded, what of them, and the thread that writes the files.

**The rule.** Nothing is recorded unless the operator names a folder. With ``record_requests`` ``all`` every generation
is; with ``asked`` those whose HTTP request has the header ``x-dragoman-record: 1``. An answer to a request with this
header says in the same header which capsules are recorded, or ``off``. Texts are recorded only with ``record_text``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from dragoman.core import capsule as capsules
from dragoman.core.capsule import Capsule, RecordedSequence, RecordedText
from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason, TokenEvent, TokenLogprob
from dragoman.core.observer import ObservedRequest, current_request
from dragoman.core.request import EngineRequest, GenerationRequest
from dragoman.core.sampling import LogprobParams
from dragoman.core.user_folders import expand_user, make_private_folder
from dragoman.serving.model import ServedModel
from dragoman.serving.settings import RecordSettings

log = logging.getLogger(__name__)

HEADER = "x-dragoman-record"
OFF = "off"

QUEUED = 256
"""Most capsules that wait to be written; further ones are dropped."""

MOST_NAMES = 16
"""Most capsules that the header of one answer names."""

FILE = re.compile(r"\d{8}T\d{6}-[0-9a-f]{12}\.json")
_JOIN_S = 5.0
_FLOAT32 = struct.Struct("<f")


class Sink(Protocol):
    """Takes the recorded capsules."""

    def put(self, name: str, make: Callable[[], Capsule]) -> None:
        """Take a capsule, which is made when it is stored. Never blocks."""

    def counters(self) -> dict[str, float]:
        """Return what has become of the capsules, for the metrics."""


class Recorder:
    """Records the generations of all models. ``sink`` None: nothing. ``top``: alternatives that are recorded of each
    token, where a request asks for none."""

    def __init__(
        self, sink: Sink | None = None, *, only_asked: bool = False, with_text: bool = False, top: int = 0
    ) -> None:
        self._sink, self._only_asked, self._with_text, self._top = sink, only_asked, with_text, top

    def counters(self) -> dict[str, float]:
        """Return what has become of the capsules, for the metrics; nothing where none are recorded."""
        return {} if self._sink is None else self._sink.counters()

    def begin(
        self, model: ServedModel, request: GenerationRequest, submitted: EngineRequest, adapter: str
    ) -> tuple[EngineRequest, Recording | None]:
        """Return the request to submit, and its recording; None where it is not recorded.

        ``adapter``: the fingerprint of its adapter. Sets the header of the answer.
        """
        observed = current_request.get(None)
        asked = None if observed is None else observed.headers.get(HEADER)
        if self._sink is None or (self._only_asked and asked != "1"):
            if observed is not None and asked is not None:
                observed.answer_headers[HEADER] = OFF
            return submitted, None
        name = new_name()
        if observed is not None:
            _add_name(observed, name)
        logprobs = submitted.logprobs or LogprobParams(top=self._top)
        recording = Recording(self._sink, name, model, request, submitted, adapter, observed, logprobs)
        recording.with_text = self._with_text
        return msgspec.structs.replace(submitted, logprobs=logprobs), recording


class Recording:
    """One generation that is recorded: its tokens so far."""

    with_text = False

    def __init__(
        self,
        sink: Sink,
        name: str,
        model: ServedModel,
        request: GenerationRequest,
        submitted: EngineRequest,
        adapter: str,
        observed: ObservedRequest | None,
        logprobs: LogprobParams,
    ) -> None:
        self._sink, self._name, self._model, self._observed = sink, name, model, observed
        self._request, self._submitted, self._adapter, self._logprobs = request, submitted, adapter, logprobs
        self._tokens: list[list[TokenEvent]] = [[] for _ in submitted.seeds]
        self._finish: list[FinishReason | None] = [None] * len(submitted.seeds)

    def note(self, event: TokenEvent) -> TokenEvent:
        """Record a token. Return it as the request has asked for it."""
        self._tokens[event.sequence].append(event)
        if self._submitted.logprobs is not None:
            return event
        return msgspec.structs.replace(event, logprob=None, top=())

    def finish(self, sequence: int, reason: FinishReason) -> None:
        """Record the end of a sequence."""
        self._finish[sequence] = reason

    def end(self) -> None:
        """Hand over what is recorded, unless there is nothing."""
        if any(self._tokens) or any(self._finish):
            self._sink.put(self._name, self._capsule)

    def _capsule(self) -> Capsule:
        outputs = tuple(map(_sequence, self._tokens, self._finish))
        submitted = msgspec.structs.replace(self._submitted, logprobs=self._logprobs)
        text = None
        if self.with_text:
            decode = self._model.tokenizer.decode
            prompt = submitted.encoder_input or submitted.prompt
            texts = tuple(decode(output.token_ids, skip_special_tokens=False) for output in outputs)
            text = RecordedText(prompt=decode(prompt, skip_special_tokens=False), outputs=texts)
        observed = self._observed
        return Capsule(
            version=capsules.VERSION,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            environment=msgspec.structs.replace(self._model.environment, adapter=self._adapter),
            request=capsules.recorded(
                submitted,
                reported=self._submitted.logprobs is not None,
                stop=self._request.ending.stop,
                adapter=self._request.adapter,
            ),
            outputs=outputs,
            dialect="" if observed is None else observed.dialect,
            operation="" if observed is None else observed.operation,
            text=text,
        )


def _sequence(events: list[TokenEvent], finish: FinishReason | None) -> RecordedSequence:
    top: tuple[tuple[TokenLogprob, ...], ...] = tuple(event.top for event in events)
    return RecordedSequence(
        token_ids=tuple(event.token_id for event in events),
        logprobs=tuple(_shortest(event.logprob) for event in events),
        top=tuple(tuple(TokenLogprob(t.token_id, _short(t.logprob)) for t in each) for each in top) if any(top) else (),
        finish=finish,
    )


def _shortest(logprob: float | None) -> float | None:
    return None if logprob is None else _short(logprob)


def _short(logprob: float) -> float:
    """Return the shortest number that is the same in float32, which it was computed in. -inf, of a token that was
    forced against all odds, is the lowest number."""
    if logprob < -1e30:
        return -1e30
    for digits in range(6, 10):
        text = f"{logprob:.{digits}g}"
        if _FLOAT32.pack(float(text)) == _FLOAT32.pack(logprob):
            return float(text)
    return logprob


def new_name() -> str:
    """Return the name of a new capsule, which sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(6)}.json"


def _add_name(observed: ObservedRequest, name: str) -> None:
    """Name one more capsule in the header of the answer."""
    names = observed.answer_headers.get(HEADER, "").split(", ") if HEADER in observed.answer_headers else []
    if len(names) < MOST_NAMES:
        observed.answer_headers[HEADER] = ", ".join([*names, name])


class CapsuleFolder:
    """Writes capsules into a folder, in a thread of its own: files that only their owner can read, of bounded size
    together.

    ``written``, ``removed``, ``dropped``: counts since the start; those dropped were too large, or came too fast, or
    the disk refused them.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Raises DragomanError where the folder cannot be made or written to."""
        self._folder, self._max_bytes = folder, max_bytes
        self.written = self.removed = 0
        self._not_queued = self._not_written = 0
        """Each is counted by one thread."""
        self._is_dropping = False
        self._queue: queue.Queue[tuple[str, Callable[[], Capsule]] | None] = queue.Queue(QUEUED)
        self._files: deque[tuple[str, int]] = deque()
        self._bytes = 0
        try:
            make_private_folder(folder)
            self._find()
        except OSError as error:
            raise DragomanError(f"--record {folder}: {error.strerror or error}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise DragomanError(f"--record {folder}: the folder cannot be written to")
        self._thread = threading.Thread(target=self._write_on, name="dragoman-recorder", daemon=True)
        self._thread.start()

    def put(self, name: str, make: Callable[[], Capsule]) -> None:
        try:
            self._queue.put_nowait((name, make))
        except queue.Full:
            self._report_drop("capsules come faster than they are written")
            self._not_queued += 1

    @property
    def dropped(self) -> int:
        return self._not_queued + self._not_written

    def counters(self) -> dict[str, float]:
        return {
            "capsules_written": self.written,
            "capsules_removed": self.removed,
            "capsules_dropped": self.dropped,
        }

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_JOIN_S)
        self._thread.join(_JOIN_S)

    def _find(self) -> None:
        """Find the capsules of earlier starts, the oldest first."""
        for name in sorted(filter(FILE.fullmatch, os.listdir(self._folder))):
            with contextlib.suppress(FileNotFoundError):
                size = os.lstat(self._folder / name).st_size
                self._files.append((name, size))
                self._bytes += size

    def _write_on(self) -> None:
        while (item := self._queue.get()) is not None:
            name, make = item
            try:
                self._write(name, capsules.encode(make()))
            except OSError as error:
                self._report_drop(error.strerror or str(error))
                self._not_written += 1
            except Exception:
                log.exception("a capsule cannot be made")
                self._not_written += 1

    def _write(self, name: str, data: bytes) -> None:
        if len(data) > min(self._max_bytes, capsules.MOST_BYTES):
            self._report_drop(f"a capsule has {len(data)} bytes")
            self._not_written += 1
            return
        while self._files and self._bytes + len(data) > self._max_bytes:
            oldest, size = self._files.popleft()
            self._bytes -= size
            self.removed += 1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / oldest)
        unfinished = self._folder / f".{name}"
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            os.rename(unfinished, self._folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise
        self._files.append((name, len(data)))
        self._bytes += len(data)
        self.written += 1
        if self._is_dropping:
            self._is_dropping = False
            log.info("capsules are written again, in %s; %d were dropped", self._folder, self.dropped)

    def _report_drop(self, why: str) -> None:
        if not self._is_dropping:  # the first of each series
            self._is_dropping = True
            log.warning("capsules are dropped, in %s: %s", self._folder, why)


@contextlib.contextmanager
def recorder_of(settings: RecordSettings) -> Iterator[Recorder]:
    """Yield the recorder of the settings. Raises DragomanError where the folder cannot be used."""
    if settings.record is None:
        yield Recorder()
        return
    folder = CapsuleFolder(expand_user(settings.record), settings.record_bytes)
    try:
        yield Recorder(folder, only_asked=settings.record_requests == "asked", with_text=settings.record_text)
    finally:
        folder.close()
