"""The OpenAI dialect: text completions, chat completions, the list of models, and adapters."""

from __future__ import annotations

import msgspec

from dragoman.dialects.openai import adapters, routes
from dragoman.dialects.openai.errors import render_error
from dragoman.dialects.wire import Dialect

DIALECT = Dialect(
    name="openai", title="OpenAI", operations=(*routes.OPERATIONS, *adapters.OPERATIONS), render_error=render_error
)


class OpenAISettings(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: what its clients can rely on leaves the operator no choice."""

    PANEL = "OpenAI"


def make(settings: OpenAISettings) -> Dialect:
    """The same for everyone."""
    return DIALECT
