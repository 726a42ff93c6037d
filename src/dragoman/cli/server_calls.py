"""Single calls of a running server, for commands that do nothing else meanwhile."""

from __future__ import annotations

from typing import Any

from dragoman.cli.address import Address
from dragoman.core.errors import GenerationFailed


def ask_json(address: Address, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 30) -> Any:
    """GET the path, or POST ``body`` to it, and return the decoded answer. Raises as ``remote.fetch_json`` does."""
    import asyncio

    from dragoman.cli.remote import fetch_json

    return asyncio.run(fetch_json(address, path, body, timeout_s=timeout_s))


def ask_text(address: Address, path: str, body: dict[str, Any], *, timeout_s: float = 30) -> str:
    """POST ``body`` to the path; return the answer as text. Raises as ``remote.fetch_json`` does."""
    import asyncio

    from dragoman.cli.remote import fetch_text

    return asyncio.run(fetch_text(address, path, body, timeout_s=timeout_s))


def entries(answer: Any, address: Address, path: str) -> list[dict[str, Any]]:
    """Return the entries of a list, as OpenAI's API has it: each has an ``id``. Raises GenerationFailed for another
    answer."""
    found = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(e, dict) and isinstance(e.get("id"), str) for e in found):
        raise GenerationFailed(f"{address}{path} answered something that is no list: another kind of server is there")
    return found
