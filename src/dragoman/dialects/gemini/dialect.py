"""The Gemini dialect: its operations and its construction from settings."""

from __future__ import annotations

from dragoman.dialects.api import Dialect
from dragoman.dialects.gemini.errors import render_error
from dragoman.dialects.gemini.render import Framing
from dragoman.dialects.gemini.routes import KEY_HEADER, KEY_PARAM, Api, is_client
from dragoman.dialects.gemini.settings import GeminiSettings

__all__ = ["GeminiSettings", "make"]


def make(settings: GeminiSettings) -> Dialect:
    """Return the dialect with these settings. Its clients take comments in streams for answers, so there are none."""
    return Dialect(
        name="gemini",
        title="Gemini",
        clients_add="/v1beta",
        operations=Api(settings).operations(),
        model_choice="body",
        render_error=render_error,
        key_headers=(KEY_HEADER,),
        key_params=(KEY_PARAM,),
        stream_error=lambda error: Framing(events=True).chunk(render_error(error).body),
        is_client=is_client,
    )
