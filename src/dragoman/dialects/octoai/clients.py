"""OctoAI's clients by what they send."""

from __future__ import annotations

from dragoman.dialects.api import RouteHint

_OWN_KEYS = ("loglikelihood", "log_prompt", "peft", "ignore_eos", "octoai")


def claims(call: RouteHint) -> bool:
    """Whether a call of a bare path is surely an OctoAI client's; asked only of servers that tell clients apart."""
    if call.dialect != "auto":
        return False
    if call.headers.get("x-fern-sdk-name", "").lower() == "octoai":
        return True
    return call.headers.get("user-agent", "").startswith("octoai-") or call.has(*_OWN_KEYS)
