"""Models taking each other's place, with models that are nothing but names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dragoman.core.catalog import CatalogEntry, ModelState
from dragoman.core.errors import (
    Conflict,
    EngineUnavailable,
    Forbidden,
    LoadFailed,
    ModelError,
    ModelNotFound,
    Overloaded,
)
from dragoman.models.memory_share import SERVER_BYTES
from dragoman.serving.load_queue import UNKNOWN_LOAD_S
from dragoman.serving.memory_budget import MemoryBudget
from dragoman.serving.model_pool import ModelPool
from dragoman.serving.model_registry import ModelRegistry, ModelSource
from dragoman.serving.pool_loader import ModelMemory, Progress
from dragoman.serving.settings import CatalogSettings
from tests.settling import settle

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = (ModelSource(name=name, source=name) for name in ("first", "org/second", "third"))


class Model:
    """A resident that knows whether it was closed."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.closed = False
        self.threads: list[int] = []

    @property
    def entry(self) -> CatalogEntry:
        return CatalogEntry(id=self.source.name, state=ModelState.LOADED, progress=1.0)

    pid = None

    def serves(self, name: str) -> bool:
        return name == self.source.name

    def set_threads(self, threads: int) -> None:
        self.threads.append(threads)

    async def close(self) -> None:
        self.closed = True


class Opened:
    """Opens models when told to: ``go`` lets the load that is under way end, well or with the error.

    ``beside``: memory holds more than one. ``sizes``: of models in MiB, 100 where nothing is said.
    """

    def __init__(self, *, beside: bool = True) -> None:
        self.beside = beside
        self.models: list[Model] = []
        self.errors: dict[str, ModelError] = {}
        self.sizes: dict[str, int] = {}
        self.go = asyncio.Event()
        self.go.set()

    @property
    def budget(self) -> MemoryBudget:
        return MemoryBudget(
            SERVER_BYTES + ((1000 if self.beside else 150) << 20), available=lambda: 1 << 50, measure=lambda _: 0
        )

    async def memory_of(self, source: ModelSource) -> ModelMemory:
        size = self.sizes.get(source.name, 100) << 20
        return ModelMemory(size, size)

    async def measure(self, work: Callable[[], None]) -> None:
        work()

    async def open(self, source: ModelSource, progress: Progress) -> Model:
        progress("packing", 0.5)
        await self.go.wait()
        if source.name in self.errors:
            raise self.errors[source.name]
        self.models.append(Model(source))
        return self.models[-1]


async def started(opened: Opened, *, settings: CatalogSettings | None = None, max_waiting: int = 8) -> ModelPool[Model]:
    settings = settings or CatalogSettings(offer=("org/second=x", "third=y"), offer_cached=False)
    model_pool = ModelPool(ModelRegistry(settings, FIRST), opened, max_waiting=max_waiting, budget=opened.budget)
    await model_pool.begin(FIRST, lambda stage, share: None)
    return model_pool


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_catalog_lists_the_current_model_first() -> None:
    model_pool = await started(Opened())
    assert [(entry.id, entry.state) for entry in model_pool.entries()][:3] == [
        ("first", ModelState.LOADED),
        ("org/second", ModelState.AVAILABLE),
        ("third", ModelState.AVAILABLE),
    ]
    assert model_pool.find("SECOND").id == "org/second"
    assert model_pool.find("nobody") is None


async def test_who_has_begun_finishes_on_the_old_model() -> None:
    opened = Opened()
    model_pool = await started(opened)
    (first,) = opened.models
    leave = asyncio.Event()
    seen: list[Model] = []

    async def running() -> None:
        async with model_pool.lease():
            await leave.wait()
            # Tasks that the request starts keep its model too.
            seen.append(await asyncio.create_task(asyncio.to_thread(model_pool.loaded)))

    request = asyncio.create_task(running())
    await asyncio.sleep(0)
    entry = await model_pool.load("org/second")
    assert (entry.id, entry.state) == ("org/second", ModelState.LOADED)
    async with model_pool.lease():
        assert model_pool.loaded() is opened.models[1]
    assert set(model_pool.all_loaded) == set(opened.models)
    assert not first.closed
    leave.set()
    await request
    assert seen == [first]
    await settle()
    assert not first.closed, "memory holds both"
    assert model_pool.all_loaded == (opened.models[1], first)


async def test_without_memory_for_both_the_old_one_finishes_first_and_new_ones_wait_in_order() -> None:
    opened = Opened(beside=False)
    model_pool = await started(opened)
    (first,) = opened.models
    leave = asyncio.Event()
    order: list[int] = []

    async def running() -> None:
        async with model_pool.lease():
            await leave.wait()

    async def coming(number: int) -> Model:
        async with model_pool.lease():
            order.append(number)
            return model_pool.loaded()

    request = asyncio.create_task(running())
    await asyncio.sleep(0)
    opened.go.clear()
    load = asyncio.create_task(model_pool.load("third"))
    await until(lambda: model_pool.current() is None)
    others = [asyncio.create_task(coming(number)) for number in range(5)]
    await settle()
    assert not first.closed, "somebody is still being answered"
    assert order == []
    leave.set()
    await request
    await until(lambda: first.closed)
    opened.go.set()
    assert (await load).id == "third"
    assert {model.source.name for model in await asyncio.gather(*others)} == {"third"}
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("beside", [True, False])
async def test_a_load_that_fails_leaves_the_old_model_serving(beside: bool) -> None:
    opened = Opened(beside=beside)
    model_pool = await started(opened)
    opened.errors["third"] = ModelError("third is corrupt")
    with pytest.raises(LoadFailed, match="third is corrupt"):
        await model_pool.load("third")
    async with model_pool.lease():
        assert model_pool.loaded().source is FIRST
        assert not model_pool.loaded().closed
    assert model_pool.find("third").error == "third is corrupt"
    del opened.errors["third"]
    await model_pool.load("third")
    assert model_pool.find("third").error == ""


async def test_one_load_at_a_time_and_everybody_may_wait_for_it() -> None:
    opened = Opened()
    model_pool = await started(opened)
    opened.go.clear()
    assert model_pool.begin_loading("org/second").state is ModelState.LOADING
    waiting = [asyncio.create_task(model_pool.load("org/second")) for _ in range(3)]
    await until(lambda: model_pool.find("org/second").progress == 0.5)
    for name in ("third", "first"):
        with pytest.raises(Conflict):
            await model_pool.load(name)
    waiting[0].cancel()
    opened.go.set()
    assert [entry.id for entry in await asyncio.gather(*waiting[1:])] == ["org/second"] * 2
    assert [model.source.name for model in opened.models] == ["first", "org/second"]


async def test_a_request_that_asks_for_another_model_does_not_wait_for_itself() -> None:
    opened = Opened(beside=False)
    model_pool = await started(opened)
    async with asyncio.timeout(60), model_pool.lease():
        assert model_pool.loaded().source is FIRST
        await model_pool.load("third")
        assert model_pool.loaded().source.name == "third"
        await model_pool.load("first")
        assert model_pool.loaded().source is FIRST
    await model_pool.load("third")
    assert sum(not model.closed for model in opened.models) == 1


async def test_unloading_frees_the_model_when_its_requests_are_answered() -> None:
    opened = Opened()
    model_pool = await started(opened)
    leave = asyncio.Event()

    async def running() -> None:
        async with model_pool.lease():
            await leave.wait()
            assert model_pool.loaded().source is FIRST

    request = asyncio.create_task(running())
    await asyncio.sleep(0)
    unload = asyncio.create_task(model_pool.unload())
    await settle()
    assert not opened.models[0].closed
    with pytest.raises(EngineUnavailable, match="no model is loaded"):
        model_pool.loaded()
    leave.set()
    await request
    assert (await unload).id == "first"
    assert opened.models[0].closed
    assert await model_pool.unload() is None
    assert model_pool.current() is None
    await model_pool.load("first")
    assert model_pool.loaded().source is FIRST


async def test_waiting_is_bounded() -> None:
    opened = Opened(beside=False)
    model_pool = await started(opened, max_waiting=2)
    opened.go.clear()
    model_pool.begin_loading("third")
    await until(lambda: opened.models[0].closed and model_pool._models.queue.first.opened_at is not None)

    async def coming() -> str:
        async with model_pool.lease():
            return model_pool.loaded().source.name

    others = [asyncio.create_task(coming()) for _ in range(2)]
    await asyncio.sleep(0)
    load = model_pool._models.queue.first
    assert load is not None
    assert load.opened_at is not None
    load.opened_at -= 20  # for half of it, says the opening
    with pytest.raises(Overloaded) as refused:
        await coming()
    assert refused.value.retry_after_s == pytest.approx(20, abs=1)
    with pytest.raises(EngineUnavailable, match="is being loaded") as unavailable:
        model_pool.loaded()
    assert unavailable.value.retry_after_s == pytest.approx(20, abs=1)
    load.progress = 0.0
    with pytest.raises(Overloaded) as refused:
        await coming()
    assert refused.value.retry_after_s == UNKNOWN_LOAD_S
    opened.go.set()
    assert await asyncio.gather(*others) == ["third", "third"]


async def test_changes_are_told() -> None:
    model_pool = await started(Opened())
    told: list[tuple[str, ModelState]] = []

    async def listen() -> None:
        async for entry in model_pool.watch():
            told.append((entry.id, entry.state))

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await model_pool.load("third")
    await model_pool.unload()
    await until(lambda: len(told) >= 4)
    assert told[0] == ("third", ModelState.LOADING)
    assert told[-2:] == [("third", ModelState.LOADED), ("third", ModelState.AVAILABLE)]
    listener.cancel()


async def test_a_fixed_model_stays() -> None:
    model_pool = await started(Opened(), settings=CatalogSettings(offer=("third=y",), fixed_model=True))
    assert [entry.id for entry in model_pool.entries()] == ["first"]
    with pytest.raises(ModelNotFound):
        await model_pool.load("third")
    with pytest.raises(Forbidden):
        await model_pool.unload()
    assert (await model_pool.load("first")).id == "first"


async def test_closing_ends_everything() -> None:
    opened = Opened()
    model_pool = await started(opened)
    opened.go.clear()
    load = asyncio.create_task(model_pool.load("third"))
    await settle()
    await model_pool.close()
    with pytest.raises(EngineUnavailable):
        await load
    assert all(model.closed for model in opened.models)
    with pytest.raises(EngineUnavailable):
        await model_pool.load("third")
