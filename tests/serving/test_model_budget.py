"""Several models in one budget of memory: which leave, which stay, and who waits."""

from __future__ import annotations

import asyncio
from itertools import count, cycle, islice

import pytest
from test_model_pool import FIRST, SECOND, THIRD, Model, Opened, until

from dragoman.core.errors import Forbidden, LoadFailed, ModelError
from dragoman.core.progress import ProgressReport, current_progress
from dragoman.models.memory_share import SERVER_BYTES
from dragoman.serving import residency
from dragoman.serving.memory_budget import MemoryBudget, processes_bytes
from dragoman.serving.model_pool import ModelPool
from dragoman.serving.model_registry import ModelRegistry
from dragoman.serving.pool_loader import ModelMemory
from dragoman.serving.residency import HOLD_LOADS, Resident, choose_leaving
from dragoman.serving.settings import CatalogSettings
from dragoman.serving.thread_shares import shares
from tests.settling import settle

pytestmark = pytest.mark.anyio

OFFERED = CatalogSettings(offer=("org/second=x", "third=y"), offer_cached=False)
SECOND_NAME, THIRD_NAME = SECOND.name, THIRD.name


async def pool(
    opened: Opened, *, room: int = 2, pins: tuple[str, ...] = (), threads: int | None = None
) -> ModelPool[Model]:
    """A pool whose budget holds ``room`` models of 100 MiB, with the first one loaded."""
    budget = MemoryBudget(SERVER_BYTES + (room * 100 + 50 << 20), available=lambda: 1 << 50, measure=lambda _: 0)
    registry = ModelRegistry(OFFERED, FIRST)
    made = ModelPool(registry, opened, max_waiting=600, budget=budget, pins=pins, threads=threads)
    await made.begin(FIRST, lambda stage, share: None)
    return made


async def asked(model_pool: ModelPool[Model], name: str) -> str:
    async with model_pool.lease(name):
        return model_pool.loaded().source.name


def names(model_pool: ModelPool[Model]) -> set[str]:
    return {each.id for each in model_pool.residences() if each.state == "loaded"}


async def test_a_request_for_another_model_loads_it_beside_and_changes_no_default() -> None:
    model_pool = await pool(Opened())
    assert await asked(model_pool, THIRD_NAME) == THIRD_NAME
    assert model_pool.current().id == FIRST.name
    assert names(model_pool) == {FIRST.name, THIRD_NAME}
    async with model_pool.lease():
        assert model_pool.loaded().source is FIRST
    await model_pool.close()


@pytest.fixture
def no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model stays for what its load took, which on a machine that stands still for a moment is that moment."""
    monkeypatch.setattr(residency, "LONGEST_HOLD_S", 0.0)


@pytest.mark.usefixtures("no_hold")
async def test_the_least_recently_used_idle_model_makes_room() -> None:
    model_pool = await pool(Opened())
    await asked(model_pool, THIRD_NAME)
    await asked(model_pool, FIRST.name)
    await asked(model_pool, SECOND_NAME)
    assert names(model_pool) == {FIRST.name, SECOND_NAME}
    await model_pool.close()


@pytest.mark.usefixtures("no_hold")
async def test_a_pinned_model_stays_though_it_is_the_least_recently_used() -> None:
    model_pool = await pool(Opened(), pins=("first",))
    await asked(model_pool, THIRD_NAME)
    await asked(model_pool, SECOND_NAME)
    assert names(model_pool) == {FIRST.name, SECOND_NAME}
    model_pool.pin("first", is_pinned=False)
    await asked(model_pool, THIRD_NAME)
    assert FIRST.name not in names(model_pool)
    await model_pool.close()


async def test_where_all_that_may_leave_are_pinned_a_request_is_refused_at_once() -> None:
    model_pool = await pool(Opened(), pins=("first", "third"))
    await asked(model_pool, THIRD_NAME)
    with pytest.raises(LoadFailed, match=r"pinned models keep 0\.20 GiB"):
        await asked(model_pool, SECOND_NAME)
    assert names(model_pool) == {FIRST.name, THIRD_NAME}
    await model_pool.close()


async def test_a_model_that_can_never_fit_is_refused_before_any_leaves() -> None:
    opened = Opened()
    opened.sizes[THIRD_NAME] = 300
    model_pool = await pool(opened)
    await asked(model_pool, SECOND_NAME)
    with pytest.raises(LoadFailed, match=r"does not fit: it needs 0\.29 GiB"):
        await asked(model_pool, THIRD_NAME)
    assert names(model_pool) == {FIRST.name, SECOND_NAME}
    assert model_pool.evictions == 0
    await model_pool.close()


async def test_what_runs_is_never_unloaded_and_new_requests_for_it_wait_behind_the_other_model() -> None:
    opened = Opened()
    model_pool = await pool(opened, room=1)
    leave, order = asyncio.Event(), []

    async def running() -> None:
        async with model_pool.lease():
            await leave.wait()
            assert not model_pool.loaded().closed

    async def coming(name: str) -> None:
        order.append(await asked(model_pool, name))

    request = asyncio.create_task(running())
    await asyncio.sleep(0)
    tasks = [asyncio.create_task(coming(THIRD_NAME))]
    await until(lambda: not names(model_pool))  # the first one takes no more requests
    tasks.append(asyncio.create_task(coming(FIRST.name)))
    await settle()
    assert not opened.models[0].closed
    assert order == []
    leave.set()
    await asyncio.gather(request, *tasks)
    assert order == [THIRD_NAME, FIRST.name]
    await model_pool.close()


async def test_a_load_that_fails_half_way_fails_those_alone_who_asked_for_it() -> None:
    opened = Opened()
    opened.errors[THIRD_NAME] = ModelError("its weights end early")
    model_pool = await pool(opened)
    results = await asyncio.gather(
        *(asked(model_pool, name) for name in (THIRD_NAME, SECOND_NAME, THIRD_NAME, FIRST.name)), return_exceptions=True
    )
    assert [type(each) for each in results] == [LoadFailed, str, LoadFailed, str]
    assert [model_pool.current().id, names(model_pool)] == [FIRST.name, {FIRST.name, SECOND_NAME}]
    await model_pool.close()


async def test_who_waits_for_a_load_sees_its_progress_and_may_leave() -> None:
    opened = Opened()
    opened.go.clear()
    model_pool = await pool_of_two_while_held(opened)
    seen = []
    report = ProgressReport(lambda: seen.append(report.now))
    token = current_progress.set(report)
    waiting = asyncio.create_task(asked(model_pool, THIRD_NAME))
    current_progress.reset(token)
    await until(lambda: {"state": "loading", "stage": "packing", "share": 0.5} in seen)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    other = asyncio.create_task(asked(model_pool, SECOND_NAME))
    await settle()
    other.cancel()  # before its load has begun: it is not loaded for nobody
    await asyncio.gather(other, return_exceptions=True)
    opened.go.set()
    await until(lambda: not [each for each in model_pool.residences() if each.state != "loaded"])
    assert names(model_pool) == {FIRST.name, THIRD_NAME}
    await model_pool.close()


async def pool_of_two_while_held(opened: Opened) -> ModelPool[Model]:
    opened.go.set()
    model_pool = await pool(opened)
    opened.go.clear()
    return model_pool


async def test_three_models_in_turn_with_room_for_two_lose_nothing_and_swap_rarely() -> None:
    """Loads that take a moment: while one model is held for what its load was worth, requests for others gather."""
    opened = Opened()
    load, most, inside = opened.open, 0, 0

    async def open_slowly(source, progress):  # type: ignore[no-untyped-def]
        nonlocal most, inside
        inside = sum(not model.closed for model in opened.models) + 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        return await load(source, progress)

    opened.open = open_slowly  # type: ignore[method-assign]
    model_pool = await pool(opened)
    turns = list(islice(cycle((FIRST.name, SECOND_NAME, THIRD_NAME)), 500))
    numbers = count()

    async def work() -> list[bool]:
        got = []
        while (number := next(numbers)) < len(turns):
            got.append(await asked(model_pool, turns[number]) == turns[number])
        return got

    answers = [each for got in await asyncio.gather(*(work() for _ in range(50))) for each in got]
    assert answers == [True] * 500
    assert most <= 2
    assert model_pool.loads <= 500 // 8
    await model_pool.close()


class At:
    """What ``choose_leaving`` sees of a resident."""

    def __init__(self, name: str, *, used_s: float, users: int = 0, held_until_s: float = 0.0, size: int = 1) -> None:
        self.name, self.used_s, self.loaded_s, self.users = name, used_s, used_s, users
        self.held_until_s, self.is_pinned = held_until_s, False
        self.memory = ModelMemory(size, size)


@pytest.mark.parametrize(
    ("residents", "short", "chosen"),
    [
        ([At("old", used_s=1), At("new", used_s=2)], 1, ["old"]),
        ([At("old", used_s=1, users=1), At("new", used_s=2)], 1, ["new"]),
        ([At("old", used_s=1, users=1), At("new", used_s=2, users=1)], 1, ["old"]),
        ([At("old", used_s=1, held_until_s=99), At("new", used_s=2)], 1, ["new"]),
        ([At("small", used_s=1), At("large", used_s=2, size=4)], 4, ["large"]),
        ([At("old", used_s=1), At("new", used_s=2)], 2, ["old", "new"]),
    ],
)
def test_who_makes_room(residents: list[At], short: int, chosen: list[str]) -> None:
    choice = choose_leaving(residents, short, now_s=10.0)  # type: ignore[arg-type]
    assert choice is not None
    assert [each.name for each in choice.leave] == chosen  # type: ignore[attr-defined]


def test_a_model_that_came_a_moment_ago_stays_unless_an_operator_asks() -> None:
    held = [At("held", used_s=9, users=1, held_until_s=20.0)]
    assert choose_leaving(held, 1, now_s=10.0) == ((), 20.0)  # type: ignore[arg-type]
    assert choose_leaving(held, 1, now_s=10.0, is_urgent=True).leave == (held[0],)  # type: ignore[arg-type,union-attr]
    assert choose_leaving(held, 2, now_s=10.0) is None  # type: ignore[arg-type]


async def test_a_load_is_worth_some_time_in_memory() -> None:
    resident = Resident(FIRST, Model(FIRST), ModelMemory(1, 1), lambda _: None, load_s=2.0)
    resident.enter()
    assert resident.held_until_s == resident.loaded_s + HOLD_LOADS * 2.0
    resident.leave()
    assert resident.held_until_s == pytest.approx(resident.used_s + 2.0)


async def test_threads_are_shared_by_models_with_work() -> None:
    assert [shares(8, 1), shares(8, 3), shares(2, 3)] == [(8,), (3, 3, 2), (1, 1, 1)]
    opened = Opened()
    model_pool = await pool(opened, threads=4)
    async with model_pool.lease():
        await asked(model_pool, THIRD_NAME)
        async with model_pool.lease(THIRD_NAME):
            assert [model.threads[-1] for model in opened.models] == [2, 2]
        await until(lambda: opened.models[0].threads[-1] == 4)
    await model_pool.close()


async def test_only_a_server_with_several_models_pins_them() -> None:
    fixed = ModelPool(ModelRegistry(CatalogSettings(fixed_model=True), FIRST), Opened(), max_waiting=1)
    with pytest.raises(Forbidden):
        fixed.pin("first", is_pinned=True)


def test_the_memory_of_processes_is_measured() -> None:
    assert processes_bytes(()) > 10 << 20
