"""What the generator makes: single exchanges, and whole conversations built from them."""

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""One turn, shaped as in OpenAI's chat API."""

Tool = dict[str, Any]
"""One tool definition, shaped as in OpenAI's chat API."""


@dataclass(frozen=True)
class Exchange:
    """A question and its answer, with the answer's core (`short`) where one word or number says it all."""

    task: str
    question: str
    answer: str
    short: str | None = None
    verbatim: bool = False  # the answer's letters and form matter: no system message may change them


@dataclass(frozen=True)
class Conversation:
    """Messages, the tools offered with them, and the tasks met on the way."""

    tasks: list[str]
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    thinks: bool = False  # reasoning is switched on: the last answer begins with a reasoning block


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}
