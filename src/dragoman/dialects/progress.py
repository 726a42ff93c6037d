"""``stream_options.include_progress``, for clients that cannot send a header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.dialects.api import Exchange
from dragoman.dialects.field import Field
from dragoman.dialects.field_types import Boolean

INCLUDE_PROGRESS = Field(
    name="include_progress",
    kind=Boolean(),
    default=False,
    note="Comments before the first event say how far the request is: its place in the queue, then the tokens of its "
    "prompt that are computed.",
)


def show_asked_progress(exchange: Exchange, options: Mapping[str, Any] | None) -> None:
    """Show the progress of a stream whose ``stream_options`` ask for it."""
    if options is not None and options["include_progress"]:
        exchange.show_progress()
