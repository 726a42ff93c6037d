"""Settings of the Friendli dialect."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class FriendliSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The teams and limits of the Friendli dialect.

    Attributes:
        friendli_team: a team that requests under /serverless and /dedicated may name in X-Friendli-Team; may be given
            several times. Without any, every name is accepted and none has an effect.
        friendli_max_n: most choices that a request may ask for with n.
        friendli_parse_reasoning: keep reasoning out of a message's content where a request does not say.
    """

    PANEL = "Friendli"

    friendli_team: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    friendli_max_n: Annotated[int, Meta(ge=1, le=2048)] = 128
    friendli_parse_reasoning: bool = False
