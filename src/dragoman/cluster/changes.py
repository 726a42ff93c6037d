"""Operations that change a server, such as loading an adapter: every replica gets them, also one that starts later.

They are the operations whose keys need the scope ``admin``. The ingress keeps the newest of each subject, and leaves
its list with every replica, so that an ingress that starts anew finds it there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
from starlette.routing import compile_path

from dragoman.cluster.answer import Frames, head_of
from dragoman.cluster.prompt_text import PromptText
from dragoman.cluster.replica_state import Replica, SilentReplicas, ask_replica
from dragoman.cluster.routing import Wanted
from dragoman.cluster.running import Arrivals, RunningRequest
from dragoman.cluster.upstream import ReplicaLost, ReplicaPool
from dragoman.core.errors import EngineUnavailable, GenerationFailed
from dragoman.dialects.api import Dialect
from dragoman.server.relay import CHANGES_PATH, HEAD_FRAME

log = logging.getLogger("dragoman.cluster")

MOST_CHANGES = 1024
MOST_BYTES = 8 * 1024 * 1024
"""Bytes of the bodies that are kept. The oldest changes are forgotten first, which the log says."""
LOOK_S = 1.0
AGAIN_S = 0.2
PATIENCE_S = 10.0
"""Seconds for which a replica that takes no requests is asked again."""
BUSY = (429, 503)
_decode_body = msgspec.json.Decoder().decode


class Change(msgspec.Struct, frozen=True):
    """One operation, as its client sent it. ``serial``: its place in the order of all. ``subject``: what it changes; a
    later operation on the same subject replaces it. ``adapter``: that it names, if it does."""

    serial: int
    subject: str
    adapter: str
    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def request(self, request_id: str, arrivals: Arrivals) -> RunningRequest:
        """Return it as a request for a replica."""
        return RunningRequest(
            self.method,
            self.target,
            self.headers,
            self.body,
            request_id=request_id,
            client="",
            scheme="http",
            arrivals=arrivals,
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Change]).decode


class ChangingOperations:
    """Tells which requests change a server."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._operations = [
            (operation.method, compile_path(prefix + operation.path)[0], operation.path)
            for dialect in dialects
            for operation in dialect.operations
            if operation.scope == "admin"
            for prefix in ("", f"/{dialect.name}")
        ]

    def find(self, method: str, path: str, target: bytes, headers: object, body: bytes) -> Change | None:
        """Return the change that a request asks for; None where it asks for none."""
        for operation_method, pattern, operation in self._operations:
            if method == operation_method and pattern.match(path):
                adapter = _adapter(body)
                kept = msgspec.convert(headers, list[tuple[bytes, bytes]])
                return Change(0, f"{operation} {adapter}".strip(), adapter, method, target, kept, body)
        return None


def _adapter(body: bytes) -> str:
    try:
        content = _decode_body(body)
    except (ValueError, RecursionError):
        return ""
    name = content.get("lora_name") if isinstance(content, dict) else None
    return name if isinstance(name, str) else ""


class ChangedReplicas(Protocol):
    """The replicas as changes need them."""

    def slot(self, wanted: Wanted, wait_s: float) -> AbstractAsyncContextManager[Replica]: ...

    def all(self) -> Iterable[Replica]: ...

    @property
    def ready(self) -> Sequence[str]: ...

    def admit_by(self, admits: Callable[[str], bool]) -> None: ...


Ask = Callable[[Replica, RunningRequest], Awaitable[Frames]]
"""Returns the frames of a replica's whole answer. Raises ReplicaLost."""


class Changes:
    """The changes so far, and which of them each replica was given."""

    def __init__(
        self, replicas: ChangedReplicas, ask: Ask, pool: ReplicaPool, secret: bytes, arrivals: Arrivals
    ) -> None:
        self._arrivals = arrivals
        self._replicas, self._ask, self._pool, self._secret = replicas, ask, pool, secret
        self._kept: list[Change] = []
        self._newest = 0
        self._given: dict[str, int] = {}
        """By the name of a replica: the serial of the newest change that it was given."""
        self._refused: dict[str, tuple[int, str]] = {}
        """By the name of a replica: the serial of the newest change that it refused, and what it answered."""
        self._joined: set[str] = set()
        """Those that were given, once, all that there was."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._order = asyncio.Lock()
        """Held while a change is made: all replicas get changes in the same order."""
        self._tasks: dict[str, asyncio.Task[str]] = {}
        self._silent = SilentReplicas()
        replicas.admit_by(self.admits)

    def admits(self, name: str) -> bool:
        """Return whether a replica may get requests: it has the changes that there were when it came."""
        return not self._kept or name in self._joined

    async def make(self, change: Change, request_id: str, wait_s: float) -> Frames:
        """Return the answer of the first replica, once the others have made the change too. One that the first replica
        refuses reaches no other.

        Raises EngineUnavailable where there is no replica, GenerationFailed that names those that refused.
        """
        async with self._order:
            first, frames = await self._first(change, request_id, wait_s)
            status = status_of(frames)
            if status >= 300:
                return frames
            if not self._kept:
                self._joined.update(self._replicas.ready)
            self._newest += 1
            self._keep([msgspec.structs.replace(change, serial=self._newest)])
            self._given[first.name] = self._newest
            self._joined.add(first.name)
            await self._leave(first)
            serial = self._newest
            others = [each for each in self._replicas.all() if each.name != first.name]
            answers = await asyncio.gather(*(self._catch_up(each, serial) for each in others))
            refusals = list(filter(None, answers))
            if refusals:
                made = 1 + len(others) - len(refusals)
                raise GenerationFailed(
                    f"The change was made on {made} of {1 + len(others)} replicas: {'; '.join(refusals)}."
                )
            return frames

    async def _first(self, change: Change, request_id: str, wait_s: float) -> tuple[Replica, Frames]:
        """Have one replica make a change, where there are several one that has the adapter."""
        avoid: set[str] = set()
        while True:
            wanted = Wanted(PromptText(model=change.adapter or None), frozenset(avoid))
            async with self._replicas.slot(wanted, wait_s) as replica:
                if replica.name in avoid:
                    raise EngineUnavailable("All replicas were lost that were to make the change.")
                try:
                    return replica, await self._ask(replica, change.request(request_id, self._arrivals))
                except ReplicaLost as error:
                    log.warning("replica %s was lost with a change: %s", replica.name, error)
                    avoid.add(replica.name)

    def _keep(self, changes: Sequence[Change]) -> None:
        subjects = {change.subject for change in changes}
        self._kept = [*(each for each in self._kept if each.subject not in subjects), *changes]
        while len(self._kept) > MOST_CHANGES or sum(len(each.body) for each in self._kept) > MOST_BYTES:
            log.warning("the oldest change is forgotten, replicas to come lack it: %s", self._kept.pop(0).subject)

    async def _catch_up(self, replica: Replica, serial: int | None = None) -> str:
        """Give a replica the changes that it lacks. Return why it refused the one of that serial, whoever gave it
        that, else nothing. One that is lost meanwhile is tried again later, where it is still there."""
        name, clock = replica.name, asyncio.get_running_loop().time
        until = clock() + PATIENCE_S
        async with self._locks.setdefault(name, asyncio.Lock()):
            try:
                if name not in self._given:
                    await self._meet(replica)
                while due := self._due(name):
                    status = status_of(await self._ask(replica, due.request(f"change-{due.serial}", self._arrivals)))
                    if status in BUSY:
                        if clock() > until:
                            return f"{name} takes no requests"
                        await asyncio.sleep(AGAIN_S)
                        continue
                    if status >= 300:
                        refusal = f"{name} answered {due.subject} with status {status}"
                        log.warning("%s", refusal)
                        self._refused[name] = due.serial, refusal
                    self._given[name] = due.serial
                self._given[name] = self._newest
                self._joined.add(name)
                await self._leave(replica)
                self._silent.discard(name)
            except ReplicaLost as error:
                if self._silent.add(name, LOOK_S):
                    log.warning("changes did not reach replica %s: %s", name, error)
        refused, refusal = self._refused.get(name, (0, ""))
        return refusal if refused == serial else ""

    async def _catch_up_in_turn(self, replica: Replica) -> str:
        async with self._silent.turn(replica.name):
            return await self._catch_up(replica)

    def _due(self, name: str) -> Change | None:
        """Return the oldest change that a replica lacks; None where there is none, or the replica has left."""
        given = self._given.get(name, self._newest)
        return next((change for change in self._kept if change.serial > given), None)

    async def _meet(self, replica: Replica) -> None:
        """Learn what a replica has been given by an ingress before this one. Raises ReplicaLost."""
        left = await ask_replica(self._pool, replica, self._secret, "GET", CHANGES_PATH)
        try:
            found = _decode(left) if left else []
        except msgspec.MsgspecError:
            found = []
        if new := [each for each in found if each.serial > self._newest]:
            self._keep(new)
            self._newest = new[-1].serial
        self._given[replica.name] = found[-1].serial if found else 0

    async def _leave(self, replica: Replica) -> None:
        given = self._given[replica.name]
        kept = _encode([each for each in self._kept if each.serial <= given])
        try:
            await ask_replica(self._pool, replica, self._secret, "PUT", CHANGES_PATH, kept)
        except ReplicaLost as error:
            log.warning("the list of changes was not left with replica %s: %s", replica.name, error)

    async def watch(self) -> None:
        """Bring replicas up to date that are new or were missed, for as long as the ingress runs."""
        while True:
            there = {each.name: each for each in self._replicas.all()}
            for name in self._given.keys() - there.keys():
                del self._given[name]
                self._joined.discard(name)
                self._locks.pop(name, None)
                self._refused.pop(name, None)
            self._silent.keep(there)
            self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
            for name, replica in there.items():
                is_behind = self._given.get(name, -1) < self._newest
                if is_behind and name not in self._tasks and not self._silent.wait_s(name):
                    self._tasks[name] = asyncio.create_task(self._catch_up_in_turn(replica))
            await asyncio.sleep(LOOK_S)


def status_of(frames: Frames) -> int:
    """Return the status of a whole answer. Raises ReplicaLost where it has none."""
    head = next((payload for kind, payload in frames if kind == HEAD_FRAME), None)
    if head is None:
        raise ReplicaLost("its answer has no head")
    return head_of(head)[0]
