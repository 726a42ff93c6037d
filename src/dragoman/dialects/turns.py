"""The turns of a conversation for a chat template that may lack roles: a system role, one in the middle, or tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.core.image_sources import content_of, text_part
from dragoman.core.serving import ModelCard
from dragoman.dialects.images import joined_parts

Content = str | Sequence[str | dict[str, Any]]
"""A text, or texts and parts of images."""

IMAGE_BELOW = "[image: in the next message]"
"""What stands for an image in a tool's result: templates write text there, and the image is in the user's turn."""


class Turns:
    """The turns so far, as messages for the template of a model.

    Until ``finish`` contents are lists of texts and parts of images: many messages of one role are one turn.
    """

    def __init__(self, card: ModelCard) -> None:
        self._card, self._roles = card, card.template_roles
        self.writes_calls = card.tool_calls is not None and self._roles.tool
        self.messages: list[dict[str, Any]] = []

    @property
    def last_role(self) -> str:
        """The role of the last turn; empty: there is none."""
        return self.messages[-1]["role"] if self.messages else ""

    def add_system(self, text: str) -> None:
        """Add a system message behind the first turn: where it stands if the template can show it there, otherwise as a
        reminder in the turn before it. At the head of the prompt it would end the part that is found in the cache."""
        if self._roles.later_system:
            self.messages.append({"role": "system", "content": [text]})
            return
        if self.last_role in ("user", "tool"):
            _add(self.messages[-1]["content"], reminder(text))
        else:
            self.begin_user(reminder(text))

    def begin_user(self, content: Content) -> None:
        """Add a turn of the user."""
        self.messages.append({"role": "user", "content": [content] if isinstance(content, str) else list(content)})

    def add_user(self, content: Content) -> None:
        """Add to the last turn where that is the user's, or else a turn."""
        if self.last_role != "user":
            self.begin_user(content)
            return
        for piece in (content,) if isinstance(content, str) else content:
            _add(self.messages[-1]["content"], piece)

    def add_assistant(self, text: str, reasoning: str = "", calls: Sequence[dict[str, Any]] = ()) -> None:
        """Add to the last turn where that is the assistant's, or else a turn. ``calls``: as ``call`` returns them."""
        if calls and not self.writes_calls:
            written = "\n".join(map(_written, calls))
            text, calls = f"{text}\n{written}" if text else written, ()
        if self.last_role == "assistant":
            self.messages[-1]["content"].append(text)
        else:
            self.messages.append({"role": "assistant", "content": [text]})
        turn = self.messages[-1]
        if reasoning:
            _add(turn.setdefault("reasoning_content", []), reasoning)
        if calls:
            turn.setdefault("tool_calls", []).extend(calls)

    def add_result(self, call: str, name: str, text: str) -> None:
        """Add the result of a call."""
        if self.writes_calls:
            answer = {"role": "tool", "tool_call_id": self._id(call), "name": name, "content": [text]}
            self.messages.append(answer)
        else:
            self.add_user(f"<tool_response>\n{text}\n</tool_response>")

    def call(self, call: str, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
        """Return a call as a template takes it."""
        return {"id": self._id(call), "type": "function", "function": {"name": name, "arguments": arguments}}

    def finish(self) -> None:
        """Make one text of each content. Nothing but the system prompt is added after it."""
        for turn in self.messages:
            for name in ("content", "reasoning_content"):
                if name in turn:
                    turn[name] = content_of([_part(piece) for piece in turn[name]])

    def add_head(self, text: str) -> None:
        """Add the system prompt to finished turns: in the first user's turn where the template has no system role."""
        if not text:
            return
        if self._roles.system:
            self.messages.insert(0, {"role": "system", "content": text})
        elif self.messages and self.messages[0]["role"] == "user":
            self.messages[0]["content"] = joined_parts(text, "\n\n", self.messages[0]["content"])
        else:
            self.messages.insert(0, {"role": "user", "content": text})

    def _id(self, call: str) -> str:
        """Return the id for the template: Mistral's take nine characters only."""
        calls = self._card.tool_calls
        if calls is None or not calls.format.startswith("mistral") or len(call) == 9:
            return call
        return hashlib.sha256(call.encode("utf-8", "replace")).hexdigest()[:9]


def reminder(text: str) -> str:
    """Return a system message that the template cannot show where it stands, as part of a user's turn."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def pieces_of(pieces: Iterable[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
    """Return separate texts and images as the content of one turn; texts side by side as ``joined`` has them."""
    found: list[str | dict[str, Any]] = []
    for piece in pieces:
        _add(found, piece)
    return found


def joined(texts: Iterable[str]) -> str:
    """Return separate texts as one: with an empty line between two, unless there is a line end already."""
    pieces: list[str] = []
    for text in texts:
        _add(pieces, text)
    return "".join(pieces)


def _add(pieces: list[Any], piece: str | dict[str, Any]) -> None:
    """Add a separate text, or an image, to those of a content."""
    last = pieces[-1] if pieces else ""
    if (
        (isinstance(piece, str) and isinstance(last, str) and last and piece)
        and not last.endswith("\n")
        and not piece.startswith("\n")
    ):
        pieces.append("\n\n")
    if piece:
        pieces.append(piece)


def _part(piece: str | dict[str, Any]) -> dict[str, Any]:
    return text_part(piece) if isinstance(piece, str) else piece


def document(title: str | None, context: str | None, text: str) -> str:
    """Return a document as text."""
    head = f'<document title="{title}">' if title else "<document>"
    return "\n".join([head, *([context] if context else []), text, "</document>"])


def _written(call: dict[str, Any]) -> str:
    """Return a call as text, for templates that write none."""
    function = call["function"]
    name, arguments = (json.dumps(function[key], ensure_ascii=False) for key in ("name", "arguments"))
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
