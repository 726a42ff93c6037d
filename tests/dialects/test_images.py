"""Images in every dialect reach serving by one way: in their place, in order, with their field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from seeing_serving import (
    BASE64,
    FILE,
    OPENAI,
    OTHER,
    SEEN,
    URL,
    SeeingServing,
    asking,
    openai_parts,
    seen,
    user,
)

from dragoman.core.image_sources import ImageSource
from dragoman.core.request import ChatPrompt, TextPrompt


@pytest.fixture(scope="module")
def seeing() -> Iterator[Any]:
    with asking() as ask:
        yield ask


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        (OPENAI, "low"),
        ("/friendli/v1/chat/completions", "high"),
        ("/octoai/v1/chat/completions", "auto"),
    ],
)
def test_parts_of_chats(seeing: Any, path: str, detail: str) -> None:
    body = {
        "model": "stub",
        "messages": [{"role": "system", "content": "Be brief."}, user(openai_parts(detail=detail))],
    }
    prompt, answer = seeing(path, body)
    assert isinstance(prompt, ChatPrompt), answer.text
    assert prompt.messages[0]["content"] == "Be brief."
    assert seen(prompt.messages[1]["content"]) == [
        "What is this?",
        ImageSource(url=URL, detail=detail, param="messages[1].content[2].image_url.url"),
        " And this?",
        ImageSource(url=OTHER, param="messages[1].content[4].image_url.url"),
    ]


def test_parts_of_tgi_are_markdown_too(seeing: Any) -> None:
    prompt, answer = seeing(
        "/tgi/v1/chat/completions",
        {"model": "tgi", "messages": [user([{"type": "text", "text": f"a ![]({URL}) b"}, *openai_parts()[2:]])]},
    )
    assert isinstance(prompt, ChatPrompt), answer.text
    at = "messages[0].content"
    assert seen(prompt.messages[0]["content"]) == [
        "a ",
        ImageSource(url=URL, param=at),
        " b",
        ImageSource(url=URL, param=at),
        " And this?",
        ImageSource(url=OTHER, param=at),
    ]


@pytest.mark.parametrize("path", ["/tgi/generate", "/tgi/", "/tgi/v1/completions"])
def test_inputs_of_tgi(seeing: Any, path: str) -> None:
    text = f"![]({URL})What is this?![]({OTHER})\n![]"
    body = {"model": "tgi", "prompt": text} if path.endswith("completions") else {"inputs": text}
    prompt, answer = seeing(path, body)
    assert isinstance(prompt, TextPrompt), answer.text
    assert prompt.text == "What is this?\n![]"
    assert prompt.image_places == (0, 13)
    assert prompt.images == (ImageSource(url=URL, param="inputs"), ImageSource(url=OTHER, param="inputs"))


def test_tgi_knows_three_schemes(seeing: Any) -> None:
    prompt, answer = seeing("/tgi/generate", {"inputs": "![](/etc/passwd)"})
    assert prompt is None
    assert answer.status_code == 422
    assert answer.json()["error"] == "Input validation error: invalid image content: /etc/passwd"


def test_items_of_responses(seeing: Any) -> None:
    items = [
        user([{"type": "input_text", "text": "Look: "}, {"type": "input_image", "image_url": URL, "detail": "low"}]),
        {"type": "function_call", "call_id": "a", "name": "shoot", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "shoot", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": OTHER}]},
        {"type": "function_call_output", "call_id": "b", "output": "nothing"},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    prompt, answer = seeing("/openai/v1/responses", {"model": "stub", "input": items, "store": False})
    assert isinstance(prompt, ChatPrompt), answer.text
    first, last = prompt.messages[0], prompt.messages[-1]
    assert seen(first["content"]) == [
        "Look: ",
        ImageSource(url=URL, detail="low", param="input[0].content[1].image_url"),
    ]
    assert "[image: in the next message]" in str(prompt.messages[1:-1])
    assert last["role"] == "user"
    assert seen(last["content"]) == [ImageSource(url=OTHER, param="input[3].output[0].image_url"), "And now?"]


def test_blocks_of_anthropic(seeing: Any) -> None:
    image = {"type": "image", "source": BASE64}
    body = {
        "model": "stub",
        "max_tokens": 8,
        "messages": [
            user([image, {"type": "text", "text": "What is this?"}]),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "shoot", "input": {}}]},
            user(
                [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "done"}, image]},
                    {"type": "image", "source": {"type": "url", "url": OTHER}},
                    {"type": "text", "text": "Well?"},
                ]
            ),
        ],
    }
    for path in ("/anthropic/v1/messages", "/anthropic/v1/messages/count_tokens"):
        asked = {name: value for name, value in body.items() if name != "max_tokens" or path.endswith("messages")}
        prompt, answer = seeing(path, asked)
        assert isinstance(prompt, ChatPrompt), answer.text
        assert seen(prompt.messages[0]["content"]) == [
            ImageSource(data=FILE, param="messages.0.content.0.image"),
            "What is this?",
        ]
        *_, in_result, shown, text = seen(prompt.messages[-1]["content"])
        assert (in_result.param, shown) == (
            "messages.2.content.0.content.1.image",
            ImageSource(url=OTHER, param="messages.2.content.1.image"),
        )
        assert text == "Well?"
        assert r"done\n\n[image: in the next message]" in str(prompt.messages)


def test_parts_of_gemini(seeing: Any) -> None:
    blob = {"inline_data": {"mime_type": "image/png", "data": FILE}}
    result = {"name": "shoot", "response": {"output": "done"}, "parts": [blob]}
    where = {
        "fileData": {"fileUri": OTHER, "mimeType": "image/png"},
        "mediaResolution": {"level": "media_resolution_low"},
    }
    body = {
        "contents": [
            {"role": "user", "parts": [blob, {"text": "What is this?"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "shoot", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": result}, where, {"text": "Well?"}]},
        ],
    }
    for method in ("generateContent", "streamGenerateContent", "countTokens"):
        prompt, answer = seeing(f"/gemini/v1beta/models/stub:{method}", body)
        assert isinstance(prompt, ChatPrompt), answer.text
        assert seen(prompt.messages[0]["content"]) == [
            ImageSource(data=FILE, param="contents[0].parts[0].inlineData.data"),
            "What is this?",
        ]
        *_, in_result, shown, text = seen(prompt.messages[-1]["content"])
        assert in_result.param == "contents[2].parts[0].functionResponse.parts[0].inlineData.data"
        assert shown == ImageSource(url=OTHER, detail="low", param="contents[2].parts[1].fileData.fileUri")
        assert text == "Well?"
        assert r"done\n\n[image: in the next message]" in str(prompt.messages)


def test_images_of_ollama_come_before_the_text(seeing: Any) -> None:
    prompt, answer = seeing(
        "/ollama/api/chat", {"model": "stub", "messages": [user("What is this?", images=[FILE, FILE])]}
    )
    assert isinstance(prompt, ChatPrompt), answer.text
    sources = [ImageSource(data=FILE, param=f"messages[0].images[{i}]") for i in range(2)]
    assert seen(prompt.messages[0]["content"]) == [*sources, "What is this?"]
    prompt, _ = seeing("/ollama/api/generate", {"model": "stub", "prompt": "What is this?", "images": [FILE]})
    assert seen(prompt.messages[0]["content"]) == [ImageSource(data=FILE, param="images[0]"), "What is this?"]
    prompt, _ = seeing("/ollama/api/generate", {"model": "stub", "prompt": "It is", "images": [FILE], "raw": True})
    assert prompt == TextPrompt(text="It is", image_places=(0,), images=(ImageSource(data=FILE, param="images[0]"),))
    prompt, answer = seeing("/ollama/api/generate", {"model": "stub", "prompt": "It", "images": [FILE], "context": [1]})
    assert answer.json()["error"] == "images do not go with context"


def test_media_of_llamacpp(seeing: Any) -> None:
    body = {"prompt": {"prompt_string": "a<__media__>bc<__media__>", "multimodal_data": [FILE, FILE]}}
    prompt, answer = seeing("/llamacpp/completion", body)
    assert isinstance(prompt, TextPrompt), answer.text
    assert (prompt.text, prompt.image_places) == ("abc", (1, 3))
    assert [source.data for source in prompt.images] == [FILE, FILE]
    body["prompt"]["prompt_string"] = "<__media__>"
    _, answer = seeing("/llamacpp/completion", body)
    assert "number of media markers in text (1) does not match number of bitmaps (2)" in answer.text


WRONG = {
    "no url": ([{"type": "image_url", "image_url": {}}], "messages[0].content[0].image_url.url"),
    "no object": ([{"type": "image_url", "image_url": URL}], "messages[0].content[0].image_url"),
    "nothing": ([{"type": "image_url"}], "messages[0].content[0].image_url"),
    "a detail": (openai_parts(detail="huge"), "messages[0].content[2].image_url.detail"),
    "audio": ([{"type": "input_audio"}], "messages[0].content[0]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_is_named(seeing: Any, name: str) -> None:
    content, param = WRONG[name]
    prompt, answer = seeing(OPENAI, {"model": "stub", "messages": [user(content)]})
    assert prompt is None
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", [OPENAI, "/friendli/v1/chat/completions", "/octoai/v1/chat/completions"])
def test_a_detail_without_effect_is_reported(seeing: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    body = {"model": "stub", "messages": [user(openai_parts(detail="low"))]}
    _, answer = seeing(path, body)
    assert "detail" not in answer.headers.get("x-dragoman-warnings", "")
    monkeypatch.setattr(SeeingServing, "seen", msgspec.structs.replace(SEEN, has_detail=False))
    _, answer = seeing(path, body)
    assert "messages[0].content[2].image_url.detail" in answer.headers["x-dragoman-warnings"]
    item = user([{"type": "input_image", "image_url": URL, "detail": "high"}])
    _, answer = seeing("/openai/v1/responses", {"model": "stub", "input": [item], "store": False})
    assert "input[0].content[0].detail" in answer.headers["x-dragoman-warnings"]


def test_an_assistant_shows_no_images(seeing: Any) -> None:
    messages = [user("Hi"), {"role": "assistant", "content": openai_parts()}, user("Hm")]
    prompt, answer = seeing(OPENAI, {"model": "stub", "messages": messages})
    assert prompt is None
    assert answer.json()["error"]["param"] == "messages[1].content"
