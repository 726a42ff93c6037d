"""Moving windows, on a clock of their own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.rate_windows import MAX_CALLERS, MAX_ENTRIES, RateWindow


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def window(clock: Clock) -> RateWindow:
    return RateWindow(60, clock)


def test_what_is_used_counts_for_the_whole_span_and_no_longer(window: RateWindow, clock: Clock) -> None:
    assert window.take("ann", 100, 60)
    assert not window.take("ann", 100, 41)
    assert window.take("ann", 100, 40)
    clock.now += 59.9
    assert not window.has_room("ann", 100)
    clock.now += 0.2
    assert window.remaining("ann", 100) == 100


def test_more_than_there_is_room_for_may_be_charged_and_has_to_pass(window: RateWindow, clock: Clock) -> None:
    window.charge("ann", 90)
    clock.now += 10
    window.charge("ann", 1000)
    assert window.remaining("ann", 100) == 0
    assert not window.has_room("ann", 100, 0)
    assert window.wait_s("ann", 100) == pytest.approx(60)
    clock.now += 55
    assert not window.has_room("ann", 100)
    clock.now += 5
    assert window.has_room("ann", 100, 100)


def test_the_wait_is_the_time_until_it_fits(window: RateWindow, clock: Clock) -> None:
    for _ in range(10):
        window.charge("ann", 10)
        clock.now += 1
    assert window.wait_s("ann", 100, 1) == pytest.approx(50)
    assert window.wait_s("ann", 100, 25) == pytest.approx(52)
    assert window.wait_s("ann", 105, 5) == 0
    assert window.wait_s("ann", 100, 101) == math.inf
    assert window.empty_s("ann") == pytest.approx(59)
    assert window.oldest_s("ann") == pytest.approx(50)
    clock.now += window.wait_s("ann", 100, 25)
    assert window.take("ann", 100, 25)


def test_another_limit_finds_what_was_used(window: RateWindow) -> None:
    assert window.take("ann", 100, 50)
    assert not window.take("ann", 60, 11)
    assert window.take("ann", 60, 10)


def test_callers_are_apart_and_bounded(clock: Clock) -> None:
    window = RateWindow(60, clock, max_callers=3)
    assert all(window.take(name, 1) for name in "abc")
    window.charge("a", 1)
    assert window.take("d", 1)  # b is forgotten, who has been quiet for longest
    assert [window.has_room(name, 1) for name in "abcd"] == [False, True, False, False]
    assert len(window) == 3
    assert MAX_CALLERS >= 1024


def test_a_window_keeps_few_entries_however_often_it_is_used(window: RateWindow, clock: Clock) -> None:
    for _ in range(20_000):
        window.charge("ann", 1)
        clock.now += 0.01
    assert len(window._storage.uses["ann"].moments) <= MAX_ENTRIES + 1
    assert window.remaining("ann", 6100) <= 100


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30)), max_size=80))
def test_no_span_ever_holds_more_than_its_limit(uses: list[tuple[float, int]]) -> None:
    clock = Clock()
    window, taken = RateWindow(60, clock), []
    for pause, cost in uses:
        clock.now += pause
        wait_s = window.wait_s("ann", 50, cost)
        assert window.take("ann", 50, cost) == (wait_s == 0)
        if wait_s == 0:
            taken.append((clock.now, cost))
    for start, _ in taken:
        assert sum(cost for time, cost in taken if start <= time < start + 60) <= 50
