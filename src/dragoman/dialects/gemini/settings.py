"""Settings of the Gemini dialect."""

from __future__ import annotations

import msgspec


class GeminiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whose answers clients get that ask for one of Google's models.

    Attributes:
        gemini_model: the served model that answers to names that begin with gemini-; without it the default model,
            none: names that are not served are errors.
    """

    PANEL = "Gemini"

    gemini_model: str | None = None
