"""Requests with an ``Idempotency-Key``, whose clients leave when they want, to a server on the stub model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.types import Message
from stub_runtime import QUICK, LocalServer, local_server

from dragoman.dialects import made_dialects
from dragoman.dialects.api import REPLAY_HEADERS
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.server.exchange import ABORT
from dragoman.server.idempotency import HEADER, KeptAnswers
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.server.settings import IdempotencySettings
from dragoman.text import ChatTemplate

REPLAYED, ORIGINAL = REPLAY_HEADERS
KEYS = {"ann": "ann-has-a-long-enough-key", "bob": "bob-has-a-long-enough-key"}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
PROMPT = {"prompt": "Once", "max_tokens": 12}
INPUTS = {"inputs": "Once", "parameters": {"max_new_tokens": 12}}
TEXT = {"prompt": "Once", "max_length": 12}
CONTENTS = {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 12}}
ROW = {"request_id": "order-1", "prompt": "Once", "generation_config": {"max_new_tokens": 12}}
GENERATING: list[tuple[str, dict[str, Any]]] = [
    ("/openai/v1/completions", PROMPT),
    ("/openai/v1/completions", PROMPT | {"stream": True, "n": 2}),
    ("/openai/v1/chat/completions", CHAT),
    ("/openai/v1/chat/completions", CHAT | {"stream": True}),
    ("/openai/v1/responses", {"input": "Once", "max_output_tokens": 12}),
    ("/openai/v1/responses", {"input": "Once", "max_output_tokens": 12, "stream": True}),
    ("/openai/deployments/stub/chat/completions", CHAT | {"stream": True}),
    ("/tgi/", INPUTS | {"stream": True}),
    ("/tgi/generate", INPUTS),
    ("/tgi/generate_stream", INPUTS),
    ("/tgi/invocations", INPUTS),
    ("/tgi/vertex", {"instances": [INPUTS]}),
    ("/tgi/v1/completions", PROMPT),
    ("/tgi/v1/chat/completions", CHAT | {"stream": True}),
    ("/friendli/v1/completions", PROMPT | {"stream": True}),
    ("/serverless/v1/completions", PROMPT | {"model": "stub"}),
    ("/friendli/v1/chat/completions", CHAT),
    ("/octoai/v1/completions", PROMPT | {"model": "stub"}),
    ("/octoai/v1/chat/completions", CHAT | {"model": "stub", "stream": True}),
    ("/anthropic/v1/messages", CHAT | {"model": "stub"}),
    ("/anthropic/v1/messages", CHAT | {"model": "stub", "stream": True}),
    ("/gemini/v1beta/models/stub:generateContent", CONTENTS),
    ("/gemini/v1beta/models/stub:streamGenerateContent", CONTENTS),
    ("/ollama/api/chat", CHAT | {"model": "stub", "options": {"num_predict": 12}}),
    ("/ollama/api/generate", PROMPT | {"model": "stub", "options": {"num_predict": 12}, "stream": False}),
    ("/llamacpp/completion", PROMPT | {"n_predict": 12, "stream": True}),
    ("/llamacpp/completions", PROMPT | {"n_predict": 12}),
    ("/llamacpp/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 12}),
    ("/locallab/generate", TEXT),
    ("/locallab/generate/stream", TEXT),
    ("/locallab/generate/batch", {"prompts": ["Once", "Twice"], "max_length": 12}),
    ("/locallab/chat", {"messages": CHAT["messages"], "max_length": 12}),
    ("/locallab/chat/stream", {"messages": CHAT["messages"], "max_length": 12}),
    ("/alexandria/api/generate-one", ROW),
    ("/alexandria/api/generate-batch", {"prompts": [ROW], "generation_config": {"max_new_tokens": 12}}),
]
SURFACES = {"friendli": "serverless"}
IDS = [f"{path}{' stream' if body.get('stream') else ''}" for path, body in GENERATING]


class Asked:
    """One HTTP request to the application, whose client may leave when it wants."""

    def __init__(self, runtime: LocalServer, path: str, body: Any, key: str | None = "k", **headers: str) -> None:
        app: Any = runtime.client._transport.app  # type: ignore[attr-defined]
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self._content: bytes = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self._is_sent, self._left = False, asyncio.Event()
        own = {"host": "localhost", "content-type": "application/json", "content-length": str(len(self._content))}
        own |= ({} if key is None else {HEADER: key}) | headers
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "http",
            "headers": [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in own.items()],
            "client": ("127.0.0.1", 5000),
            "server": ("localhost", 80),
            "extensions": {ABORT: self._left.set},
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message["body"]

    async def leave(self) -> bytes:
        """Break the connection; return what was read."""
        self._left.set()
        await self.task
        return self.body

    async def whole(self) -> bytes:
        await self.task
        return self.body

    async def has(self, size: int) -> None:
        """Wait for so many bytes of the answer, or its end."""
        await soon(lambda: len(self.body) >= size or self.task.done())


async def soon(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0)


def kept_answers(**settings: Any) -> KeptAnswers:
    return KeptAnswers(IdempotencySettings(**settings))


def server(template: ChatTemplate, kept: KeptAnswers, **more: Any) -> Any:
    dialects = made_dialects({"locallab": LocalLabSettings(locallab_rate_limit=0, locallab_folder="/nonexistent")})
    settings = msgspec.structs.replace(QUICK, dialect="auto")
    return local_server(template, settings, dialects=dialects, kept_answers=kept, **more)


async def settled(runtime: LocalServer, kept: KeptAnswers) -> None:
    """Wait until nothing runs."""
    await soon(lambda: not runtime.engine.streams and not any(not each.is_over for each in kept.answers))


def ring(**limits: dict[str, int]) -> Keyring:
    return Keyring([hashed(key, name, ("infer",), limits.get(name)) for name, key in KEYS.items()])


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}
