"""Core to wire, as pure functions and structs: the answers of the OpenAI dialect, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason, GenerationResult, PromptReady, TextDelta, Token, Usage
from dragoman.core.serving import ModelCard
from dragoman.dialects.logprobs import chat_logprobs, completion_logprobs, shown_tokens
from dragoman.dialects.openai.errors import render_error
from dragoman.dialects.openai.message import ChatDelta, deltas, message
from dragoman.dialects.openai_stream import DONE, finish_reason, sse, usage
from dragoman.dialects.tools import PLAIN, MessageShape
from dragoman.text.call_parser import CallStart
from dragoman.text.chat_parser import MessageReader


class CompletionChoice(msgspec.Struct):
    """A choice of a completion: the same whole and streamed. ``score``: where it is a hypothesis of a beam search."""

    text: str
    index: int
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    score: float | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """A choice of a whole chat completion."""

    index: int
    message: dict[str, Any]
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    score: float | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct):
    """A choice of a streamed chat completion."""

    index: int
    delta: ChatDelta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    score: float | msgspec.UnsetType = msgspec.UNSET


class Body(msgspec.Struct):
    """Every answer and every chunk. ``usage`` is absent from chunks unless it was asked for."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    usage: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class Head(msgspec.Struct, frozen=True):
    """What all chunks of one answer begin with. ``counted``: the client asked for the usage chunk."""

    id: str
    created: int
    model: str
    fingerprint: str
    counted: bool = False

    def body(self, kind: str, choices: list[Any], usage: dict[str, Any] | msgspec.UnsetType | None) -> Body:
        return Body(self.id, kind, self.created, self.model, self.fingerprint, choices, usage)

    def chunk(self, kind: str, choice: Any) -> bytes:
        counts = None if self.counted else msgspec.UNSET
        return sse(Body(self.id, kind, self.created, self.model, self.fingerprint, [choice], counts))

    def end(self, kind: str, counts: Sequence[Usage]) -> Iterable[bytes]:
        """The counts, where they were asked for, and the mark of the end."""
        if self.counted:
            yield sse(self.body(kind, [], usage(counts)))
        yield DONE


def fault(error: DragomanError) -> tuple[bytes, ...]:
    """What ends a stream that cannot be finished."""
    return (sse(render_error(error).body),)


def completion(head: Head, results: list[GenerationResult], *, logprobs: bool) -> Body:
    """A whole text completion: the choices of all prompts, prompt by prompt."""
    choices: list[CompletionChoice] = []
    for result in results:
        prompt = result.prompt
        for generation in result.generations:
            shape = None
            if logprobs:
                text = generation.text
                tokens = shown_tokens(generation.tokens, len(text), generation.finish)
                shape = _echoed_logprobs(prompt, tokens)
            reason = finish_reason(generation.finish)
            text = prompt.text + generation.text
            choices.append(CompletionChoice(text, len(choices), shape, reason, _shown(generation.score)))
    return head.body("text_completion", choices, usage([result.usage for result in results]))


def chat_completion(
    head: Head, result: GenerationResult, *, logprobs: bool, shape: MessageShape = PLAIN, resumable: bool = False
) -> Body:
    """A whole chat completion. ``resumable``: as in the request."""
    choices = []
    for generation in result.generations:
        made = message(
            generation.text,
            shape,
            reasoning_begun=result.prompt.reasoning_begun,
            earlier_text=result.prompt.earlier_text,
            is_cut=resumable and generation.finish is FinishReason.LENGTH,
        )
        listed = None
        if logprobs:
            listed = chat_logprobs(shown_tokens(generation.tokens, len(generation.text), generation.finish))
        reason = shape.finish_reason(finish_reason(generation.finish), len(made.get("tool_calls", ())))
        choices.append(ChatChoice(generation.index, made, listed, reason, _shown(generation.score)))
    return head.body("chat.completion", choices, usage([result.usage]))


def _shown(score: float | None) -> float | msgspec.UnsetType:
    return msgspec.UNSET if score is None else score


def _echoed_logprobs(prompt: PromptReady, tokens: list[Token]) -> dict[str, Any]:
    """The prompt's tokens first, where they were echoed; offsets count from the start of all the text."""
    shape = completion_logprobs(prompt.tokens, 0)
    for name, values in completion_logprobs(tokens, len(prompt.text)).items():
        shape[name] += values
    return shape


class CompletionStream:
    """The chunks of one prompt's choices in a text completion."""

    def __init__(self, head: Head, first_index: int, n: int, *, logprobs: bool) -> None:
        self.head, self.first_index, self.n, self.logprobs = head, first_index, n, logprobs
        self.shift = 0
        self.length = [0] * n

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """The echoed prompt, once for each choice."""
        self.shift = len(event.text)
        if event.text or event.tokens:
            for i in range(self.n):
                shape = completion_logprobs(event.tokens, 0) if self.logprobs else None
                yield self.head.chunk("text_completion", CompletionChoice(event.text, self.first_index + i, shape))

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """One chunk for the delta, unless it shows nothing. Raises GenerationFailed."""
        reason = finish_reason(event.finish, event.message)
        shape = None
        if self.logprobs:
            self.length[event.sequence] += len(event.text)
            shown = shown_tokens(event.tokens, self.length[event.sequence], event.finish)
            shape = completion_logprobs(shown, self.shift)
        if event.text or reason or (self.logprobs and event.tokens):
            index = self.first_index + event.sequence
            choice = CompletionChoice(event.text, index, shape, reason, _shown(event.score))
            yield self.head.chunk("text_completion", choice)


class ChatStream:
    """The chunks of a chat completion: role, what the message is made of, and a last one with the finish reason.

    ``resumable``: as in the request.
    """

    KIND = "chat.completion.chunk"

    def __init__(
        self, head: Head, n: int, *, logprobs: bool, shape: MessageShape = PLAIN, resumable: bool = False
    ) -> None:
        self.head, self.n, self.logprobs, self.shape, self.resumable = head, n, logprobs, shape, resumable
        self.length = [0] * n
        self.calls = [0] * n
        self.readers: list[MessageReader] = []

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """The opening chunk of each choice. Where there may be calls only, content is null until there is some."""
        self.readers = [self.shape.reader(reasoning_begun=event.reasoning_begun) for _ in range(self.n)]
        for reader in self.readers:
            reader.push(event.earlier_text)
        for i in range(self.n):
            opening = ChatDelta("assistant", None if self.shape.format else "", None)
            yield self.head.chunk(self.KIND, ChatChunkChoice(i, opening))

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """What is new in the message, if anything, and the finish, if this is the end. Raises GenerationFailed."""
        index, reason = event.sequence, finish_reason(event.finish, event.message)
        listed = None
        if self.logprobs:
            self.length[index] += len(event.text)
            shown = shown_tokens(event.tokens, self.length[index], event.finish)
            listed = chat_logprobs(shown) if shown else None
        parts = self.readers[index].push(event.text)
        if event.finish is not None and not (self.resumable and event.finish is FinishReason.LENGTH):
            parts += self.readers[index].flush()
        self.calls[index] += sum(isinstance(part, CallStart) for part in parts)
        # Log-probabilities go with the first delta, or with one that adds nothing: their text may be held back.
        for delta in deltas(parts) or ([ChatDelta()] if listed else []):
            yield self.head.chunk(self.KIND, ChatChunkChoice(index, delta, listed))
            listed = None
        if reason:
            reason = self.shape.finish_reason(reason, self.calls[index])
            last = ChatChunkChoice(index, ChatDelta(), None, reason, _shown(event.score))
            yield self.head.chunk(self.KIND, last)


def model(card: ModelCard) -> dict[str, Any]:
    """An entry of the model list; ``max_model_len``, and ``parent`` of an adapter, are other engines' names."""
    entry = {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "dragoman",
        "max_model_len": card.context_tokens,
    }
    return entry if card.base is None else entry | {"parent": card.base}
