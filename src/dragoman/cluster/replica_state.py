"""What a replica says of itself, and the watch for those that say nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from dragoman.cluster.upstream import ReplicaLost, ReplicaPool
from dragoman.server.relay import SECRET, STATE_PATH

ANSWER_S = 2.0
SILENT_S = 0.01
"""Seconds for each silent replica until it is asked again: of many, all together cost 2 % of a processor."""
SILENT_AT_ONCE = 64
"""Silent replicas that are asked at one time: each may hold a descriptor for as long as an answer may take."""
NOT_ADMITTED = "it does not have the adapters and models yet that were loaded in the cluster"


class Replica(msgspec.Struct, frozen=True):
    """The address of a replica, by its name."""

    name: str
    host: str
    port: int


class SilentReplicas:
    """The replicas that did not answer when they were asked last, or never yet. However many they are, asking them
    again leaves time and descriptors to the others."""

    def __init__(self) -> None:
        self._again_at: dict[str, float] = {}
        self._turns = asyncio.Semaphore(SILENT_AT_ONCE)

    def add(self, name: str, least_s: float) -> bool:
        """Take that a replica is silent, and is asked again in ``least_s`` or later. Return whether it is a new one."""
        is_new = name not in self._again_at
        self._again_at[name] = 0.0
        self._again_at[name] = asyncio.get_running_loop().time() + max(least_s, SILENT_S * len(self._again_at))
        return is_new

    def discard(self, name: str) -> None:
        """Take that a replica answers, or is gone."""
        self._again_at.pop(name, None)

    def keep(self, names: Container[str]) -> None:
        """Forget all but these, which are there."""
        self._again_at = {name: at for name, at in self._again_at.items() if name in names}

    def wait_s(self, name: str) -> float:
        """Return the seconds until a replica is asked again; 0 for one that is not silent."""
        return max(0.0, self._again_at.get(name, 0.0) - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Wait for a silent replica's turn to be asked, and hold it."""
        if name not in self._again_at:
            yield
            return
        async with self._turns:
            yield


async def ask_replica(
    pool: ReplicaPool, replica: Replica, secret: bytes, method: str, path: str, content: bytes = b""
) -> bytes:
    """Return what a replica answers to its ingress itself. Raises ReplicaLost where it does not, or with an error."""
    headers = [(b"host", b"localhost"), (SECRET, secret), (b"content-length", b"%d" % len(content))]
    try:
        async with asyncio.timeout(ANSWER_S):
            connection = await pool.open(replica.host, replica.port, fresh=True)
            try:
                connection.start(method, path.encode(), headers, [content] if content else [])
                status, body = await connection.read_plain()
            finally:
                connection.close()
    except TimeoutError:
        raise ReplicaLost("it does not answer") from None
    if status != 200:
        raise ReplicaLost(f"its state has status {status}: is the secret the same?")
    return body


async def read_state(pool: ReplicaPool, replica: Replica, secret: bytes) -> Mapping[str, Any]:
    """Return what a replica says of itself. Raises ReplicaLost where it does not answer, or not as it should."""
    body = await ask_replica(pool, replica, secret, "GET", STATE_PATH)
    try:
        state = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise ReplicaLost("its state cannot be read")
    return state
