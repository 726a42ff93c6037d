"""Whatever arrives, leaves or runs out: no block is lost or owned twice, everyone's turn comes, all books balance."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.core.events import FinishReason
from dragoman.core.request import EngineRequest
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.messages import StepOutput
from dragoman.engine.settings import SchedulerSettings
from simulation import Transcript, random_request, run_alone, stub, with_beams

VOCAB = 61
WINDOWS = ((0,), (7,), (0, 33), (150, 7), (0, 150, 40))
"""Of the groups of layers that a model may have."""


class Traffic(RuleBasedStateMachine):
    """Random arrivals, cancels, pauses, priorities, deferrals, forks and memory sizes."""

    @initialize(
        num_blocks=st.integers(4, 24),
        step_tokens=st.integers(2, 64),
        max_running=st.integers(1, 12),
        mixed=st.integers(1, 40),
        prefix_cache=st.booleans(),
        speculation=st.sampled_from([0, 5, 16]),
        windows=st.sampled_from(WINDOWS),
        own_blocks=st.sampled_from([0, 0, 4, 9]),
    )
    def start(
        self,
        num_blocks: int,
        step_tokens: int,
        max_running: int,
        mixed: int,
        prefix_cache: bool,
        speculation: int,
        windows: tuple[int, ...],
        own_blocks: int,
    ) -> None:
        stubs = {"vocab_size": VOCAB, "max_context": 700, "max_logit_rows": 16, "period": 6, "window": windows[0]}
        more = [(window, max(4, num_blocks - 3 * index)) for index, window in enumerate(windows[1:])]
        self.runner = stub(num_blocks=num_blocks, more_pools=tuple(more), own_blocks=own_blocks, **stubs)
        self.reference = stub(num_blocks=32, **stubs)
        limits = SchedulerSettings(
            step_tokens=step_tokens,
            max_running=max_running,
            mixed_prefill_tokens=mixed,
            prefix_cache=prefix_cache,
            speculation=speculation,
        )
        self.engine = Engine(self.runner, limits)
        self.requests: dict[str, EngineRequest] = {}
        self.output_processors: dict[str, Transcript] = {}
        self.cancelled: dict[str, set[int]] = {}
        self.paused: set[str] = set()
        self.prefixes = [tuple(random.Random(seed).choices(range(VOCAB), k=70)) for seed in range(2)]

    @rule(
        seed=st.integers(0, 2**32),
        shared=st.booleans(),
        longest=st.sampled_from([8, 40, 150, 600]),
        beams=st.booleans(),
    )
    def arrive(self, seed: int, shared: bool, longest: int, beams: bool) -> None:
        rng = random.Random(seed)
        request = random_request(rng, f"r{len(self.requests)}", VOCAB, prompt=longest, output=40, sequences=8)
        if beams:
            request = with_beams(rng, request)
        if shared:
            prefix = rng.choice(self.prefixes)[: rng.randint(1, 70)]
            request = msgspec.structs.replace(request, prompt=(prefix + request.prompt)[:600])
        tenant = rng.choice(["", "", "a", "b", "c"])
        weight, most = {"b": (2.0, None), "c": (0.5, 3)}.get(tenant, (1.0, None))
        request = msgspec.structs.replace(request, tenant=tenant, weight=weight, max_running=most)
        request = msgspec.structs.replace(request, deferrable=rng.random() < 0.25)
        self.requests[request.request_id] = request
        self.output_processors[request.request_id] = Transcript()
        self.cancelled[request.request_id] = set()
        self.engine.submit(request)
        self._hear(self.engine.output())  # a refusal comes at once

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 10**6), whole=st.booleans())
    def cancel(self, pick: int, whole: bool) -> None:
        request = self.requests[f"r{pick % len(self.requests)}"]
        sequence = pick % len(request.seeds)
        self.engine.cancel(request.request_id, None if whole else sequence)
        finished = self.output_processors[request.request_id].finish
        self.cancelled[request.request_id] |= set(range(len(request.seeds)) if whole else [sequence]) - set(finished)

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 10**6), pauses=st.booleans())
    def pause(self, pick: int, pauses: bool) -> None:
        request_id = f"r{pick % len(self.requests)}"
        if pauses:
            self.engine.pause(request_id)
            self.paused.add(request_id)
        else:
            self.engine.resume(request_id)
            self.paused.discard(request_id)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.engine.has_work:
                self._step()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "engine"):
            check_integrity(self.engine.scheduler)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for request_id in self.paused:
            self.engine.resume(request_id)
        # Preemption may cost a sequence its work again and again, but the first in order always gets on: by that, the
        # steps left are at most those of running one sequence after the other.
        # A beam search that has no room for all of its texts may compute each of them anew for every token.
        bound = sum(
            r.num_sequences * (len(r.prompt) + r.max_tokens + 2) * (1 if r.beams is None else r.max_tokens)
            + len(r.prompt)
            for r in self.requests.values()
        )
        for _ in range(bound):
            if not self.engine.has_work:
                break
            self._step()
        assert not self.engine.has_work, "somebody starves"
        self._all_ended()

    def _step(self) -> None:
        self._hear(self.engine.step())
        check_integrity(self.engine.scheduler)

    def _hear(self, output: StepOutput) -> None:
        for event in output.events:
            self.output_processors[event.request_id].add(event)

    def _all_ended(self) -> None:
        caches = [group.cache for group in self.engine.scheduler.tables.groups]
        assert all(cache.available == cache.num_blocks for cache in caches)
        assert not self.engine.scheduler.groups
        for request in self.requests.values():
            output_processor, cancelled = self.output_processors[request.request_id], self.cancelled[request.request_id]
            assert set(output_processor.finish) == set(range(len(request.seeds))) - cancelled
            tokens, scheduler = len(request.prompt) + request.max_tokens, self.engine.scheduler
            too_long = any(
                group.window.most_blocks(tokens) > group.cache.num_blocks for group in scheduler.tables.groups
            )
            assert (FinishReason.ERROR in output_processor.finish.values()) <= too_long
        for request in list(self.requests.values())[:3]:
            if not self.cancelled[request.request_id] and FinishReason.ERROR not in (
                self.output_processors[request.request_id].finish.values()
            ):
                assert self.output_processors[request.request_id] == run_alone(self.reference, request)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("seed", range(30))
def test_a_busy_day(seed: int) -> None:
    """The same traffic as above, denser and longer than hypothesis likes its examples."""
    rng = random.Random(seed)
    day = Traffic()
    day.start(
        num_blocks=rng.randint(4, 24),
        step_tokens=rng.randint(2, 64),
        max_running=rng.randint(1, 12),
        mixed=rng.randint(1, 40),
        prefix_cache=rng.random() < 0.9,
        speculation=rng.choice([0, 5, 16]),
        windows=rng.choice(WINDOWS),
        own_blocks=rng.choice([0, 0, 4, 9]),
    )
    for _ in range(60):
        chance = rng.random()
        if chance < 0.4:
            longest = rng.choice([8, 40, 150, 600])
            day.arrive(rng.getrandbits(32), shared=rng.random() < 0.6, longest=longest, beams=rng.random() < 0.3)
        elif chance < 0.55 and day.requests:
            day.cancel(pick=rng.randrange(10**6), whole=rng.random() < 0.5)
        elif chance < 0.65 and day.requests:
            day.pause(pick=rng.randrange(10**6), pauses=rng.random() < 0.6)
        else:
            day.step(steps=rng.randint(1, 12))
        day.books_balance()
    day.teardown()
