"""A model's share of the memory that a server and all its models have together."""

from __future__ import annotations

from pathlib import Path

import psutil
from msgspec import structs

from dragoman.core.errors import ModelError
from dragoman.core.vocabulary_files import find_vocabulary
from dragoman.models.description import ModelDescription
from dragoman.models.memory import MemoryPlan, available_memory, plan
from dragoman.models.settings import ModelSettings

SERVER_BYTES = 160 << 20
"""The server's process with those of templates and grammars: measured 61 MB and 14 MB each, and room to grow."""
ENGINE_BYTES = 56 << 20
"""An engine's process without its model: measured 42 to 46 MB."""
STARTED_SERVER_BYTES, STARTED_ENGINE_BYTES = 84 << 20, 30 << 20
"""Of both when the engine plans its model, without the pages of files: measured 99 to 112 MB together."""
TEXT_FACTOR = 10
"""A tokenizer takes so many times its file in the server's process."""

_WITHOUT_MERGES = 4


def first_plan(
    description: ModelDescription, settings: ModelSettings, *, draft_bytes: int = 0, first_adapters_bytes: int = 0
) -> MemoryPlan:
    """Plan the first model of a server that this process starts, or would start: with what is left when the server, the
    engine and the model's tokenizer have their memory. Raises ModelError on impossible settings.

    ``draft_bytes``: of what drafts. ``first_adapters_bytes``: as of ``plan``.
    """
    left = available_memory() - _growth_bytes() - tokenizer_bytes(description.tokenizer_folder) - draft_bytes
    return plan(description, settings, available_bytes=max(0, left), first_adapters_bytes=first_adapters_bytes)


def _growth_bytes() -> int:
    """Return what this process and its children, of which the engine may be one already, take more as a server whose
    engine plans its model."""
    this = psutil.Process()
    try:
        children = sum(_anonymous_bytes(child) for child in this.children())
    except psutil.Error:
        children = 0
    return max(0, STARTED_SERVER_BYTES - _anonymous_bytes(this)) + max(0, STARTED_ENGINE_BYTES - children)


def _anonymous_bytes(process: psutil.Process) -> int:
    """Return the memory of a process that no file has; all of it where the system does not say."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    found = next((line.split()[1] for line in lines if line.startswith("RssAnon:")), None)
    try:
        return int(process.memory_info().rss) if found is None else int(found) << 10
    except psutil.Error:  # it has just ended
        return 0


def tokenizer_bytes(folder: Path) -> int:
    """Return what a model's tokenizer takes in the server, by the size of its vocabulary. One without merges takes what
    a ``tokenizer.json`` of four times its size does."""
    path = find_vocabulary(folder)
    try:
        size = 0 if path is None else path.stat().st_size
    except OSError:
        return 0
    return TEXT_FACTOR * (size if path is not None and path.suffix in (".json", ".txt") else _WITHOUT_MERGES * size)


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
