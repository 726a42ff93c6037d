"""The answer of one replica on its way to the client, frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from dragoman.cluster.answer import ELSEWHERE, INTERNAL, PREFIX, ClientAnswer, ExpectedLength, head_of, rest_of
from dragoman.cluster.attempts import NotOnReplica, ReplicaDeclined
from dragoman.cluster.counts import IngressCounts
from dragoman.cluster.running import Changed, RunningRequest
from dragoman.cluster.upstream import ReplicaConnection, ReplicaLost
from dragoman.server.relay import BODY_FRAME, CUT_FRAME, END_FRAME, HEAD_FRAME, JOURNAL_FRAME

Head = tuple[int, list[tuple[bytes, bytes]]]


class AnswerRelay:
    """Passes the answer of a replica on, from where the client is.

    ``lost_at``: since when the client has waited for another replica; 0: it has not. ``learn_names`` takes the names of
    the prompt's blocks, ``learn_ids`` the beginning of a body that has ids of what is stored.
    """

    def __init__(
        self,
        connection: ReplicaConnection,
        running: RunningRequest,
        answer: ClientAnswer,
        counts: IngressCounts,
        *,
        lost_at: float,
        learn_names: Callable[[str], None],
        learn_ids: Callable[[bytes], None] | None,
    ) -> None:
        self._connection, self._running, self._answer, self._counts = connection, running, answer, counts
        self._lost_at = lost_at
        self._learn_names, self._learn_ids = learn_names, learn_ids
        self._expected: ExpectedLength | None = None
        """Of the body; None before the head."""
        self._held: Head | None = None
        """The head of a whole answer, which the client gets with the first part of its body."""

    async def pass_on(self, first: tuple[int, bytes]) -> None:
        """Pass on the answer that begins with this frame, to its end.

        Raises ReplicaLost, ReplicaDeclined and NotOnReplica, and Changed where it is not the answer that the client has
        the beginning of.
        """
        frame = first
        while True:
            kind, payload = frame
            if kind == HEAD_FRAME:
                await self._head(frame)
            elif kind == BODY_FRAME:
                await self._body(payload)
            elif kind == JOURNAL_FRAME:
                self._running.record(payload)
            elif kind == END_FRAME:
                await self._end()
                return
            elif kind == CUT_FRAME:
                self._answer.cut()
                return
            frame = await self._connection.next_frame()

    async def _head(self, frame: tuple[int, bytes]) -> None:
        status, headers = head_of(frame[1])
        running = self._running
        self._expected = ExpectedLength(status, headers)
        if status == 503 or (status == 429 and (self._lost_at or running.entries)):
            raise ReplicaDeclined(await rest_of(self._connection, frame))
        lacking = next((value.decode("latin-1") for name, value in headers if name == ELSEWHERE), "")
        if running.head is not None and lacking:
            raise Changed(lacking)
        # Of what has been computed the client gets the answer. A request that another replica has accepted is good: it
        # is this one that lacks something.
        may_be_elsewhere = running.head is None and (status >= 400 or running.method == "GET")
        is_unfit = running.head is None and running.entries > 0 and 400 <= status < 500
        if is_unfit or (may_be_elsewhere and lacking):
            raise NotOnReplica(await rest_of(self._connection, frame))
        if names := next((value for name, value in headers if name == PREFIX), b""):
            self._learn_names(names.decode("latin-1"))
        headers = [(name, value) for name, value in headers if name not in INTERNAL]
        if running.head is not None:
            running.check_head(status, headers)
            return
        content_type = next((value for name, value in headers if name == b"content-type"), b"")
        running.is_events = content_type.startswith(b"text/event-stream")
        if any(name == b"content-length" for name, _ in headers):
            # A whole answer: its client gets nothing of it before it is there.
            self._held = status, headers
        else:
            await self._start((status, headers))

    async def _body(self, payload: bytes) -> None:
        self._required_length().take(payload)
        data = self._running.new_part(payload)
        if not data:
            return
        if self._learn_ids is not None:
            self._learn_ids(data)
            self._learn_ids = None
        if self._held is not None:
            await self._start(self._held)
        if self._lost_at:
            self._counts.pause(asyncio.get_running_loop().time() - self._lost_at)
            self._lost_at = 0.0
        await self._answer.part(data)

    async def _end(self) -> None:
        self._required_length().end()
        if self._running.is_repeating:
            raise Changed
        if self._held is not None:
            await self._start(self._held)
        await self._answer.end()
        with contextlib.suppress(ReplicaLost):
            if not self._connection.is_complete:
                await self._connection.next_frame()

    async def _start(self, head: Head) -> None:
        self._running.head, self._held = head, None
        await self._answer.start(*head)

    def _required_length(self) -> ExpectedLength:
        if self._expected is None:
            raise ReplicaLost("it answered without a head")
        return self._expected
