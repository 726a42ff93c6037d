"""Translation from core to wire, as pure functions and structs: the answers of the OpenAI dialect, whole and
streamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason, GenerationResult, PromptReady, TextDelta, Token, Usage
from dragoman.dialects.chat_stream import ChatChunk, ChatShaper, gathered
from dragoman.dialects.completion_stream import CompletionChunk, CompletionShaper
from dragoman.dialects.logprobs import chat_logprobs, completion_logprobs, shown_tokens
from dragoman.dialects.model_list import ListedModel
from dragoman.dialects.openai.custom_tools import CustomInput
from dragoman.dialects.openai.errors import render_error
from dragoman.dialects.openai_stream import DONE, finish_reason, sse, usage
from dragoman.dialects.reasoning import ThinkingCounter
from dragoman.dialects.tools import PLAIN, MessageShape
from dragoman.text.call_parser import CallArguments, CallStart, Content, Part, Reasoning
from dragoman.text.chat_parser import MessageReader
from dragoman.text.reasoning import ReasoningMarks

CHAT_CHUNK = "chat.completion.chunk"
COMPLETION = "text_completion"


class CompletionChoice(msgspec.Struct):
    """A choice of a completion: the same whole and streamed. ``score``: where it is a hypothesis of a beam search."""

    text: str
    index: int
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    score: float | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET
    token_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """A choice of a whole chat completion."""

    index: int
    message: dict[str, Any]
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    score: float | msgspec.UnsetType = msgspec.UNSET
    token_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """The fields that a chunk adds to a call's function."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class CustomDelta(msgspec.Struct, omit_defaults=True):
    """The fields that a chunk adds to a call of a custom tool."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    input: str | msgspec.UnsetType = msgspec.UNSET


class CallDelta(msgspec.Struct, omit_defaults=True):
    """The fields that a chunk adds to the call ``index``; the first delta of a call has its id and name."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: FunctionDelta | msgspec.UnsetType = msgspec.UNSET
    custom: CustomDelta | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """The fields that a chunk adds to the message."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct):
    """A choice of a streamed chat completion."""

    index: int
    delta: ChatDelta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    score: float | msgspec.UnsetType = msgspec.UNSET
    token_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET


class Body(msgspec.Struct):
    """Every answer and every chunk. ``usage`` is absent from chunks unless requested, ``prompt_token_ids`` (of a chat)
    from all but the answer or its first chunk, ``service_tier`` where the request has none."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    usage: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET


class Envelope(msgspec.Struct, frozen=True):
    """The fields that all chunks of one answer begin with. ``counted``: the client requested the usage chunk;
    ``ids``: token ids. ``tier``: where it has named one."""

    id: str
    created: int
    model: str
    fingerprint: str
    counted: bool = False
    ids: bool = False
    tier: str | msgspec.UnsetType = msgspec.UNSET

    def body(
        self,
        kind: str,
        choices: list[Any],
        usage: dict[str, Any] | msgspec.UnsetType | None,
        prompt_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET,
    ) -> Body:
        return Body(self.id, kind, self.created, self.model, self.fingerprint, choices, usage, prompt_ids, self.tier)

    def chunk(self, kind: str, choice: Any, prompt_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET) -> bytes:
        return sse(self.body(kind, [choice], None if self.counted else msgspec.UNSET, prompt_ids))

    def token_ids(self, tokens: Iterable[Token]) -> list[int] | msgspec.UnsetType:
        """Return the ids of the tokens, where the client requested them."""
        return [token.token_id for token in tokens] if self.ids else msgspec.UNSET

    def prompt_ids(self, event: PromptReady) -> Sequence[int] | msgspec.UnsetType:
        """Return the ids of the prompt, where the client requested them."""
        return event.prompt_ids if self.ids else msgspec.UNSET

    def end(self, kind: str, usage: dict[str, Any]) -> Iterable[bytes]:
        """Yield the counts, where requested, and the end marker."""
        if self.counted:
            yield sse(self.body(kind, [], usage))
        yield DONE


def fault(error: DragomanError) -> tuple[bytes, ...]:
    """Return the events that end a stream that cannot be finished."""
    return (sse(render_error(error).body),)


def completion(head: Envelope, results: list[GenerationResult], *, logprobs: bool) -> Body:
    """Return a whole text completion: the choices of all prompts, prompt by prompt."""
    choices: list[CompletionChoice] = []
    for result in results:
        prompt = result.prompt
        for generation in result.generations:
            tokens = shown_tokens(generation.tokens, len(generation.text), generation.finish)
            shape = _echoed_logprobs(prompt, tokens, ids=head.ids) if logprobs else None
            reason = finish_reason(generation.finish)
            text = prompt.text + generation.text
            ids = head.prompt_ids(prompt), head.token_ids(tokens)
            choices.append(CompletionChoice(text, len(choices), shape, reason, _shown(generation.score), *ids))
    return head.body(COMPLETION, choices, usage([result.usage for result in results]))


def chat_usage(counts: Iterable[Usage], reasoning_tokens: int) -> dict[str, Any]:
    """Return the token counts of a chat."""
    made = usage(counts)
    made["prompt_tokens_details"]["cache_write_tokens"] = 0
    details = {"reasoning_tokens": reasoning_tokens}
    for predictions in [count.predictions for count in counts if count.predictions is not None]:
        for name in ("accepted", "rejected"):
            total = details.get(f"{name}_prediction_tokens", 0) + getattr(predictions, name)
            details[f"{name}_prediction_tokens"] = total
    return made | {"completion_tokens_details": details}


def chat_completion(
    head: Envelope,
    result: GenerationResult,
    *,
    logprobs: bool,
    shape: MessageShape = PLAIN,
    resumable: bool = False,
    marks: ReasoningMarks | None = None,
) -> Body:
    """Return a whole chat completion. ``resumable``: as in the request. ``marks``: of reasoning blocks in the text,
    whose tokens are counted."""
    choices = []
    thinking = 0
    for generation in result.generations:
        counter = ThinkingCounter(marks, result.prompt)
        counter.push(generation.text, generation.tokens)
        thinking += counter.count
        made = message(
            generation.text,
            shape,
            reasoning_begun=result.prompt.reasoning_begun,
            earlier_text=result.prompt.earlier_text,
            is_cut=resumable and generation.finish is FinishReason.LENGTH,
        )
        tokens = shown_tokens(generation.tokens, len(generation.text), generation.finish)
        listed = chat_logprobs(tokens, ids=head.ids) if logprobs else None
        reason = shape.finish_reason(finish_reason(generation.finish), len(made.get("tool_calls", ())))
        ids = head.token_ids(tokens)
        choices.append(ChatChoice(generation.index, made, listed, reason, _shown(generation.score), ids))
    whole = head.body("chat.completion", choices, chat_usage([result.usage], thinking))
    whole.prompt_token_ids = head.prompt_ids(result.prompt)
    return whole


def message(
    text: str, shape: MessageShape, *, reasoning_begun: bool, earlier_text: str = "", is_cut: bool = False
) -> dict[str, Any]:
    """Return the whole message. ``content`` is null when there are calls only; ``tool_calls`` is there when there are
    any.

    ``earlier_text``: the text that earlier calls have delivered; ``is_cut``: a later call continues it.
    """
    reader = shape.reader(reasoning_begun=reasoning_begun)
    reader.push(earlier_text)
    whole = gathered(reader.push(text) + ([] if is_cut else reader.flush()))
    made: dict[str, Any] = {"role": "assistant", "content": whole.content, "refusal": None}
    if shape.separate:
        made["reasoning_content"] = whole.reasoning or None
    calls = [_custom_call(call) if call["function"]["name"] in shape.custom else call for call in whole.calls]
    return made | {"tool_calls": calls} if calls else made


def _custom_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a custom tool."""
    function = call["function"]
    custom = {"name": function["name"], "input": CustomInput().push(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


def _shown(score: float | None) -> float | msgspec.UnsetType:
    return msgspec.UNSET if score is None else score


def _logprobs(tokens: Sequence[Token], shift: int, *, ids: bool) -> dict[str, Any]:
    """Return the log-probabilities of a completion; ``ids``: also as a chat has them, with ids."""
    shape = completion_logprobs(tokens, shift)
    return {**shape, "content": chat_logprobs(tokens, ids=True)["content"]} if ids else shape


def _echoed_logprobs(prompt: PromptReady, tokens: list[Token], *, ids: bool) -> dict[str, Any]:
    """Return the log-probabilities, with an echoed prompt's tokens first; offsets count from the start of all the
    text."""
    shape = _logprobs(prompt.tokens, 0, ids=ids)
    for name, values in _logprobs(tokens, len(prompt.text), ids=ids).items():
        shape[name] += values
    return shape


class CompletionChunks(CompletionShaper):
    """The chunks of a text completion."""

    def __init__(self, head: Envelope, *, logprobs: bool) -> None:
        self._head, self._logprobs = head, logprobs

    def end(self, counts: Sequence[Usage]) -> Iterable[bytes]:
        """Yield the counts, where requested, and the end marker."""
        yield from self._head.end(COMPLETION, usage(counts))

    def echo(self, event: PromptReady) -> str:
        return event.text

    def opening(self, index: int, echo: str, event: PromptReady) -> Iterable[bytes]:
        """Yield the echoed prompt, and the prompt's token ids."""
        head = self._head
        if echo or event.tokens or head.ids:
            shape = _logprobs(event.tokens, 0, ids=head.ids) if self._logprobs else None
            choice = CompletionChoice(echo, index, shape, prompt_token_ids=head.prompt_ids(event))
            choice.token_ids = head.token_ids(())
            yield head.chunk(COMPLETION, choice)

    def tokens(self, event: TextDelta, length: int) -> Sequence[Token]:
        return shown_tokens(event.tokens, length, event.finish) if self._logprobs or self._head.ids else ()

    def write(self, chunk: CompletionChunk) -> Iterable[bytes]:
        shape = _logprobs(chunk.tokens, chunk.shift, ids=self._head.ids) if self._logprobs else None
        reason = None if chunk.finish is None else finish_reason(chunk.finish)
        choice = CompletionChoice(chunk.text, chunk.choice, shape, reason, _shown(chunk.score))
        choice.token_ids = self._head.token_ids(chunk.tokens)
        return (self._head.chunk(COMPLETION, choice),)


class ChatChunks(ChatShaper):
    """The chunks of a chat completion: role, the parts of the message, and a last one with the finish reason.

    ``resumable``: as in the request. ``marks``: of reasoning blocks in the text, whose tokens are counted.
    """

    def __init__(
        self,
        head: Envelope,
        *,
        logprobs: bool,
        shape: MessageShape = PLAIN,
        resumable: bool = False,
        marks: ReasoningMarks | None = None,
    ) -> None:
        self._head, self._logprobs, self._shape, self._resumable = head, logprobs, shape, resumable
        self._marks = marks
        self._counters: list[ThinkingCounter] = []
        self._inputs: dict[tuple[int, int], CustomInput] = {}
        """The inputs of custom tools so far, by choice and call."""

    def end(self, counts: Sequence[Usage]) -> Iterable[bytes]:
        """Yield the counts, where requested, and the end marker."""
        yield from self._head.end(CHAT_CHUNK, chat_usage(counts, sum(counter.count for counter in self._counters)))

    def reader(self, event: PromptReady) -> MessageReader:
        self._counters.append(ThinkingCounter(self._marks, event))
        reader = self._shape.reader(reasoning_begun=event.reasoning_begun)
        reader.push(event.earlier_text)
        return reader

    def opening(self, index: int, event: PromptReady) -> Iterable[bytes]:
        """Yield the role. Where there may be calls only, content is null until there is some."""
        delta = ChatDelta("assistant", None if self._shape.format else "", None)
        choice = ChatChunkChoice(index, delta, token_ids=self._head.token_ids(()))
        prompt_ids = msgspec.UNSET if index else self._head.prompt_ids(event)
        yield self._head.chunk(CHAT_CHUNK, choice, prompt_ids)

    def tokens(self, event: TextDelta, length: int) -> Sequence[Token]:
        self._counters[event.sequence].push(event.text, event.tokens)
        return shown_tokens(event.tokens, length, event.finish) if self._logprobs or self._head.ids else ()

    def goes_on(self, finish: FinishReason) -> bool:
        return self._resumable and finish is FinishReason.LENGTH

    def write(self, chunk: ChatChunk) -> Iterable[bytes]:
        written = []
        delta = self._delta(chunk)
        if delta is not None or chunk.tokens:
            listed = chat_logprobs(chunk.tokens, ids=self._head.ids) if self._logprobs and chunk.tokens else None
            choice = ChatChunkChoice(chunk.choice, delta or ChatDelta(), listed)
            choice.token_ids = self._head.token_ids(chunk.tokens)
            written.append(self._head.chunk(CHAT_CHUNK, choice))
        if chunk.finish is not None:
            reason = self._shape.finish_reason(finish_reason(chunk.finish), chunk.calls)
            last = ChatChunkChoice(chunk.choice, ChatDelta(), None, reason, _shown(chunk.score))
            written.append(self._head.chunk(CHAT_CHUNK, last))
        return written

    def _delta(self, chunk: ChatChunk) -> ChatDelta | None:
        """Return what a chunk adds to the message; None: nothing."""
        match chunk.part:
            case None:
                return None
            case CallStart(index, id, name) if name in self._shape.custom:
                self._inputs[chunk.choice, index] = CustomInput()
                return ChatDelta(tool_calls=[CallDelta(index, id, "custom", custom=CustomDelta(name, ""))])
            case CallArguments(index, text) if (chunk.choice, index) in self._inputs:
                text = self._inputs[chunk.choice, index].push(text)
                return ChatDelta(tool_calls=[CallDelta(index, custom=CustomDelta(input=text))]) if text else None
        return delta_of(chunk.part)


def delta_of(part: Part | None) -> ChatDelta:
    """Return the delta of one part."""
    match part:
        case Content(text):
            return ChatDelta(content=text)
        case Reasoning(text):
            return ChatDelta(reasoning_content=text)
        case CallStart(index, id, name):
            return ChatDelta(tool_calls=[CallDelta(index, id, "function", FunctionDelta(name, ""))])
        case CallArguments(index, text):
            return ChatDelta(tool_calls=[CallDelta(index, function=FunctionDelta(arguments=text))])
    return ChatDelta()


def model(listed: ListedModel) -> dict[str, Any]:
    """Return an entry of the model list; ``max_model_len``, ``parent`` of an adapter and ``status`` are other engines'
    names. A model that is not in memory has no ``max_model_len``."""
    entry: dict[str, Any] = {
        "id": listed.name,
        "object": "model",
        "created": listed.created,
        "owned_by": "dragoman",
        "status": listed.status,
    }
    if listed.card is None:
        return entry
    entry["max_model_len"] = listed.card.context_tokens
    return entry if listed.card.base is None else entry | {"parent": listed.card.base}
