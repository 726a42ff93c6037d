"""The Anthropic dialect: its operations and its construction from settings."""

from __future__ import annotations

from dragoman.dialects.anthropic.batch_lines import AnthropicBatchFormat
from dragoman.dialects.anthropic.batches import BatchesApi
from dragoman.dialects.anthropic.errors import render_error
from dragoman.dialects.anthropic.render import PING, fault
from dragoman.dialects.anthropic.routes import Api, is_client
from dragoman.dialects.anthropic.settings import AnthropicSettings
from dragoman.dialects.api import Dialect

__all__ = ["AnthropicSettings", "make"]

SILENCE_S = (5.0, 10.0)
"""Before a stream begins, and after it has: Anthropic's clients give up after minutes without a byte."""


def make(settings: AnthropicSettings) -> Dialect:
    """Return the dialect with these settings."""
    return Dialect(
        name="anthropic",
        title="Anthropic",
        clients_add="/v1",
        operations=(*Api(settings).operations(), *BatchesApi(settings).operations()),
        model_choice="body",
        render_error=render_error,
        headers=lambda context: {"request-id": context.request_id},
        key_headers=("x-api-key",),
        keep_alive=PING,
        keep_alive_s=SILENCE_S,
        stream_error=lambda error: b"".join(fault(error, "")),
        batches=AnthropicBatchFormat(),
        is_client=is_client,
        absent_paths=("/v1/files",),
    )
