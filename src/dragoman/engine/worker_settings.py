"""Conversion of users' settings to those of the engine's process. Used in the process that starts it."""

from __future__ import annotations

import logging

import msgspec

from dragoman.core.errors import ModelError
from dragoman.engine.messages import DiskCache, LoadDraft, LoadHead, LoadModel, WorkerSettings
from dragoman.engine.settings import LEAST_GUESSES, DiskCacheSettings, RecoverySettings, SchedulerSettings
from dragoman.models import (
    EagleChoice,
    ModelDescription,
    ModelSettings,
    describe,
    plan_draft,
    plan_eagle,
    plan_head,
)
from dragoman.models.hub import DownloadWatcher
from dragoman.models.memory_share import first_plan, plan_within
from dragoman.models.source import find_weights
from dragoman.models.topology import Placement, place

log = logging.getLogger("dragoman.engine")

ONE_USER = RecoverySettings(engine_give_up_s=10.0, recovery_bytes=0)
"""Settings of an engine that serves a single command or program: a user waits for it."""


def worker_settings(
    model: str | None,
    settings: ModelSettings,
    scheduling: SchedulerSettings,
    placement: Placement | None = None,
    recovery: RecoverySettings = ONE_USER,
    watcher: DownloadWatcher | None = None,
    disk: DiskCacheSettings | None = None,
) -> tuple[WorkerSettings, ModelDescription]:
    """Return the settings of the engine's process, and the description of the model before it is loaded.

    ``placement``: of the computing threads; None: as ``place`` says. ``disk``: of the prefix cache on disk; None: there
    is none. Reads the model's small files, and downloads missing ones; with a ``watcher``,
    which is told of it, the weights too, which the engine's process would download otherwise. Raises ModelError for a
    model that is missing, not supported, or too large for this machine.
    """
    described = describe(model, **settings.describing, watcher=watcher)
    placement = placement or place()
    settings = with_step_limits(settings, scheduling)
    draft = head_settings(described, settings, scheduling, watcher) or draft_settings(settings, scheduling, watcher)
    planned = first_plan(described, settings, draft_bytes=0 if draft is None else draft.nbytes)
    planned.require_fit()
    if watcher is not None and described.source.repository is not None:
        find_weights(described.source, token=settings.token, watcher=watcher)
    worker = WorkerSettings(
        model=LoadModel(source=model, settings=settings),
        scheduler=scheduling,
        threads=placement.threads,
        processors=placement.processors,
        nodes=placement.nodes,
        hang_s=recovery.hang_s,
        give_up_s=recovery.engine_give_up_s,
        recovery_bytes=recovery.recovery_bytes,
        disk=None if disk is None else disk_cache(disk),
        draft=draft,
        available_bytes=planned.available_bytes,
    )
    return worker, described


def head_settings(
    described: ModelDescription,
    settings: ModelSettings,
    scheduling: SchedulerSettings,
    watcher: DownloadWatcher | None = None,
) -> LoadHead | None:
    """Return what is loaded of the model's head, or of an EAGLE-3 one; None where no drafts of heads are wanted.

    ``settings``: of the model. ``watcher``: as of ``draft_settings``. Raises ModelError for a family whose heads are
    not known, for a head that does not fit the model, and beside a draft model.
    """
    source, model = scheduling.draft_eagle, scheduling.draft_model
    is_asked = scheduling.draft_heads or source is not None
    if not is_asked or not scheduling.speculation or "heads" not in scheduling.draft_sources:
        return None
    if scheduling.speculation < 2:
        option = "--draft-heads" if source is None else f"--draft-eagle {source}"
        raise ModelError(f"{option}: a step of --speculation 1 has no room for a guess; it needs 2 or more")
    if source is None:
        planned = plan_head(described, settings, scheduling.draft_context, draft_model=model)
        return LoadHead(context=planned.context, nbytes=planned.nbytes)
    eagle = EagleChoice(source=source, precision=scheduling.draft_precision)
    others = scheduling.draft_heads or model is not None
    planned = plan_eagle(described, eagle, settings, scheduling.draft_context, others=others, watcher=watcher)
    return LoadHead(context=planned.context, nbytes=planned.nbytes, eagle=eagle)


def draft_settings(
    settings: ModelSettings, scheduling: SchedulerSettings, watcher: DownloadWatcher | None = None
) -> LoadDraft | None:
    """Return what is loaded as the draft model; None where no drafts of models are wanted.

    ``settings``: of the served model. Reads the draft model's small files, and downloads missing ones; with a
    ``watcher`` the weights too. Raises ModelError for a model that cannot draft.
    """
    source = scheduling.draft_model
    if source is None or not scheduling.speculation or "model" not in scheduling.draft_sources:
        return None
    if scheduling.speculation <= LEAST_GUESSES:
        raise ModelError(
            f"--draft-model {source}: it would never be asked with --speculation {scheduling.speculation}; it needs "
            f"{1 + LEAST_GUESSES} or more"
        )
    precision, context = scheduling.draft_precision, scheduling.draft_context
    described, draft, planned = plan_draft(source, settings, precision, context, watcher)
    if watcher is not None and described.source.repository is not None:
        find_weights(described.source, token=settings.token, watcher=watcher)
    return LoadDraft(source=source, settings=draft, nbytes=planned.total_bytes)


def without_draft_memory(available_bytes: int, draft: LoadDraft | LoadHead | None) -> int:
    """Return the memory that is left for the served model."""
    return available_bytes if draft is None else max(0, available_bytes - draft.nbytes)


def disk_cache(settings: DiskCacheSettings) -> DiskCache | None:
    """Return where prefixes are kept on disk; None where they are not."""
    if settings.prefix_cache_bytes == 0:
        return None
    if settings.is_by_chance_in_memory:
        log.info("prompts are not cached on disk: %s is in memory", settings.folder)
        return None
    return DiskCache(folder=str(settings.folder.absolute()), limit_bytes=settings.prefix_cache_bytes)


def within_budget(worker: WorkerSettings, described: ModelDescription, memory_bytes: int | None) -> WorkerSettings:
    """Return the settings with the model's share of a memory budget. Raises ModelError where it does not fit."""
    if memory_bytes is None or not isinstance(worker.model, LoadModel):
        return worker
    memory_bytes = without_draft_memory(memory_bytes, worker.draft)
    settings, _ = plan_within(described, worker.model.settings, memory_bytes)
    return msgspec.structs.replace(worker, model=msgspec.structs.replace(worker.model, settings=settings))


def with_step_limits(settings: ModelSettings, scheduling: SchedulerSettings) -> ModelSettings:
    """Return the model's settings with the limits of a step, which are other settings of the user."""
    return msgspec.structs.replace(
        settings,
        max_tokens=scheduling.step_tokens or settings.max_tokens,
        max_logit_rows=max(settings.max_logit_rows, settings.max_sequences),
    )
