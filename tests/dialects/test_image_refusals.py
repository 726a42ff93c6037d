"""Images that cannot be read, and models that see none: each dialect refuses them by name, in its own words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from recorded import recording_client
from seeing_serving import (
    DIALECTS,
    FILE,
    OPENAI,
    TEMPLATE,
    URL,
    asking,
    openai_parts,
    user,
)

from dragoman.core.errors import BadImage, UnsupportedFeature
from dragoman.core.request import GenerationRequest, TextPrompt


@pytest.fixture(scope="module")
def seeing() -> Iterator[Any]:
    with asking() as ask:
        yield ask


HI: dict[str, Any] = {"model": "stub", "messages": [user("Hi")]}
BROKEN = BadImage("invalid_image", "its PNG file is damaged", param="messages[0].content[0].image_url.url")
FAULTS: dict[str, tuple[dict[str, Any], int, str]] = {
    OPENAI: (
        {"model": "stub", "messages": [user("Hi")]},
        400,
        "url': The image data you provided does not represent a valid image: its PNG file is damaged.",
    ),
    "/openai/v1/responses": (
        {"model": "stub", "input": "Hi", "store": False},
        400,
        "url': The image data you provided does not represent a valid image: its PNG file is damaged.",
    ),
    "/anthropic/v1/messages": (
        {"model": "stub", "max_tokens": 1, "messages": [user("Hi")]},
        400,
        "messages[0].content[0].image_url.url: Could not process image: its PNG file is damaged",
    ),
    "/gemini/v1beta/models/stub:generateContent": (
        {"contents": [{"parts": [{"text": "Hi"}]}]},
        400,
        "'messages[0].content[0].image_url.url': the image cannot be used: its PNG file is damaged.",
    ),
    "/tgi/generate": ({"inputs": f"![]({URL})"}, 422, "Input validation error: invalid image: its PNG file is damaged"),
    "/ollama/api/chat": (
        {"model": "stub", "messages": [user("Hi")], "stream": False},
        400,
        "'messages[0].content[0].image_url.url': the image cannot be used: its PNG file is damaged.",
    ),
    "/friendli/v1/chat/completions": (
        {"model": "stub", "messages": [user("Hi")]},
        422,
        "'messages[0].content[0].image_url.url': the image cannot be used: its PNG file is damaged.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", FAULTS)
def test_a_broken_image_is_an_error_of_the_dialect(seeing: Any, path: str) -> None:
    body, status, message = FAULTS[path]
    _, answer = seeing(path, body, BROKEN)
    assert answer.status_code == status, answer.text
    assert message in str(answer.json())


def test_openai_has_a_code_for_each_fault(seeing: Any) -> None:
    for code in ("invalid_image", "image_too_large", "invalid_image_url", "failed_to_download_image"):
        _, answer = seeing(OPENAI, HI, BadImage(code, "why"))
        assert answer.json()["error"]["code"] == code
    _, answer = seeing(
        "/tgi/generate",
        FAULTS["/tgi/generate"][0],
        BadImage("failed_to_download_image", "its host answered with status 404"),
    )
    assert answer.json()["error"] == "Input validation error: Could not fetch image: its host answered with status 404"
    _, answer = seeing(OPENAI, HI, UnsupportedFeature("no"))
    assert answer.json()["error"]["code"] == "unsupported_parameter"


BLIND = {
    OPENAI: ({"model": "stub", "messages": [user(openai_parts())]}, "reads text only"),
    "/friendli/v1/chat/completions": ({"model": "stub", "messages": [user(openai_parts())]}, "reads text only"),
    "/octoai/v1/chat/completions": ({"model": "stub", "messages": [user(openai_parts())]}, "reads text only"),
    "/tgi/v1/chat/completions": ({"messages": [user(openai_parts())]}, "image modality is not supported"),
    "/openai/v1/responses": (
        {"model": "stub", "input": [user([{"type": "input_image", "image_url": URL}])]},
        "This model reads text only",
    ),
    "/anthropic/v1/messages": (
        {
            "model": "stub",
            "max_tokens": 1,
            "messages": [
                user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FILE}}])
            ],
        },
        "messages.0.content.0.image: Could not process image: the model 'stub' reads text only",
    ),
    "/gemini/v1beta/models/stub:generateContent": (
        {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": FILE}}]}]},
        "'contents[0].parts[0].inlineData' is not supported: the model 'stub' reads text only.",
    ),
    "/ollama/api/chat": ({"model": "stub", "messages": [user("Hi", images=[FILE])]}, "does not support vision"),
    "/ollama/api/generate": ({"model": "stub", "prompt": "Hi", "images": [FILE]}, "does not support vision"),
    "/llamacpp/completion": (
        {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [FILE]}},
        "does not support multimodal",
    ),
}


@pytest.mark.parametrize("path", BLIND)
def test_a_model_that_sees_none_refuses_by_name(path: str) -> None:
    async def run() -> Any:
        async with recording_client(TEMPLATE, DIALECTS) as (serving, client):
            answer = await client.post(path, json=BLIND[path][0])
            assert not [asked for asked in serving.asked if isinstance(asked, GenerationRequest)]
            return answer

    answer = asyncio.run(run())
    assert answer.status_code in (400, 422), answer.text
    assert BLIND[path][1] in str(answer.json())


def test_inputs_of_tgi_are_text_to_a_model_that_sees_none() -> None:
    async def run() -> Any:
        async with recording_client(TEMPLATE, DIALECTS) as (serving, client):
            await client.post("/tgi/generate", json={"inputs": "![](https://example.com/a.png)"})
            return serving.asked[0].prompt

    assert asyncio.run(run()) == TextPrompt(text="![](https://example.com/a.png)")
