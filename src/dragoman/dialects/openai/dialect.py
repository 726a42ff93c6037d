"""The OpenAI dialect: its operations and its construction from settings."""

from __future__ import annotations

from dragoman.dialects.api import Dialect
from dragoman.dialects.openai import adapters, azure, batches, embeddings, files, routes, tokenizer
from dragoman.dialects.openai.batch_lines import OpenAIBatchFormat
from dragoman.dialects.openai.errors import render_error
from dragoman.dialects.openai.render import fault
from dragoman.dialects.openai.responses import conversations
from dragoman.dialects.openai.responses.routes import ResponsesApi
from dragoman.dialects.openai.settings import OpenAISettings

__all__ = ["OpenAISettings", "make"]


UNKNOWN = frozenset(
    (("POST", "/v1/responses/compact"), ("GET", "/v1/responses"), ("GET", "/v1/chat/completions")),
)
"""Operations of OpenAI's that there are none of here: compacting, responses over a WebSocket, and stored chats."""


def make(settings: OpenAISettings) -> Dialect:
    """Return the dialect with these settings."""
    responses = ResponsesApi()
    operations = (
        *routes.CompletionsApi(settings).operations(),
        *embeddings.OPERATIONS,
        *adapters.OPERATIONS,
        *tokenizer.OPERATIONS,
        *files.OPERATIONS,
        *batches.OPERATIONS,
        *responses.operations(),
        *conversations.operations(),
    )
    return Dialect(
        name="openai",
        title="OpenAI",
        operations=(*operations, *azure.operations_of(operations)),
        key_headers=(azure.KEY_HEADER,),
        unknown=UNKNOWN,
        model_choice="body",
        render_error=render_error,
        keep_alive=b": keep-alive\n\n",
        stream_error=lambda error: b"".join(fault(error)),
        service=responses.service,
        batches=OpenAIBatchFormat(),
    )
