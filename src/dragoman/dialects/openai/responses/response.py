"""The response object, and the items of its output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.events import Token
from dragoman.dialects.logprobs import chat_logprobs
from dragoman.dialects.openai.responses.tools import CalledTool
from dragoman.dialects.reasoning import hidden
from dragoman.dialects.tools import MessageShape

QUEUED, RUNNING, COMPLETED, INCOMPLETE, FAILED, CANCELLED = (
    "queued",
    "in_progress",
    "completed",
    "incomplete",
    "failed",
    "cancelled",
)
ENDS = (COMPLETED, INCOMPLETE, FAILED, CANCELLED)

RESPONSE_ID = "resp_"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What the events of a response follow from, besides its tokens.

    Attributes:
        response: the object as it is before anything is generated.
        shape: how the text becomes items. called: the tools that may be called, by the names that the model writes.
        summarizes: reasoning is a summary. encrypts: it has an encrypted content too.
        logprobs: messages have log-probabilities.
        prewarms: nothing is generated.
    """

    response: dict[str, Any]
    shape: MessageShape
    called: dict[str, CalledTool] = {}
    summarizes: bool = False
    encrypts: bool = False
    logprobs: bool = False
    prewarms: bool = False

    @property
    def digits(self) -> str:
        """The part of the response's id that the ids of its items have too."""
        return str(self.response["id"]).removeprefix(RESPONSE_ID)

    def at(self, status: str, output: Sequence[Any] = (), usage: Any = None, **more: Any) -> dict[str, Any]:
        """Return the object with another status."""
        return {**self.response, "status": status, "output": list(output), "usage": usage, **more}


def usage(prompt_tokens: int, cached_tokens: int, output_tokens: int, reasoning_tokens: int) -> dict[str, Any]:
    """Return the counts of a response that is over."""
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt_tokens + output_tokens,
    }


class Item:
    """One item of the output while it is generated: ``added`` is how it begins, ``done`` how it ends."""

    prefix = "msg"

    def __init__(self, head: Head, index: int) -> None:
        self.head, self.index = head, index
        self.id = f"{self.prefix}_{head.digits}_{index}"
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def added(self) -> dict[str, Any]:
        raise NotImplementedError

    def done(self, status: str) -> dict[str, Any]:
        raise NotImplementedError


class MessageItem(Item):
    """A message, of one part."""

    def __init__(self, head: Head, index: int) -> None:
        super().__init__(head, index)
        self.tokens: list[Token] = []

    def added(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "status": RUNNING, "role": "assistant", "content": []}

    def part(self, text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
        return {"type": "output_text", "annotations": [], "logprobs": list(logprobs), "text": text}

    def done(self, status: str) -> dict[str, Any]:
        content = [self.part(self.text, logprob_entries(self.tokens))]
        return {**self.added(), "status": status, "content": content}


class ReasoningItem(Item):
    """A reasoning block."""

    prefix = "rs"

    def added(self) -> dict[str, Any]:
        item = {"id": self.id, "type": "reasoning", "status": RUNNING, "summary": []}
        return item if self.head.summarizes else {**item, "content": []}

    def part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text" if self.head.summarizes else "reasoning_text", "text": text}

    def done(self, status: str) -> dict[str, Any]:
        place = "summary" if self.head.summarizes else "content"
        item = {**self.added(), "status": status, place: [self.part(self.text)]}
        return {**item, "encrypted_content": hidden(self.text)} if self.head.encrypts else item


class CallItem(Item):
    """A call of a tool. ``arguments`` is as it was generated; a custom tool's ``input`` is the text in it."""

    def __init__(self, head: Head, index: int, tool: CalledTool) -> None:
        self.prefix = "ctc" if tool.is_custom else "fc"
        super().__init__(head, index)
        self.tool = tool

    def added(self) -> dict[str, Any]:
        return self._with("", RUNNING)

    def done(self, status: str) -> dict[str, Any]:
        return self._with(self.text, status)

    def _with(self, text: str, status: str) -> dict[str, Any]:
        custom = self.tool.is_custom
        item = {
            "id": self.id,
            "type": "custom_tool_call" if custom else "function_call",
            "status": status,
            "call_id": f"call_{self.head.digits}_{self.index}",
            "name": self.tool.name,
            "input" if custom else "arguments": text,
        }
        return {**item, "namespace": self.tool.namespace} if self.tool.namespace else item


def logprob_entries(tokens: Iterable[Token]) -> list[dict[str, Any]]:
    """Return the log-probabilities of a message: ``{"token", "bytes", "logprob", "top_logprobs"}``."""
    found = chat_logprobs(tokens)["content"]
    return [{**_entry(each), "top_logprobs": [_entry(other) for other in each["top_logprobs"]]} for each in found]


def delta_logprobs(tokens: Iterable[Token]) -> list[dict[str, Any]]:
    """Return the log-probabilities of an event: ``{"token", "logprob", "top_logprobs"}``."""
    found = chat_logprobs(tokens)["content"]
    return [{**_short(each), "top_logprobs": [_short(other) for other in each["top_logprobs"]]} for each in found]


def _entry(each: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": each["token"], "bytes": each["bytes"], "logprob": each["logprob"]}


def _short(each: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": each["token"], "logprob": each["logprob"]}
