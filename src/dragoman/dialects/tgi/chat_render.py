"""Core to wire for chats and completions, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason
from dragoman.dialects.tgi.chat_answers import (
    ChatCompletion,
    ChatCompletionChoice,
    ChatCompletionChunk,
    ChatCompletionComplete,
    ChatCompletionLogprob,
    ChatCompletionLogprobs,
    ChatCompletionTopLogprob,
    Chunk,
    CompletionComplete,
    CompletionFinal,
    CompletionLogprobs,
    DeltaToolCall,
    Function,
    FunctionDefinition,
    StreamError,
    StreamFault,
    TextMessage,
    ToolCall,
    ToolCallDelta,
    ToolCallMessage,
    Usage,
)
from dragoman.dialects.tgi.errors import fault_of
from dragoman.dialects.tgi.render import float32, sse
from dragoman.dialects.tgi.sequence_output import Piece, SequenceOutput
from dragoman.dialects.tgi.settings import Quirks

ASSISTANT = "assistant"
DONE = b"data: [DONE]\n\n"


class Head(NamedTuple):
    """What all events of one answer begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def chat_completion(
    head: Head,
    message: TextMessage | ToolCallMessage,
    logprobs: ChatCompletionLogprobs | None,
    finish: str,
    used: Usage,
) -> ChatCompletion:
    """The answer to a chat that is not streamed."""
    return ChatCompletion("chat.completion", *head, [ChatCompletionComplete(0, message, logprobs, finish)], used)


def chat_chunk(
    head: Head,
    delta: TextMessage | ToolCallDelta,
    logprobs: ChatCompletionLogprobs | None = None,
    finish: str | None = None,
) -> bytes:
    """One event of a streamed chat."""
    choice = ChatCompletionChoice(0, delta, logprobs, finish)
    return sse(ChatCompletionChunk("chat.completion.chunk", *head, [choice], None))


def usage_chunk(head: Head, used: Usage) -> bytes:
    """The event behind the last choice."""
    return sse(ChatCompletionChunk("chat.completion.chunk", *head, [], used))


def completion(head: Head, choices: list[CompletionComplete], used: Usage) -> CompletionFinal:
    """The answer to a completion, and the last event of each prompt of one that is streamed."""
    return CompletionFinal("text_completion", *head, choices, used)


def completion_chunk(head: Head, choice: CompletionComplete) -> bytes:
    """One event of a streamed completion, whose keys are in an order of their own."""
    return sse(Chunk("text_completion", head.id, head.created, [choice], head.model, head.system_fingerprint))


def sse_fault(error: DragomanError) -> bytes:
    """The event of a stream that cannot be finished."""
    return sse(StreamError(StreamFault(fault_of(error).message)))


def text_message(text: str) -> TextMessage:
    return TextMessage(ASSISTANT, text)


def call_message(name: str, arguments: str) -> ToolCallMessage:
    return ToolCallMessage(ASSISTANT, [ToolCall("0", "function", FunctionDefinition(None, name, arguments))])


def call_delta(id: str, name: str | None, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(ASSISTANT, [DeltaToolCall(0, id, "function", Function(name, arguments))])


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


def finish_reason(passage: SequenceOutput, quirks: Quirks) -> str:
    """How a chat ended, and a completion that is not streamed."""
    match passage.finish:
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.STOP_STRING if quirks.stop_sequence_finish:
            return "stop_sequence"
    return "stop"


def streamed_finish_reason(passage: SequenceOutput, quirks: Quirks) -> str:
    """How a streamed completion ended."""
    if quirks.eos_token_finish and passage.finish in (FinishReason.EOS, FinishReason.STOP_TOKEN):
        return "eos_token"
    return finish_reason(passage, quirks)


def chat_logprobs(pieces: Sequence[Piece], *, top: bool) -> ChatCompletionLogprobs:
    """``top``: with the alternatives."""
    return ChatCompletionLogprobs([_chat_logprob(piece, top) for piece in pieces])


def completion_logprobs(pieces: Sequence[Piece], offset: int = 0) -> CompletionLogprobs:
    """As OpenAI's completions have them. ``offset``: characters of the choice before these."""
    made = CompletionLogprobs([], [], [], [])
    for piece in pieces:
        token = piece.token
        made.tokens.append(token.text)
        made.token_logprobs.append(float32(token.logprob))
        made.top_logprobs.append({other.text: float32(other.logprob) for other in token.top})
        made.text_offset.append(offset)
        offset += len(piece.shown)
    return made


def _chat_logprob(piece: Piece, top: bool) -> ChatCompletionLogprob:
    token = piece.token
    others = [ChatCompletionTopLogprob(other.text, float32(other.logprob)) for other in token.top] if top else []
    return ChatCompletionLogprob(token.text, float32(token.logprob), others)
