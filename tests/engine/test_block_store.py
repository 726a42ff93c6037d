"""What a process had computed is there for the next one, and never anything else."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_model import make_tiny_llama

from dragoman import models
from dragoman.core.request import EngineRequest
from dragoman.engine import worker
from dragoman.engine.block_store import open_block_stores
from dragoman.engine.kv_cache import KVCache
from dragoman.engine.messages import LoadDraft, LoadModel, StubModel, WorkerSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine_client.client import EngineClient
from dragoman.models.memory import ModelTooLarge

BLOCK_BYTES = 64
BLOCKS = 8


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


class Life:
    """A cache, its memory, and a store: what a process of the engine has."""

    def __init__(self, file: int, model: str = "model", slots: int = BLOCKS) -> None:
        self.memory: NDArray[np.uint8] = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
        self.cache = KVCache(BLOCKS, 32)
        (self.store,) = open_block_stores(file, [self.memory], model, slots * BLOCK_BYTES, [self.cache])

    def compute(self, name: int) -> int:
        """A block that is full of its name, and owned."""
        block = self.cache.allocate()
        self.memory[block] = name
        self.cache.name(block, _name(name))
        return block

    def found(self) -> set[int]:
        """The names of the blocks that are there; each has the right content."""
        found = set()
        for name in range(1, 100):
            for block in self.cache.match([_name(name)]):
                assert (self.memory[block] == name).all()
                found.add(name)
        self.cache.check_integrity([])
        return found


def _name(number: int) -> bytes:
    return bytes([number]) * 15 + b"\0"


def test_what_is_on_disk_needs_no_copy(file: int) -> None:
    """It is read from there by the next process; a prompt of 20,000 tokens that has just come from there is not copied
    before its first token."""
    first = Life(file)
    first.cache.is_on_disk = {_name(1), _name(2)}.__contains__
    first.cache.release([first.compute(1), first.compute(3)])
    first.cache.share(first.cache.match([_name(1)]))
    assert Life(file).found() == {3}


def test_the_next_process_has_the_blocks_that_were_owned(file: int) -> None:
    life = Life(file)
    for name in (1, 2, 3):
        life.compute(name)
    assert Life(file).found() == {1, 2, 3}
    assert Life(file).found() == {1, 2, 3}, "a life in which nothing was asked for them"


def test_what_nobody_owns_makes_room_and_what_is_owned_does_not(file: int) -> None:
    life = Life(file, slots=3)
    blocks = [life.compute(name) for name in (1, 2, 3)]
    life.compute(4)  # no room
    life.cache.release(blocks[:2])
    life.compute(5)
    assert Life(file, slots=3).found() == {1, 3, 5} or Life(file, slots=3).found() == {2, 3, 5}


def test_a_block_that_is_owned_again_is_kept_again(file: int) -> None:
    life = Life(file, slots=1)
    block = life.compute(1)
    life.cache.release([block])
    life.cache.release([life.compute(2)])
    life.cache.share([block])
    assert Life(file, slots=1).found() == {1}


@pytest.mark.parametrize("field", ["checksum", "name", "copy"])
def test_what_was_written_over_is_not_believed(file: int, field: str) -> None:
    life = Life(file)
    for name in (1, 2):
        life.compute(name)
    slot = life.store._owned[_name(1)]
    if field == "copy":
        life.store._copies[slot, 5] ^= 1
    elif field == "checksum":
        life.store._entries["checksum"][slot] += 1
    else:
        life.store._entries["valid"][slot] = 0  # half written
    assert Life(file).found() == {2}


def test_copies_of_another_model_are_not_read(file: int) -> None:
    Life(file).compute(1)
    assert Life(file, model="another").found() == set()
    assert Life(file).found() == set()


def test_a_process_that_died_reading_them_leaves_none(file: int) -> None:
    life = Life(file)
    life.compute(1)
    life.store._head["reading"] = 1
    assert Life(file).found() == set()
    life = Life(file)
    life.compute(2)
    assert Life(file).found() == {2}


def test_a_file_of_another_size_begins_anew(file: int) -> None:
    Life(file, slots=2).compute(1)
    assert Life(file, slots=3).found() == set()


def test_each_pool_of_blocks_has_a_store_in_the_one_file(file: int) -> None:
    """The budget is divided as the memory is: eight blocks of 64 bytes and four of 128, with room for half of each."""
    sizes = ((8, 64), (4, 128))

    def life() -> tuple[list[NDArray[np.uint8]], list[KVCache]]:
        pools, caches = [np.zeros(size, np.uint8) for size in sizes], [KVCache(count, 32) for count, _ in sizes]
        assert len(open_block_stores(file, pools, "model", 512, caches)) == 2
        return pools, caches

    pools, caches = life()
    for memory, cache, factor in zip(pools, caches, (1, 2), strict=True):
        for name in (1, 2, 3, 4):  # the same names in both
            block = cache.allocate()
            memory[block] = factor * name
            cache.name(block, _name(name))
    pools, caches = life()
    for memory, cache, factor, kept in zip(pools, caches, (1, 2), ((1, 2, 3, 4), (1, 2)), strict=True):
        found = {name: cache.match([_name(name)]) for name in (1, 2, 3, 4)}
        assert {name for name, blocks in found.items() if blocks} == set(kept)
        assert all((memory[found[name][0]] == factor * name).all() for name in kept)


def test_without_room_for_a_block_there_is_no_store(file: int) -> None:
    cache = KVCache(BLOCKS, 32)
    blocks = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
    assert open_block_stores(file, [blocks], "model", BLOCK_BYTES - 1, [cache]) == []
    assert cache.store is None


def test_memory_is_taken_as_it_is_needed(file: int) -> None:
    blocks = np.zeros((1024, 1 << 20), np.uint8)
    (store,) = open_block_stores(file, [blocks], "model", 1 << 30, [KVCache(1024, 32)])
    taken = os.fstat(file).st_blocks * 512
    for name in range(1, 5):
        for _ in range(100):  # one after the other: what is over makes room
            store.retain(_name(name), name)
            store.release(_name(name))
    assert os.fstat(file).st_blocks * 512 - taken < 3 << 20


def test_after_a_death_only_the_newest_tokens_of_each_stream_are_computed_again() -> None:
    rng = random.Random(1)
    requests = [
        EngineRequest(request_id=f"r{i}", prompt=tuple(rng.choices(range(199), k=320)), seeds=(i,), max_tokens=200)
        for i in range(4)
    ]

    async def killed(settings: WorkerSettings) -> int | None:
        """The cached tokens after a death; None where this process stood still until everything was computed."""
        client = EngineClient(settings)
        await client.start()
        try:
            reading = [asyncio.create_task(_read(client, request)) for request in requests]
            while client.stats().generated_tokens < 4 * 50:
                await asyncio.sleep(0.001)
            before = client.stats()
            os.kill(client.health().pid or 0, signal.SIGKILL)
            async with asyncio.timeout(60):
                while client.stats().prompt_tokens < before.prompt_tokens + 4 * 320:
                    if all(each.done() for each in reading):
                        return None
                    await asyncio.sleep(0.001)
            cached = client.stats().cached_tokens - before.cached_tokens
            await asyncio.wait_for(asyncio.gather(*reading), 60)
            return cached
        finally:
            await client.close()

    def cached(**settings: Any) -> int:
        while (found := asyncio.run(killed(WorkerSettings(model=model, **settings)))) is None:
            pass
        return found

    model = StubModel(vocab_size=199, num_blocks=128, max_context=600, step_s=0.002)
    assert cached() == 4 * 320
    assert cached(recovery_bytes=0) == 0
    assert cached(scheduler=SchedulerSettings(prefix_cache=False)) == 0


def test_copies_are_dropped_where_the_model_needs_their_memory(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WorkerSettings(model=StubModel(), is_restart=True)
    loads: list[int] = []

    def load(*arguments: Any) -> tuple[str, str]:
        loads.append(os.fstat(file).st_blocks)
        if loads[-1]:
            raise ModelTooLarge("it does not fit")
        return "runner", "model"

    monkeypatch.setattr(worker, "load", load)
    Life(file).compute(1)
    assert worker.load_beside(settings, file) == ("runner", "model")  # type: ignore[comparison-overlap]
    assert loads[0] > loads[1] == 0
    assert Life(file).found() == set()


def test_copies_take_no_more_memory_than_the_model_leaves(tmp_path: Path) -> None:
    model = models.load(make_tiny_llama(tmp_path / "tiny"), models.ModelSettings(cache_bytes=0))
    settings = WorkerSettings(model=LoadModel(), recovery_bytes=5000)
    assert worker.recovery_memory(settings, model) == 5000
    taken = model.plan.total_bytes + model.plan.reserve_bytes
    for left, expected in ((4000, 4000), (-4000, 0)):
        model.plan = msgspec.structs.replace(model.plan, available_bytes=taken + left)
        assert worker.recovery_memory(settings, model) == expected
        # The file keeps its size, and with it what is in it.
        assert worker.recovery_memory(msgspec.structs.replace(settings, is_restart=True), model) == 5000
    draft = LoadDraft(source="small", settings=models.ModelSettings(), nbytes=3000)
    model.plan = msgspec.structs.replace(model.plan, available_bytes=taken + 4000)
    assert worker.recovery_memory(msgspec.structs.replace(settings, draft=draft), model) == 1000


async def _read(client: EngineClient, request: EngineRequest) -> None:
    async for _ in client.submit(request):
        pass
