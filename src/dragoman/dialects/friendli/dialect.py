"""The Friendli dialect: its operations and its construction from settings."""

from __future__ import annotations

from dragoman.dialects.api import Dialect
from dragoman.dialects.friendli.errors import error_event, render_error
from dragoman.dialects.friendli.metrics import FriendliMetrics
from dragoman.dialects.friendli.routes import Surface, SurfaceApi
from dragoman.dialects.friendli.settings import FriendliSettings
from dragoman.dialects.openai_stream import sse

__all__ = ["FriendliSettings", "make"]


def make(settings: FriendliSettings) -> Dialect:
    """Return the dialect with these settings."""
    operations = tuple(operation for surface in Surface for operation in SurfaceApi(surface, settings).operations())
    return Dialect(
        name="friendli",
        title="Friendli",
        operations=operations,
        model_choice="body",
        render_error=render_error,
        stream_error=lambda error: sse(error_event(error)),
        metrics=lambda context: FriendliMetrics(context).text,
        metrics_port=8281,
    )
