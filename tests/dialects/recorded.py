"""The dialects in front of a serving that generates nothing, and remembers what it was asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
from stub_runtime import QUICK, local_server

from dragoman.core.errors import AdapterNotFound, BadRequest
from dragoman.core.events import GenerationEvent, GenerationResult
from dragoman.core.request import ChatPrompt, EngineRequest, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.serving import ModelCard
from dragoman.dialects.api import Dialect
from dragoman.server.app import create_app
from dragoman.text import ChatTemplate

MODEL, ADAPTER = "another", "adapter"


class NamingCatalog:
    """A catalog in which the served model also has the name ``MODEL``."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def find(self, name: str) -> Any:
        found = self._catalog.find("stub" if name == MODEL else name)
        return found and msgspec.structs.replace(found, id=name)

    async def use(self, name: str | None) -> None:
        await self._catalog.use("stub" if name == MODEL else name)


class RecordingServing:
    """Serves a model, the same under the name ``MODEL``, and an adapter of it. ``asked``: the requests, and what was to
    be rendered, tokenized or detokenized, with the attributes ``prompt`` and ``model`` of a request."""

    def __init__(self, serving: Any) -> None:
        self._serving = serving
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serving, name)

    @property
    def catalog(self) -> Any:
        return NamingCatalog(self._serving.catalog)

    def model(self, name: str | None) -> ModelCard:
        card: ModelCard = self._serving.model(None if name in (MODEL, ADAPTER) else name)
        return card if name is None else msgspec.structs.replace(card, name=name)

    def adapter(self, name: str) -> ModelCard:
        if name != ADAPTER:
            raise AdapterNotFound(f"there is no adapter {name}")
        return msgspec.structs.replace(self._serving.model(None), name=name, base="stub")

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        self.asked.append(request)
        raise BadRequest("This serving only records.")
        yield

    async def prepare(self, request: GenerationRequest) -> EngineRequest:
        self.asked.append(request)
        raise BadRequest("This serving only records.")

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        self.asked.append(request)
        raise BadRequest("This serving only records.")

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        self.asked.append(SimpleNamespace(prompt=prompt, model=model))
        text: str = await self._serving.render(prompt)
        return text

    async def tokenize(self, prompt: Prompt, model: str | None = None, **how: Any) -> tuple[int, ...]:
        self.asked.append(SimpleNamespace(prompt=prompt, model=model))
        ids: tuple[int, ...] = await self._serving.tokenize(prompt, **how)
        return ids

    async def tokenize_text(self, text: str, model: str | None = None, **how: Any) -> Any:
        self.asked.append(SimpleNamespace(prompt=TextPrompt(text=text), model=model))
        return await self._serving.tokenize_text(text, **how)

    async def detokenize(self, token_ids: Sequence[int], model: str | None = None, **how: Any) -> str:
        self.asked.append(SimpleNamespace(prompt=TokenPrompt(token_ids=tuple(token_ids)), model=model))
        text: str = await self._serving.detokenize(token_ids, **how)
        return text


@asynccontextmanager
async def recording_client(
    template: ChatTemplate, dialects: Sequence[Dialect]
) -> AsyncIterator[tuple[RecordingServing, httpx.AsyncClient]]:
    """The serving, and a client of the application in front of it."""
    async with local_server(template) as runtime:
        serving = RecordingServing(runtime.serving)
        app = create_app(serving, QUICK, dialects=dialects)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            yield serving, client
