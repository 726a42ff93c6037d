"""Translation from core to wire for chats and completions: the structs are the wire, field by field and in its
order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason, TextDelta, Token
from dragoman.core.serving import ModelCard
from dragoman.dialects.chat_stream import ChatChunk, ChatShaper
from dragoman.dialects.completion_stream import CompletionChunk, CompletionShaper
from dragoman.dialects.tgi.errors import fault_of
from dragoman.dialects.tgi.generation import Generation, Piece, SequenceOutput
from dragoman.dialects.tgi.render import SimpleToken, float32, sse
from dragoman.dialects.tgi.settings import Quirks
from dragoman.dialects.tgi.tools import CallText
from dragoman.dialects.tools import ToolChoice, tool_plan
from dragoman.text.call_parser import CallArguments, CallStart, Content, Part


class Usage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletionTopLogprob(msgspec.Struct, frozen=True):
    """An alternative; None is minus infinity."""

    token: str
    logprob: float | None


class ChatCompletionLogprob(msgspec.Struct, frozen=True):
    """A generated token, and what else it might have been."""

    token: str
    logprob: float | None
    top_logprobs: list[ChatCompletionTopLogprob]


class ChatCompletionLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of every token that a choice, or a chunk of one, shows."""

    content: list[ChatCompletionLogprob]


class TextMessage(msgspec.Struct, frozen=True):
    """A message, or the fields that a chunk adds to it."""

    role: str
    content: str


class FunctionDefinition(msgspec.Struct, frozen=True):
    """A call: ``arguments`` is the JSON text of an object."""

    description: str | None
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """The call that a message makes."""

    id: str
    type: str
    function: FunctionDefinition


class ToolCallMessage(msgspec.Struct, frozen=True):
    """A message that calls a tool has no content."""

    role: str
    tool_calls: list[ToolCall]


class Function(msgspec.Struct, frozen=True):
    """The fields that a chunk adds to a call. ``name`` is in the first chunk and is null in the others."""

    name: str | None
    arguments: str


class DeltaToolCall(msgspec.Struct, frozen=True):
    """The call that a chunk adds to."""

    index: int
    id: str
    type: str
    function: Function


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The fields that a chunk adds to a message that calls a tool."""

    role: str
    tool_calls: list[DeltaToolCall]


class ChatCompletionComplete(msgspec.Struct, frozen=True):
    """A whole choice."""

    index: int
    message: TextMessage | ToolCallMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str


class ChatCompletionChoice(msgspec.Struct, frozen=True):
    """A choice of a chunk; the last chunk of a choice has the finish reason."""

    index: int
    delta: TextMessage | ToolCallDelta
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class ChatCompletion(msgspec.Struct, frozen=True):
    """The answer to a chat."""

    object: Literal["chat.completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionComplete]
    usage: Usage


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """An event of a streamed chat. Only the one after the last choice has ``usage``, if requested."""

    object: Literal["chat.completion.chunk"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChoice]
    usage: Usage | None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionComplete(msgspec.Struct, frozen=True):
    """The choice of one prompt, whole or the addition of a chunk; ``finish_reason`` is empty until the end."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str


class CompletionFinal(msgspec.Struct, frozen=True):
    """The answer to a completion, and the last event of each prompt in a stream."""

    object: Literal["text_completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionComplete]
    usage: Usage


class Chunk(msgspec.Struct, frozen=True):
    """An event of a streamed completion before a prompt's last."""

    object: Literal["text_completion"]
    id: str
    created: int
    choices: list[CompletionComplete]
    model: str
    system_fingerprint: str


class ModelInfo(msgspec.Struct, frozen=True):
    """An entry of the list of models."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsInfo(msgspec.Struct, frozen=True):
    """``GET /v1/models``."""

    object: Literal["list"]
    data: list[ModelInfo]


class ChatTokenizeResponse(msgspec.Struct, frozen=True):
    """``POST /chat_tokenize``."""

    tokenize_response: list[SimpleToken]
    templated_text: str


class StreamFault(msgspec.Struct, frozen=True):
    """An error in a stream; the number is the same for every cause."""

    message: str
    http_status_code: int = 422


class StreamError(msgspec.Struct, frozen=True):
    """The event of a stream that cannot be finished."""

    error: StreamFault


ASSISTANT = "assistant"
DONE = b"data: [DONE]\n\n"


class Envelope(NamedTuple):
    """The fields that all events of one answer begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def chat_completion(
    head: Envelope,
    message: TextMessage | ToolCallMessage,
    logprobs: ChatCompletionLogprobs | None,
    finish: str,
    used: Usage,
) -> ChatCompletion:
    """Return the answer to a chat that is not streamed."""
    return ChatCompletion("chat.completion", *head, [ChatCompletionComplete(0, message, logprobs, finish)], used)


def chat_chunk(
    head: Envelope,
    delta: TextMessage | ToolCallDelta,
    logprobs: ChatCompletionLogprobs | None = None,
    finish: str | None = None,
) -> bytes:
    """Return one event of a streamed chat."""
    choice = ChatCompletionChoice(0, delta, logprobs, finish)
    return sse(ChatCompletionChunk("chat.completion.chunk", *head, [choice], None))


def usage_chunk(head: Envelope, used: Usage) -> bytes:
    """Return the event after the last choice."""
    return sse(ChatCompletionChunk("chat.completion.chunk", *head, [], used))


def completion(head: Envelope, choices: list[CompletionComplete], used: Usage) -> CompletionFinal:
    """Return the answer to a completion, and the last event of each prompt of one that is streamed."""
    return CompletionFinal("text_completion", *head, choices, used)


def completion_chunk(head: Envelope, choice: CompletionComplete) -> bytes:
    """Return one event of a streamed completion, whose keys have a different order."""
    return sse(Chunk("text_completion", head.id, head.created, [choice], head.model, head.system_fingerprint))


def sse_fault(error: DragomanError) -> bytes:
    """Return the event of a stream that cannot be finished."""
    return sse(StreamError(StreamFault(fault_of(error).message)))


def text_message(text: str) -> TextMessage:
    return TextMessage(ASSISTANT, text)


def call_message(name: str, arguments: str) -> ToolCallMessage:
    return ToolCallMessage(ASSISTANT, [ToolCall("0", "function", FunctionDefinition(None, name, arguments))])


def call_delta(id: str, name: str | None, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(ASSISTANT, [DeltaToolCall(0, id, "function", Function(name, arguments))])


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


def finish_reason(finish: FinishReason | None, quirks: Quirks) -> str:
    """Return how a chat ended, and a completion that is not streamed."""
    match finish:
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.STOP_STRING if quirks.stop_sequence_finish:
            return "stop_sequence"
    return "stop"


def streamed_finish_reason(finish: FinishReason | None, quirks: Quirks) -> str:
    """Return how a streamed completion ended."""
    if quirks.eos_token_finish and finish in (FinishReason.EOS, FinishReason.STOP_TOKEN):
        return "eos_token"
    return finish_reason(finish, quirks)


def call_finish_reason(call: CallText, quirks: Quirks) -> str | None:
    """Return how a streamed call ended."""
    if quirks.unfinished_tool_streams:
        return None
    if not call.complete:
        return "length"
    return "stop" if quirks.tool_finish_stop else "tool_calls"


class AnswerReader:
    """Takes the content out of an answer, token by token: each has one part, also one that adds nothing.

    All of the text is content, unless the model puts that between marks, too (gpt-oss): then what is outside of them,
    and its reasoning, are left out.
    """

    def __init__(self, card: ModelCard) -> None:
        shape = tool_plan((), ToolChoice("none"), card).shape
        self._reader = shape.reader(reasoning_begun=False) if shape.is_framed else None
        self._marks: frozenset[int] = frozenset()
        if self._reader is not None:
            known = [each.special_ids.values() for each in (card.tool_calls, card.reasoning) if each is not None]
            self._marks = frozenset(id for ids in known for id in ids)

    def text(self, piece: Piece) -> str:
        """Return the text of a token that is read: that which it shows, and the marks."""
        return piece.text if piece.token.token_id in self._marks else piece.shown

    def push(self, text: str) -> list[Part]:
        return [Content(text if self._reader is None else _content(self._reader.push(text)))]

    def flush(self) -> list[Part]:
        rest = "" if self._reader is None else _content(self._reader.flush())
        return [Content(rest)] if rest else []

    def whole(self, sequence: SequenceOutput) -> str:
        """Return the content of a whole answer."""
        if self._reader is None:
            return sequence.text
        parts = [part for piece in sequence.pieces for part in self.push(self.text(piece))]
        return _content([*parts, *self.flush()])


def _content(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


class ChatChunks(ChatShaper):
    """The events of a streamed chat, one for each token that shows. ``call``: the one that the answer is."""

    tokens_apart: ClassVar[bool] = False
    finish_apart: ClassVar[bool] = False

    def __init__(self, head: Envelope, quirks: Quirks, wanted: LogprobsWanted, call: CallText | None = None) -> None:
        self._head, self._quirks, self._wanted, self._call = head, quirks, wanted, call
        self._id = ""

    def tokens(self, event: TextDelta, length: int) -> Sequence[Token]:
        return event.tokens

    def write(self, chunk: ChatChunk) -> Iterable[bytes]:
        finish: str | None = None
        if chunk.finish is not None:
            finish = finish_reason(chunk.finish, self._quirks)
            if self._call is not None:
                finish = call_finish_reason(self._call, self._quirks)
        yield chat_chunk(self._head, self._delta(chunk.part), self._wanted.of(chunk.tokens), finish)

    def _delta(self, part: Part | None) -> TextMessage | ToolCallDelta:
        match part:
            case CallStart(_, id, name):
                self._id = id
                return call_delta(id, name, "{")
            case CallArguments(_, text):
                return call_delta(self._id, None, text)
            case Content(text):
                return text_message(text)
        raise AssertionError("every chunk has a part")


class CompletionChunks(CompletionShaper):
    """The events of one prompt of a streamed completion, one for each token; the last one has the counts of ``run``."""

    def __init__(self, head: Envelope, quirks: Quirks, run: Generation, *, logprobs: bool) -> None:
        self._head, self._quirks, self._run, self._logprobs = head, quirks, run, logprobs

    def tokens(self, event: TextDelta, length: int) -> Sequence[Token]:
        return event.tokens

    def write(self, chunk: CompletionChunk) -> Iterable[bytes]:
        logprobs = completion_logprobs(chunk.tokens, [chunk.begin]) if self._logprobs else None
        if chunk.finish is None:
            yield completion_chunk(self._head, CompletionComplete(chunk.choice, chunk.text, logprobs, ""))
            return
        finish = streamed_finish_reason(chunk.finish, self._quirks)
        used = usage(self._run.input_tokens, self._run.generated_tokens)
        yield sse(completion(self._head, [CompletionComplete(chunk.choice, chunk.text, logprobs, finish)], used))


class LogprobsWanted(NamedTuple):
    """The log-probabilities in a chat's answer: whether there are any, and whether with the alternatives."""

    shown: bool = False
    top: bool = False

    def of(self, tokens: Iterable[Token]) -> ChatCompletionLogprobs | None:
        return chat_logprobs(tokens, top=self.top) if self.shown else None


def chat_logprobs(tokens: Iterable[Token], *, top: bool) -> ChatCompletionLogprobs:
    """Return the log-probabilities of tokens. ``top``: with the alternatives."""
    return ChatCompletionLogprobs([_chat_logprob(token, top) for token in tokens])


def completion_logprobs(tokens: Iterable[Token], offsets: Iterable[int]) -> CompletionLogprobs:
    """Return the log-probabilities in OpenAI's form for completions. ``offsets``: where each token's text begins in the
    choice."""
    made = CompletionLogprobs([], [], [], [])
    for token, offset in zip(tokens, offsets, strict=False):
        made.tokens.append(token.text)
        made.token_logprobs.append(float32(token.logprob))
        made.top_logprobs.append({other.text: float32(other.logprob) for other in token.top})
        made.text_offset.append(offset)
    return made


def _chat_logprob(token: Token, top: bool) -> ChatCompletionLogprob:
    others = [ChatCompletionTopLogprob(other.text, float32(other.logprob)) for other in token.top] if top else []
    return ChatCompletionLogprob(token.text, float32(token.logprob), others)
