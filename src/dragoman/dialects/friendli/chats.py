"""Core to wire: chat completions, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.core.events import GenerationResult, PromptReady, TextDelta
from dragoman.dialects.chat_output import gathered
from dragoman.dialects.friendli.envelope import Envelope
from dragoman.dialects.logprobs import chat_logprobs, shown_tokens
from dragoman.dialects.openai_stream import finish_reason, sse, usage
from dragoman.dialects.tools import MessageShape
from dragoman.text.call_parser import CallArguments, CallStart, Content, Part, Reasoning
from dragoman.text.chat_parser import MessageReader

KIND = "chat.completion.chunk"


class Shown(msgspec.Struct, frozen=True):
    """What of a message the client wants to see; ``shape`` says how a text becomes one."""

    shape: MessageShape
    logprobs: bool = False
    reasoning: bool = True


class Delta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the message."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    """A choice of a chunk."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


def chat_completion(head: Envelope, result: GenerationResult, shown: Shown) -> dict[str, Any]:
    """A whole chat completion. Raises GenerationFailed."""
    choices = []
    for generation in result.generations:
        reader = shown.shape.reader(reasoning_begun=result.prompt.reasoning_begun)
        message = _message(reader.push(generation.text) + reader.flush(), shown)
        reason = shown.shape.finish_reason(finish_reason(generation.finish), len(message.get("tool_calls", ())))
        logprobs = None
        if shown.logprobs:
            logprobs = _logprobs(shown_tokens(generation.tokens, len(generation.text), generation.finish))
        choices.append({"index": generation.index, "message": message, "finish_reason": reason, "logprobs": logprobs})
    return head.body("chat.completion", choices, usage=usage([result.usage]))


class ChatStream:
    """The chunks of a chat completion: what the message is made of, the role with the first of it, and an end."""

    def __init__(self, head: Envelope, n: int, shown: Shown) -> None:
        self._head, self._n, self._shown = head, n, shown
        self._length = [0] * n
        self._calls = [0] * n
        self._begun = [False] * n
        self._readers: list[MessageReader] = []

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """Nothing yet: the role comes with the first content."""
        shape = self._shown.shape
        self._readers = [shape.reader(reasoning_begun=event.reasoning_begun) for _ in range(self._n)]
        return ()

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """What is new in the message, if anything, and the finish, if this is the end. Raises GenerationFailed."""
        i, reason = event.sequence, finish_reason(event.finish, event.message)
        logprobs = None
        if self._shown.logprobs:
            self._length[i] += len(event.text)
            tokens = shown_tokens(event.tokens, self._length[i], event.finish)
            logprobs = _logprobs(tokens) if tokens else None
        parts = self._readers[i].push(event.text)
        if event.finish is not None:
            parts += self._readers[i].flush()
        self._calls[i] += sum(isinstance(part, CallStart) for part in parts)
        deltas = _deltas(parts, self._shown)
        if not deltas and (logprobs or (reason and not self._begun[i])):
            # Log-probabilities whose text is held back, or a message that ends before it has begun.
            deltas = [Delta(content="")]
        for delta in deltas:
            yield self._chunk(ChunkChoice(i, self._with_role(i, delta), None, logprobs))
            logprobs = None
        if reason is not None:
            reason = self._shown.shape.finish_reason(reason, self._calls[i])
            yield self._chunk(ChunkChoice(i, Delta(), reason))

    def _with_role(self, i: int, delta: Delta) -> Delta:
        if self._begun[i]:
            return delta
        self._begun[i] = True
        content = "" if delta.content is msgspec.UNSET else delta.content
        return msgspec.structs.replace(delta, role="assistant", content=content)

    def _chunk(self, choice: ChunkChoice) -> bytes:
        return sse(self._head.body(KIND, [choice], **({"usage": None} if self._head.counted else {})))


def _message(parts: Iterable[Part], shown: Shown) -> dict[str, Any]:
    """``content`` is null when there are calls only; keys without a value are left out."""
    whole = gathered(parts)
    message: dict[str, Any] = {"role": "assistant", "content": whole.content}
    if whole.reasoning and shown.reasoning:
        message["reasoning_content"] = whole.reasoning
    return message | ({"tool_calls": whole.calls} if whole.calls else {})


def _deltas(parts: Iterable[Part], shown: Shown) -> list[Delta]:
    """One for each part that shows. The SDK reads ``arguments`` of every delta of a call, empty or not."""
    deltas = []
    for part in parts:
        match part:
            case Content(text):
                deltas.append(Delta(content=text))
            case Reasoning(text) if shown.reasoning:
                deltas.append(Delta(reasoning_content=text))
            case CallStart(index, id, name):
                function = {"name": name, "arguments": ""}
                deltas.append(Delta(tool_calls=[{"index": index, "id": id, "type": "function", "function": function}]))
            case CallArguments(index, text):
                more = {"index": index, "type": "function", "function": {"arguments": text}}
                deltas.append(Delta(tool_calls=[more]))
    return deltas


def _logprobs(tokens: Iterable[Any]) -> dict[str, Any]:
    return {"content": chat_logprobs(tokens)["content"]}
