"""Random requests, engines to run them on, and what came of each: the vocabulary of this room's tests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dragoman.core.events import EngineEvent, FinishEvent, FinishReason, PromptEvent, TokenEvent, TokenLogprob
from dragoman.core.request import EngineRequest, PromptEmbeddings
from dragoman.core.sampling import BeamParams, LogprobParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.messages import StubModel
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.stub import StubRunner
from dragoman.engine_client.recovery import InFlightRequest


@dataclass
class Transcript:
    """Everything a client can learn of one request that does not depend on how it was run."""

    tokens: dict[int, list[tuple[int, float | None, tuple[TokenLogprob, ...]]]] = field(default_factory=dict)
    finish: dict[int, FinishReason] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    prompt_logprobs: tuple[float | None, ...] = ()
    prompt_top: tuple[tuple[TokenLogprob, ...], ...] = ()

    def add(self, event: EngineEvent) -> None:
        if isinstance(event, PromptEvent):
            assert not self.tokens, "the prompt's event comes before any token"
            self.prompt_logprobs, self.prompt_top = event.logprobs, event.top
            return
        assert event.sequence not in self.finish, "nothing comes after the end of a sequence"
        if isinstance(event, TokenEvent):
            tokens = self.tokens.setdefault(event.sequence, [])
            assert event.index == len(tokens), "tokens come in order, each once"
            tokens.append((event.token_id, event.logprob, event.top))
            if event.score is not None:
                self.scores[event.sequence] = event.score
        if event.finish is not None:
            self.finish[event.sequence] = event.finish

    def of(self, sequence: int) -> tuple[Any, ...]:
        return self.tokens.get(sequence, []), self.finish.get(sequence), self.prompt_logprobs, self.prompt_top

    def ids(self, sequence: int = 0) -> list[int]:
        return [token_id for token_id, _, _ in self.tokens.get(sequence, [])]


def run(engine: Engine, requests: Iterable[EngineRequest], max_steps: int = 100_000) -> dict[str, Transcript]:
    """Submit everything and step to the end, the engine's books checked after each step."""
    output_processors = {}
    for request in requests:
        output_processors[request.request_id] = Transcript()
        engine.submit(request)
    for _ in range(max_steps):
        if not engine.has_work:
            return output_processors
        step(engine, output_processors)
    raise AssertionError(f"work is left after {max_steps} steps")


def step(engine: Engine, output_processors: dict[str, Transcript]) -> None:
    for event in engine.step().events:
        output_processors[event.request_id].add(event)
    check_integrity(engine.scheduler)


def run_alone(runner: Runner, request: EngineRequest) -> Transcript:
    """The reference: nothing beside it, no cache, no drafts, the whole prompt in as few steps as the runner allows."""
    engine = Engine(runner, SchedulerSettings(prefix_cache=False, speculation=0))
    return run(engine, [request])[request.request_id]


def through_preemptions_and_deaths(request: EngineRequest, start: Callable[[], Engine]) -> tuple[Transcript, int]:
    """What a request of low priority is told by engines that each end after a few steps, and how often it is preempted.

    ``start``: a new engine, with memory for one long text at most. In each a long prompt takes all of it.
    """
    told, unfinished, rng = Transcript(), InFlightRequest(request), random.Random(5)
    preemptions = 0
    while not unfinished.is_over:
        engine = start()
        intruder = msgspec.structs.replace(
            request, request_id="long", prompt=(1,) * 200, priority=3, max_tokens=4, grammar=None
        )
        engine.submit(unfinished.as_replay())
        for turn in range(rng.randint(4, 12)):
            if turn == 2:
                engine.submit(intruder)
            for event in engine.step().events:
                if event.request_id == request.request_id and unfinished.accept(event):
                    told.add(event)
        preemptions += engine.scheduler.preemptions
    return told, preemptions


class Hypothesis(NamedTuple):
    """What a beam search found."""

    token_ids: tuple[int, ...]
    finish: FinishReason
    score: float | None


def hypotheses(events: Iterable[EngineEvent], request: EngineRequest) -> list[Hypothesis]:
    """In the order of the answer."""
    tokens: list[list[int]] = [[] for _ in request.seeds]
    ends: dict[int, Hypothesis] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            tokens[event.sequence].append(event.token_id)
        if not isinstance(event, PromptEvent) and event.finish is not None:
            score = event.score if isinstance(event, TokenEvent) else None
            ends[event.sequence] = Hypothesis(tuple(tokens[event.sequence]), event.finish, score)
    return [ends[index] for index in range(len(request.seeds))]


def run_beams(runner: Runner, request: EngineRequest) -> list[EngineEvent]:
    """All events of one search, run alone, the engine's books checked after each step."""
    engine, events = Engine(runner), list[EngineEvent]()
    engine.submit(request)
    while engine.has_work:
        events += engine.step().events
        check_integrity(engine.scheduler)
    assert all(group.cache.available == group.cache.num_blocks for group in engine.scheduler.tables.groups)
    return events


class Limited:
    """A runner that admits to less than it has: fewer blocks, fewer rows."""

    def __init__(self, runner: Runner, **limits: int) -> None:
        self.run = runner.run
        self.encode, self.write_image = runner.encode, runner.write_image
        self.copy_blocks, self.copy_states = runner.copy_blocks, runner.copy_states
        self.load_adapter, self.unload_adapter = runner.load_adapter, runner.unload_adapter
        self.max_adapters = runner.max_adapters
        self.tower, self.image_cache_bytes = runner.tower, limits.get("image_cache_bytes", runner.image_cache_bytes)
        self._runner = runner
        for name in (*_SIZES, *_STEP_LIMITS):
            value = getattr(runner, name)
            setattr(self, name, min(value, limits.get(name, value)))
        most = limits.get("num_blocks", 1 << 30)
        self.pools = [pool._replace(blocks=min(pool.blocks, most)) for pool in runner.pools]

    @property
    def read_bytes(self) -> int:
        return self._runner.read_bytes


_SIZES = ("vocab_size", "hidden_size", "block_size", "max_context", "encoder_context", "causal")
_STEP_LIMITS = ("max_tokens", "max_sequences", "max_logit_rows", "num_states")


def stub(**settings: Any) -> StubRunner:
    return StubRunner(StubModel(**settings))


def random_prompt(rng: random.Random, vocab_size: int, longest: int) -> tuple[int, ...]:
    """Some at random; some of a few whole blocks in any order, so that blocks are shared, and look alike elsewhere."""
    length = rng.randint(1, longest)
    if rng.random() < 0.5 or longest < 64:
        return tuple(rng.randrange(vocab_size) for _ in range(length))
    blocks = [random.Random(name).choices(range(vocab_size), k=32) for name in rng.choices("abc", k=longest // 32)]
    return tuple(token_id for block in blocks for token_id in block)[: rng.choice([length, 32, 64, longest])]


def random_sampling(rng: random.Random, vocab_size: int) -> SamplingParams:
    """Every parameter on in some, off in most."""
    biased = rng.sample(range(vocab_size), 3)
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 1.0, 1.8]),
        top_k=rng.choice([0, 0, 1, 5, 40]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.3]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.8]),
        presence_penalty=rng.choice([0.0, 0.0, -0.5, 1.1]),
        logit_bias=rng.choice([{}, {}, {biased[0]: 5.0, biased[1]: -100.0, biased[2]: 0.25}]),
        typical_p=rng.choice([1.0, 1.0, 0.6]),
        xtc_probability=rng.choice([0.0, 0.0, 0.5]),
        banned_phrases=rng.choice([(), (), tuple(tuple(rng.choices(range(vocab_size), k=1 + i)) for i in range(2))]),
        no_repeat_ngram_size=rng.choice([0, 0, 0, 2]),
        dry_multiplier=rng.choice([0.0, 0.0, 0.8]),
        dry_penalty_last_n=rng.choice([-1, 20]),
        dry_breaker_ids=tuple(rng.sample(range(vocab_size), 2)),
        watermark=rng.random() < 0.2,
    )
    if rng.random() < 0.2:
        modes = {"mirostat_mode": rng.choice([1, 2]), "mirostat_tau": rng.choice([2.0, 6.0])}
        untruncated = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "xtc_probability": 0.0}
        return msgspec.structs.replace(sampling, **modes, **untruncated)
    return sampling


def random_request(
    rng: random.Random,
    request_id: str,
    vocab_size: int,
    *,
    prompt: int = 100,
    output: int = 24,
    sequences: int = 3,
    hidden_size: int = 0,
    encoder: bool = False,
) -> EngineRequest:
    """``prompt``, ``output``, ``sequences``: the largest of each. ``hidden_size``: of the embeddings that some give.

    ``encoder``: the prompt is an encoder's input, and the decoder begins with token 0.
    """
    mode = rng.choice(["raw", "raw", "processed"])
    detailed = LogprobParams(top=rng.randint(1, 5), prompt=rng.random() < 0.5, mode=mode)
    logprobs = rng.choice([None, None, LogprobParams(), detailed])
    ends = tuple(rng.sample(range(vocab_size), rng.choice([0, max(1, vocab_size // 50)])))
    prompt_ids = random_prompt(rng, vocab_size, prompt)
    of_its_own = random.Random(repr(prompt_ids))
    embeddings = None
    if hidden_size and of_its_own.random() < 0.3:
        embeddings = random_embeddings(of_its_own, len(prompt_ids), hidden_size)
    if encoder:
        logprobs = logprobs and msgspec.structs.replace(logprobs, prompt=False)
    return EngineRequest(
        request_id=request_id,
        prompt=(0,) if encoder else prompt_ids,
        encoder_input=prompt_ids if encoder else (),
        seeds=tuple(rng.getrandbits(64) for _ in range(rng.choice([1, 1, 1, rng.randint(1, sequences)]))),
        max_tokens=rng.choice([0, 1, *[rng.randint(1, output)] * 6]),
        sampling=random_sampling(rng, vocab_size),
        min_tokens=rng.choice([0, 0, 5]),
        end_token_ids=ends,
        stop_token_ids=tuple(rng.sample(range(vocab_size), rng.choice([0, 0, 2]))),
        logprobs=logprobs,
        priority=rng.choice([0, 0, 0, -1, 2]),
        embeddings=embeddings,
    )


def random_embeddings(rng: random.Random, prompt_tokens: int, hidden_size: int) -> PromptEmbeddings:
    """For any number of the prompt's tokens, of the same few vectors."""
    places = sorted(rng.sample(range(prompt_tokens), rng.randint(1, prompt_tokens)))
    vectors = np.random.default_rng(1).normal(size=(3, hidden_size)).astype(np.float32)
    return PromptEmbeddings(token_indices=tuple(places), values=vectors[rng.choices(range(3), k=len(places))].tobytes())


def with_beams(rng: random.Random, request: EngineRequest) -> EngineRequest:
    """The request as a beam search of any kind, which takes some of its parameters away."""
    kind = rng.choice(["deterministic", "sampling", "stochastic"])
    num_beams = rng.randint(1, 6)
    sampling = msgspec.structs.replace(request.sampling, typical_p=1.0, xtc_probability=0.0, mirostat_mode=0)
    if kind == "deterministic":
        sampling = msgspec.structs.replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    elif sampling.temperature == 0:
        sampling = msgspec.structs.replace(sampling, temperature=0.7)
    normalization = rng.choice([(True, False), (False, True), (True, True)])
    beams = BeamParams(
        num_beams=num_beams,
        kind=kind,
        length_penalty=1.0 if kind == "stochastic" else rng.choice([1.0, 0.0, -1.0, 2.0]),
        early_stopping=rng.choice([False, True] if kind == "stochastic" else [False, True, "never"]),
        pre_normalization=normalization[0],
        post_normalization=normalization[1],
    )
    seeds = request.seeds[:1] * rng.randint(1, num_beams)
    changes = {"beams": beams, "sampling": sampling, "seeds": seeds, "max_tokens": max(1, request.max_tokens)}
    return msgspec.structs.replace(request, **changes)


def finish_event(events: list[EngineEvent]) -> FinishEvent:
    """The one event that ends a request without a token."""
    (event,) = [event for event in events if isinstance(event, FinishEvent)]
    return event


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition is true, which a thread makes so."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.001)


def settle(engine: Engine) -> None:
    """Wait until the thread of the cache on disk, if there is one, has read its index and written all that it will."""
    disk = engine.scheduler.tables.disk
    if disk is not None:
        until(lambda: disk.store._ready and not disk.store._queue)
