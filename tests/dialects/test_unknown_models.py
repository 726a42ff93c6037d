"""Names of models that are not served, with the option that lets them mean the default model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from stub_runtime import QUICK, local_server

from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
CONTENTS: dict[str, Any] = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"maxOutputTokens": 2}}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/openai/v1/chat/completions", CHAT),
    "friendli": ("/friendli/v1/chat/completions", CHAT),
    "octoai": ("/octoai/v1/chat/completions", CHAT),
    "anthropic": ("/anthropic/v1/messages", CHAT),
    "gemini": ("/gemini/v1beta/models/gpt-4o:generateContent", CONTENTS),
    "ollama": ("/ollama/api/chat", CHAT),
}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_the_default_model_answers_and_is_named(template: ChatTemplate, streams: bool) -> None:
    settings = msgspec.structs.replace(QUICK, unknown_models="default")
    async with local_server(template, settings) as server:
        for path, body in ASKED.values():
            answer = await server.client.post(path, json=body | {"stream": streams})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-dragoman-model"] == "stub", path
            named = body | {"model": "stub", "stream": streams}
            known = await server.client.post(path.replace("gpt-4o", "stub"), json=named)
            assert "x-dragoman-model" not in known.headers


@pytest.mark.parametrize("name", ASKED)
async def test_they_are_errors_otherwise(template: ChatTemplate, name: str) -> None:
    path, body = ASKED[name]
    async with local_server(template) as server:
        assert (await server.client.post(path, json=body)).status_code in (404, 422)
