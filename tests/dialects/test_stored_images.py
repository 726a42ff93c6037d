"""Images that are stored files, which Anthropic's dialect and OpenAI's responses name by their ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from seeing_serving import (
    URL,
    SeeingServing,
    asking,
    seen,
    user,
)

from dragoman.core.image_sources import ImageSource


@pytest.fixture(scope="module")
def seeing() -> Iterator[Any]:
    with asking() as ask:
        yield ask


ANTHROPIC, RESPONSES = "/anthropic/v1/messages", "/openai/v1/responses"


def of_file(id: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "file", "file_id": id}}


def with_call(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    return [user("Look."), {"role": "assistant", "content": [call]}, user([result])]


def test_anthropics_images_may_be_stored_files(seeing: Any) -> None:
    text, files = {"type": "text", "text": "What is this?"}, SeeingServing.batches
    files.read = 0
    for path in (ANTHROPIC, f"{ANTHROPIC}/count_tokens"):
        body = {"model": "stub", "messages": [user([of_file("file-cat"), text, of_file("file-cat")])]}
        prompt, _ = seeing(path, body | ({"max_tokens": 4} if path == ANTHROPIC else {}))
        source = ImageSource(file=files.known["file-cat"], param="messages.0.content.0.image")
        again = msgspec.structs.replace(source, param="messages.0.content.2.image")
        assert seen(prompt.messages[0]["content"]) == [source, "What is this?", again]
    assert files.read == 2, "each file once for a request"
    prompt, _ = seeing(ANTHROPIC, {"model": "stub", "max_tokens": 4, "messages": with_call([of_file("file-cat")])})
    (shown,) = (each for each in seen(prompt.messages[-1]["content"]) if isinstance(each, ImageSource))
    assert shown.file == files.known["file-cat"]


@pytest.mark.parametrize(
    ("id", "status", "kind", "words"),
    [
        ("file-dog", 404, "not_found_error", "image.source.file_id: File not found: file-dog"),
        ("file-large", 413, "request_too_large", "image.source.file_id: The files that the request names have more"),
        ("", 400, "invalid_request_error", "source.file_id: String should have at least 1 character"),
        (7, 400, "invalid_request_error", "source.file_id: Input should be a valid string"),
        (None, 400, "invalid_request_error", "source.file_id: Field required"),
    ],
)
def test_what_anthropic_says_of_other_files(seeing: Any, id: Any, status: int, kind: str, words: str) -> None:
    for messages in ([user([of_file(id)])], with_call([of_file(id)])):
        _, answer = seeing(ANTHROPIC, {"model": "stub", "max_tokens": 4, "messages": messages})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, kind)
        assert words in error["message"]


def test_images_of_responses_may_be_stored_files(seeing: Any) -> None:
    part = {"type": "input_image", "file_id": "file-cat", "detail": "low"}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    for items in (
        [user([part])],
        [user("Look."), call, {"type": "function_call_output", "call_id": "c", "output": [part]}],
    ):
        prompt, _ = seeing(RESPONSES, {"model": "stub", "input": items, "store": False})
        (source,) = (each for each in seen(prompt.messages[-1]["content"]) if isinstance(each, ImageSource))
        assert (source.url, source.detail) == (URL, "low")
    for id, code in (("file-dog", "image_file_not_found"), ("file-large", "image_too_large")):
        _, answer = seeing(RESPONSES, {"model": "stub", "input": [user([part | {"file_id": id}])]})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code)
        assert error["param"] == "input[0].content[0].file_id"


def test_a_model_that_sees_nothing_reads_no_files(seeing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeeingServing, "seen", None)
    SeeingServing.batches.read = 0
    _, answer = seeing(ANTHROPIC, {"model": "stub", "max_tokens": 4, "messages": [user([of_file("file-cat")])]})
    assert "Could not process image: the model 'stub' reads text only" in answer.json()["error"]["message"]
    part = {"type": "input_image", "file_id": "file-cat"}
    _, answer = seeing(RESPONSES, {"model": "stub", "input": [user([part])]})
    assert answer.json()["error"]["param"] == "input[0].content[0].file_id"
    assert SeeingServing.batches.read == 0
