"""The ingress: passes each request on to a replica, byte for byte, and continues it on another when that one dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.cluster.answer import ClientAnswer, Frames, rest_of
from dragoman.cluster.answer_relay import AnswerRelay
from dragoman.cluster.attempts import Attempts, NotOnReplica, ReplicaDeclined
from dragoman.cluster.changes import Change, Changes, ChangingOperations
from dragoman.cluster.counts import IngressCounts
from dragoman.cluster.errors import ErrorWriter
from dragoman.cluster.everywhere import concerns_all, merged
from dragoman.cluster.prompt_text import NO_TEXT, ModelPaths, PromptText, prompt_text
from dragoman.cluster.replica_state import Replica, read_state
from dragoman.cluster.routing import Wanted
from dragoman.cluster.running import Arrivals, Changed, RunningRequest
from dragoman.cluster.stored_ids import StoredIds
from dragoman.cluster.upstream import NotAsked, ReplicaConnection, ReplicaLost, ReplicaPool, ReplicaRefused
from dragoman.core.errors import Cancelled, DragomanError, EngineUnavailable, ShuttingDown
from dragoman.dialects.api import Dialect
from dragoman.server.body import read_body
from dragoman.server.body_budget import BodyBudget
from dragoman.server.middleware import CROWDED, request_id_of
from dragoman.server.scope_reader import PROXIED_PREFIX
from dragoman.serving.settings import WorkSettings
from dragoman.serving.worker_pool import WorkerPools

log = logging.getLogger("dragoman.cluster")

WATCH_S = 1.0
MISSED = 3
"""Questions without an answer after which a replica counts as dead: 3 to 9 seconds."""
ALL_S = 2.0
"""Seconds for each replica to answer what all are asked; the answer then is that of the others."""
INLINE_TEXT = 256 * 1024
"""Bytes of a body whose prompt is named in the event loop: 1 ms."""
MOST_TEXT = 4 * 1024 * 1024


class Replicas(Protocol):
    """The replicas of a cluster, and their slots."""

    def slot(self, wanted: Wanted, wait_s: float) -> AbstractAsyncContextManager[Replica]:
        """Hold a slot of the replica that suits best. Raises EngineUnavailable where none is there in time."""

    def lose(self, replica: Replica, reason: str) -> None:
        """Take the report that a replica broke off an answer."""

    def learn(self, replica: Replica, text: PromptText, header: str) -> None:
        """Take the names of a prompt's blocks, which the replica now holds."""

    def all(self) -> Iterable[Replica]:
        """Return all that there are."""

    @property
    def ready(self) -> Sequence[str]:
        """The names of those that get requests."""

    def admit_by(self, admits: Callable[[str], bool]) -> None:
        """Give requests only to replicas whose name this admits."""


class IngressSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    wait_s: seconds that a new request waits for a replica. continue_s: seconds that a begun one waits for another.
    max_body_bytes: of one request. body_timeout_s: for it to arrive.
    """

    wait_s: float = 5.0
    continue_s: float = 60.0
    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout_s: float = 60.0
    max_buffered_bytes: int = 256 * 1024 * 1024


class Ingress:
    """The ASGI application. ``errors`` writes those of the ingress itself, in the words of the request's dialect."""

    def __init__(
        self,
        replicas: Replicas,
        secret: bytes,
        errors: ErrorWriter,
        settings: IngressSettings | None = None,
        *,
        own: Callable[[str], ASGIApp | None] = lambda path: None,
        dialects: Sequence[Dialect] = (),
    ) -> None:
        self._replicas, self._secret, self._errors = replicas, secret, errors
        self._settings = settings or IngressSettings()
        self._bodies = BodyBudget(self._settings.max_buffered_bytes)
        self._own = own
        self._arrivals = Arrivals()
        self._stored = StoredIds()
        self._pools = WorkerPools(WorkSettings())
        self.sockets: ASGIApp | None = None
        """Answers WebSockets; None: there are none."""
        self.pool = ReplicaPool()
        self._open: dict[str, tuple[Replica, set[ReplicaConnection]]] = {}
        self.counts = IngressCounts()
        self._changing = ChangingOperations(dialects)
        self._model_paths = ModelPaths(dialects)
        self.changes = Changes(replicas, self._ask, self.pool, secret, self._arrivals)
        self._making: set[asyncio.Task[Frames]] = set()
        self._answering: set[asyncio.Task[Any]] = set()
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            if scope["type"] == "websocket" and self.sockets is not None:
                await self.sockets(scope, receive, send)
            elif scope["type"] == "http":
                own = self._own(scope["path"])
                await (self._pass_on if own is None else own)(scope, receive, send)
        finally:
            self._answering.discard(task)

    def end(self) -> int:
        """End the unfinished answers with an error that says why. Return how many there are."""
        self._is_over = True
        for task in self._answering:
            task.cancel()
        return len(self._answering)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["request_id"] = request_id_of(scope)
        answer = ClientAnswer(scope, send)
        headers = Headers(scope=scope)
        body: bytes | None = None
        try:
            settings = self._settings
            if (crowded := scope.get("state", {}).get(CROWDED)) is not None:
                raise crowded
            body = await read_body(
                receive,
                headers,
                max_bytes=settings.max_body_bytes,
                timeout_s=settings.body_timeout_s,
                budget=self._bodies,
            )
            target = _target(scope)
            change = self._changing.find(scope["method"], scope["path"], target, scope["headers"], body)
            if change is not None:
                async with _until_gone(receive):
                    await answer.whole(await self._make(change, request_id))
                return
            text = await self._text_of(scope["method"], scope["path"], body, headers)
            host, port = scope.get("client") or ("", 0)
            running = RunningRequest(
                scope["method"],
                target,
                scope["headers"],
                body,
                request_id=request_id,
                client=f"{host} {port}" if host else "",
                scheme=scope["scheme"],
                prefix=scope.get(PROXIED_PREFIX, ""),
                arrivals=self._arrivals,
            )
            async with _until_gone(receive):
                if concerns_all(scope["method"], scope["path"]):
                    await answer.whole(await self._ask_all(running))
                    return
                await self._run(running, answer, text)
        except Cancelled:
            pass
        except DragomanError as error:
            await self._fail(answer, scope, body, error)
        except asyncio.CancelledError:
            if not self._is_over:
                raise
            await self._fail(answer, scope, body, ShuttingDown())
        finally:
            if body is not None:
                self._bodies.give_back(max(0, len(body) - 64 * 1024))

    async def _text_of(self, method: str, path: str, body: bytes, headers: Headers) -> PromptText:
        if method != "POST" or not body or len(body) > MOST_TEXT:
            return NO_TEXT
        model = self._model_paths.model_in(path)
        if len(body) > INLINE_TEXT:
            return await self._pools.text.run(lambda: prompt_text(body, headers, model))
        return prompt_text(body, headers, model)

    async def _make(self, change: Change, request_id: str) -> Frames:
        """Return the answer to a change, which is made even if its client leaves."""
        making = asyncio.create_task(self.changes.make(change, request_id, self._settings.wait_s))
        self._making.add(making)
        making.add_done_callback(self._made)
        return await asyncio.shield(making)

    def _made(self, making: asyncio.Task[Frames]) -> None:
        self._making.discard(making)
        if not making.cancelled() and (error := making.exception()) is not None:
            log.warning("a change was not made everywhere: %s", error)

    async def _ask(self, replica: Replica, running: RunningRequest) -> Frames:
        """Return the frames of a replica's whole answer. Raises ReplicaLost."""
        connection, first = await self._started(replica, running, *running.begin(self._secret))
        try:
            return await rest_of(connection, first)
        finally:
            self._forget(replica, connection)
            connection.close()

    async def _ask_in_time(self, replica: Replica, running: RunningRequest) -> Frames:
        """Return what ``_ask`` does, of a replica that answers at once."""
        try:
            async with asyncio.timeout(ALL_S):
                return await self._ask(replica, running)
        except TimeoutError:
            log.warning("replica %s does not answer %s", replica.name, running.target.decode("latin-1"))
            raise ReplicaLost("it does not answer") from None

    async def _ask_all(self, running: RunningRequest) -> Frames:
        """Return the joined answers of all replicas that answer. Raises EngineUnavailable where none does."""
        self.counts.requests += 1
        asked = [self._ask_in_time(replica, running) for replica in self._replicas.all()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if faults := [
            each for each in answers if isinstance(each, BaseException) and not isinstance(each, ReplicaLost)
        ]:
            raise faults[0]
        try:
            return merged([each for each in answers if not isinstance(each, BaseException)])
        except (ReplicaLost, IndexError):
            raise EngineUnavailable("No replica answers.") from None

    async def _run(self, running: RunningRequest, answer: ClientAnswer, text: PromptText) -> None:
        """Answer the request from one replica, or from several in turn. Raises DragomanError."""
        settings = self._settings
        attempts = Attempts(running, wait_s=settings.wait_s, continue_s=settings.continue_s)
        self.counts.requests += 1
        self.counts.running += 1
        try:
            while not await self._answered(running, answer, text, attempts):
                pass
        except DragomanError as error:
            self.counts.given_up += 1
            log.warning("request %s is given up: %s", running.target.decode("latin-1"), error.message)
            raise
        finally:
            self.counts.running -= 1

    async def _answered(
        self, running: RunningRequest, answer: ClientAnswer, text: PromptText, attempts: Attempts
    ) -> bool:
        """Ask one replica. Return whether the client has its answer. Raises DragomanError where none can be had."""
        ids = self._stored.named(running.target, running.body)
        wait_s = attempts.begin()
        unfit = attempts.unfit(self._replicas.ready)
        wanted = Wanted(text, unfit, key=running.key, prefer=self._stored.replica_of(ids))
        failure: ReplicaLost | ReplicaDeclined | NotOnReplica | Changed
        try:
            async with self._replicas.slot(wanted, wait_s) as replica:
                attempts.check_answers(replica.name)
                known = attempts.answer_of(replica.name)
                if known is not None:
                    await answer.whole(known)
                    return True
                try:
                    await self._attempt(running, answer, replica, text, attempts.lost_at)
                    if running.has_succeeded:
                        self._stored.learn(ids, replica.name)
                    return True
                except NotAsked as error:
                    failure = error
                except ReplicaLost as error:
                    self._replicas.lose(replica, str(error))
                    self.pool.drop(replica.host, replica.port)
                    failure = error
                except (ReplicaDeclined, NotOnReplica, Changed) as error:
                    failure = error
        except EngineUnavailable as error:
            raise attempts.no_replica(error) from None
        if isinstance(failure, NotOnReplica):
            attempts.not_there(replica.name, failure)
        elif isinstance(failure, Changed):
            log.warning("replica %s gives another answer than the lost one: %s", replica.name, failure)
            attempts.differs(replica.name, failure)
        elif isinstance(failure, NotAsked):
            await attempts.not_asked(failure)
        elif isinstance(failure, ReplicaDeclined):
            self.counts.retried += 1
            await attempts.declined(replica.name, failure)
        else:
            self.counts.lost += 1
            log.warning("request lost its replica %s: %s", replica.name, failure)
            attempts.lost(replica.name, failure)
        return False

    async def _attempt(
        self, running: RunningRequest, answer: ClientAnswer, replica: Replica, text: PromptText, lost_at: float
    ) -> None:
        """Pass the answer of a replica on, from where the client is.

        Raises ReplicaLost where it breaks off, ReplicaDeclined where it takes no requests, NotOnReplica where it lacks
        what the request names, Changed where it answers something else than the client has.
        """
        headers, body = running.begin(self._secret)
        connection, first = await self._started(replica, running, headers, body)
        is_about_stored = self._stored.is_about(running.target)
        try:
            relay = AnswerRelay(
                connection,
                running,
                answer,
                self.counts,
                lost_at=lost_at,
                learn_names=partial(self._replicas.learn, replica, text),
                learn_ids=partial(self._stored.learn_from, replica=replica.name) if is_about_stored else None,
            )
            await relay.pass_on(first)
        finally:
            self._forget(replica, connection)
            if connection.is_reusable:
                self.pool.give_back(replica.host, replica.port, connection)
            else:
                connection.close()

    async def _started(
        self, replica: Replica, running: RunningRequest, headers: Any, body: list[bytes]
    ) -> tuple[ReplicaConnection, tuple[int, bytes]]:
        """Return a connection with the request on its way, and the first frame of the answer. A waiting connection may
        have been closed at the other end: then another one is tried."""
        for fresh in (False, True):
            connection = await self.pool.open(replica.host, replica.port, fresh=fresh)
            self._open.setdefault(replica.name, (replica, set()))[1].add(connection)
            try:
                connection.start(running.method, running.target, headers, body)
                return connection, await connection.next_frame()
            except BaseException as error:
                self._forget(replica, connection)
                connection.close()
                if fresh or isinstance(error, ReplicaRefused) or not isinstance(error, ReplicaLost):
                    raise
        raise AssertionError

    def _forget(self, replica: Replica, connection: ReplicaConnection) -> None:
        answers = self._open.get(replica.name)
        if answers is not None:
            answers[1].discard(connection)
            if not answers[1]:
                del self._open[replica.name]

    async def watch(self) -> None:
        """Ask replicas that owe answers whether they are there, for as long as the ingress runs. The answers of one
        that does not say so ``MISSED`` times in a row continue elsewhere."""
        missed: dict[str, int] = {}
        while True:
            await asyncio.sleep(WATCH_S)
            owing = {name: answers[0] for name, answers in self._open.items()}
            missed = {name: count for name, count in missed.items() if name in owing}
            heard = await asyncio.gather(*map(self._is_there, owing.values()))
            for name, is_there in zip(owing, heard, strict=True):
                missed[name] = 0 if is_there else missed.get(name, 0) + 1
                if missed[name] >= MISSED and name in self._open:
                    for connection in list(self._open[name][1]):
                        connection.give_up("it does not answer any more")

    async def _is_there(self, replica: Replica) -> bool:
        try:
            await read_state(self.pool, replica, self._secret)
        except NotAsked:
            return True
        except ReplicaLost:
            return False
        return True

    async def _fail(self, answer: ClientAnswer, scope: Scope, body: bytes | None, error: DragomanError) -> None:
        """End the answer with an error, in the words of its dialect."""
        if not answer.has_begun:
            await answer.whole_error(*self._errors.whole(scope, body, error))
            return
        event = self._errors.event(scope, body, error) if answer.is_events else None
        if event is None:
            answer.cut()
        else:
            await answer.part(event)
            await answer.end()


def _target(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    path = raw.partition(b"?")[0]
    return path + b"?" + query if query else path


@asynccontextmanager
async def _until_gone(receive: Receive) -> AsyncIterator[None]:
    """For the duration, raise Cancelled when the client leaves."""
    task, has_left = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            await asyncio.sleep(0)
        has_left = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if has_left and not task.uncancel():
            raise Cancelled("The client left before its answer was complete.") from None
        raise
    finally:
        watching.cancel()
