"""Layers that see a window beside layers that see all: blocks of each kind are kept as long as that kind needs them."""

from __future__ import annotations

import os
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.events import FinishReason
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.engine.block_group import BlockGroup, match_prefix
from dragoman.engine.block_store import open_block_stores
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.kv_cache import NO_BLOCK, KVCache, block_hash
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.window import Window
from dragoman.engine_client.recovery import InFlightRequest
from simulation import Limited, Transcript, run, run_alone, stub

WINDOW, STEP, CONTEXT = 64, 32, 1400
HELD = (WINDOW + STEP) // 32 + 1
"""Blocks of a window and a step, and one for where they begin."""
WHOLE = -(-CONTEXT // 32)
LIMITS = {"vocab_size": 199, "max_context": CONTEXT, "max_tokens": 256}


def engine_of(num_blocks: int, sliding: int, **limits: int) -> Engine:
    runner = stub(num_blocks=num_blocks, more_pools=((WINDOW, sliding),), **LIMITS)
    return Engine(runner, SchedulerSettings(step_tokens=STEP, **limits))


def request(seed: int = 1, prompt: int = 1000, output: int = 100, sequences: int = 1) -> EngineRequest:
    rng = random.Random(seed)
    return EngineRequest(
        request_id=f"r{seed}",
        prompt=tuple(rng.choices(range(199), k=prompt)),
        seeds=tuple(range(seed, seed + sequences)),
        max_tokens=output,
        sampling=SamplingParams(temperature=1.0),
    )


def alone(asked: EngineRequest) -> object:
    return run_alone(stub(num_blocks=64, **LIMITS), asked)


def cached_tokens(engine: Engine, asked: EngineRequest) -> int:
    before = engine.output().stats.cached_tokens
    assert run(engine, [asked])[asked.request_id] == alone(asked)
    return engine.output().stats.cached_tokens - before


def test_a_long_text_takes_a_window_of_the_layers_that_see_one() -> None:
    engine, asked = engine_of(WHOLE, HELD), request()
    assert engine.scheduler.max_length == CONTEXT
    assert run(engine, [asked])[asked.request_id] == alone(asked)
    assert engine.scheduler.preemptions == 0


@pytest.mark.parametrize(("num_blocks", "sliding"), [(34, HELD), (35, HELD - 1)])
def test_one_block_less_in_either_group_is_refused(num_blocks: int, sliding: int) -> None:
    asked = request()  # of 1,100 tokens, which are 35 blocks
    assert set(run(engine_of(num_blocks, sliding), [asked])["r1"].finish.values()) == {FinishReason.ERROR}
    assert FinishReason.ERROR not in run(engine_of(35, HELD), [asked])["r1"].finish.values()


def test_a_prefix_needs_all_blocks_of_one_group_and_a_window_of_the_other() -> None:
    engine, asked = engine_of(100, 2 * HELD), request(output=1)
    run(engine, [asked])
    longer = msgspec.structs.replace(asked, request_id="longer", prompt=(*asked.prompt, 7, 8, 9))
    assert cached_tokens(engine, longer) == 31 * 32
    # Where another text leaves the prefix, the layers with a window have nothing any more.
    other = msgspec.structs.replace(asked, request_id="other", prompt=(*asked.prompt[:500], 7))
    assert cached_tokens(engine, other) == 0
    # Others have taken the blocks of the layers with a window: all is computed again, and the same.
    for seed in range(2, 6):
        run(engine, [request(seed, prompt=100, output=1)])
    assert cached_tokens(engine, msgspec.structs.replace(longer, request_id="again")) == 0


def test_a_prompt_that_many_share_is_computed_once() -> None:
    engine = engine_of(200, 60)
    shared = request(output=8)
    crowd = [
        msgspec.structs.replace(shared, request_id=f"c{seed}", prompt=(*shared.prompt, seed), seeds=(seed,))
        for seed in range(8)
    ]
    found = run(engine, crowd)
    assert all(found[each.request_id] == alone(each) for each in crowd)
    assert engine.output().stats.cached_tokens == 7 * 31 * 32


def test_what_runs_short_in_one_group_gives_way_in_all() -> None:
    """Six texts of a window each where there is room for two, forks that copy their last blocks, and returns."""
    requests = [request(10 * seed, prompt=500, output=120, sequences=3) for seed in range(3)]
    engine = engine_of(100, 2 * HELD, max_running=6)
    found = run(engine, requests)
    assert engine.scheduler.preemptions > 0
    assert all(found[each.request_id] == alone(each) for each in requests)
    for group in engine.scheduler.tables.groups:
        assert group.cache.available == group.cache.num_blocks


def test_what_is_free_follows_the_group_that_has_least_left() -> None:
    engine = engine_of(100, 2 * HELD)
    engine.submit(request())
    while not engine.scheduler.running or engine.scheduler.running[0].computed < 500:
        engine.step()
    full, sliding = (group.cache for group in engine.scheduler.tables.groups)
    assert (full.available, sliding.available) == (100 - 32, HELD)
    stats = engine.output().stats
    assert (stats.blocks, stats.free_blocks) == (100, 50)


def test_integrity_is_checked_in_each_group() -> None:
    engine = engine_of(100, 2 * HELD)
    engine.submit(request())
    for _ in range(10):
        engine.step()
    check_integrity(engine.scheduler)
    (sequence,) = engine.scheduler.running
    for group in engine.scheduler.tables.groups:
        held = sequence.blocks[group.index]
        lost = held.ids.pop()
        with pytest.raises(AssertionError):
            check_integrity(engine.scheduler)
        held.ids.append(lost)
        check_integrity(engine.scheduler)


def test_the_next_process_finds_the_blocks_of_all_groups() -> None:
    asked = request(prompt=320, output=60)
    file, told, unfinished = os.memfd_create("test"), Transcript(), InFlightRequest(asked)
    for _ in range(3):  # each life of the engine ends in the middle of a step
        engine = engine_of(64, 2 * HELD)
        pools, caches = engine.runner.block_data, [group.cache for group in engine.scheduler.tables.groups]
        assert len(open_block_stores(file, pools, "model", 1 << 20, caches)) == 2
        if told.tokens:
            assert all(cache.cached for cache in caches)
        engine.submit(unfinished.as_replay())
        before = len(told.ids())
        while not unfinished.is_over and len(told.ids()) < before + 20:
            for event in engine.step().events:
                if unfinished.accept(event):
                    told.add(event)
        if before:
            assert engine.output().stats.cached_tokens == 320
    os.close(file)
    assert unfinished.is_over
    assert told == alone(asked)


# Own blocks, which hold what running sequences write -----------------------------------------------------------------


def engine_with_own(num_blocks: int, own_blocks: int, **limits: int) -> Engine:
    runner = stub(num_blocks=num_blocks, more_pools=((WINDOW, num_blocks),), own_blocks=own_blocks, **LIMITS)
    return Engine(runner, SchedulerSettings(step_tokens=STEP, **limits))


def test_a_long_text_takes_the_own_blocks_of_a_step() -> None:
    """Two for a step that begins within one, and one more; a token at a time takes one."""
    engine, asked = engine_with_own(WHOLE, 3), request()
    assert engine.scheduler.max_length == CONTEXT
    own, held = engine.scheduler.tables.groups[2], []
    engine.submit(asked)
    told = Transcript()
    while engine.has_work:
        for event in engine.step().events:
            told.add(event)
        check_integrity(engine.scheduler)
        held.append(own.cache.num_blocks - own.cache.available)
    assert told == alone(asked)
    assert max(held) <= 3
    assert set(held[40:-1]) == {1}
    assert engine.scheduler.preemptions == 0
    assert set(run(engine_with_own(WHOLE, 2), [asked])["r1"].finish.values()) == {FinishReason.ERROR}


def test_own_blocks_have_no_names_and_a_prefix_needs_none() -> None:
    engine, asked = engine_with_own(100, 8), request(output=1)
    run(engine, [asked])
    own = engine.scheduler.tables.groups[2].cache
    assert (own.cached, own.available, own.names()) == (0, 8, [])
    longer = msgspec.structs.replace(asked, request_id="longer", prompt=(*asked.prompt, 7, 8, 9))
    assert cached_tokens(engine, longer) == 31 * 32
    stats = engine.output().stats
    assert stats.free_blocks == stats.blocks == 100


def test_where_own_blocks_run_short_others_give_way() -> None:
    requests = [request(10 * seed, prompt=300, output=120, sequences=6) for seed in range(2)]
    engine = engine_with_own(200, 4, max_running=12)
    found = run(engine, requests)
    assert engine.scheduler.preemptions > 0
    assert all(found[each.request_id] == alone(each) for each in requests)
    for group in engine.scheduler.tables.groups:
        assert group.cache.available == group.cache.num_blocks


@pytest.mark.parametrize("runner", ["gemma 3"], indirect=True)
def test_a_decoder_with_two_kinds_of_layers_in_little_memory(runner: Runner) -> None:
    assert [pool.window for pool in runner.pools] == [0, 40]
    asked = msgspec.structs.replace(request(prompt=150, output=60), seeds=(1, 2))
    expected = run_alone(runner, asked)
    for step_tokens in (16, 50):
        engine = Engine(Limited(runner, num_blocks=15), SchedulerSettings(step_tokens=step_tokens))
        assert run(engine, [asked])[asked.request_id] == expected


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=14),
    st.integers(2, 20),
    st.just(0) | st.integers(2, 20),
)
def test_the_longest_prefix_that_all_groups_can_continue(
    known: list[tuple[bool, bool, bool]], first_window: int, second_window: int
) -> None:
    """Against trying every length; ``known``: which blocks of a chain are in the memory of each group."""
    size = 4
    names = [block_hash(b"", [index]) for index in range(len(known))]
    groups, blocks = [], []
    for index, window in enumerate((0, first_window, second_window)):
        group = BlockGroup(index, KVCache(16, size), Window(window, step_tokens=8, block_size=size))
        blocks.append([group.cache.allocate() for _ in known])
        for block, name, is_known in zip(blocks[-1], names, known, strict=True):
            if is_known[index]:
                group.cache.name(block, name)
        groups.append(group)
    for length in range(len(known), -1, -1):
        firsts = [group.window.first_block(length * size) for group in groups]
        if all(known[at][index] for index, first in enumerate(firsts) for at in range(first, length)):
            expected = [[NO_BLOCK] * first + own[first:length] for first, own in zip(firsts, blocks, strict=True)]
            assert match_prefix(groups, names) == expected
            break
