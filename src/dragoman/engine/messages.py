"""What server and engine process say to each other: length-prefixed MessagePack structs over a socket pair."""

from __future__ import annotations

import struct

import msgspec

from dragoman.core.events import BeamStep, EngineEvent
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import Vocabulary
from dragoman.engine.settings import SchedulerSettings
from dragoman.models import AdapterInfo, ModelInfo, ModelSettings, PackedFile

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Far above any message of ours: prompt log-probabilities of a whole context with twenty alternatives are 60 MB."""

_LENGTH = struct.Struct("<I")


class StubModel(msgspec.Struct, frozen=True, kw_only=True, tag="stub"):
    """A model that is only arithmetic: see ``stub.StubRunner``.

    ``period``: where not 0, the token so many places back is a likely one. ``*_token``: what happens when it is in the
    history. ``encoder_context``: the longest input of its encoder; 0: it has none. ``window``: its logits depend on so
    many positions; 0: on all.
    """

    vocab_size: int = 512
    hidden_size: int = 8
    num_blocks: int = 256
    max_context: int = 2048
    encoder_context: int = 0
    window: int = 0
    max_tokens: int = 256
    max_sequences: int = 32
    max_logit_rows: int = 32
    max_adapters: int = 8
    step_s: float = 0.0
    period: int = 0
    crash_token: int | None = None
    raise_token: int | None = None
    nan_token: int | None = None


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A model of ``dragoman.models``: ``source`` is a folder or a hub id, None the embedded model."""

    source: str | None = None
    settings: ModelSettings = ModelSettings()


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame to the process: what to run. ``threads`` None: as many as the machine has cores.

    ``hang_s``: a process that has work says something after every step. One that says nothing for so long is killed,
    and what it was computing goes on in the next. ``give_up_s``: when none could be started for so long, the engine
    has failed; 0: never. ``recovery_bytes``: most memory for what outlives the process: see ``block_store``.
    ``checked``: the packed weights that the process before this one found to be right.
    """

    model: StubModel | LoadModel
    scheduler: SchedulerSettings = SchedulerSettings()
    threads: int | None = None
    hang_s: float = 60.0
    give_up_s: float = 0.0
    recovery_bytes: int = 256 * 1024 * 1024
    checked: PackedFile | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is running, once it can generate. The context is that of prompt and output together."""

    model: ModelInfo
    vocab_size: int
    max_context: int
    block_size: int
    num_blocks: int
    max_running: int
    max_unfinished: int
    """Sequences that the engine takes at one time, waiting ones included."""
    step_tokens: int
    load_s: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Gauges (now), then counters (since the process started; the client adds up the lives of the process)."""

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    free_blocks: int = 0
    """Blocks without owner, cached ones included."""
    cached_blocks: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that were drawn."""
    busy_s: float = 0.0
    forward_s: float = 0.0
    restarts: int = 0
    """Lives that the process has lost; counted by the client."""

    def after(self, past: EngineStats) -> EngineStats:
        """These gauges, and the counters of this life and of those ``past``."""
        sums = {name: getattr(self, name) + getattr(past, name) for name in _COUNTERS}
        return msgspec.structs.replace(self, restarts=past.restarts, **sums)


_COUNTERS = (
    "steps",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "preemptions",
    "drafted_tokens",
    "accepted_tokens",
    "busy_s",
    "forward_s",
)


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    request: EngineRequest


class SetVocabulary(msgspec.Struct, frozen=True, array_like=True, tag="teach"):
    """The vocabulary that grammars are about, before the first request that has one."""

    vocabulary: Vocabulary


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Forget a request, or one of its sequences. Nothing is answered; tokens already on the way may still arrive."""

    request_id: str
    sequence: int | None = None


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Compute nothing more for a request until ``Resume``: its events are not read. Nothing is answered."""

    request_id: str


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Go on with a request that was paused."""

    request_id: str


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Read the adapter in a folder, beside the steps. Answered by ``AdapterLoaded`` or ``AdapterRefused``."""

    name: str
    source: str


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="unload_adapter"):
    """No later request gets the adapter; those that run with it finish. Nothing is answered."""

    name: str


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """Leave now, whatever is unfinished."""


ToEngine = Submit | SetVocabulary | Cancel | Pause | Resume | LoadAdapter | UnloadAdapter | Shutdown


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """First message of a process that can generate."""

    info: EngineInfo


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """Before ``Ready``: what is being done, and the share of all of it that is done, from 0 to 1."""

    stage: str
    share: float


class StepOutput(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """All that one step brought forth. ``beams``: how far beam searches have come, for a replay."""

    events: list[EngineEvent]
    stats: EngineStats
    beams: list[BeamStep] = []


class StepStarted(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """The requests of the step that starts now. Sent only when they are others than those of the step before.

    Should the process die, the client knows whose computation it died in.
    """

    request_ids: list[str]


class AdapterLoaded(msgspec.Struct, frozen=True, array_like=True, tag="adapter"):
    """From now on requests may name it."""

    info: AdapterInfo


class AdapterRefused(msgspec.Struct, frozen=True, array_like=True, tag="no_adapter"):
    """It cannot be loaded. ``message`` is written for whoever asked."""

    name: str
    message: str


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The process gives up: it cannot start, or a step raised. ``message`` is written for whoever runs the server."""

    message: str


FromEngine = Ready | Loading | StepOutput | StepStarted | AdapterLoaded | AdapterRefused | Failed

_encode = msgspec.msgpack.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """The message as it goes over the socket: four bytes of length, little-endian, then MessagePack."""
    payload = _encode(message)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream of bytes into the payloads of frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by ``data``. ValueError for a length that no message of ours has."""
        pending, size = self._pending, _LENGTH.size
        # What a step says mostly comes whole, and alone.
        if not pending and size <= len(data) <= MAX_FRAME_BYTES and _LENGTH.unpack_from(data)[0] == len(data) - size:
            return [data[size:]]
        pending += data
        payloads = []
        start = 0
        while len(pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if len(pending) < end:
                break
            payloads.append(bytes(pending[start + _LENGTH.size : end]))
            start = end
        del pending[:start]
        return payloads
