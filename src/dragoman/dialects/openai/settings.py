"""What an operator decides about the OpenAI dialect."""

from __future__ import annotations

import msgspec


class OpenAISettings(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: what its clients can rely on leaves the operator no choice."""

    PANEL = "OpenAI"
