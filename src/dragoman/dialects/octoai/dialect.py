"""The OctoAI dialect: its operations and its construction from settings."""

from __future__ import annotations

from dragoman.dialects.api import Dialect
from dragoman.dialects.octoai.errors import error_event, render_error
from dragoman.dialects.octoai.routes import Api
from dragoman.dialects.octoai.settings import OctoAISettings
from dragoman.dialects.openai_stream import sse

__all__ = ["OctoAISettings", "make"]


def make(settings: OctoAISettings) -> Dialect:
    """Return the dialect with these settings."""
    return Dialect(
        name="octoai",
        title="OctoAI",
        operations=Api(settings).operations(),
        model_choice="body",
        render_error=render_error,
        stream_error=lambda error: sse(error_event(error)),
        headers=lambda context: {"x-user-request-id": context.request_id},
    )
