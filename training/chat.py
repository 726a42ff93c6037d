"""The chat format: conversations rendered as text by the template that is shipped with the model."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.exercises.conversation import Conversation

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8").strip("\n")


def render(conversation: Conversation, *, answer_next: bool = False) -> str:
    """The conversation as the model reads it; with `answer_next`, up to the start of the assistant's next turn."""
    return _template().render(
        messages=conversation.messages,
        tools=conversation.tools or None,
        add_generation_prompt=answer_next,
        enable_thinking=conversation.thinks,
    )


@cache
def _template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # Jinja's own tojson escapes HTML and sorts keys; chat templates everywhere expect neither.
    environment.filters["tojson"] = _tojson
    return environment.from_string(CHAT_TEMPLATE)


def _tojson(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
