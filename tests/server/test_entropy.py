"""Ids, seeds and times that a client does not give follow from its request's entropy, in every dialect."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import msgspec
import pytest
from starlette.types import Receive, Scope, Send
from stub_runtime import DIALECTS, QUICK, LocalServer, local_server
from test_request_ids import CHAT, GENERATING, PROMPT

from dragoman.core.entropy import Entropy, current_entropy, named_bits, random_bits, token_hex, wall_time
from dragoman.server.middleware import ARRIVED_WITH
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
CONTENTS = {"contents": [{"parts": [{"text": "hi"}]}]}
CALLING = {
    "tools": [{"functionDeclarations": [{"name": "look_up"}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
}
MORE: list[tuple[str, dict[str, Any]]] = [
    *((path, body) for path, body in GENERATING if "alexandria" not in path),  # whose calls go on with earlier ones
    ("/openai/v1/completions", {"prompt": ["one", "two", "three"], "n": 2, "max_tokens": 3, "stream": True}),
    ("/openai/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required", "max_tokens": 64}),
    ("/octoai/v1/completions", PROMPT | {"prompt": ["one", "two"], "model": "stub"}),
    ("/anthropic/v1/messages", CHAT | {"model": "stub"}),
    ("/gemini/v1beta/models/stub:generateContent", CONTENTS),
    ("/gemini/v1beta/models/stub:streamGenerateContent", CONTENTS | CALLING),
    ("/tgi/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 3, "do_sample": True, "details": True}}),
]


def unmeasured(text: str) -> str:
    """An answer without its durations, and without what it found cached."""
    return re.sub(r'\d+\.\d+|"cached_tokens":\d+', "", text)


async def ask(runtime: LocalServer, path: str, body: dict[str, Any], entropy: Entropy) -> tuple[str, list[Any]]:
    """The answer to a request with this entropy, and the seeds that the engine got."""
    app: Any = runtime.client._transport.app  # type: ignore[attr-defined]

    async def with_entropy(scope: Scope, receive: Receive, send: Send) -> None:
        scope[ARRIVED_WITH] = entropy
        await app(scope, receive, send)

    before = len(runtime.engine.requests)
    transport = httpx.ASGITransport(with_entropy)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post(path, json=body, headers={"x-request-id": "mine"})
    assert answer.status_code in (200, 206), answer.text
    seeds = {bytes(msgspec.msgpack.encode(each.prompt)): each.seeds for each in runtime.engine.requests[before:]}
    return unmeasured(answer.text), sorted(seeds.items())


async def test_the_same_entropy_gives_the_same_answer(template: ChatTemplate) -> None:
    settings = msgspec.structs.replace(QUICK, dialect="auto")
    async with local_server(template, settings, dialects=DIALECTS) as runtime:
        for path, body in MORE:
            first = await ask(runtime, path, body, Entropy(b"a" * 16, 1e9))
            again = await ask(runtime, path, body, Entropy(b"a" * 16, 1e9))
            other = await ask(runtime, path, body, Entropy(b"b" * 16, 1e9))
            if "\n\n" in first[0]:  # of several prompts, the chunks come as they are computed
                first, again = (sorted(first[0].split("\n\n")), first[1]), (sorted(again[0].split("\n\n")), again[1])  # type: ignore[assignment]
            assert first == again, path
            assert other[1] != first[1], path


async def test_a_request_is_as_old_as_its_arrival(runtime: LocalServer) -> None:
    before = int(time.time())
    answer = (await runtime.client.post("/v1/completions", json=PROMPT)).json()
    assert before <= answer["created"] <= time.time()


def test_what_is_drawn_by_name_does_not_depend_on_what_else_is_drawn() -> None:
    def drawn(*, first: bool) -> tuple[int, list[str]]:
        token = current_entropy.set(Entropy(b"a" * 16, 7.0))
        try:
            if first:
                named = named_bits("x", 64)
                return named, [token_hex(4), token_hex(4)]
            hexes = [token_hex(4), token_hex(4)]
            assert wall_time() == 7.0
            return named_bits("x", 64), hexes
        finally:
            current_entropy.reset(token)

    assert drawn(first=True) == drawn(first=False)
    named, hexes = drawn(first=True)
    assert len({*hexes, f"{named:x}"[:8]}) == 3


def test_without_a_request_the_operating_system_draws() -> None:
    assert len({random_bits(64), random_bits(64), named_bits("x", 64), named_bits("x", 64)}) == 4
    assert abs(wall_time() - time.time()) < 1
