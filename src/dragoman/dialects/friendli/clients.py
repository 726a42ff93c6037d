"""Friendli's clients by what they send: whether a call is one of theirs, and which of the two streams it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.dialects.api import RouteHint

_SDK = "speakeasy-sdk/"
_FRIENDLI_SDK = re.compile(r"speakeasy-sdk/python.*\bfriendli\S*")
_OLD_SDK = re.compile(r"speakeasy-sdk/python 0\.3\.(\d{1,4}) ")
_LAST_OLD_PATCH = 21

# `friendli-client` sends all but the last with every request, null or not; the vendor's load tester sends that one.
_OLD_KEYS = (
    "include_output_logits",
    "include_output_logprobs",
    "soft_prompts",
    "position_ids",
    "generation_offset",
    "timeout_microseconds",
    "no_persist",
)
_OWN_KEYS = (
    "tokens",
    "bad_words",
    "bad_word_tokens",
    "stop_tokens",
    "max_total_tokens",
    "min_total_tokens",
    "no_repeat_ngram",
    "forced_output_tokens",
    "embedding_to_replace",
    "eos_token",
    "xtc_threshold",
    "xtc_probability",
)


def claims(call: RouteHint) -> bool:
    """Whether a call of a bare path is surely a Friendli client's; asked only of servers that tell clients apart."""
    if call.dialect != "auto":
        return False
    if _FRIENDLI_SDK.fullmatch(call.headers.get("user-agent", "")):
        return True
    return call.has(*_OLD_KEYS, *_OWN_KEYS) or (call.has("seed") and isinstance(call.body["seed"], list))


def reads_events(headers: Mapping[str, str], body: Any) -> bool:
    """Whether the client that sent this reads ``token_sampled`` and ``complete`` events instead of chunks."""
    agent = headers.get("user-agent", "")
    if old := _OLD_SDK.match(agent):
        return int(old[1]) <= _LAST_OLD_PATCH
    if agent.startswith(_SDK):
        return False
    return isinstance(body, dict) and any(key in body for key in _OLD_KEYS)
