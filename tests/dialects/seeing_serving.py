"""The dialects in front of a serving that sees images, generates nothing, and remembers what it was asked for."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import httpx
import msgspec
from image_files import picture, saved
from recorded import RecordingServing
from stub_runtime import QUICK, local_server

from dragoman.core.batches import StoredFile, UnknownFile
from dragoman.core.errors import BadRequest
from dragoman.core.images import ImageInfo
from dragoman.core.request import ChatPrompt, GenerationRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects import made_dialects
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.server.app import create_app
from dragoman.text import ChatTemplate

DIALECTS = made_dialects(
    {"locallab": LocalLabSettings(locallab_burst=0, locallab_rate_limit=0, locallab_folder="/nonexistent")}
)
TEMPLATE = ChatTemplate(
    {"default": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>{{ tools }}"}
)
FILE = base64.b64encode(saved(picture(2))).decode()
SEEN = msgspec.convert({"most_tokens": 64, "has_detail": True, "placeholder": "<image>"}, ImageInfo)
OPENAI = "/openai/v1/chat/completions"
BASE64 = {"type": "base64", "media_type": "image/png", "data": FILE}
URL, OTHER = f"data:image/png;base64,{FILE}", "https://images.example.com/cat.png"


class Files:
    """Stored files: those of callers without a key."""

    is_on = True
    known: ClassVar = {"file-cat": saved(picture(2)), "file-large": bytes((32 << 20) + 1)}

    def __init__(self) -> None:
        self.read = 0

    async def file(self, tenant: str, id: str) -> StoredFile:
        if tenant or id not in self.known:
            raise UnknownFile(f"File {id} is unknown.")
        return StoredFile(
            id=id, bytes=len(self.known[id]), created_s=0, expires_s=None, filename="cat.png", purpose="vision"
        )

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        self.read += 1
        yield self.known[file.id][:20]
        yield self.known[file.id][20:]


class SeeingServing(RecordingServing):
    """A model that sees. ``fault``: raised in place of an answer. ``seen``: what clients may know of it."""

    fault = BadRequest("This serving only records.")
    seen = SEEN
    batches = Files()

    def model(self, name: str | None) -> ModelCard:
        return msgspec.structs.replace(super().model(name), images=self.seen)

    def models(self) -> tuple[ModelCard, ...]:
        return (self.model(None),)

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        return "rendered"

    async def tokenize(self, prompt: Any, model: str | None = None, **how: Any) -> tuple[int, ...]:
        self.asked.append(GenerationRequest(request_id="", prompt=prompt))
        return (1, 2, 3)

    async def generate(self, request: GenerationRequest) -> Any:
        self.asked.append(request)
        raise self.fault

    async def prepare(self, request: GenerationRequest) -> Any:
        return await self.generate(request)

    async def stream(self, request: GenerationRequest) -> Any:
        await self.generate(request)
        yield


@asynccontextmanager
async def seeing_client() -> AsyncIterator[tuple[SeeingServing, httpx.AsyncClient]]:
    async with local_server(TEMPLATE) as runtime:
        serving = SeeingServing(runtime.serving)
        app = create_app(serving, QUICK, dialects=DIALECTS)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            yield serving, client


@contextmanager
def asking() -> Iterator[Any]:
    """Yield a function that returns the prompt that a body becomes, and the answer. ``fault``: raised in its place."""
    with asyncio.Runner() as runner:
        context = seeing_client()
        serving, client = runner.run(context.__aenter__())

        def ask(path: str, body: dict[str, Any], fault: Exception | None = None) -> Any:
            serving.asked.clear()
            serving.fault = fault or SeeingServing.fault
            answer = runner.run(client.post(path, json=body))
            return serving.asked[-1].prompt if serving.asked else None, answer

        yield ask
        runner.run(context.__aexit__(None, None, None))


def seen(content: list[dict[str, Any]]) -> list[Any]:
    """A content as texts and sources."""
    return [part["source"] if part["type"] == "image" else part["text"] for part in content]


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def openai_parts(**more: Any) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": "What is "},
        {"type": "text", "text": "this?"},
        {"type": "image_url", "image_url": {"url": URL, **more}},
        {"type": "text", "text": " And this?"},
        {"type": "image_url", "image_url": {"url": OTHER}},
    ]
