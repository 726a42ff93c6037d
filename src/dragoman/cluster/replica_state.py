"""What a replica says of itself, and the watch for those that say nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.cluster.upstream import ReplicaLost, ReplicaPool
from dragoman.server.relay import SECRET, STATE_PATH

ANSWER_S = 2.0
NOT_ADMITTED = "it does not have the adapters and models yet that were loaded in the cluster"


class Replica(msgspec.Struct, frozen=True):
    """The address of a replica, by its name."""

    name: str
    host: str
    port: int


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
