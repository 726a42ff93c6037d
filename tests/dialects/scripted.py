"""A server whose model says what the test wants: the texts of a script, token by token, to any prompt."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from stub_runtime import QUICK, QUIET_LOCALLAB, STUB, TOKENIZER, local_model

from dragoman.core.errors import AdapterNotFound, ModelError
from dragoman.core.events import EngineEvent, FinishReason, PromptEvent, TokenEvent, TokenLogprob
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import Vocabulary
from dragoman.dialects import made_dialects
from dragoman.grammar.matching import Matching
from dragoman.models import AdapterInfo
from dragoman.server.app import create_app
from dragoman.server.metrics import Metrics
from dragoman.serving.serving import EngineServing
from dragoman.text import ChatTemplate


class ScriptedEvents:
    """One request's events, all there from the start."""

    def __init__(self, events: Sequence[EngineEvent]) -> None:
        self._events = deque(events)

    def __aiter__(self) -> ScriptedEvents:
        return self

    async def __anext__(self) -> EngineEvent:
        if not self._events:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        return self._events.popleft()

    async def aclose(self) -> None:
        self._events.clear()


class ScriptedEngine:
    """Sequence i of a request says ``texts[i]`` (the last one for those beyond), and then ends."""

    def __init__(self) -> None:
        self.texts: list[str] = [""]
        self.requests: list[EngineRequest] = []
        self.adapters: dict[str, AdapterInfo] = {}

    async def load_adapter(self, name: str, source: str, *, replace: bool = False) -> AdapterInfo:
        raise ModelError(f"{source}: this engine has no adapters")

    async def unload_adapter(self, name: str) -> None:
        raise AdapterNotFound(f"there is no adapter {name}")

    def submit(self, request: EngineRequest) -> ScriptedEvents:
        self.requests.append(request)
        events: list[EngineEvent] = [PromptEvent(request.request_id)]
        for sequence in range(len(request.seeds)):
            text = self.texts[min(sequence, len(self.texts) - 1)]
            ids = [*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_ids[0]]
            last = min(len(ids), request.max_tokens) - 1
            end = FinishReason.EOS if last == len(ids) - 1 else FinishReason.LENGTH
            logprob = None if request.logprobs is None else -0.5
            top = (TokenLogprob(7, -1.0),) * (request.logprobs.top if request.logprobs else 0)
            for i, token in enumerate(ids[: last + 1]):
                finish = end if i == last else None
                events.append(TokenEvent(request.request_id, sequence, i, token, finish, logprob, top))
        return ScriptedEvents(events)

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        pass

    def prompt(self) -> str:
        """The last prompt, special tokens and all."""
        return TOKENIZER.decode(self.requests[-1].prompt, skip_special_tokens=False)


class ScriptedServer:
    """The engine, to be given its texts, and a client of the server it is behind."""

    def __init__(self, engine: ScriptedEngine, url: str) -> None:
        import openai  # it takes a second, and each process collects the files that import this one

        self.engine, self.url = engine, url
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

    def ask(self, text: str | list[str], messages: Iterable[Any], **fields: Any) -> Any:
        """A chat completion in which the model says this, or these."""
        self.engine.texts = [text] if isinstance(text, str) else text
        return self.client.chat.completions.create(model="stub", messages=list(messages), **fields)


def calls_of(message: Any) -> list[tuple[str, str]]:
    """The names and arguments of a message's calls."""
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


def can_follow(runtime: ScriptedServer, text: str) -> bool:
    """Whether the engine was given a grammar that makes this a whole text."""
    matcher, complete = _matching().matcher(runtime.engine.requests[-1].grammar or ""), False
    for token_id in TOKENIZER.encode(text, add_special_tokens=False):
        if complete or not matcher.mask()[token_id]:
            return False
        complete = matcher.push(token_id)
    return complete or bool(matcher.mask()[TOKENIZER.eos_ids[0]])


@functools.cache
def _matching() -> Matching:
    return Matching(
        Vocabulary(
            tokens=tuple(map(TOKENIZER.token_bytes, range(TOKENIZER.vocab_size))),
            special_ids=tuple(sorted(TOKENIZER.special_ids)),
            end_ids=TOKENIZER.eos_ids,
        )
    )


@contextmanager
def scripted_server(template: ChatTemplate, **settings: Any) -> Iterator[ScriptedServer]:
    """A server in a thread, on a port of its own. ``settings``: of dialects, by their names."""
    engine, metrics = ScriptedEngine(), Metrics()
    stub = STUB.__class__(vocab_size=TOKENIZER.vocab_size, max_context=4096)
    serving = EngineServing(engine, local_model(QUICK, stub, template), metrics.observers)
    made = made_dialects({"locallab": QUIET_LOCALLAB} | settings)
    app = create_app(serving, QUICK, metrics=metrics, dialects=made)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="error", timeout_keep_alive=60)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        runtime = ScriptedServer(engine, f"http://127.0.0.1:{port}")
        with runtime.client:
            yield runtime
    finally:
        server.should_exit = True
        thread.join(60)
