"""Replicas at known addresses: watched here, without Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from dragoman.cluster.prompt_text import PromptText
from dragoman.cluster.replica_state import NOT_ADMITTED, Replica, SilentReplicas, read_state
from dragoman.cluster.routing import ReplicaChoice, Wanted
from dragoman.cluster.upstream import NotAsked, ReplicaLost, ReplicaPool
from dragoman.core.errors import EngineUnavailable

log = logging.getLogger("dragoman.cluster")

PROBE_S = 0.5


class ReplicaTable:
    """Replicas by name. ``choice`` ranks them; those that are not ready, or do not answer, get no requests."""

    def __init__(self, choice: ReplicaChoice, secret: bytes) -> None:
        self.choice = choice
        self._secret = secret
        self._replicas: dict[str, Replica] = {}
        self._reasons: dict[str, str] = {}
        """Why a replica gets no requests; empty: it does."""
        self._changed = asyncio.Event()
        self._pool = ReplicaPool()
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._silent = SilentReplicas()
        self.fingerprints: dict[str, str] = {}
        self._admits: Callable[[str], bool] = lambda name: True

    def add(self, replica: Replica) -> None:
        self._replicas[replica.name] = replica
        self._reasons[replica.name] = "it has not answered yet"
        self._silent.add(replica.name, 0.0)
        self._probes[replica.name] = asyncio.create_task(self._probe_repeatedly(replica))

    def remove(self, name: str) -> None:
        """Send no more requests to a replica; running ones finish."""
        self._replicas.pop(name, None)
        self._reasons.pop(name, None)
        self._silent.discard(name)
        probe = self._probes.pop(name, None)
        if probe is not None:
            probe.cancel()
        self.choice.forget(name)

    def admit_by(self, admits: Callable[[str], bool]) -> None:
        """Give requests only to replicas whose name this admits."""
        self._admits = admits

    @property
    def ready(self) -> list[str]:
        return [name for name, reason in self._reasons.items() if not reason and self._admits(name)]

    def all(self) -> Iterable[Replica]:
        return list(self._replicas.values())

    def not_ready(self) -> str:
        """Return why no request can be served now; empty when one can."""
        if self.ready:
            return ""
        reasons = ", ".join(f"{name}: {reason or NOT_ADMITTED}" for name, reason in self._reasons.items())
        return f"no replica of {len(self._replicas)} is ready ({reasons})" if reasons else "there are no replicas"

    @asynccontextmanager
    async def slot(self, wanted: Wanted, wait_s: float) -> AsyncIterator[Replica]:
        try:
            async with asyncio.timeout(wait_s):
                while not self.ready:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise EngineUnavailable(f"No replica can take the request: {self.not_ready()}.") from None
        name = self.choice.rank(self.ready, wanted)[0]
        self.choice.begin(name)
        try:
            yield self._replicas[name]
        finally:
            self.choice.end(name)

    def lose(self, replica: Replica, reason: str) -> None:
        if replica.name in self._reasons:
            self._reasons[replica.name] = reason

    def learn(self, replica: Replica, text: PromptText, header: str) -> None:
        self.choice.learn(replica.name, text, header)

    async def close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)
        self._pool.close()

    async def _probe_repeatedly(self, replica: Replica) -> None:
        while True:
            with suppress(Exception):
                async with self._silent.turn(replica.name):
                    await self._probe(replica)
            await asyncio.sleep(max(PROBE_S, self._silent.wait_s(replica.name)))

    async def _probe(self, replica: Replica) -> None:
        name = replica.name
        try:
            state = await read_state(self._pool, replica, self._secret)
        except NotAsked:
            return
        except ReplicaLost as error:
            self._reasons[name] = str(error)
            self._silent.add(name, PROBE_S)
            return
        self._silent.discard(name)
        self.choice.report(name, state)
        self.fingerprints[name] = str(state.get("fingerprint", ""))
        self._reasons[name] = "" if state.get("ready") is True else str(state.get("reason") or "it is not ready")
        if not self._reasons[name]:
            self._changed.set()
