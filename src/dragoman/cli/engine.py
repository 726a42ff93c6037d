"""From what a user chose to an engine: the worker's settings, and a session on an engine of the command's own."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from dragoman.cli.settings import MachineSettings
from dragoman.core.errors import DragomanError
from dragoman.engine.messages import LoadModel, WorkerSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.models import ModelDescription, ModelSettings, describe, plan
from dragoman.server.settings import ServerSettings

if TYPE_CHECKING:
    from dragoman.core.serving import Serving


def completed(settings: ModelSettings, scheduling: SchedulerSettings) -> ModelSettings:
    """The model's settings with those that are no options of their own: see ``settings.OMITTED``."""
    return msgspec.structs.replace(
        settings,
        max_tokens=scheduling.step_tokens or settings.max_tokens,
        max_logit_rows=max(settings.max_logit_rows, settings.max_sequences),
    )


def worker_settings(
    model: str | None, settings: ModelSettings, scheduling: SchedulerSettings, machine: MachineSettings
) -> tuple[WorkerSettings, ModelDescription]:
    """What the engine's process is told, and what is known of the model before it is loaded.

    Raises ModelError for a model that is missing, of a kind that cannot be served, or too large for this machine.
    """
    _check_kernels()
    described = describe(model, revision=settings.revision, token=settings.token, rope=settings.rope)
    chosen = completed(settings, scheduling)
    plan(described, chosen).require_fit()
    load = LoadModel(source=model, settings=chosen)
    return WorkerSettings(model=load, scheduler=scheduling, threads=machine.threads), described


def _check_kernels() -> None:
    """Raises DragomanError for forced kernels that cannot be had: else the engine's process would die of them."""
    if os.environ.get("DRAGOMAN_KERNELS"):
        try:
            importlib.import_module("dragoman.kernels")
        except ImportError as error:
            raise DragomanError(str(error)) from None


@asynccontextmanager
async def own_engine(
    model: str | None, settings: ModelSettings, scheduling: SchedulerSettings, machine: MachineSettings
) -> AsyncIterator[Serving]:
    """An engine for this command alone, behind the serving of the server. Raises ModelError."""
    from dragoman.server.opening import open_house

    worker, described = worker_settings(model, settings, scheduling, machine)
    async with open_house(ServerSettings(), worker, described.tokenizer_folder) as house:
        yield house.serving


def thread_count(machine: MachineSettings) -> int:
    """How many threads compute: those asked for, or one for each core that this process may use."""
    return machine.threads or len(os.sched_getaffinity(0))
