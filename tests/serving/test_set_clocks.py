"""What is kept while somebody sets the system's clock: nothing expires early, and the newest does not leave first."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from opened_responses import NOW, opened
from test_conversation_store import conversation
from test_response_store import response
from test_resume_store import cut, kept, key, open_store, save

from dragoman.serving.expiry_clock import BELIEVED_AFTER_S, STEP_S, ExpiryClock, steady_time

pytestmark = pytest.mark.anyio
DAY_S = 86400.0
MONTH_S = 30 * DAY_S


class Clocks:
    """The system's clock, and one that is never set."""

    def __init__(self) -> None:
        self.wall, self.passed = NOW, 5.0

    def set_by(self, seconds: float) -> None:
        self.wall += seconds

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds

    def expiry_clock(self) -> ExpiryClock:
        return ExpiryClock(lambda: self.wall, lambda: self.passed)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_a_clock_that_is_set_ahead_is_believed_after_a_day(clocks: Clocks) -> None:
    clock = clocks.expiry_clock()
    clocks.wait(100)
    assert (clock.now(), clock.stamp()) == (NOW + 100, NOW + 100)
    clocks.set_by(365 * DAY_S)
    assert clock.now() == NOW + 100
    assert clock.stamp() == clocks.wall
    clocks.wait(BELIEVED_AFTER_S - 1)
    assert clock.now() == NOW + 100 + BELIEVED_AFTER_S - 1
    clocks.wait(1)
    assert clock.now() == clocks.wall
    clocks.wait(1)
    assert clock.now() == clocks.wall


def test_a_clock_that_is_corrected_is_not_believed_the_next_time_it_goes_ahead(clocks: Clocks) -> None:
    clock = clocks.expiry_clock()
    for _ in range(3):
        clocks.set_by(MONTH_S)
        clocks.wait(BELIEVED_AFTER_S / 2)
        assert clock.now() == clocks.wall - MONTH_S
        clocks.set_by(-MONTH_S)
        assert clock.now() == clocks.wall


def test_a_clock_that_is_set_back_is_believed_for_what_expires_only(clocks: Clocks) -> None:
    clock = clocks.expiry_clock()
    clocks.set_by(-MONTH_S)
    clocks.wait(100)
    assert (clock.now(), clock.stamp()) == (NOW + 100 - MONTH_S, NOW + 100)


def test_small_steps_are_followed(clocks: Clocks) -> None:
    clock = clocks.expiry_clock()
    clocks.set_by(STEP_S)
    assert clock.now() == clocks.wall
    assert abs(ExpiryClock().now() - time.time()) < STEP_S
    assert steady_time() <= steady_time()


async def test_a_clock_that_is_set_ahead_deletes_no_responses(clocks: Clocks) -> None:
    async with opened(clock=lambda: clocks.wall, steady=lambda: clocks.passed, responses_ttl_s=MONTH_S) as store:
        await store.keep(response("1"))
        await store.keep_conversation(conversation("c"))
        clocks.set_by(365 * DAY_S)
        await store.keep(response("2", created_s=clocks.wall))
        clocks.set_by(-365 * DAY_S)
        assert [await store.find("a", id) is not None for id in ("1", "2")] == [True, True]
        assert await store.find_conversation("a", "c") is not None
        assert store.expired == 0


async def test_what_is_kept_while_the_clock_is_behind_does_not_expire_when_it_is_corrected(clocks: Clocks) -> None:
    async with opened(clock=lambda: clocks.wall, steady=lambda: clocks.passed, responses_ttl_s=MONTH_S) as store:
        clocks.set_by(-2 * MONTH_S)
        await store.keep(response("1", created_s=clocks.wall))
        await store.keep_conversation(conversation("c"))
        clocks.set_by(2 * MONTH_S)
        await store.keep(response("2", created_s=clocks.wall))
        assert await store.find("a", "1") is not None
        assert await store.find_conversation("a", "c") is not None


async def test_the_newest_responses_stay_when_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(responses_max_entries=3) as store:
        for id in "123":
            await store.keep(response(id))
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
        await store.keep(response("4"))
        await store.keep_conversation(conversation("c"))
        await store.find("a", "3")
        await store.keep(response("5"))
        found = [id for id in "12345" if await store.find("a", id) is not None]
        assert found == ["3", "5"]
        assert await store.find_conversation("a", "c") is not None


async def test_the_newest_cut_generations_stay_when_the_clock_was_set_back(tmp_path: Path) -> None:
    now = NOW
    async with open_store(tmp_path, clock=lambda: now, continue_max_entries=2) as store:  # type: ignore[arg-type]
        await save(store, key("1"), cut(1))
        await save(store, key("2"), cut(1))
    now -= 3600
    async with open_store(tmp_path, clock=lambda: now, continue_max_entries=2) as store:  # type: ignore[arg-type]
        await save(store, key("3"), cut(1))
        await save(store, key("4"), cut(1))
        assert [await kept(store, key(name)) is not None for name in "1234"] == [False, False, True, True]
