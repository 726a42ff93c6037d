"""Short ways to ask through the ``openai`` package."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from stub_runtime import TOKENIZER

USER: Any = {"role": "user", "content": "hello"}
EOS = TOKENIZER.eos_ids[0]
LONG: dict[str, Any] = {"seed": 3, "max_tokens": 24, "extra_body": {"ignore_eos": True}}


def complete(client: openai.OpenAI, prompt: Any = "Once upon a time", **fields: Any) -> Completion:
    fields = LONG | fields
    fields["extra_body"] = LONG["extra_body"] | fields["extra_body"]
    return client.completions.create(model="stub", prompt=prompt, **fields)


def chat(client: openai.OpenAI, messages: Any = (USER,), **fields: Any) -> ChatCompletion:
    fields = LONG | fields
    fields["extra_body"] = LONG["extra_body"] | fields["extra_body"]
    answer: ChatCompletion = client.chat.completions.create(model="stub", messages=list(messages), **fields)
    return answer


def text(answer: Completion | ChatCompletion, index: int = 0) -> str:
    choice = answer.choices[index]
    return (choice.message.content or "") if hasattr(choice, "message") else choice.text


BOTH = pytest.mark.parametrize("ask", [complete, chat], ids=["completions", "chat"])
