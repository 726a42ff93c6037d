"""Replicas that do not answer, however many they are: the others lose neither time nor descriptors to them."""

from __future__ import annotations

import asyncio
import logging

import pytest
from cluster_stub import SECRET, cluster_of, until
from stub_runtime import RunningServer

from dragoman.cluster.replica_state import SILENT_AT_ONCE, SILENT_S, Replica, SilentReplicas
from dragoman.cluster.replica_table import PROBE_S, ReplicaTable
from dragoman.cluster.routing import ReplicaChoice
from dragoman.cluster.upstream import ReplicaLost

pytestmark = pytest.mark.anyio

MANY = 1000


async def test_few_are_asked_again_at_once_and_many_in_turn() -> None:
    silent = SilentReplicas()
    assert silent.add("first", PROBE_S)
    assert not silent.add("first", PROBE_S), "it was silent before"
    assert 0 < silent.wait_s("first") <= PROBE_S
    for number in range(MANY):
        silent.add(str(number), PROBE_S)
    assert PROBE_S < silent.wait_s(str(MANY - 1)) <= SILENT_S * (MANY + 1)
    silent.discard("first")
    assert silent.wait_s("first") == 0
    silent.keep({"0"})
    silent.add("0", PROBE_S)
    assert silent.wait_s("0") <= PROBE_S


async def test_a_table_waits_for_few_of_them_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds a descriptor until it answers, or the time for that is over."""
    asked: set[str] = set()
    waiting = most = 0
    may_end = asyncio.Event()

    async def read_state(pool: object, replica: Replica, secret: bytes) -> None:
        nonlocal waiting, most
        asked.add(replica.name)
        waiting += 1
        most = max(most, waiting)
        await may_end.wait()
        waiting -= 1
        raise ReplicaLost("it does not answer")

    monkeypatch.setattr("dragoman.cluster.replica_table.read_state", read_state)
    table = ReplicaTable(ReplicaChoice(), SECRET)
    for number in range(2 * SILENT_AT_ONCE):
        table.add(Replica(str(number), "127.0.0.1", 9))
    await until(lambda: waiting == SILENT_AT_ONCE)
    await asyncio.sleep(0)
    assert len(asked) == SILENT_AT_ONCE
    may_end.set()
    await until(lambda: len(asked) == 2 * SILENT_AT_ONCE)
    assert most == SILENT_AT_ONCE
    await table.close()


async def test_the_log_names_each_once_and_a_replica_that_is_there_is_found(
    servers: list[RunningServer], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cluster.changes.LOOK_S", 0.01)
    caplog.set_level(logging.WARNING)
    addresses = [*((f"dead-{number}", 9) for number in range(20)), ("well", servers[0].port)]
    async with cluster_of(addresses, ready=1) as cluster:
        asked = 0
        meet = cluster.ingress.changes._meet

        async def counted(replica: Replica) -> None:
            nonlocal asked
            asked += 1
            await meet(replica)

        monkeypatch.setattr(cluster.ingress.changes, "_meet", counted)
        await until(lambda: asked >= 60)
        assert cluster.table.ready == ["well"]
    told = [each.getMessage() for each in caplog.records if "changes did not reach" in each.getMessage()]
    assert len(told) == len(set(told)) == 20
