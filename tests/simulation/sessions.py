"""Clients of more than one exchange: generations in several calls, and WebSockets."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from starlette.types import Message

from tests.simulation.clients import Answer, Manner, scope_of
from tests.simulation.workload import SERIAL, Template, decoded, events_of

if TYPE_CHECKING:
    from tests.simulation.world import World

SESSION_TOKENS = 40
SESSION = Template(
    1000,
    "session",
    "/v1/completions",
    json.dumps(
        {"prompt": "once upon", "max_tokens": SESSION_TOKENS, "seed": 5, "temperature": 0.9, "ignore_eos": True}
    ),
)
"""Asked in several calls, each going on with the one before, it gives the same text as in one."""
SOCKET = Template(
    1001,
    "socket",
    "/alexandria/api/generate-batch",
    json.dumps(
        {
            "prompts": [
                {"request_id": f"r{i} of {SERIAL}", "prompt": "once upon a time"[: 4 + 6 * i]} for i in range(2)
            ],
            "generation_config": {"do_sample": False, "max_new_tokens": 12},
        }
    ),
)
"""Asked over a WebSocket it gives the same text."""


def text_of(answer: Answer) -> tuple[str, str]:
    """The text of a completion, and how it ended."""
    if not answer.is_stream:
        (choice,) = json.loads(answer.body)["choices"]
        return choice["text"], choice["finish_reason"]
    text, finish = "", ""
    for data in events_of(answer.body):
        content = decoded(data)
        for choice in content.get("choices", ()) if isinstance(content, dict) else ():
            text += choice["text"]
            finish = choice["finish_reason"] or finish
    return text, finish


async def continued(world: World, rng: random.Random, number: int, holder: str) -> None:
    """One generation in several calls. What was not kept is begun again, and is the same again."""
    whole = json.loads(world.reference(SESSION)[1]["whole"][0])["choices"][0]["text"]
    text, left, begun = "", SESSION_TOKENS, 0
    while left > 0:
        length = min(left, rng.randint(3, 15))
        fields = {**SESSION.fields(0), "max_tokens": length, "stream": rng.random() < 0.5}
        template = Template(SESSION.number, SESSION.kind, SESSION.path, json.dumps(fields))
        answer = await world.ask(template, Manner(), holder, {"x-request-continue": f"session-{number}-{begun}"})
        if answer.status != 200 or text_of(answer)[1] not in ("length", "stop"):
            world.check_refusal(template, answer)
            if world.is_drained:
                return
            await asyncio.sleep(1.0)
            continue
        before = int(answer.headers["x-dragoman-continued"])
        due = SESSION_TOKENS - left
        if before != due:
            if before > due or not world.had_full_disk:
                raise world.broken(template, f"the call went on behind {before} tokens, the client has {due}", answer)
            text, left, begun = "", SESSION_TOKENS, begun + 1  # what the header tells: an older state was kept, or none
            continue
        text += text_of(answer)[0]
        left -= length
        if not whole.startswith(text):
            raise world.broken(template, f"{text!r} is not how {whole!r} begins", answer)
        world.note("continued", template, answer)
        if "x-dragoman-not-kept" in answer.headers and not world.had_full_disk:
            raise world.broken(template, "it is not kept although the disk is not full", answer)
    if text != whole:
        raise world.broken(template, f"{text!r} is not {whole!r}", answer)


class _Socket:
    """A WebSocket as uvicorn hands it to an application. ``answered`` is set when all rows have come to their end."""

    def __init__(self, message: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.answered = asyncio.Event()
        self.status = 0
        self._closed = False
        self._gone = asyncio.Event()
        self._to_server = deque[Message]([{"type": "websocket.connect"}])
        self._to_server.append({"type": "websocket.receive", "text": message})

    async def receive(self) -> Message:
        if self._to_server:
            return self._to_server.popleft()
        await self._gone.wait()
        return {"type": "websocket.disconnect", "code": 1006}

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            raise ConnectionError("the client has left")
        match message["type"]:
            case "websocket.accept":
                self.status = 101
            case "websocket.http.response.start":
                self.status = message["status"]
            case "websocket.send":
                assert not self._closed, "a message after the end"
                said = json.loads(message["text"])
                self.events += said if isinstance(said, list) else [said]
                if any(event.get("type") == "COMPLETE" or "error" in event for event in self.events[-1:]):
                    self.answered.set()
            case "websocket.close":
                self._closed = True
                self.answered.set()

    def leave(self) -> None:
        self._gone.set()


async def conversed(world: World, rng: random.Random, number: int, holder: str) -> None:
    """One message over a WebSocket, and the frames that answer it."""
    whole = [row["response"] for row in json.loads(world.reference(SOCKET)[1]["whole"][0])]
    fields = SOCKET.fields(10_000 + number) | {"stream_response": rng.random() < 0.7, "only_new_tokens": True}
    socket = _Socket(json.dumps(fields))
    scope = scope_of("/alexandria/api/ws", {}, world.key(holder), "10.0.0.1")
    serving = asyncio.create_task(
        world.app(scope | {"type": "websocket", "subprotocols": []}, socket.receive, socket.send)
    )
    answered = asyncio.create_task(socket.answered.wait())
    leaves = rng.random() < 0.3
    limit_s = rng.uniform(0, 1) if leaves else 300
    await asyncio.wait((serving, answered), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    may_fail = world.may_fail()
    socket.leave()
    answered.cancel()
    await asyncio.wait((serving,), timeout=60)
    if not serving.done():
        raise world.broken(SOCKET, "the socket does not end when its client leaves", Answer())
    await asyncio.gather(serving, return_exceptions=True)
    complete = [event["text"] for event in socket.events if event.get("type") == "COMPLETE"]
    world.note("socket" if complete else "socket without an answer", SOCKET, Answer(ended_s=world.loop.time()))
    if complete and complete != whole:
        raise world.broken(SOCKET, f"{complete} in place of {whole}", Answer())
    if not complete and not leaves and not may_fail:
        raise world.broken(SOCKET, f"no answer but {socket.events[-2:]}, status {socket.status}", Answer())
