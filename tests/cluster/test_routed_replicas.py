"""Which of the replicas that Ray Serve names get requests: when one is lost, and when it comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.cluster import routed_replicas
from dragoman.cluster.routed_replicas import LOST_S, RETRY_S, RoutedReplicas


class Clocks:
    """In place of the module ``time``."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(routed_replicas, "time", clocks)
    return clocks


def named(at: float, name: str = "a", **state: Any) -> SimpleNamespace:
    """A replica as Serve names it, with the state that it recorded at this time."""
    stats = {"ready": True, "waiting": 0, "running": 0, "blocks": 8, "blocks_used": 0, "prefixes": [], "at": at} | state
    address = {"host": "127.0.0.1", "port": 1}
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), replica_metadata=address, routing_stats=stats)


def lost(clocks: Clocks) -> RoutedReplicas:
    """The one replica, which was ready, just after its loss."""
    routed = RoutedReplicas()
    routed.update([named(clocks.wall - 5)])
    assert routed.ready == ["a"]
    routed.lose(routed.all()[0], "its connection was lost")
    assert routed.ready == []
    assert "its connection was lost" in routed.not_ready()
    return routed


def test_a_lost_replica_comes_back_when_it_says_later_that_it_is_well(clocks: Clocks) -> None:
    routed = lost(clocks)
    routed.update([named(clocks.wall - 1, running=1)])
    assert routed.ready == [], "it said so before"
    clocks.pass_by(LOST_S)
    routed.update([named(clocks.wall)])
    assert routed.ready == ["a"]


def test_a_lost_replica_that_has_nothing_new_to_say_is_tried_again(clocks: Clocks) -> None:
    routed = lost(clocks)
    clocks.pass_by(LOST_S / 2)
    last = named(clocks.wall, running=1)
    routed.update([last])
    clocks.pass_by(RETRY_S - LOST_S)
    routed.update([last])
    assert routed.ready == []
    clocks.pass_by(LOST_S)
    assert routed.ready == ["a"]


@pytest.mark.parametrize("step_s", [-86400.0, 86400.0])
def test_a_clock_that_is_set_keeps_no_replica_lost(clocks: Clocks, step_s: float) -> None:
    routed = lost(clocks)
    clocks.wall += step_s
    routed.update([named(clocks.wall, running=1)])
    clocks.pass_by(RETRY_S)
    assert routed.ready == ["a"]


def test_a_replica_that_says_that_it_is_not_well_is_not_tried(clocks: Clocks) -> None:
    routed = lost(clocks)
    routed.update([named(clocks.wall, ready=False, reason="it is starting")])
    clocks.pass_by(RETRY_S)
    assert routed.ready == []
    assert "it is starting" in routed.not_ready()
