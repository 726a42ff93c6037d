"""The replicas that a process routes to through Ray Serve, and the choice among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.cluster.replica_state import NOT_ADMITTED, Replica
from dragoman.cluster.routing import ReplicaChoice

LOST_S = 1.0
"""Seconds by which a state has to be newer than a replica's loss to end it at once: clocks of machines differ."""

RETRY_S = 10.0
"""Seconds after which a lost replica is tried again. A replica whose state does not change says nothing more, and one
whose clock is behind seems to have said it before its loss."""


class _Loss(NamedTuple):
    """``at``: by the system's clock, as in states. ``until``: when it is tried again, on a clock that never steps."""

    at: float
    until: float
    reason: str


class RoutedReplicas:
    """The replicas that this process routes to, and the choice among them. Shared by the router, which runs in a thread
    of Serve's, and the ingress."""

    def __init__(self) -> None:
        self.choice = ReplicaChoice()
        self._replicas: dict[str, Replica] = {}
        self._stated: dict[str, str] = {}
        """Why each is not ready, as its newest state says; empty when it is."""
        self._lost: dict[str, _Loss] = {}
        self._seen_at: dict[str, float] = {}
        self._admits: Callable[[str], bool] = lambda name: True

    def update(self, replicas: Sequence[Any]) -> None:
        """Take Serve's list of replicas, with what each says of itself."""
        found: dict[str, Replica] = {}
        for each in replicas:
            name, address = each.replica_id.unique_id, each.replica_metadata
            if isinstance(address.get("host"), str) and isinstance(address.get("port"), int):
                found[name] = Replica(name, address["host"], address["port"])
                self._take(name, each.routing_stats)
        for name in self._replicas.keys() - found.keys():
            self.choice.forget(name)
            for by_name in (self._stated, self._lost, self._seen_at):
                by_name.pop(name, None)
        self._replicas = found

    def _take(self, name: str, state: Mapping[str, Any]) -> None:
        at = state.get("at")
        if not isinstance(at, float) or at == self._seen_at.get(name):
            self._stated.setdefault(name, "")
            return
        self._seen_at[name] = at
        self._stated[name] = "" if state.get("ready") is True else str(state.get("reason") or "it is not ready")
        loss = self._lost.get(name)
        if loss is not None and at >= loss.at + LOST_S:
            del self._lost[name]
        self.choice.report(name, state)

    def lose(self, replica: Replica, reason: str) -> None:
        """Send no requests to a replica until it says that it is well, later than now, or for ``RETRY_S``."""
        self._lost[replica.name] = _Loss(time.time(), time.monotonic() + RETRY_S, reason)

    def _reason(self, name: str) -> str:
        """Return why a replica gets no requests; empty when it does."""
        loss = self._lost.get(name)
        if loss is not None and time.monotonic() < loss.until:
            return loss.reason
        return self._stated.get(name, "")

    def admit_by(self, admits: Callable[[str], bool]) -> None:
        """Give requests only to replicas whose name this admits."""
        self._admits = admits

    @property
    def ready(self) -> list[str]:
        return [name for name in self._replicas if not self._reason(name) and self._admits(name)]

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def find(self, name: str) -> Replica | None:
        return self._replicas.get(name)

    def not_ready(self) -> str:
        """Return why no request can be served now; empty when one can."""
        if self.ready:
            return ""
        if not self._replicas:
            return "there are no replicas"
        reasons = ", ".join(f"{name}: {self._reason(name) or NOT_ADMITTED}" for name in self._replicas)
        return f"no replica of {len(self._replicas)} is ready ({reasons})"


ROUTED = RoutedReplicas()
"""Those of this process."""
