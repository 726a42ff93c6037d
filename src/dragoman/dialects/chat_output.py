"""The parts of a generated text, gathered into what every chat dialect's whole message is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dragoman.text.call_parser import CallArguments, CallStart, Content, Part, Reasoning


class Gathered(NamedTuple):
    """``content`` is None where there are calls only; ``calls`` are ``{"id", "type", "function"}``."""

    content: str | None
    reasoning: str
    calls: list[dict[str, Any]]


def gathered(parts: Iterable[Part]) -> Gathered:
    """All parts of one text."""
    content, reasoning, calls = "", "", list[dict[str, Any]]()
    for part in parts:
        match part:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallStart(_, id, name):
                calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": ""}})
            case CallArguments(index, text):
                calls[index]["function"]["arguments"] += text
    return Gathered(content if content or not calls else None, reasoning, calls)
