"""Translation from core to wire: answers whole and as lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from dragoman.core.entropy import wall_time
from dragoman.core.errors import DragomanError
from dragoman.core.events import PromptReady, TextDelta, Token, Usage
from dragoman.core.journal import current_journal
from dragoman.dialects.chat_stream import ChatChunk, ChatShaper
from dragoman.dialects.json_lines import json_line
from dragoman.dialects.logprobs import FLOOR, shown_tokens
from dragoman.dialects.ollama.calls import wire_call
from dragoman.dialects.ollama.errors import message_of
from dragoman.dialects.openai_stream import encode, finish_reason
from dragoman.dialects.tools import MessageShape
from dragoman.text.call_parser import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from dragoman.text.chat_parser import MessageReader

NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"
NANOSECONDS = 10**9


class Clock:
    """The time of lines, and the durations of one request. ``arrived_s``: seconds since it arrived."""

    def __init__(self, arrived_s: float) -> None:
        self._now = asyncio.get_running_loop().time
        self._began = self._now() - arrived_s
        self._loaded = self._first = self._last = self._now()

    def loaded(self) -> None:
        """Note that the model is there."""
        self._loaded = self._first = self._last = self._now()

    def token(self, *, is_first: bool) -> None:
        """Note that tokens have come."""
        self._last = self._now()
        if is_first:
            self._first = self._last

    def time(self) -> str:
        """Return the time of a line; in a cluster that of the request, since another server may repeat the line."""
        if current_journal.get() is not None:
            return timestamp(wall_time())
        return timestamp(wall_time() + self._now() - self._began)

    def numbers(self, usage: Usage) -> dict[str, int]:
        """Return the counts and durations of a whole answer; zeros would be left out by Ollama, and clients fail."""
        return {
            "total_duration": _nanoseconds(self._now() - self._began),
            "load_duration": _nanoseconds(self._loaded - self._began),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(self._first - self._loaded),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(self._last - self._first),
        }


def timestamp(seconds: float) -> str:
    """Return a Unix time in the form of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return max(1, round(seconds * NANOSECONDS))


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What all lines of one answer have, and what they show.

    Attributes:
        model: as the request names it. is_chat: lines have a message.
        has_context: the last line has the tokens of the conversation.
        shows_thinking: reasoning blocks are part of the answer. has_call_ids: calls have one.
        truncated_messages: how many messages were left out of the prompt.
    """

    model: str
    is_chat: bool
    shape: MessageShape
    clock: Clock
    has_context: bool = False
    shows_thinking: bool = False
    has_call_ids: bool = True
    has_logprobs: bool = False
    truncated_messages: int = 0

    def line(
        self,
        text: str = "",
        *,
        thinking: str = "",
        calls: Sequence[dict[str, Any]] = (),
        done: str | None = None,
        context: Sequence[int] = (),
        numbers: dict[str, int] | None = None,
        logprobs: Sequence[dict[str, Any]] = (),
        debug: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return one line, or a whole answer. ``done``: why it ends; None: it goes on."""
        begun = {"model": self.model, "created_at": self.clock.time()}
        thought = {"thinking": thinking} if thinking else {}
        called = {"tool_calls": list(calls)} if calls else {}
        ended: dict[str, Any] = {"done": done is not None}
        if done:
            ended["done_reason"] = done
        listed = {"logprobs": list(logprobs)} if logprobs else {}
        debugged = {"_debug_info": debug} if debug else {}
        if self.is_chat:
            message = {"role": "assistant", "content": text, **thought, **called}
            whole = begun | {"message": message} | ended | debugged | listed | (numbers or {})
        else:
            ids = {"context": list(context)} if context else {}
            whole = begun | {"response": text} | thought | ended | ids | (numbers or {}) | called | debugged | listed
        if numbers is not None and self.truncated_messages:
            whole["truncated_messages"] = self.truncated_messages
        return whole


class Lines(ChatShaper):
    """The lines of a streamed answer: one for each piece of text, each whole call, and the end.

    ``whole``: instead all of it is gathered, for the one object that ``end`` then returns.
    """

    tokens_apart = False

    def __init__(self, head: Head, *, whole: bool = False) -> None:
        self._head, self._whole = head, whole
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._context: list[int] = []
        self._has_tokens = False
        self._call: tuple[str, list[str]] = "", []
        self._reason = ""

    def reader(self, event: PromptReady) -> MessageReader:
        return self._head.shape.reader(reasoning_begun=event.reasoning_begun)

    def opening(self, index: int, event: PromptReady) -> Iterable[bytes]:
        self._context = list(event.prompt_ids) if self._head.has_context else []
        return ()

    def tokens(self, event: TextDelta, length: int) -> Sequence[Token]:
        self._head.clock.token(is_first=not self._has_tokens)
        self._has_tokens = True
        if self._head.has_context:
            self._context += [token.token_id for token in event.tokens]
        if not self._head.has_logprobs:
            return ()
        return shown_tokens(event.tokens, length if event.finish else None, event.finish)

    def shows(self, part: Part) -> bool:
        return self._head.shows_thinking if isinstance(part, Reasoning) else True

    def write(self, chunk: ChatChunk) -> Iterable[bytes]:
        if chunk.finish is not None:
            self._reason = finish_reason(chunk.finish) or ""
        logprobs = [_logprob(token) for token in chunk.tokens]
        text = thinking = ""
        calls: list[dict[str, Any]] = []
        match chunk.part:
            case Content(text):
                pass
            case Reasoning(thinking):
                pass
            case CallStart(_, _, name):
                self._call = name, []
            case CallArguments(_, piece):
                self._call[1].append(piece)
            case CallEnd():
                name, pieces = self._call
                call = wire_call(len(self._calls), name, "".join(pieces), has_id=self._head.has_call_ids)
                if call is not None:
                    self._calls.append(call)
                    calls.append(call)
        if self._whole or chunk.finish is not None or not (text or thinking or calls):
            self._texts.append(text)
            self._thoughts.append(thinking)
            self._logprobs += logprobs
            return ()
        logprobs, self._logprobs = [*self._logprobs, *logprobs], []
        return (json_line(self._head.line(text, thinking=thinking, calls=calls, logprobs=logprobs)),)

    def end(self, usages: Sequence[Usage]) -> Iterable[bytes]:
        """Yield the last line, or the whole answer."""
        (usage,) = usages
        last = self._head.line(
            "".join(self._texts),
            thinking="".join(self._thoughts),
            calls=self._calls if self._whole else (),
            done=self._reason or "stop",
            context=self._context,
            numbers=self._head.clock.numbers(usage),
            logprobs=self._logprobs,
        )
        yield encode(last) if self._whole else json_line(last)


def _logprob(token: Token) -> dict[str, Any]:
    described = _entry(token)
    if token.top:
        described["top_logprobs"] = [_entry(other) for other in token.top]
    return described


def _entry(token: Token) -> dict[str, Any]:
    value = FLOOR if token.logprob is None else max(token.logprob, FLOOR)
    return {"token": token.text, "logprob": value, "bytes": list(token.raw)}


def fault(error: DragomanError) -> tuple[bytes, ...]:
    """Return the line that ends a stream that cannot be finished."""
    return (json_line({"error": message_of(error)}),)
