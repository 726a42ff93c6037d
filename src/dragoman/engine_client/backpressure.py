"""What the engine's client takes and generates no further than is good: sequences of one caller, and unread events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from dragoman.core.errors import Overloaded
from dragoman.core.request import EngineRequest
from dragoman.engine.messages import EngineInfo, Pause, Resume
from dragoman.engine_client.event_stream import MOST_UNREAD, EventStream
from dragoman.engine_client.recovery import InFlightRequest


def check_room(request: EngineRequest, unfinished: Collection[InFlightRequest], info: EngineInfo) -> None:
    """Raise Overloaded where the engine has no room for the request's sequences, or its caller would hold more of them
    than is left for others: so there is always something left."""
    own = others = 0
    for each in unfinished:
        if each.request.tenant == request.tenant:
            own += each.num_sequences
        else:
            others += each.num_sequences
    free = info.max_unfinished - own - others
    if request.num_sequences > free:
        raise Overloaded("too many requests are waiting; try again later")
    if request.tenant and own + request.num_sequences > max(info.max_running, free):
        raise Overloaded("too many of your requests are waiting; try again later")


def most_unread(request: EngineRequest) -> int:
    """Events that a stream of the request holds unread before it is paused: fewer where each is long.

    A beam search is never paused: its tokens come all together, at its end.
    """
    if request.beams is not None:
        return sys.maxsize
    return max(1, MOST_UNREAD // (1 if request.logprobs is None else 1 + request.logprobs.top))


class Backpressure:
    """Pauses requests whose clients are far behind in reading. ``paused``: those that are."""

    def __init__(self) -> None:
        self.paused: set[str] = set()

    def check(self, request_id: str, stream: EventStream, send: Callable[[msgspec.Struct], None]) -> None:
        """Pause the request where too much of its stream is unread, until half of that has been read."""
        if stream.is_behind and request_id not in self.paused:
            self.paused.add(request_id)
            send(Pause(request_id))
            stream.when_read(partial(self._resume, request_id, send))

    def _resume(self, request_id: str, send: Callable[[msgspec.Struct], None]) -> None:
        if request_id in self.paused:
            self.paused.discard(request_id)
            send(Resume(request_id))
