"""Messages between server and engine process: length-prefixed MessagePack structs over a socket pair."""

from __future__ import annotations

import struct
from collections import Counter

import msgspec
from msgspec import structs

from dragoman.core.events import BeamStep, EngineEvent
from dragoman.core.explanation import EngineExplanation
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import DraftVocabulary, Vocabulary
from dragoman.engine.block_events import BlockEvent
from dragoman.engine.settings import SchedulerSettings
from dragoman.models import AdapterInfo, EagleChoice, ModelInfo, ModelSettings, PackedFile

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Far above any real message: prompt log-probabilities of a whole context with twenty alternatives are 60 MB."""

_LENGTH = struct.Struct("<I")


class StubModel(msgspec.Struct, frozen=True, kw_only=True, tag="stub"):
    """Settings of the stub model, which is only arithmetic: see ``stub.StubRunner``.

    ``period``: where not 0, the token so many positions back is a likely one. ``*_token``: the token in the history
    that triggers the fault. ``encoder_context``: the longest input of its encoder; 0: it has none. ``window``: its
    logits depend on so many positions; 0: on all. ``more_pools``: of layers that see less, the window and the number of
    blocks; the logits are the same as without, unless their blocks have something else. ``num_states``: slots of a
    state that they depend on as well; 0: on none. ``own_blocks``: of a pool of own blocks; 0: there is none.
    """

    vocab_size: int = 512
    hidden_size: int = 8
    num_blocks: int = 256
    max_context: int = 2048
    encoder_context: int = 0
    window: int = 0
    more_pools: tuple[tuple[int, int], ...] = ()
    own_blocks: int = 0
    num_states: int = 0
    max_tokens: int = 256
    max_sequences: int = 32
    max_logit_rows: int = 32
    max_adapters: int = 8
    step_s: float = 0.0
    period: int = 0
    crash_token: int | None = None
    raise_token: int | None = None
    nan_token: int | None = None

    @property
    def adapter_slots(self) -> int:
        return self.max_adapters


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A model of ``dragoman.models``: ``source`` is a folder or a hub id, None the embedded model."""

    source: str | None = None
    settings: ModelSettings = ModelSettings()

    @property
    def adapter_slots(self) -> int:
        return self.settings.max_adapters


class LoadDraft(msgspec.Struct, frozen=True, kw_only=True, tag="draft"):
    """The draft model: as ``LoadModel``, and the memory that it takes."""

    source: str
    settings: ModelSettings
    nbytes: int


class LoadHead(msgspec.Struct, frozen=True, kw_only=True, tag="head"):
    """The model's own head, or an EAGLE-3 one: tokens of the longest sequences that it drafts for, and the memory that
    it takes."""

    context: int
    nbytes: int
    eagle: EagleChoice | None = None


class DiskCache(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache on disk: its folder, and the bytes that it may take; None: as the disk has room."""

    folder: str
    limit_bytes: int | None = None


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame to the process: its settings. ``threads`` None: as many as the machine has cores.
    ``processors``: what they are tied to; empty: nothing. ``nodes``: memory nodes that weights are spread over; empty:
    where they are first touched.

    ``hang_s``: a process that has work sends a message after every step. One that sends none for so long is killed,
    and its requests continue in the next. ``give_up_s``: when none could be started for so long, the engine has
    failed; 0: never. ``recovery_bytes``: maximum memory for data that outlives the process: see ``block_store``.
    ``checked``: the packed weights that the previous process verified. ``is_restart``: there was one.
    ``available_bytes``: what the model may take of what there is, where the server has planned it; None: all.
    ``report_blocks``: outputs have the events of the prefix cache. ``disk``: where prefixes are kept on disk; None:
    nowhere. ``draft``: what makes drafts.
    """

    model: StubModel | LoadModel
    scheduler: SchedulerSettings = SchedulerSettings()
    threads: int | None = None
    processors: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    hang_s: float = 60.0
    give_up_s: float = 0.0
    recovery_bytes: int = 256 * 1024 * 1024
    checked: PackedFile | None = None
    is_restart: bool = False
    available_bytes: int | None = None
    report_blocks: bool = False
    disk: DiskCache | None = None
    draft: LoadDraft | LoadHead | None = None

    def after(self, info: EngineInfo) -> WorkerSettings:
        """Return the settings of the process that follows one: requests that this one has accepted continue there, with
        the same context, whatever memory there is by then; fewer of them at once where that is less."""
        model = self.model
        if isinstance(model, LoadModel):
            context = info.model.context_tokens
            model = structs.replace(model, settings=structs.replace(model.settings, max_context=context))
        return structs.replace(
            self,
            model=model,
            checked=info.model.packed_file,
            is_restart=True,
            available_bytes=None,
            recovery_bytes=info.recovery_bytes,
        )


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a running engine, once it can generate. The context is that of prompt and output together."""

    model: ModelInfo
    vocab_size: int
    max_context: int
    block_size: int
    num_blocks: int
    """Of the layers that keep most positions."""
    kv_bytes: int = 0
    recovery_bytes: int = 0
    """As of ``WorkerSettings``, or less where the model leaves less memory."""
    max_running: int
    max_unfinished: int
    """Maximum number of unfinished sequences, waiting ones included."""
    step_tokens: int
    load_s: float
    draft: ModelInfo | None = None
    """Of the draft model, where there is one."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Gauges (now), then counters (since the process started; the client adds those of earlier processes)."""

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    """Of the layers that keep most positions."""
    free_blocks: int = 0
    """Blocks without owner, cached ones included; fewer where other layers have a smaller part of theirs left."""
    cached_blocks: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    drafted: dict[str, int] = {}
    """Tokens of drafts, by their source (``DraftSource``)."""
    accepted: dict[str, int] = {}
    """Those that were drawn."""
    encoded_images: int = 0
    found_images: int = 0
    """Images whose embeddings were kept from before."""
    image_service: int = 0
    """Prompt tokens that take about as long to compute as the images did."""
    image_s: float = 0.0
    image_cache_bytes: int = 0
    """A gauge: of embeddings that are kept."""
    busy_s: float = 0.0
    forward_s: float = 0.0
    read_bytes: int = 0
    """Bytes of weights and of cached keys and values that the steps had to read."""
    disk_records: int = 0
    """A gauge: blocks and states of the model that the prefix cache on disk has."""
    disk_bytes: int = 0
    """A gauge: of the whole folder."""
    disk_read_blocks: int = 0
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0
    disk_damaged: int = 0
    """Records and segments that were not what was written."""
    disk_dropped: int = 0
    """Blocks that memory had no room for before they were written."""
    restarts: int = 0
    """Restarts of the process; counted by the client."""

    @property
    def drafted_tokens(self) -> int:
        return sum(self.drafted.values())

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted.values())

    def after(self, past: EngineStats) -> EngineStats:
        """Return these gauges, with the counters of this process and of the ``past`` ones."""
        sums = {name: getattr(self, name) + getattr(past, name) for name in _COUNTERS}
        drafted = Counter(past.drafted) + Counter(self.drafted)
        accepted = Counter(past.accepted) + Counter(self.accepted)
        return msgspec.structs.replace(self, restarts=past.restarts, drafted=drafted, accepted=accepted, **sums)


_COUNTERS = (
    "steps",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "preemptions",
    "encoded_images",
    "found_images",
    "image_service",
    "image_s",
    "busy_s",
    "forward_s",
    "read_bytes",
    "disk_read_blocks",
    "disk_read_bytes",
    "disk_written_bytes",
    "disk_damaged",
    "disk_dropped",
)


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    request: EngineRequest


class Explain(msgspec.Struct, frozen=True, array_like=True, tag="explain"):
    """Asks what would be done with a request, which is not queued. Answered by ``Explained``, between two steps."""

    request: EngineRequest


class SetDraftVocabulary(msgspec.Struct, frozen=True, array_like=True, tag="set_draft_vocabulary"):
    """How the tokens of the draft model correspond to the model's: there are no drafts of it before."""

    vocabulary: DraftVocabulary


class SetVocabulary(msgspec.Struct, frozen=True, array_like=True, tag="set_vocabulary"):
    """Sets the vocabulary of grammars, before the first request that has one."""

    vocabulary: Vocabulary


class SetThreads(msgspec.Struct, frozen=True, array_like=True, tag="set_threads"):
    """Sets the number of computing threads, from the next step on."""

    threads: int


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Cancels a request, or one of its sequences. No answer; tokens already sent may still arrive."""

    request_id: str
    sequence: int | None = None


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Stops computing a request until ``Resume``: its events are not read. No answer."""

    request_id: str


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Continues a paused request."""

    request_id: str


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Reads the adapter in a folder, during the steps. Answered by ``AdapterLoaded`` or ``AdapterRefused``."""

    name: str
    source: str


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="unload_adapter"):
    """Removes an adapter for later requests; those that run with it finish. No answer."""

    name: str


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """Ends the process at once, even with unfinished requests."""


ToEngine = (
    Submit
    | Explain
    | SetVocabulary
    | SetDraftVocabulary
    | SetThreads
    | Cancel
    | Pause
    | Resume
    | LoadAdapter
    | UnloadAdapter
    | Shutdown
)


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """First message of a process that can generate."""

    info: EngineInfo


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """Progress before ``Ready``: the stage, and the share of the whole that is done, from 0 to 1."""

    stage: str
    share: float


class StepOutput(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """All results of one step. ``beams``: steps of beam searches, for recovery. ``blocks``: events of the prefix cache,
    where ``WorkerSettings.report_blocks`` asks for them."""

    events: list[EngineEvent]
    stats: EngineStats
    beams: list[BeamStep] = []
    blocks: list[BlockEvent] = []


class StepStarted(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """The requests of the step that starts now. Sent only when they differ from those of the step before.

    If the process dies, the client knows during which requests.
    """

    request_ids: list[str]


class AdapterLoaded(msgspec.Struct, frozen=True, array_like=True, tag="adapter"):
    """The adapter is loaded; requests may name it from now on."""

    info: AdapterInfo


class AdapterRefused(msgspec.Struct, frozen=True, array_like=True, tag="no_adapter"):
    """The adapter cannot be loaded. ``message`` is written for the client."""

    name: str
    message: str


class Explained(msgspec.Struct, frozen=True, array_like=True, tag="explained"):
    """The answer to ``Explain``."""

    request_id: str
    explanation: EngineExplanation


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The process ends with an error: it cannot start, or a step raised. ``message`` is written for the operator."""

    message: str


FromEngine = Ready | Loading | StepOutput | StepStarted | AdapterLoaded | AdapterRefused | Explained | Failed

_encode = msgspec.msgpack.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """Return the message as sent over the socket: four bytes of length, little-endian, then MessagePack."""
    payload = _encode(message)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Splits a stream of bytes into the payloads of frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether a frame has begun, and not ended."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads completed by ``data``. Raises ValueError for a length above the maximum."""
        pending, size = self._pending, _LENGTH.size
        # Usually the output of a step arrives whole and alone.
        if not pending and size <= len(data) <= MAX_FRAME_BYTES and _LENGTH.unpack_from(data)[0] == len(data) - size:
            return [data[size:]]
        pending += data
        payloads = []
        start = 0
        while len(pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(pending) < end:
                break
            payloads.append(bytes(pending[start + _LENGTH.size : end]))
            start = end
        del pending[:start]
        return payloads
