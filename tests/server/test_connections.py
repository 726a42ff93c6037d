"""Which connections make room for others, and which are told that there is none."""

from __future__ import annotations

import pytest

from dragoman.core.errors import EngineUnavailable, Overloaded
from dragoman.server.connections import GRACE_LOOKS, GRACE_S, UNREAD_S, Connections, Slot, client_of


class Places:
    """A table under a clock of the test's, and what was dropped."""

    def __init__(self, most: int = 4, reserve: int = 2, per_client: int | None = None) -> None:
        self.now = 0.0
        self.dropped: list[str] = []
        self.closes_late = False
        self.table = Connections(most, reserve, per_client, clock=lambda: self.now)

    def enter(self, name: str, client: str = "10.0.0.1", age_s: float = 1.0) -> Slot:
        slot = self.table.enter(client)
        assert slot is not None

        def drop() -> None:
            self.dropped.append(name)
            if not self.closes_late:
                self.table.leave(slot)

        slot.drop = drop
        self.now += age_s
        self.pass_turns()
        return slot

    def pass_turns(self, count: int = GRACE_LOOKS) -> None:
        for _ in range(count):
            self.table.begin_turn()


def test_the_oldest_idle_connection_makes_room() -> None:
    places = Places()
    slots = [places.enter(name) for name in "abcd"]
    places.table.set_busy(slots[0])
    places.table.set_busy(slots[1])
    assert places.table.has_room()
    assert places.dropped == ["c"]
    assert len(places.table) == 3


def test_a_late_event_loop_drops_nothing_that_it_has_not_read() -> None:
    """Seconds pass in one turn of the loop: what the clients have sent is still to be read."""
    places = Places(most=2)
    for name in "ab":
        slot = places.table.enter("10.0.0.1")
        assert slot is not None
        slot.drop = lambda name=name: places.dropped.append(name)  # type: ignore[misc]
    places.now += 10 * GRACE_S
    places.pass_turns(GRACE_LOOKS - 1)
    assert places.table.has_room()
    assert places.dropped == []
    places.pass_turns(1)
    places.table.has_room()
    assert places.dropped == ["a"]


def test_a_request_makes_a_connection_young_again() -> None:
    places = Places()
    a, *_ = [places.enter(name) for name in "abcd"]
    places.table.set_busy(a)
    places.table.set_idle(a)
    places.now += 1
    places.table.has_room()
    assert places.dropped == ["b"]


def test_who_has_the_most_idle_connections_loses_one() -> None:
    """A crowd of one address pushes nobody else out."""
    places = Places(most=6)
    places.enter("polite", "10.9.9.9")
    for name in ("rude 1", "rude 2", "rude 3", "rude 4", "rude 5"):
        places.enter(name, "10.6.6.6")
    for _ in range(4):
        assert places.table.has_room()
        places.enter("rude", "10.6.6.6")
    assert places.dropped == ["rude 1", "rude 2", "rude 3", "rude 4"]


def test_no_more_are_dropped_at_a_time_than_there_is_a_reserve() -> None:
    """A dropped connection has its descriptor until it is closed, with TLS for a while: a crowd would take them all."""
    places = Places(most=4, reserve=2)
    places.closes_late = True
    first, second, *_ = [places.enter(name) for name in "abcd"]
    resumed: list[bool] = []
    places.table.on_room = lambda: resumed.append(True)
    for name in "ef":
        assert places.table.has_room()
        places.enter(name)
    assert not places.table.has_room()
    assert places.dropped == ["a", "b"]
    assert not resumed
    places.table.leave(first)
    places.table.leave(second)
    assert resumed
    assert places.table.has_room()
    assert places.dropped == ["a", "b", "c"]
    assert len(places.table) == 3


def test_what_is_idle_goes_before_what_is_uploading_and_that_before_nothing() -> None:
    places = Places(most=3, reserve=1)
    uploading, idle, busy = (places.enter(name) for name in ("uploading", "idle", "busy"))
    places.table.set_uploading(uploading)
    places.table.set_busy(busy)
    places.now += 1
    assert places.table.has_room()
    places.table.set_busy(places.enter("busy too"))
    assert places.table.has_room()
    places.table.set_busy(places.enter("busy three"))
    assert places.dropped == ["idle", "uploading"]
    assert places.table.has_room()
    places.table.set_busy(places.enter("in reserve"))
    assert not places.table.has_room()
    assert places.dropped == ["idle", "uploading"]
    places.table.leave(idle)  # closed at last: its place was given away before
    assert len(places.table) == 4


def test_an_answer_that_nobody_reads_makes_room_after_a_while() -> None:
    places = Places(most=2, reserve=2)
    reading, unread = (places.enter(name) for name in ("reading", "unread"))
    for slot in (reading, unread):
        places.table.set_busy(slot)
        places.table.set_unread(slot)
    places.now += UNREAD_S - 0.5
    assert places.table.has_room()
    assert not places.dropped
    # It is no less busy than others: nobody else is answered in its place before it is closed.
    assert isinstance(places.table.refusal(places.enter("third", age_s=0)), EngineUnavailable)
    places.table.set_read(reading)
    places.now += 0.5
    idle = places.enter("idle")
    assert places.table.has_room()
    assert places.dropped == ["third"]
    places.table.leave(idle)
    places.table.set_busy(places.enter("fourth"))
    assert places.table.has_room()
    assert places.dropped == ["third", "unread"]
    for change in (places.table.set_unread, places.table.set_read, places.table.leave):
        change(unread)
    assert len(places.table) == 2
    assert places.table.has_room()
    assert places.dropped == ["third", "unread"]


def test_nobody_is_dropped_before_a_first_packet_can_have_come() -> None:
    places = Places(most=2, reserve=2)
    for name in "abcd":
        places.enter(name, age_s=0)
    assert not places.table.has_room()
    places.now = GRACE_S
    assert places.table.has_room()
    assert places.dropped == ["a"]


def test_beyond_the_most_that_are_answered_requests_are_refused() -> None:
    places = Places(most=2, reserve=2)
    slots = [places.enter(name) for name in "abcd"]
    for slot in slots[:2]:
        assert places.table.refusal(slot) is None
        places.table.set_busy(slot)
    assert isinstance(places.table.refusal(slots[2]), EngineUnavailable)
    places.table.set_idle(slots[0])
    assert places.table.refusal(slots[2]) is None
    assert places.table.refused == 1


def test_one_address_has_its_share() -> None:
    places = Places(most=10, per_client=2, reserve=8)
    first, second = places.enter("first"), places.enter("second")
    for slot in (first, second):
        assert places.table.refusal(slot) is None
        places.table.set_busy(slot)
    third = places.enter("third")
    assert isinstance(places.table.refusal(third), Overloaded)
    assert places.table.refusal(places.enter("other", "10.0.0.2")) is None
    places.enter("fourth")
    assert places.dropped == ["third"]  # its own idle connection goes first
    for name in ("fifth", "sixth"):
        places.table.set_busy(places.enter(name, age_s=0))
    assert places.table.enter("10.0.0.1") is None  # beyond what is heard to be refused
    places.table.leave(first)
    places.table.leave(second)
    assert places.table.enter("10.0.0.1") is not None


def test_requests_that_a_proxy_passes_on_are_their_clients() -> None:
    table = Connections(10, 2, 2)
    assert table.begin_request("10.0.0.1") is None
    assert table.begin_request("10.0.0.1") is None
    assert isinstance(table.begin_request("10.0.0.1"), Overloaded)
    assert table.begin_request("10.0.0.2") is None
    for _ in range(3):
        table.end_request("10.0.0.1")
    assert table.begin_request("10.0.0.1") is None


@pytest.mark.parametrize(
    ("address", "client"),
    [
        (("192.0.2.1", 80), "192.0.2.1"),
        (("::ffff:192.0.2.1", 80, 0, 0), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 80, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 80, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_clients_are_counted_by_what_they_cannot_change(address: object, client: str) -> None:
    assert client_of(address) == client


def test_a_place_that_was_given_up_counts_no_more() -> None:
    places = Places(most=1, reserve=1)
    slot = places.enter("a")
    places.table.drop_one()
    for change in (places.table.set_idle, places.table.set_busy, places.table.set_uploading, places.table.leave):
        change(slot)
    assert len(places.table) == 0
    busy = places.enter("b")
    assert places.table.refusal(busy) is None
