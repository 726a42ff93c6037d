"""Choice and limits of a draft model: which can be one, and what memory it gets."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.models.description import ModelDescription, describe
from dragoman.models.hub import DownloadWatcher
from dragoman.models.memory import MemoryPlan, plan
from dragoman.models.settings import ModelSettings, RequestedPrecision

CONTEXT = 8192
"""Tokens of the longest sequences that are drafted for, unless another number is set."""
WHOLE_CONTEXTS = 2
"""Sequences of that length whose keys and values the draft model keeps."""


def plan_draft(
    source: str,
    settings: ModelSettings,
    precision: RequestedPrecision = "auto",
    context: int | None = None,
    watcher: DownloadWatcher | None = None,
) -> tuple[ModelDescription, ModelSettings, MemoryPlan]:
    """Return a draft model's description, settings and memory. Raises ModelError for one that cannot draft, or is not
    there.

    ``settings``: of the served model, of whose folders, token and limits of a step the draft model has the same.
    ``context``: tokens of the longest sequences that it drafts for.
    """
    described = describe(source, token=settings.token, mmproj="none", watcher=watcher)
    refused = refusal(described)
    if refused is not None:
        raise ModelError(f"--draft-model {described.source.name}: {refused}")
    tokens = min(described.spec.context, context or settings.max_context or CONTEXT)
    draft = ModelSettings(
        mmproj="none",
        token=settings.token,
        precision=precision,
        kv_precision="int8",
        max_context=tokens,
        kv_tokens=WHOLE_CONTEXTS * tokens,
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
