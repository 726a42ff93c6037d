"""Names of prompts: equal beginnings have equal names, in whatever dialect they come."""

from __future__ import annotations

import json
from typing import Any

from dragoman.cluster.prompt_text import MOST_PIECES, PIECE, prompt_text


def names(body: Any, headers: dict[str, str] | None = None) -> tuple[str, ...]:
    return prompt_text(json.dumps(body).encode(), headers or {}).names


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)], **more}


def test_the_next_turn_begins_with_the_names_of_the_turn_before() -> None:
    before, after = names(chat("Hello", "Hi.")), names(chat("Hello", "Hi.", "Tell me more"))
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1


def test_a_longer_text_begins_with_the_names_of_its_full_pieces() -> None:
    text = "word " * 400
    long = names({"prompt": text + "and more"})
    assert long[: len(text) // PIECE] == names({"prompt": text})[: len(text) // PIECE]


def test_a_message_that_goes_on_is_another_than_one_that_ends() -> None:
    """Pieces at a border of messages do not run together."""
    assert names(chat("x" * PIECE, "y"))[-1] != names(chat("x" * PIECE + "y"))[-1]


def test_fields_beside_the_prompt_do_not_change_its_names() -> None:
    assert names(chat("Hello", temperature=1, max_tokens=4)) == names(chat("Hello", stream=True))


def test_dialects_name_the_same_text_alike() -> None:
    text = "Once upon a time"
    bodies: list[Any] = [{"prompt": text}, {"inputs": text, "parameters": {"max_new_tokens": 4}}, {"prompt": [text]}]
    bodies.append({"prompts": [{"request_id": "a", "prompt": text}]})
    assert len({names(body) for body in bodies}) == 1
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}
    assert names(parts) == names(chat("Hello"))


def test_contents_with_parts_are_named_by_their_texts() -> None:
    def contents(*texts: str, **more: Any) -> tuple[str, ...]:
        turns = [{"role": ("user", "model")[i % 2], "parts": [{"text": text}]} for i, text in enumerate(texts)]
        return names({"contents": turns, **more})

    before, after = contents("Hello", "Hi."), contents("Hello", "Hi.", "Tell me more")
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1
    assert contents("Hello") != contents("Bye")
    assert contents("Hello", systemInstruction={"parts": [{"text": "Calm."}]}) != contents("Hello")
    assert names({"contents": [{"parts": [{"text": "Hello"}]}]}), "a content need not have a role"
    key = {"x-goog-api-key": "a"}
    body = {"contents": [{"parts": [{"text": "Hello"}]}]}
    assert names(body, key) != names(body, {**key, "x-goog-api-key": "b"})


def test_models_tools_and_callers_have_names_of_their_own() -> None:
    plain = names(chat("Hello"))
    assert names(chat("Hello", model="other"))[0] != plain[0]
    assert names(chat("Hello", tools=[{"type": "function"}]))[0] != plain[0]
    assert names(chat("Hello"), {"authorization": "Bearer a"})[0] != plain[0]


def test_bodies_without_a_prompt_have_no_names() -> None:
    for body in (b"", b"not json", b"[1]", b'{"model": "x"}', b'{"messages": 3}', b'{"prompt": []}', b"[" * 100_000):
        assert prompt_text(body, {}).names == (), body[:20]


def test_names_are_bounded() -> None:
    assert len(names({"prompt": "x" * PIECE * (MOST_PIECES + 10)})) == MOST_PIECES


def test_the_model_is_read() -> None:
    assert prompt_text(b'{"model": "tuned", "prompt": "x"}', {}).model == "tuned"
    assert prompt_text(b'{"model": 3, "prompt": "x"}', {}).model is None
    adapter = b'{"model": "base", "inputs": "x", "parameters": {"adapter_id": "tuned"}}'
    assert prompt_text(adapter, {}).model == "tuned"
    assert prompt_text(b'{"model": "base", "prompt": "x", "peft": "tuned"}', {}).model == "tuned"
