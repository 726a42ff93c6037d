"""From what a user chose to an engine: the worker's settings, and a session on an engine of the command's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import msgspec

from dragoman.cli.settings import MachineSettings
from dragoman.engine.launch import Launched
from dragoman.engine.messages import LoadModel, WorkerSettings
from dragoman.engine.settings import RecoverySettings, SchedulerSettings
from dragoman.models import ModelDescription, ModelSettings, describe, plan
from dragoman.models.cgroups import usable_processors
from dragoman.server.settings import ServerSettings

if TYPE_CHECKING:
    from dragoman.cli.session import LocalSession

OF_COMMANDS = RecoverySettings(engine_give_up_s=10.0, recovery_bytes=0)
"""Of an engine that one command has for itself, before which somebody sits."""


def completed(settings: ModelSettings, scheduling: SchedulerSettings) -> ModelSettings:
    """The model's settings with those that are no options of their own: see ``settings.OMITTED``."""
    return msgspec.structs.replace(
        settings,
        max_tokens=scheduling.step_tokens or settings.max_tokens,
        max_logit_rows=max(settings.max_logit_rows, settings.max_sequences),
    )


def worker_settings(
    model: str | None,
    settings: ModelSettings,
    scheduling: SchedulerSettings,
    machine: MachineSettings,
    recovery: RecoverySettings = OF_COMMANDS,
) -> tuple[WorkerSettings, ModelDescription]:
    """What the engine's process is told, and what is known of the model before it is loaded.

    Raises ModelError for a model that is missing, of a kind that cannot be served, or too large for this machine.
    """
    described = describe(model, revision=settings.revision, token=settings.token, rope=settings.rope)
    chosen = completed(settings, scheduling)
    plan(described, chosen).require_fit()
    load = LoadModel(source=model, settings=chosen)
    worker = WorkerSettings(
        model=load,
        scheduler=scheduling,
        threads=thread_count(machine),
        hang_s=recovery.hang_s,
        give_up_s=recovery.engine_give_up_s,
        recovery_bytes=recovery.recovery_bytes,
    )
    return worker, described


@asynccontextmanager
async def own_engine(
    model: str | None, settings: ModelSettings, scheduling: SchedulerSettings, machine: MachineSettings
) -> AsyncIterator[LocalSession]:
    """An engine for this command alone, behind the serving of the server. Raises ModelError."""
    with closing(Launched()) as launched:
        worker, described = worker_settings(model, settings, scheduling, machine)
        launched.tell(worker)
        # Only now, while the process imports its half, and loads.
        from dragoman.cli.session import LocalSession
        from dragoman.server.opening import open_house

        async with open_house(ServerSettings(), worker, described.tokenizer_folder, launched=launched) as house:
            yield LocalSession(house.serving)


def thread_count(machine: MachineSettings) -> int:
    """How many threads compute: those asked for, or one for each core that this process may use, within its quota."""
    return machine.threads or usable_processors()
