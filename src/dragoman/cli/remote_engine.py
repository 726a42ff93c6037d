"""``dragoman serve --engine``: a model that vLLM servers compute, from options to the engine's client."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dragoman.cli.serve_settings import ServeSettings
from dragoman.core.errors import DragomanError
from dragoman.engine.messages import LoadModel, WorkerSettings
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.engine_client.vllm.model import RemoteModel, describe_remote
from dragoman.engine_client.vllm.settings import addresses_of
from dragoman.serving.runtime import ONE_MODEL

EFFECTIVE: dict[str, frozenset[str]] = {
    "model": frozenset({"revision", "token", "max_context", "generation_config"}),
    "machine": frozenset(),
    "scheduling": frozenset({"share_prefix_cache"}),
    "recovery": frozenset({"hang_s", "engine_give_up_s"}),
    "disk_cache": frozenset(),
    "catalog": frozenset({"offer_cached", "fixed_model"}),
    "adapters": frozenset(),
}
"""Groups of options about the engine of this machine, and those of their options that mean something without it."""

OFF = {"prefix_cache_bytes": 0}
"""Values that ask for nothing, and are therefore right without an engine too."""

ORDER = "callers' weights have no effect with --engine: vLLM serves in order of arrival, or by priority"


class RemoteEngine(NamedTuple):
    """The client, the settings of its serving, and the model's description."""

    client: VllmClient
    worker: WorkerSettings
    described: RemoteModel


def remote_engine(settings: ServeSettings) -> RemoteEngine:
    """Return the engine that ``--engine`` names. Raises DragomanError for options that need an engine on this machine,
    and ModelError where the model's files are not found."""
    check_options(settings)
    remote, model, recovery = settings.remote, settings.model, settings.recovery
    if settings.choice.model is None:
        raise DragomanError("--engine needs the MODEL that the vLLM servers run: its tokenizer is used here")
    addresses = addresses_of(remote)
    described = describe_remote(
        settings.choice.model, revision=model.revision, token=model.token, name=remote.engine_model
    )
    client = VllmClient(
        addresses,
        described,
        api_key=remote.engine_api_key,
        max_context=model.max_context,
        hang_s=recovery.hang_s,
        give_up_s=recovery.engine_give_up_s,
        has_priorities=remote.engine_priorities,
    )
    worker = WorkerSettings(
        model=LoadModel(source=settings.choice.model, settings=model), scheduler=settings.scheduling, threads=1
    )
    return RemoteEngine(client, worker, described)


def check_options(settings: ServeSettings) -> None:
    """Raise DragomanError for the first option that has no effect where vLLM computes."""
    for group, effective in EFFECTIVE.items():
        values = getattr(settings, group)
        for field in msgspec.structs.fields(type(values)):
            if getattr(values, field.name) in (field.default, OFF.get(field.name, field.default)):
                continue
            if field.name not in effective:
                flag = field.name.replace("_", "-")
                raise DragomanError(f"--{flag} has no effect with --engine: it is about the engine on this machine")


def served_alone(settings: ServeSettings) -> ServeSettings:
    """Return the settings without other models that could be loaded here."""
    return msgspec.structs.replace(settings, catalog=ONE_MODEL)
