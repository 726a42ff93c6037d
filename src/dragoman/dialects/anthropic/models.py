"""The list of models in the shape of Anthropic's API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dragoman.core.serving import ModelCard
from dragoman.dialects.model_list import ListedModel

_NO, _YES = {"supported": False}, {"supported": True}


def model(listed: ListedModel, *, has_batches: bool) -> dict[str, Any]:
    """Return the description of a model: of one that is not in memory without limits and capabilities, which are not
    known. ``has_batches``: the server runs message batches. ``status`` is not Anthropic's."""
    card = listed.card
    room = None if card is None else card.context_tokens - 1
    return {
        "type": "model",
        "id": listed.name,
        "display_name": listed.name,
        "created_at": datetime.fromtimestamp(listed.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": room,
        "max_tokens": room,
        "capabilities": None if card is None else _capabilities(card, has_batches=has_batches),
        "status": listed.status,
    }


def _capabilities(card: ModelCard, *, has_batches: bool) -> dict[str, Any]:
    effort = {"supported": "reasoning_effort" in card.template_variables}
    return {
        "batch": _YES if has_batches else _NO,
        "citations": _NO,
        "code_execution": _NO,
        "context_management": {
            "supported": True,
            "clear_thinking_20251015": _YES,
            "clear_tool_uses_20250919": _NO,
            "compact_20260112": _NO,
        },
        "effort": effort | dict.fromkeys(("low", "medium", "high", "max"), effort),
        "image_input": _NO if card.images is None else _YES,
        "pdf_input": _NO,
        "server_tools": _NO | {"web_search": _NO, "code_execution": _NO},
        "structured_outputs": _YES,
        "thinking": {
            "supported": card.reasoning is not None,
            "types": dict.fromkeys(("adaptive", "between_tools", "disabled", "enabled"), _YES),
        },
    }


def page(
    listed: Sequence[ListedModel],
    *,
    has_batches: bool,
    limit: int = 20,
    after_id: str | None = None,
    before_id: str | None = None,
) -> dict[str, Any]:
    """Return a page of the list: behind ``after_id``, or before ``before_id``; from its beginning where neither is
    known."""
    names = [each.name for each in listed]
    first, last = 0, len(listed)
    if after_id in names:
        first = names.index(after_id) + 1
    elif before_id in names:
        last = names.index(before_id)
        first = max(0, last - limit)
    shown = listed[first:last][:limit]
    backwards = before_id in names and after_id not in names
    more = first > 0 if backwards else first + len(shown) < len(listed)
    return {
        "data": [model(each, has_batches=has_batches) for each in shown],
        "has_more": more,
        "first_id": shown[0].name if shown else None,
        "last_id": shown[-1].name if shown else None,
    }
