"""Settings of the OctoAI dialect."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.core.regular_file import FileName


class OctoAISettings(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt log, for callers that allow it.

    Attributes:
        octoai_prompt_log: file to which the prompts of requests that say log_prompt are added, one JSON object a line;
            without it nothing is stored.
        octoai_prompt_log_bytes: size of that file from which on nothing more is added.
    """

    PANEL = "OctoAI"

    octoai_prompt_log: FileName | None = None
    octoai_prompt_log_bytes: Annotated[int, Meta(ge=1)] = 1 << 30
