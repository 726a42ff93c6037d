"""Choice and limits of a draft model: which can be one, and what memory it gets."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.engine.messages import LoadDraft
from dragoman.engine.settings import SchedulerSettings
from dragoman.models import MemoryPlan, ModelDescription, ModelSettings, describe, plan
from dragoman.models.hub import DownloadWatcher
from dragoman.models.source import find_weights

CONTEXT = 8192
"""Tokens of the longest sequences that are drafted for, unless another number is set."""
WHOLE_CONTEXTS = 2
"""Sequences of that length whose keys and values the draft model keeps."""


def draft_settings(
    settings: ModelSettings,
    scheduling: SchedulerSettings,
    watcher: DownloadWatcher | None = None,
) -> LoadDraft | None:
    """Return what is loaded as the draft model, None where no drafts of models are wanted.

    ``settings``: of the served model, of whose folders, token and limits of a step the draft model has the same. Reads
    its small files, and downloads missing ones; with a ``watcher`` the weights too. Raises ModelError for a model that
    cannot draft.
    """
    if scheduling.draft_model is None or not scheduling.speculation or "model" not in scheduling.draft_sources:
        return None
    described, draft, planned = plan_draft(scheduling.draft_model, settings, scheduling, watcher)
    if watcher is not None and described.source.repository is not None:
        find_weights(described.source, token=settings.token, watcher=watcher)
    return LoadDraft(source=scheduling.draft_model, settings=draft, nbytes=planned.total_bytes)


def plan_draft(
    source: str, settings: ModelSettings, scheduling: SchedulerSettings, watcher: DownloadWatcher | None = None
) -> tuple[ModelDescription, ModelSettings, MemoryPlan]:
    """Return a draft model's description, settings and memory. Raises ModelError for one that cannot draft."""
    described = describe(source, token=settings.token, mmproj="none", watcher=watcher)
    refused = refusal(described)
    if refused is not None:
        raise ModelError(f"--draft-model {described.source.name}: {refused}")
    context = min(described.spec.context, scheduling.draft_context or settings.max_context or CONTEXT)
    draft = ModelSettings(
        mmproj="none",
        token=settings.token,
        precision=scheduling.draft_precision,
        kv_precision="int8",
        max_context=context,
        kv_tokens=WHOLE_CONTEXTS * context,
        max_tokens=settings.max_tokens,
        max_sequences=settings.max_sequences,
        max_logit_rows=settings.max_logit_rows,
        max_adapters=0,
        image_cache_bytes=0,
        weights_memory=settings.weights_memory,
        cache_folder=settings.cache_folder,
        cache_bytes=settings.cache_bytes,
    )
    planned = plan(described, draft)
    planned.require_fit()
    return described, draft, planned


def refusal(described: ModelDescription) -> str | None:
    """Return why a model cannot draft; None where it can."""
    spec = described.spec
    if spec.encoder is not None:
        return "a model with an encoder cannot draft for others"
    if not spec.causal:
        return "a model that makes no text cannot draft"
    if spec.state_parts:
        return "a model with recurrent layers cannot take back what it guessed; choose one with attention alone"
    return None


def without_draft_memory(available_bytes: int, draft: LoadDraft | None) -> int:
    """Return the memory that is left for the served model."""
    return available_bytes if draft is None else max(0, available_bytes - draft.nbytes)
