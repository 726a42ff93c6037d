"""Core to wire: chat completions, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.core.events import GenerationResult, PromptReady, TextDelta
from dragoman.dialects.chat_output import gathered
from dragoman.dialects.logprobs import shown_tokens
from dragoman.dialects.octoai.envelope import Ends, Envelope, counted
from dragoman.dialects.octoai.logprobs import Wanted
from dragoman.dialects.openai_stream import finish_reason, sse
from dragoman.dialects.tools import MessageShape
from dragoman.text.call_parser import CallArguments, CallStart, Content, Part
from dragoman.text.chat_parser import MessageReader

KIND = "chat.completion.chunk"


class Shown(msgspec.Struct, frozen=True):
    """How a text becomes a message, and which log-probabilities go with it."""

    shape: MessageShape
    wanted: Wanted


class Delta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the message. Every one of them names the role, and has content."""

    role: str
    content: str | None
    tool_calls: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    """A choice of a chunk. It has no ``message``: one of the SDKs cannot read a chunk that does."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


def chat_completion(head: Envelope, result: GenerationResult, shown: Shown) -> dict[str, Any]:
    """A whole chat completion. Raises GenerationFailed."""
    choices = []
    for generation in result.generations:
        reader = shown.shape.reader(reasoning_begun=result.prompt.reasoning_begun)
        message = _message(reader.push(generation.text) + reader.flush())
        tokens = shown_tokens(generation.tokens, len(generation.text), generation.finish)
        choices.append(
            {
                "index": generation.index,
                "message": message,
                "finish_reason": shown.shape.finish_reason(
                    finish_reason(generation.finish), len(message.get("tool_calls", ()))
                ),
                "logprobs": shown.wanted.of(result.prompt, tokens, 0),
            }
        )
    return head.body("chat.completion", choices) | {"usage": counted([result.usage])}


class ChatStream:
    """The chunks of a chat completion: the role, what the message is made of, and an end."""

    def __init__(self, head: Envelope, n: int, shown: Shown, ends: Ends) -> None:
        self._head, self._n, self._shown, self._ends = head, n, shown, ends
        self._length = [0] * n
        self._calls = [0] * n
        self._readers: list[MessageReader] = []

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """The first chunk of each choice, with the prompt's log-probabilities where they are wanted."""
        shape, wanted = self._shown.shape, self._shown.wanted
        self._readers = [shape.reader(reasoning_begun=event.reasoning_begun) for _ in range(self._n)]
        logprobs = wanted.of(event, (), 0) if wanted.prompt else None
        for i in range(self._n):
            yield sse(self._chunk(ChunkChoice(i, Delta("assistant", None), None, logprobs)))

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """What is new in the message, if anything, and the finish, if this is the end. Raises GenerationFailed."""
        i, reason, wanted = event.sequence, finish_reason(event.finish, event.message), self._shown.wanted
        self._length[i] += len(event.text)
        tokens = shown_tokens(event.tokens, self._length[i], event.finish) if wanted.generated else []
        logprobs = wanted.of(None, tokens, 0) if tokens else None
        parts = self._readers[i].push(event.text)
        if event.finish is not None:
            parts += self._readers[i].flush()
        self._calls[i] += sum(isinstance(part, CallStart) for part in parts)
        # Log-probabilities go with the first delta, or with one that adds nothing: their text may be held back.
        for delta in _deltas(parts) or ([Delta("assistant", "")] if logprobs and reason is None else []):
            yield sse(self._chunk(ChunkChoice(i, delta, None, logprobs)))
            logprobs = None
        if reason is not None:
            reason = self._shown.shape.finish_reason(reason, self._calls[i])
            yield from self._ends.add(self._chunk(ChunkChoice(i, Delta("assistant", ""), reason, logprobs)))

    def _chunk(self, choice: ChunkChoice) -> dict[str, Any]:
        return self._head.body(KIND, [choice])


def _message(parts: Iterable[Part]) -> dict[str, Any]:
    """``content`` is always there, null beside calls; ``tool_calls`` only when there are any."""
    whole = gathered(parts)
    message = {"role": "assistant", "content": whole.content, "function_call": None}
    return message | ({"tool_calls": whole.calls} if whole.calls else {})


def _deltas(parts: Iterable[Part]) -> list[Delta]:
    """One for each part that shows."""
    deltas = []
    for part in parts:
        match part:
            case Content(text):
                deltas.append(Delta("assistant", text))
            case CallStart(index, id, name):
                function = {"name": name, "arguments": ""}
                start = {"index": index, "id": id, "type": "function", "function": function}
                deltas.append(Delta("assistant", None, [start]))
            case CallArguments(index, text):
                more = {"index": index, "function": {"arguments": text}}
                deltas.append(Delta("assistant", None, [more]))
    return deltas
