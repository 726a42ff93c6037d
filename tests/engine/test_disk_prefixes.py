"""Requests whose prefix is on disk: who waits for it and who does not, and what memory has room for."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from dragoman.core.request import EngineRequest
from dragoman.engine.engine import Engine
from dragoman.engine.messages import StubModel
from dragoman.engine.prefix_store import store as stores
from dragoman.engine.prefix_store.store import Load
from dragoman.engine.stub import StubRunner
from simulation import Transcript, run, settle, step, until

LIMIT = 1 << 22


def request(name: str = "r", salt: str = "", tokens: int = 500, seed: int = 1) -> EngineRequest:
    prompt = tuple(random.Random(seed).choices(range(500), k=tokens))
    return EngineRequest(request_id=name, prompt=prompt, max_tokens=4, seeds=(1,), cache_salt=salt)


def engine_at(path: Path, **stub: int) -> Engine:
    engine = Engine(StubRunner(StubModel(**stub)))
    engine.open_disk(path, LIMIT, "stub", compares=False)
    settle(engine)
    return engine


def test_tenants_do_not_share_what_is_on_disk(tmp_path: Path) -> None:
    first = engine_at(tmp_path / "c")
    run(first, [request(salt="one:")])
    settle(first)
    first.close()
    second = engine_at(tmp_path / "c")
    run(second, [request(salt="two:")])
    assert second.output().stats.cached_tokens == 0
    run(second, [request(salt="one:")])
    assert second.output().stats.cached_tokens == 480
    second.close()


def test_others_run_while_a_request_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = engine_at(tmp_path / "c")
    run(first, [request()])
    settle(first)
    first.close()
    engine = engine_at(tmp_path / "c")
    until(lambda: engine.scheduler.tables.disk is not None and engine.scheduler.tables.disk.store._ready)
    held: list[Load] = []
    store = engine.scheduler.tables.disk.store  # type: ignore[union-attr]
    load = store.load
    monkeypatch.setattr(store, "load", lambda items: held.append(Load(items)) or held[0])
    found = {name: Transcript() for name in ("r", "same", "other")}
    for asked in (request(), request("same"), request("other", seed=2)):
        engine.submit(asked)
    while "other" not in (name for name, each in found.items() if each.finish):
        step(engine, found)
    assert len(held) == 1, "one reads for both"
    assert not found["r"].tokens
    assert not found["same"].tokens
    now = load(held[0].items)
    until(lambda: now.is_finished)
    held[0].read, held[0].is_finished = now.read, True
    while engine.has_work:
        step(engine, found)
    assert engine.output().stats.cached_tokens == 2 * 480
    engine.close()


def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = engine_at(tmp_path / "c")
    expected = run(first, [request()])
    settle(first)
    first.close()
    engine = engine_at(tmp_path / "c")
    store = engine.scheduler.tables.disk.store  # type: ignore[union-attr]
    until(lambda: store._ready)
    monkeypatch.setattr(stores, "PATIENCE_S", 0.05)
    monkeypatch.setattr(store, "load", lambda items: Load(items))
    assert run(engine, [request()]) == expected
    assert engine.output().stats.cached_tokens == 0
    engine.close()


def test_what_is_computed_faster_is_not_read(tmp_path: Path) -> None:
    first = engine_at(tmp_path / "c")
    run(first, [request()])
    settle(first)
    first.close()
    engine = Engine(StubRunner())
    engine.open_disk(tmp_path / "c", LIMIT, "stub")
    store = engine.scheduler.tables.disk.store  # type: ignore[union-attr]
    until(lambda: store._ready)
    store.note_prompt(1e-9, 1)
    run(engine, [request()])
    assert engine.output().stats.disk_read_blocks == 0
    store._seconds_per_token = 1.0
    assert store.is_cheaper(32, store._index._locations)
    engine.close()


def test_memory_that_is_short(tmp_path: Path) -> None:
    """Requests whose blocks fill the memory, again and again: what is read is never more than there is room for."""
    asked = [request(f"r{seed}", tokens=400, seed=seed) for seed in range(8)]
    first = engine_at(tmp_path / "c", num_blocks=40)
    expected = run(first, asked)
    settle(first)
    first.close()
    for _ in range(2):
        engine = engine_at(tmp_path / "c", num_blocks=40, max_sequences=4)
        until(lambda engine=engine: engine.scheduler.tables.disk.store._ready)  # type: ignore[union-attr, misc]
        assert run(engine, asked) == expected
        assert engine.output().stats.disk_read_blocks
        engine.close()


@pytest.mark.parametrize("own_blocks", [0, 12])
def test_states_and_groups_when_memory_is_short(tmp_path: Path, own_blocks: int) -> None:
    stub = {"num_states": 12, "max_sequences": 4, "num_blocks": 64, "more_pools": ((64, 40),), "own_blocks": own_blocks}
    asked = [request(f"r{seed}", tokens=600, seed=seed % 4) for seed in range(8)]
    first = engine_at(tmp_path / "c", **stub)  # type: ignore[arg-type]
    expected = run(first, asked)
    settle(first)
    first.close()
    engine = engine_at(tmp_path / "c", **stub)  # type: ignore[arg-type]
    until(lambda: engine.scheduler.tables.disk.store._ready)  # type: ignore[union-attr]
    assert run(engine, asked) == expected
    assert engine.output().stats.disk_read_blocks
    engine.close()


@pytest.mark.parametrize("blocks", [38, 80])
@pytest.mark.parametrize("tokens", [1025, 1026, 1055, 1056])
def test_of_a_long_prompt_only_the_last_token_is_computed_again(
    tmp_path: Path, tokens: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last block is kept too, full or not. What others generate behind it, in the same block, is not theirs, also
    where two texts follow it and memory is short."""
    # A stall of the machine within the first read makes the next one seem slower than to compute.
    monkeypatch.setattr(stores.PrefixStore, "is_cheaper", lambda *_: True)
    asked = msgspec.structs.replace(request(tokens=tokens), seeds=(1, 2), max_tokens=40)
    first = engine_at(tmp_path / "c")
    expected = run(first, [asked])["r"]
    settle(first)
    first.close()
    engine = engine_at(tmp_path / "c", num_blocks=blocks)
    until(lambda: engine.scheduler.tables.disk.store._ready)  # type: ignore[union-attr]
    found = run(engine, [asked, msgspec.structs.replace(asked, request_id="same")])
    assert found["r"] == expected
    assert found["same"].tokens == expected.tokens
    stats = engine.output().stats
    assert stats.cached_tokens == 2 * (tokens - 1)
    assert (stats.preemptions > 0) == (blocks == 38)
    engine.close()
