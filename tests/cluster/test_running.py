"""What an ingress knows of a running request: which bytes its client has, and what another replica is given."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.cluster.running import KEY, NOTICES, Arrivals, Changed, RunningRequest
from dragoman.dialects import made_dialects
from dragoman.dialects.anthropic.render import PING
from dragoman.dialects.openai.responses.events import EventWriter
from dragoman.dialects.openai.responses.response import Head
from dragoman.dialects.tools import PLAIN
from dragoman.server.relay import ENTROPY, RelayMiddleware

EVENTS = [b'event: delta\ndata: {"text":": a"}\n\n', b"data: two\n\n", b"data: [DONE]\n\n"]
KEEP_ALIVE = b'event: keepalive\ndata: {"sequence_number":1}\n\n'
WAITING = (PING, b": progress 1\n\n", KEEP_ALIVE, b":\n\n")


def running(key: str = "", arrivals: Arrivals | None = None) -> RunningRequest:
    request = RunningRequest(
        "POST",
        b"/v1/messages",
        [(KEY, key.encode())] if key else [],
        b"{}",
        request_id="r",
        client="203.0.113.7 1",
        scheme="http",
        arrivals=arrivals or Arrivals(),
    )
    request.is_events = True
    request.begin(b"secret")
    return request


def test_each_dialect_s_word_for_a_silent_stream_is_a_notice() -> None:
    words = [dialect.keep_alive for dialect in made_dialects() if dialect.keep_alive]
    assert PING in words
    assert all(word.startswith(NOTICES) for word in words)


def test_the_word_of_silent_responses_is_a_notice() -> None:
    writer = EventWriter(Head(response={}, shape=PLAIN))
    assert writer.keep_alive().startswith(NOTICES)
    events = list(writer.begin())
    assert writer.keep_alive().startswith(NOTICES)
    assert writer.keep_alive().startswith(b"event: ")
    assert not any(event.startswith(NOTICES) for event in events)


@pytest.mark.parametrize("first", [WAITING, ()])
@pytest.mark.parametrize("second", [WAITING, ()])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_notices_do_not_belong_to_the_answer(first: tuple[bytes, ...], second: tuple[bytes, ...], cut: int) -> None:
    """Wherever they are, also in one part with events. Another replica writes them at other times."""
    request = running()
    got = request.new_part(b"".join((*first, EVENTS[0], *first, *EVENTS[1 : 1 + cut])))
    assert got.count(PING) == 2 * bool(first)
    request.begin(b"secret")
    got += request.new_part(b"".join((*second, EVENTS[0])) + EVENTS[1][:3])
    assert request.is_repeating == (cut > 0)
    got += request.new_part(EVENTS[1][3:] + b"".join((*second, EVENTS[2])))
    assert not request.is_repeating
    events = [event + b"\n\n" for event in got.split(b"\n\n")[:-1]]
    assert [event for event in events if not event.startswith(NOTICES)] == EVENTS
    assert request.sent == sum(map(len, EVENTS))


def test_another_answer_is_noticed() -> None:
    request = running()
    request.new_part(PING + EVENTS[0])
    request.begin(b"secret")
    with pytest.raises(Changed):
        request.new_part(EVENTS[0].replace(b"a", b"b"))


def test_a_key_in_quotes_is_the_same_key() -> None:
    arrivals = Arrivals()
    bare, quoted, other = (running(key, arrivals) for key in ("order-1", '"order-1"', "order-2"))
    assert bare.key == quoted.key != other.key
    entropies = [dict(each.begin(b"secret")[0])[ENTROPY] for each in (bare, quoted, other)]
    assert entropies[0] == entropies[1] != entropies[2]


@pytest.mark.anyio
async def test_a_replica_knows_what_the_proxy_has_told_the_ingress() -> None:
    request = RunningRequest(
        "GET",
        b"/v1/models",
        [(b"x-forwarded-prefix", b"/of-a-client"), (b"x-dragoman-relay-prefix", b"/of-a-client")],
        b"",
        request_id="r",
        client="203.0.113.7 1",
        scheme="https",
        prefix="/llm",
        arrivals=Arrivals(),
    )
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        pass

    headers, _ = request.begin(b"secret")
    scope = {"type": "http", "scheme": "http", "method": "GET", "path": "/v1/models", "headers": headers}
    await RelayMiddleware(app, b"secret", dict)(scope, receive, send)
    assert (seen["client"], seen["scheme"], seen["proxied_prefix"]) == (("203.0.113.7", 1), "https", "/llm")
