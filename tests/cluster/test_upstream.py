"""Connections of an ingress that wait for the next requests."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from dragoman.cluster.upstream import MOST_IDLE, SILENT_S, ReplicaConnection, ReplicaLost, ReplicaPool

pytestmark = pytest.mark.anyio


class Connection(ReplicaConnection):
    """One with a whole answer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._keeps_alive = True
        self._transport: Any = self
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


async def test_few_connections_wait_and_those_that_are_closed_give_way() -> None:
    pool, first = ReplicaPool(), [Connection() for _ in range(MOST_IDLE + 3)]
    for each in first:
        pool.give_back("replica", 1, each)
    assert [each.is_closed for each in first] == [False] * MOST_IDLE + [True] * 3
    for each in first[:5]:
        each.connection_lost(None)
    second = [Connection() for _ in range(6)]
    for each in second:
        pool.give_back("replica", 1, each)
    assert [each.is_closed for each in second] == [False] * 5 + [True]
    assert await pool.open("replica", 1) is second[4]
    pool.close()
    assert all(each.is_closed for each in first)


async def test_a_connection_whose_other_end_is_silent_ends_by_itself() -> None:
    """One that a firewall has forgotten: new ones are answered, so that its replica does not count as lost."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server:
        pool = ReplicaPool()
        connection = await pool.open("127.0.0.1", server.sockets[0].getsockname()[1])
        connected = connection._transport.get_extra_info("socket")

        def option(name: int) -> int:
            value: int = connected.getsockopt(socket.IPPROTO_TCP, name)
            return value

        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        last_s = option(socket.TCP_KEEPIDLE) + option(socket.TCP_KEEPINTVL) * option(socket.TCP_KEEPCNT)
        assert last_s == SILENT_S
        assert option(socket.TCP_USER_TIMEOUT) == 1000 * SILENT_S
        connection.close()


async def test_a_name_is_looked_up_for_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica may come back at another address, or its name be gone."""
    first = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = first.sockets[0].getsockname()[1]
    second = await asyncio.start_server(lambda reader, writer: None, "127.0.0.2", port)
    addresses = ["127.0.0.1", "127.0.0.2"]

    async def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses.pop(0), port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    pool = ReplicaPool()
    async with first, second:
        for address in list(addresses):
            connection = await pool.open("replica.example", port)
            assert connection._transport.get_extra_info("peername")[0] == address
            connection.close()
        with pytest.raises(ReplicaLost, match=r"replica\.example:.* cannot be reached: Name or service not known"):
            await pool.open("replica.example", port)
