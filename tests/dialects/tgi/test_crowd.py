"""Two hundred streams at once, a third of which vanishes: the rest is served or told that there is no room."""

from __future__ import annotations

import asyncio

from crowd import CLIENTS, PERMITS, crowd
from native import soaked
from sockets import Left


def test_nothing_is_left_of_a_crowd() -> None:
    with soaked() as server, Left(server):
        ends = asyncio.run(crowd(server.port, CLIENTS, 64, seed=1))
        assert ends.total() == CLIENTS
        assert ends["vanished"] > 0
        assert ends["whole"] > 0
        # So many come at once that not all of them get in.
        assert 0 < ends["overloaded"] <= CLIENTS - PERMITS
        # All permits are free again.
        after = asyncio.run(crowd(server.port, PERMITS, 2, seed=2))
        assert after["overloaded"] == 0
