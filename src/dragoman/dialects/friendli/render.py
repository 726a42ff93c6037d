"""Translation from core to wire, as pure functions and structs: the answers of the Friendli dialect, whole and
streamed.

Completions are streamed in two ways. Current clients read chunks, each of one token. Clients of the first generation
take each ``data:`` line for a token if it has the key ``token``, for the whole answer otherwise, and read nothing else:
no ``[DONE]``, no comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from dragoman.core.events import FinishReason, Generation, GenerationResult, PromptReady, TextDelta, Token, Usage
from dragoman.core.serving import ModelCard
from dragoman.dialects.chat_stream import ChatChunk, ChatShaper, gathered
from dragoman.dialects.completion_stream import CompletionChunk, CompletionShaper, CompletionStream
from dragoman.dialects.logprobs import FLOOR, chat_logprobs, completion_logprobs, shown_tokens
from dragoman.dialects.openai_stream import DONE, finish_reason, sse, usage
from dragoman.dialects.tools import MessageShape
from dragoman.text.call_parser import CallArguments, CallStart, Content, Part, Reasoning
from dragoman.text.chat_parser import MessageReader

COMPLETION = "text_completion"
CHAT_CHUNK = "chat.completion.chunk"


class Envelope(msgspec.Struct, frozen=True):
    """``model`` None: the request named none, and the answer has no such key. ``counted``: the client requested the
    token counts of a stream."""

    id: str
    model: str | None
    created: int
    counted: bool = False

    def body(self, kind: str, choices: list[Any], **more: Any) -> dict[str, Any]:
        """Return the answer or chunk with these choices."""
        model = {} if self.model is None else {"model": self.model}
        return {"id": self.id, **model, "object": kind, "choices": choices, **more, "created": self.created}


def stream_end(head: Envelope, kind: str, counts: Sequence[Usage]) -> Iterable[bytes]:
    """Yield the counts, where requested, and the end marker."""
    if head.counted:
        yield sse(head.body(kind, [], usage=usage(counts)))
    yield DONE


class Choice(msgspec.Struct):
    """A choice of a whole completion. The SDKs insist on all but the last."""

    index: int
    seed: int
    text: str
    tokens: list[int]
    finish_reason: str | None
    logprobs: dict[str, list[Any]] | list[float] | None = None


class CompletionChunkChoice(msgspec.Struct, omit_defaults=True):
    """One token of a streamed completion, or the end of a choice, which has no ``token``."""

    index: int
    text: str
    token: int | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | msgspec.UnsetType | None = msgspec.UNSET
    logprobs: dict[str, list[Any]] | list[float] | msgspec.UnsetType | None = msgspec.UNSET


class Wanted(msgspec.Struct, frozen=True):
    """The log-probabilities that an answer shows: ``rich`` with alternatives and offsets, ``flat`` one number per
    token."""

    rich: bool = False
    flat: bool = False

    def of(self, generation: Generation) -> dict[str, list[Any]] | list[float] | None:
        """Return the log-probabilities of a whole choice: of the tokens that its text shows, or of all."""
        if self.rich:
            return completion_logprobs(shown_tokens(generation.tokens, len(generation.text), generation.finish), 0)
        return [_finite(token) for token in generation.tokens] if self.flat else None

    def of_one(self, token: Token, *, shown: bool) -> dict[str, list[Any]] | list[float] | None:
        """Return the log-probabilities of one event of a stream."""
        if self.rich:
            return completion_logprobs([token], 0) if shown else None
        return [_finite(token)] if self.flat else None


def completion(head: Envelope, results: Sequence[GenerationResult], wanted: Wanted) -> dict[str, Any]:
    """Return a whole completion: the choices of all prompts, prompt by prompt. Raises GenerationFailed."""
    choices: list[Choice] = []
    for result in results:
        for generation in result.generations:
            reason = finish_reason(generation.finish)
            tokens = [token.token_id for token in generation.tokens]
            logprobs = wanted.of(generation)
            choices.append(Choice(len(choices), generation.seed, generation.text, tokens, reason, logprobs))
    return head.body(COMPLETION, choices, usage=usage(result.usage for result in results))


class CompletionChunks(CompletionShaper):
    """The chunks of a completion: one for each token, and one for each end. Prompts are not echoed."""

    by_token: ClassVar[bool] = True

    def __init__(self, head: Envelope, wanted: Wanted) -> None:
        self._head, self._wanted = head, wanted

    def write(self, chunk: CompletionChunk) -> Iterable[bytes]:
        if chunk.finish is None:
            (token,) = chunk.tokens
            logprobs = self._wanted.of_one(token, shown=chunk.shown)
            choice = CompletionChunkChoice(chunk.choice, chunk.text, token.token_id, None, logprobs)
        else:
            reason = finish_reason(chunk.finish)
            choice = CompletionChunkChoice(chunk.choice, chunk.text, finish_reason=reason, logprobs=None)
        yield sse(self._head.body(COMPLETION, [choice]))


class TokenSampled(msgspec.Struct):
    """One token."""

    event: str
    index: int
    text: str
    token: int


class TokenEvents(CompletionShaper):
    """One event for each token; the event that ends the stream is ``complete``."""

    by_token: ClassVar[bool] = True

    def write(self, chunk: CompletionChunk) -> Iterable[bytes]:
        for token in chunk.tokens:
            yield sse(TokenSampled("token_sampled", chunk.choice, chunk.text, token.token_id))


class EventStream(CompletionStream):
    """The events of one prompt's choices, which are kept whole for the last event: see ``complete``."""

    def __init__(self, first_index: int, n: int, wanted: Wanted) -> None:
        super().__init__(TokenEvents(), n, first_index)
        self._wanted = wanted
        self._texts = [""] * n
        self._tokens: list[list[Token]] = [[] for _ in range(n)]
        self._finishes = [FinishReason.LENGTH] * n
        self._seeds: tuple[int, ...] = ()

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        self._seeds = event.seeds
        return super().prompt(event)

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        i = event.sequence
        self._texts[i] += event.text
        self._tokens[i] += event.tokens
        self._finishes[i] = event.finish or self._finishes[i]
        return super().delta(event)

    def choices(self) -> Iterable[Choice]:
        """Yield the finished choices."""
        for i, (text, tokens, finish) in enumerate(zip(self._texts, self._tokens, self._finishes, strict=True)):
            whole = Generation(index=i, text=text, tokens=tuple(tokens), finish=finish, seed=self._seeds[i])
            ids = [token.token_id for token in tokens]
            yield Choice(self._first_index + i, whole.seed, text, ids, finish_reason(finish), self._wanted.of(whole))


def complete(streams: Sequence[EventStream], counts: Sequence[Usage]) -> Iterable[bytes]:
    """Yield the event that ends the stream."""
    choices: list[Any] = [choice for stream in streams for choice in stream.choices()]
    yield sse({"event": "complete", "choices": choices, "usage": usage(counts)})


def _finite(token: Token) -> float:
    """Return a finite number: JSON has no infinity, and this client's lists have no null."""
    return FLOOR if token.logprob is None else max(token.logprob, FLOOR)


class Shown(msgspec.Struct, frozen=True):
    """The parts of a message that the client requested; ``shape`` makes messages of text."""

    shape: MessageShape
    logprobs: bool = False
    reasoning: bool = True


class Delta(msgspec.Struct, omit_defaults=True):
    """The fields that a chunk adds to the message."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct):
    """A choice of a chunk."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


def chat_completion(head: Envelope, result: GenerationResult, shown: Shown) -> dict[str, Any]:
    """Return a whole chat completion. Raises GenerationFailed."""
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


class ChatChunks(ChatShaper):
    """The chunks of a chat completion: the parts of the message, the role with the first one, and an end."""

    def __init__(self, head: Envelope, shown: Shown) -> None:
        self._head, self._shown = head, shown

    def reader(self, event: PromptReady) -> MessageReader:
        return self._shown.shape.reader(reasoning_begun=event.reasoning_begun)

    def tokens(self, event: TextDelta, length: int) -> Sequence[Token]:
        return shown_tokens(event.tokens, length, event.finish) if self._shown.logprobs else ()

    def shows(self, part: Part) -> bool:
        return super().shows(part) and (self._shown.reasoning or not isinstance(part, Reasoning))

    def write(self, chunk: ChatChunk) -> Iterable[bytes]:
        # Also log-probabilities whose text is held back, and a message that ends before it has begun.
        if chunk.part is not None or chunk.tokens or chunk.is_first:
            delta = _delta(chunk.part)
            if chunk.is_first:
                content = "" if delta.content is msgspec.UNSET else delta.content
                delta = msgspec.structs.replace(delta, role="assistant", content=content)
            logprobs = _logprobs(chunk.tokens) if chunk.tokens else None
            yield self._chunk(ChatChunkChoice(chunk.choice, delta, None, logprobs))
        if chunk.finish is not None:
            reason = self._shown.shape.finish_reason(finish_reason(chunk.finish), chunk.calls)
            yield self._chunk(ChatChunkChoice(chunk.choice, Delta(), reason))

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        return sse(self._head.body(CHAT_CHUNK, [choice], **({"usage": None} if self._head.counted else {})))


def _message(parts: Iterable[Part], shown: Shown) -> dict[str, Any]:
    """Return the message. ``content`` is null when there are only calls; keys without a value are left out."""
    whole = gathered(parts)
    message: dict[str, Any] = {"role": "assistant", "content": whole.content}
    if whole.reasoning and shown.reasoning:
        message["reasoning_content"] = whole.reasoning
    return message | ({"tool_calls": whole.calls} if whole.calls else {})


def _delta(part: Part | None) -> Delta:
    """Return the delta of one part. The SDK reads ``arguments`` of every delta of a call, empty or not."""
    match part:
        case Reasoning(text):
            return Delta(reasoning_content=text)
        case CallStart(index, id, name):
            function = {"name": name, "arguments": ""}
            return Delta(tool_calls=[{"index": index, "id": id, "type": "function", "function": function}])
        case CallArguments(index, text):
            return Delta(tool_calls=[{"index": index, "type": "function", "function": {"arguments": text}}])
        case Content(text):
            return Delta(content=text)
    return Delta(content="")


def _logprobs(tokens: Iterable[Any]) -> dict[str, Any]:
    return {"content": chat_logprobs(tokens)["content"]}


_PRICES = ("input", "output", "prompt", "completion")
_NO_PRICES = ("input_cache_read", "cache_write", "audio_minute")


def model(card: ModelCard) -> dict[str, Any]:
    """Return an entry of the model list. Fields that have no value here are empty: prices, dates, licenses."""
    calls = card.tool_calls is not None
    return {
        "id": card.name,
        "object": "model",
        "owned_by": "dragoman",
        "name": card.name,
        "created": card.created,
        "context_length": card.context_tokens,
        "max_completion_tokens": card.context_tokens,
        # Strings: the SDK's last versions take nothing else, its first ones read numbers from them.
        "pricing": {**dict.fromkeys(_PRICES, "0"), **dict.fromkeys(_NO_PRICES)},
        "functionality": {
            "tool_call": calls,
            "builtin_tool": False,
            "parallel_tool_call": calls,
            "structured_output": True,
            "tool_choice": calls,
            "system_messages": card.has_chat_template,
        },
        "description": "",
        "deprecation_date": None,
        "reasoning": card.reasoning is not None,
        "reasoning_options": None,
        "input_modalities": ["text"] if card.images is None else ["text", "image"],
        "output_modalities": ["text"],
        "interleaved": "reasoning_content" if card.reasoning is not None else False,
        "base_model": None,
        "mode": "chat" if card.has_chat_template else "completion",
        "default_params": None,
        "hugging_face_id": "",
        "hugging_face_url": "https://huggingface.co/",
        "license": "https://huggingface.co/",
        "policy": None,
    }
