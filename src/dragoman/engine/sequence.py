"""Sequences: the engine's state of one request."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Collection, Iterable

from dragoman.core.events import FinishReason, TokenLogprob
from dragoman.core.request import EngineRequest
from dragoman.engine.arrays import Float32
from dragoman.engine.beam_search.state import BeamSearch
from dragoman.engine.fair_queue import Share
from dragoman.engine.lora_slots import Adapter
from dragoman.engine.pooling import PooledText
from dragoman.engine.prefix_store.store import Load
from dragoman.engine.prompt_images import PromptImages
from dragoman.engine.prompt_inputs import EncoderInput, GivenEmbeddings
from dragoman.engine.sampling.grammar_state import GrammarState
from dragoman.engine.speculation.drafter import Drafter, DraftOwner, DraftSource


class Status(enum.IntEnum):
    """State of a sequence. Only RUNNING ones own blocks and a row of the block tables."""

    PENDING = 0
    """Waits to fork from the sequence of its group that computes the prompt."""
    WAITING = 1
    RUNNING = 2
    FINISHED = 3
    PAUSED = 4
    """Its client reads too slowly. It owns nothing; its blocks stay in the prefix cache until others need the
    memory."""


Processor = Callable[[Float32, "Sequence"], None]
"""Changes one row of logits in place, given the sequence it belongs to."""


class HeldBlocks:
    """The blocks that a running sequence holds in one group of layers.

    Attributes:
        ids: by position in the sequence; NO_BLOCK for blocks before the window.
        first: index of the first block that is not NO_BLOCK.
        shares_last: the block to be written next may have another owner: set by a fork, cleared by the first write.
    """

    __slots__ = ("first", "ids", "shares_last")

    def __init__(self, ids: list[int], first: int, *, shares_last: bool = False) -> None:
        self.ids = ids
        self.first = first
        self.shares_last = shares_last


class SequenceGroup:
    """The sequences of one request. They share the prompt: its blocks, its event, its log-probabilities."""

    __slots__ = (
        "adapter",
        "arrived_s",
        "beams",
        "cached_tokens",
        "cancelled",
        "embeddings",
        "encoder",
        "end_token_ids",
        "images",
        "is_held",
        "is_paused",
        "new_processors",
        "pooled",
        "prompt_done",
        "prompt_logprobs",
        "prompt_top",
        "queue_s",
        "request",
        "request_id",
        "search",
        "sequences",
        "stop_token_ids",
    )

    def __init__(
        self,
        request: EngineRequest,
        arrival: int,
        processors: Callable[[], tuple[Processor, ...]],
        grammar_states: Iterable[GrammarState] = (),
        adapter: Adapter | None = None,
        images: PromptImages | None = None,
    ) -> None:
        self.request = request
        self.adapter = adapter
        self.request_id = request.request_id
        self.end_token_ids = frozenset(request.end_token_ids)
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache when the prompt was first started; None before."""
        self.arrived_s = 0.0
        """Arrival time by the engine's clock."""
        self.queue_s: float | None = None
        """Seconds from its arrival to the first step that computes anything for it; None before."""
        self.is_held = False
        """It is deferrable, and there is other work: see ``deferral``."""
        self.is_paused = False
        """Its client does not read its output: see ``Scheduler.pause``."""
        self.prompt_done = False
        self.prompt_logprobs: list[float | None] = [None]
        """Known so far, one per prompt token from the first (which has none)."""
        self.prompt_top: list[tuple[TokenLogprob, ...]] = [()]
        self.embeddings = None if request.embeddings is None else GivenEmbeddings(request.embeddings)
        self.images = images
        hash_seed = _hash_seed(adapter, self.embeddings, request.cache_salt)
        self.encoder = EncoderInput(request.encoder_input, hash_seed) if request.encoder_input else None
        if self.encoder is not None:
            hash_seed = self.encoder.digest
        pooling = request.pooling
        self.pooled: PooledText | None = None
        """The vector of a text whose hidden states are pooled."""
        if pooling is not None and pooling.kind is not None:
            self.pooled = PooledText(pooling.kind, len(request.prompt))
        self.new_processors = processors
        self.sequences = [
            Sequence(self, index, arrival, processors(), hash_seed) for index in range(request.num_sequences)
        ]
        for sequence, grammar_state in zip(self.sequences, grammar_states, strict=False):
            sequence.grammar_state = grammar_state
        self.search: BeamSearch | None = None
        self.beams: list[Sequence] = []
        """The sequences of a beam search's live texts, in its order. The others are pending."""
        self.cancelled: set[int] = set()
        """Cancelled hypotheses of a beam search."""
        if request.beams is not None:
            self._search(BeamSearch(request))

    def _search(self, search: BeamSearch) -> None:
        """Begin a beam search, or continue one after its known steps."""
        self.search = search
        self.cancelled.update(place for place, finished in enumerate(self.request.finished) if finished)
        for step in self.request.beam_steps:
            search.apply(step)
        self.beams = self.sequences[: len(search.live)]
        root = self.sequences[0].grammar_state
        for sequence, beam in zip(self.beams, search.live, strict=True):
            sequence.grammar_state = root and root.copy()
            for token_id in beam.token_ids:
                sequence.append_token(token_id)

    @property
    def unfinished(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.status is not Status.FINISHED]

    def cancel(self, index: int | None) -> list[Sequence]:
        """Record the cancellation of one output, or of all (None). Return the sequences that end by it."""
        if self.search is None:
            return [sequence for sequence in self.unfinished if index is None or sequence.index == index]
        count = len(self.request.seeds)
        self.cancelled.update(range(count) if index is None else (index,))
        return self.unfinished if len(self.cancelled) == count else []

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt log-probabilities are requested and not all known yet."""
        requested = self.request.logprobs
        return requested is not None and requested.prompt and not self.prompt_done

    @property
    def cacheable_tokens(self) -> int:
        """Number of leading tokens that may come from the prefix cache: those whose logits, or hidden states, are not
        needed.

        The log-probability of prompt token i is read from the logits of token i - 1, and cached blocks have no
        logits.
        """
        if self.pooled is not None:
            return self.pooled.next_row
        if not self.wants_prompt_logprobs:
            return len(self.request.prompt) + self.request.max_tokens
        return len(self.prompt_logprobs) - 1

    @property
    def is_in_running_search(self) -> bool:
        """Return whether it is a running beam search, which cannot continue without any of its sequences."""
        return self.search is not None and any(each.status is Status.RUNNING for each in self.beams)

    def check_integrity(self, listed: Collection[int]) -> None:
        """Check the group's invariants. ``listed``: the ``id`` of all sequences that run or wait."""
        unfinished = self.unfinished
        assert unfinished, f"{self.request_id} is finished and still registered"
        is_kept_out = self.is_paused or self.is_held
        for s in unfinished:
            is_elsewhere = s.status in (Status.PENDING, Status.PAUSED)
            assert (id(s) in listed) is not is_elsewhere, f"{self.request_id} is in the wrong list"
            assert is_kept_out or s.status is not Status.PAUSED, f"{self.request_id} is paused without a reason"
        if self.search is None:
            leads = any(s.num_generated == 0 and s.status is not Status.PENDING for s in unfinished)
            is_waited_for = any(s.status is Status.PENDING for s in unfinished)
            assert not is_waited_for or leads, "sequences wait for a leader that is not there"
            return
        queued = {place for place, s in enumerate(self.beams) if id(s) in listed and s.remaining}
        expected = {place for place in range(len(self.beams)) if not self.search.has_candidates(place)}
        assert queued == expected != set(), "a beam search waits for no sequence, or for one that is not queued"
        assert len(set(map(id, self.beams))) == len(self.beams) == len(self.search.live), "beams are lost"
        assert not any(id(s) in listed for s in self.sequences if s not in self.beams), "a beam is left over"


class Sequence:
    """One continuation of a prompt: token ids, the number computed, and the blocks with their keys and values."""

    __slots__ = (
        "began_at",
        "blocks",
        "charged",
        "computed",
        "draft",
        "draft_slots",
        "drafter",
        "drafters",
        "encoded",
        "encoder_blocks",
        "grammar_state",
        "group",
        "hash_seed",
        "hashes",
        "image_values",
        "index",
        "keeps_ties",
        "load",
        "max_length",
        "mirostat",
        "order",
        "priority",
        "processors",
        "prompt_length",
        "reserved",
        "row",
        "run_blocks",
        "sampling",
        "saves",
        "saving",
        "seed",
        "share",
        "started_at",
        "state_slot",
        "status",
        "token_ids",
        "top_logprobs",
        "unwritten_runs",
        "waits_for",
    )

    def __init__(
        self, group: SequenceGroup, index: int, arrival: int, processors: tuple[Processor, ...], hash_seed: bytes = b""
    ) -> None:
        request = group.request
        place = index if request.beams is None else 0
        generated = request.generated[place] if request.generated else ()
        self.group = group
        self.index = index
        self.seed = request.seeds[place]
        self.sampling = request.sampling
        self.processors = processors
        self.grammar_state: GrammarState | None = None
        """State in the request's grammar, where it has one."""
        before = request.mirostat[place] if request.mirostat else None
        self.mirostat = 2.0 * self.sampling.mirostat_tau if before is None else before
        """Largest surprise in bits that mirostat allows the next token, adapted with every token."""
        self.top_logprobs = -1 if request.logprobs is None else request.logprobs.top
        """Alternatives to report with each token; -1: not even the token's own log-probability."""
        self.keeps_ties = request.logprobs is not None and request.logprobs.ties
        self.priority = request.priority
        self.order = (-request.priority, arrival, index)
        """Ascending order of scheduling. The last in this order is the first to be preempted."""
        self.token_ids = [*request.prompt, *generated]
        self.prompt_length = len(request.prompt)
        self.max_length = self.prompt_length + request.max_tokens
        self.hash_seed = hash_seed
        """Seed of the block hashes: sequences share blocks only with equal seeds (adapter, embeddings, cache salt)."""
        finished = request.beams is None and bool(request.finished) and request.finished[index]
        self.status = Status.FINISHED if finished else Status.PENDING
        self.computed = 0
        """Leading tokens whose keys and values are in the blocks."""
        self.blocks: list[HeldBlocks] = []
        """For each group of layers, while it runs."""
        self.encoder_blocks: list[int] = []
        """Blocks with the keys and values of the encoder's input for cross-attention, where there is one."""
        self.run_blocks: dict[int, int] = {}
        """For each run of images that it sees, where layers look at images: the first of its ``encoder_blocks``."""
        self.unwritten_runs: list[int] = []
        """Those of them that the scheduled step writes."""
        self.encoded = False
        """Whether these are written, or the scheduled step writes them."""
        self.state_slot = -1
        """Slot with the state of recurrent layers after the computed tokens, where the model has any."""
        self.draft_slots: list[int] = []
        """Slots of the states after each row of the scheduled step, where it has a draft."""
        self.saves: dict[int, int] = {}
        """Slots of the snapshots that the scheduled step makes, by their numbers of tokens."""
        self.saving: list[tuple[int, bytes]] = []
        """Snapshots that are still to be made: numbers of tokens, ascending, and names."""
        self.hashes: list[bytes] = []
        """Hash chain of the leading full blocks, as far as it was needed; see ``kv_cache.block_hash``."""
        self.image_values: dict[int, Float32] = {}
        """Embeddings of the prompt's images, by their number, that it has to compute or is computing."""
        self.load: Load | None = None
        """What was last read from disk for it, since it ran."""
        self.row = -1
        """Row of the scheduler's block tables; -1: none."""
        self.draft: list[int] = []
        """Guesses of the tokens after its newest one, verified by the scheduled step."""
        self.drafters: tuple[Drafter, ...] | None = None
        """Its sources of drafts, the first to be asked first; made with the first draft."""
        self.drafter: DraftOwner | None = None
        """The source of its newest draft."""
        self.share: Share[Sequence]
        """The caller's share that its service counts for; set by the scheduler."""
        self.charged = len(self.token_ids) if request.service else 0
        """Leading tokens whose computation its share has been charged for."""
        self.reserved = 0
        """Tokens that it was charged for when it was last admitted, before they were computed."""
        self.began_at = self.started_at = 0
        """When it was last admitted: number of its tokens, and of those computed."""
        self.waits_for: bytes | None = None
        """Hash of the block that another sequence is computing and this one waits to share."""

    def copy_from(self, parent: Sequence) -> None:
        """Take over the text of another sequence of the group; nothing of it is in this one's blocks."""
        self.token_ids = list(parent.token_ids)
        self.hashes = list(parent.hashes)
        self.processors = self.group.new_processors()
        self.grammar_state = parent.grammar_state and parent.grammar_state.copy()

    def append_token(self, token_id: int) -> None:
        """Append a token that its grammar allows and that does not complete the grammar."""
        self.token_ids.append(token_id)
        if self.grammar_state is not None:
            self.grammar_state.push(token_id)

    @property
    def adapter_slot(self) -> int:
        """Slot of its adapter; -1: it has none."""
        return -1 if self.group.adapter is None else self.group.adapter.slot

    @property
    def drafts_prediction(self) -> bool:
        """Whether its draft is from the prediction of its client."""
        return self.drafter is not None and self.drafter.source is DraftSource.PREDICTION

    @property
    def cached_prompt_tokens(self) -> int:
        """Number of prompt tokens that need not be computed, when it has just been started."""
        encoder = self.group.encoder
        if encoder is None:
            return min(self.computed, self.prompt_length)
        return len(encoder) if self.encoded else 0

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def logprob_mode(self) -> str | None:
        """Which logits the token's log-probability is computed from; None: none is requested.

        Forced tokens run no processing steps, so both kinds are the same.
        """
        requested = self.group.request.logprobs
        if requested is None:
            return None
        return "raw" if self.sampling.forced_tokens else requested.mode

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be drawn: 1 when decoding."""
        return len(self.token_ids) - self.computed

    def end_reason(self, token_id: int, complete: bool = False, *, ahead: int = 0) -> FinishReason | None:
        """Return why the sequence ends with ``token_id``, its newest token: end of text, then stop token, then length,
        unless the request checks the length first. None: it continues.

        ``complete``: nothing can follow in the grammar, which is also an end of text, whatever the token. Forced
        tokens end with the last of them. ``ahead``: 1 where the token is not appended yet.
        """
        group = self.group
        is_last = len(self.token_ids) + ahead >= self.max_length
        if self.sampling.forced_tokens and not is_last:
            return None
        if is_last and group.request.length_first:
            return FinishReason.LENGTH
        if token_id in group.end_token_ids:
            return FinishReason.EOS
        if token_id in group.stop_token_ids:
            return FinishReason.STOP_TOKEN
        if complete:
            return FinishReason.EOS
        return FinishReason.LENGTH if is_last else None


def _hash_seed(adapter: Adapter | None, embeddings: GivenEmbeddings | None, cache_salt: str) -> bytes:
    """Return the seed of the block hashes: everything besides the tokens that keys and values depend on, and who may
    share them.

    Each part is a digest of fixed length, so different parts never give the same seed.
    """
    seeds = [each.hash_seed for each in (adapter, embeddings) if each is not None]
    if cache_salt:
        seeds.append(hashlib.blake2b(cache_salt.encode(), digest_size=16, person=b"cache_salt").digest())
    return seeds[0] if len(seeds) == 1 else hashlib.blake2b(b"".join(seeds), digest_size=16).digest() if seeds else b""
