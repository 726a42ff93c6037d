"""What TGI's version of OpenAI's endpoints answers: the structs are the wire, field by field and in its order."""

from __future__ import annotations

from typing import Literal

import msgspec

from dragoman.dialects.tgi.introspect import SimpleToken


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
    """Of every token that a choice, or a chunk of one, shows."""

    content: list[ChatCompletionLogprob]


class TextMessage(msgspec.Struct, frozen=True):
    """A message, or what a chunk adds to it."""

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
    """What a chunk adds to a call. ``name`` stands in the first chunk and is null in the others."""

    name: str | None
    arguments: str


class DeltaToolCall(msgspec.Struct, frozen=True):
    """The call that a chunk adds to."""

    index: int
    id: str
    type: str
    function: Function


class ToolCallDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message that calls a tool."""

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
    """An event of a streamed chat. Only the one behind the last choice has ``usage``, if it was asked for."""

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
    """The choice of one prompt, whole or what a chunk adds; ``finish_reason`` is empty until the end."""

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
    """What goes wrong in a stream; the number is the same for every cause."""

    message: str
    http_status_code: int = 422


class StreamError(msgspec.Struct, frozen=True):
    """The event of a stream that cannot be finished."""

    error: StreamFault
