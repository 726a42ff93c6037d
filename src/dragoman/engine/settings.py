"""What the operator may set of the engine. Light: the server and the command line read it without loading an engine."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the schedule, within those of the runner.

    Attributes:
        max_running: sequences that own blocks at one time; None: as many as one step takes.
        step_tokens: tokens computed in one step; None: as many as one step takes.
        mixed_prefill_tokens: prompt tokens computed beside decode rows in one step: how long streams pause for prompts.
        max_waiting: sequences here beyond ``max_running``; more are refused.
        prefix_cache: share the blocks of equal prefixes.
        speculation: rows that a step without prompts is filled up to with guesses, looked up in prompt and output; they
            save steps where text repeats and change no token; 0 is off.
    """

    max_running: Count | None = None
    step_tokens: Count | None = None
    mixed_prefill_tokens: Count = 128
    max_waiting: Annotated[int, msgspec.Meta(ge=0)] = 4096
    prefix_cache: bool = True
    speculation: Annotated[int, msgspec.Meta(ge=0)] = 12  # about as many rows as take hardly longer than one
