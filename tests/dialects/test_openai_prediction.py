"""``prediction`` of OpenAI's chat: faster where it is right, the same tokens always, and counted apart."""

from __future__ import annotations

import re
from typing import Any

import httpx
import openai
import pytest
from stub_runtime import TOKENIZER
from witness import USER

TOKENS = [TOKENIZER.encode(word, False)[0] for word in (" the", " of", " and")]
ASK: dict[str, Any] = {"model": "stub", "messages": [USER], "seed": 4, "max_completion_tokens": 60}
FEW = {"logit_bias": {str(token): 60 for token in TOKENS}}


def drafted(server: Any, result: str) -> int:
    """Tokens of predictions that the metrics have counted."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    found = re.search(rf'^dragoman_draft_tokens_total{{result="{result}",source="prediction"}} (\d+)', text, re.M)
    return int(found[1]) if found else 0


def test_a_right_prediction_is_accepted_and_a_wrong_one_changes_nothing(client: openai.OpenAI, server: Any) -> None:
    before = {result: drafted(server, result) for result in ("accepted", "rejected")}
    accepted = rejected = 0
    plain = client.chat.completions.create(**ASK, **FEW)
    text = plain.choices[0].message.content
    assert text
    assert "accepted_prediction_tokens" not in plain.usage.completion_tokens_details.model_dump(exclude_unset=True)
    for content in (text, [{"type": "text", "text": text[:50]}, {"type": "text", "text": text[50:]}]):
        answer = client.chat.completions.create(**ASK, **FEW, prediction={"type": "content", "content": content})
        assert answer.choices[0].message.content == text
        assert answer.usage.completion_tokens == plain.usage.completion_tokens
        assert answer.usage.prompt_tokens == plain.usage.prompt_tokens
        details = answer.usage.completion_tokens_details
        assert details.accepted_prediction_tokens > 30
        accepted += details.accepted_prediction_tokens
        rejected += details.rejected_prediction_tokens
    answer = client.chat.completions.create(**ASK, **FEW, prediction={"type": "content", "content": "Z" * 400})
    assert answer.choices[0].message.content == text
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens == 0 < details.rejected_prediction_tokens
    rejected += details.rejected_prediction_tokens
    assert drafted(server, "accepted") - before["accepted"] == accepted
    assert drafted(server, "rejected") - before["rejected"] == rejected


def test_a_stream_counts_it_too_and_all_choices_have_it(client: openai.OpenAI) -> None:
    fields = ASK | FEW | {"n": 2, "stream_options": {"include_usage": True}}
    whole = client.chat.completions.create(**ASK, **FEW, n=2)
    prediction = {"type": "content", "content": whole.choices[0].message.content}
    texts = ["", ""]
    for chunk in client.chat.completions.create(**fields, stream=True, prediction=prediction):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = chunk.usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert usage.completion_tokens_details.accepted_prediction_tokens > 0


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("a text", "prediction"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "file", "content": "a"}, "prediction.type"),
        ({"type": "content", "content": [{"type": "image_url", "text": "a"}]}, "prediction.content[0].type"),
    ],
)
def test_what_is_wrong_is_named(server: Any, prediction: Any, param: str) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=ASK | {"prediction": prediction}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_empty_one_asks_for_nothing(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, prediction={"type": "content", "content": ""})
    assert answer.choices[0].message.content
