"""A model's share of a memory budget that several models have together."""

from __future__ import annotations

from msgspec import structs

from dragoman.core.errors import ModelError
from dragoman.models.description import ModelDescription
from dragoman.models.memory import MemoryPlan, plan
from dragoman.models.settings import ModelSettings

SERVER_BYTES = 160 << 20
"""The server's process with those of templates and grammars: measured 61 MB and 14 MB each, and room to grow."""
ENGINE_BYTES = 56 << 20
"""An engine's process without its model: measured 42 to 46 MB."""


def plan_within(
    description: ModelDescription, settings: ModelSettings, memory_bytes: int
) -> tuple[ModelSettings, MemoryPlan]:
    """Return a model's plan within a budget that the server and all its models share, and the settings that have the
    engine keep to it.

    The model gets half of the budget, so that two fit in together; all of it where it does not fit in half. Raises
    ModelError where it does not fit at all.
    """
    whole = memory_bytes - SERVER_BYTES
    for share in (whole // 2, whole):
        found = plan(description, settings, available_bytes=max(0, share - ENGINE_BYTES))
        if found.refusal is None:
            return _fixed(settings, found), found
    raise ModelError(f"{found.refusal}; --memory-bytes is {memory_bytes:,}")


def _fixed(settings: ModelSettings, found: MemoryPlan) -> ModelSettings:
    """Return the settings with the limits of a plan: an engine plans by itself, with all that the machine has."""
    kv_bytes = settings.kv_bytes
    if kv_bytes is None and settings.kv_tokens is None:
        kv_bytes = found.kv_bytes or None
    return structs.replace(
        settings,
        max_context=found.context_tokens,
        kv_bytes=kv_bytes,
        state_bytes=settings.state_bytes or found.state_bytes or None,
    )
