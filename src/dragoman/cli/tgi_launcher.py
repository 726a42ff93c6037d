"""The options of TGI's launcher, so that a start script or a chart written for it starts this server.

Options with an equivalent are mapped to it; those without a meaning here are reported once at the start. The launcher's
variables (``MODEL_ID``, ``PORT``, ``HOSTNAME`` …) are read with ``--dialect tgi`` only: other programs use the same
names, and every container sets ``HOSTNAME``.
"""

from __future__ import annotations

import ipaddress
import os
import platform
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

import dragoman
from dragoman.cli.serve_settings import ServeSettings
from dragoman.cli.settings import ModelChoice
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import FileName
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.cgroups import allowed_processors
from dragoman.models.settings import ModelSettings, RequestedPrecision
from dragoman.server.keys import KeySettings, reaches_others
from dragoman.server.settings import ServerSettings
from dragoman.serving.settings import WorkSettings

Count = Annotated[int, Meta(ge=1)]

NOTHING_HERE = {
    "trust_remote_code": "no code that comes with a model is ever run",
    "waiting_served_ratio": "prompts are computed beside running sequences in every step",
    "max_waiting_tokens": "prompts are computed beside running sequences in every step",
    "max_image_fetch_size": "the file of an image has 20 MiB at most",
    "usage_stats": "nothing is ever sent anywhere",
    "sharded": "one process computes everything",
    "num_shard": "one process computes everything",
    "master_addr": "one process computes everything",
    "master_port": "one process computes everything",
    "shard_uds_path": "one process computes everything",
    "cuda_graphs": "there is no GPU",
    "cuda_memory_fraction": "there is no GPU",
    "disable_custom_kernels": "there is no GPU",
    "ngrok": "--public opens a tunnel",
    "ngrok_authtoken": "--public opens a tunnel",
    "ngrok_edge": "--public opens a tunnel",
}
"""Options that are accepted and have no effect, each with the reason."""

PRECISIONS: dict[str, RequestedPrecision] = {
    "float16": "bfloat16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "half": "bfloat16",
    "float": "float32",
    "bitsandbytes": "int8",
    "bitsandbytes-nf4": "int4",
    "bitsandbytes-fp4": "int4",
    "eetq": "int8",
    "fp8": "int8",
}
"""The precision of each ``--dtype``, by vLLM's names too, or ``--quantize``. Formats of checkpoints (awq, gptq …) are
read from the checkpoint."""

VARIABLES = {
    "HF_MODEL_ID": "model_id",
    "HF_MODEL_REVISION": "revision",
    "HF_MODEL_QUANTIZE": "quantize",
    "HF_MODEL_TRUST_REMOTE_CODE": "trust_remote_code",
    "SM_NUM_GPUS": "num_shard",
    "AIP_HTTP_PORT": "port",
    "HUGGING_FACE_HUB_TOKEN": "token",
    "HF_API_TOKEN": "token",
    "PREFIX_CACHING": "prefix_cache",
}
"""Variables whose names differ from those of the options that they set."""

SHARED = (
    "revision",
    "port",
    "api_key",
    "json_output",
    "otlp_endpoint",
    "otlp_service_name",
    "log_level",
    "lora_adapters",
)
"""Options of the launcher that the server has under the same name."""

USELESS_VARIABLES = {
    "LOG_COLORIZE": "lines have no colours",
    "PREFILL_CHUNKING": "prompts are always computed in pieces",
    "ATTENTION": "there is no GPU",
    "USE_FLASH_ATTENTION": "there is no GPU",
    "TGI_WIGGLE_ROOM": "memory is planned before anything is loaded",
}
"""Variables without an option, each with the reason why they have no effect."""

SAGEMAKER_PORT = 8080

SERVICE_NAME = "text-generation-inference.router"
"""The service's name in traces, unless another one is given."""


class LauncherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of TGI's launcher that have another name here, or no effect. Left out, they change nothing.

    Attributes:
        model_id: the model, a folder or hub id: as the command's argument.
        tokenizer_config_path: file whose chat_template takes the place of the model's.
        trust_remote_code: no effect.
        dtype: precision of the weights; float16 (half) is bfloat16 here, and auto no effect.
        quantize: precision of the weights; the names of checkpoint formats leave that to the checkpoint.
        kv_cache_dtype: precision of keys and values, as --kv-precision; kinds of fp8 are int8 here, and auto no effect.
        speculate: tokens that are guessed ahead by lookup; 0 is off.
        max_input_length: an older name of --max-input-tokens.
        max_batch_prefill_tokens: tokens computed in one step, as --step-tokens.
        max_batch_total_tokens: tokens whose keys and values fit into memory, in place of --kv-bytes.
        waiting_served_ratio: no effect.
        max_waiting_tokens: no effect.
        max_batch_size: sequences in one step, as --max-sequences.
        hostname: IP address to listen on, as --host; what is none is 0.0.0.0.
        prometheus_port: a port on which only /metrics is served.
        max_image_fetch_size: no effect.
        graceful_termination_timeout: seconds that running requests get at the end, as --drain-s.
        usage_stats: no effect.
        env: say what the server runs on, before it starts.
        sharded: no effect.
        num_shard: no effect.
        master_addr: no effect.
        master_port: no effect.
        shard_uds_path: no effect.
        cuda_graphs: no effect.
        cuda_memory_fraction: no effect.
        disable_custom_kernels: no effect.
        huggingface_hub_cache: folder of the hub's downloads.
        weights_cache_override: the same, and wins over it.
        ngrok: no effect.
        ngrok_authtoken: no effect.
        ngrok_edge: no effect.
    """

    PANEL = "Text Generation Inference's launcher"

    model_id: FileName | None = None
    tokenizer_config_path: FileName | None = None
    trust_remote_code: bool = False
    dtype: Literal["float16", "bfloat16", "float32", "auto", "half", "float"] | None = None
    quantize: str | None = None
    kv_cache_dtype: Literal["fp8_e4m3fn", "fp8_e5m2", "auto", "fp8", "fp8_e4m3"] | None = None
    speculate: Annotated[int, Meta(ge=0)] | None = None
    max_input_length: Count | None = None
    max_batch_prefill_tokens: Count | None = None
    max_batch_total_tokens: Count | None = None
    waiting_served_ratio: float | None = None
    max_waiting_tokens: int | None = None
    max_batch_size: Count | None = None
    hostname: str | None = None
    prometheus_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    max_image_fetch_size: int | None = None
    graceful_termination_timeout: Annotated[float, Meta(ge=0, extra={"short": "-g"})] | None = None
    usage_stats: str | None = None
    env: Annotated[bool, Meta(extra={"short": "-e"})] = False
    sharded: str | None = None
    num_shard: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    shard_uds_path: FileName | None = None
    cuda_graphs: str | None = None
    cuda_memory_fraction: float | None = None
    disable_custom_kernels: bool = False
    huggingface_hub_cache: FileName | None = None
    weights_cache_override: FileName | None = None
    ngrok: bool = False
    ngrok_authtoken: str | None = None
    ngrok_edge: str | None = None


def prespawned(asked: LauncherSettings, start: ServeSettings) -> tuple[ServeSettings, tuple[str, ...]]:
    """Return ``start`` with the launcher's options applied, and the sentences about those that have no effect.

    Raises DragomanError where options contradict each other, or ask for something unsupported.
    """
    notes = list(environment_report()) if asked.env else []
    notes += [_useless(name, why) for name, why in NOTHING_HERE.items() if getattr(asked, name) not in (None, False)]
    if start.server.dialect == "tgi":
        notes += [f"{name} has no effect: {why}" for name, why in USELESS_VARIABLES.items() if os.environ.get(name)]
    tgi = start.dialects["tgi"]
    assert isinstance(tgi, TgiSettings)
    server = _server(asked, start.server, tgi, notes)
    start = msgspec.structs.replace(
        start,
        choice=_choice(asked, start.choice),
        model=_model(asked, start.model, notes),
        scheduling=_scheduling(asked, start.scheduling),
        server=server,
        work=_work(start, tgi),
        keys=_keys(start, server.host, notes),
        dialects={**start.dialects, "tgi": _dialect(asked, tgi)},
    )
    cache = asked.weights_cache_override or asked.huggingface_hub_cache
    if cache is not None:
        # Where the hub's library looks, when it is imported: here, and in the engine's process.
        os.environ["HF_HUB_CACHE"] = cache
    return start, tuple(notes)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the launcher's variables by the options that they set; empty ones count as none.

    Every option of the launcher has a variable of the same name in capitals.
    """
    names = (*LauncherSettings.__struct_fields__, *TgiSettings.__struct_fields__, *SHARED)
    spelled = {name.upper(): name for name in names} | VARIABLES
    found = {option: environment[name] for name, option in spelled.items() if environment.get(name)}
    if environment.get("HF_MODEL_ID"):
        found.setdefault("port", str(SAGEMAKER_PORT))
    return {"otlp_service_name": SERVICE_NAME, **found}


def environment_report() -> tuple[str, ...]:
    """Return the lines of ``--env``."""
    return (
        f"dragoman {dragoman.__version__}, Python {platform.python_version()}",
        f"{platform.platform()}, {allowed_processors()} cores",
    )


def _choice(asked: LauncherSettings, choice: ModelChoice) -> ModelChoice:
    if asked.model_id is None:
        return choice
    if choice.model not in (None, asked.model_id):
        raise DragomanError(f"--model-id {asked.model_id}: {choice.model} is to be served already")
    return ModelChoice(model=asked.model_id)


def _model(asked: LauncherSettings, model: ModelSettings, notes: list[str]) -> ModelSettings:
    dtype = None if asked.dtype == "auto" else asked.dtype
    if dtype is not None and asked.quantize is not None:
        raise DragomanError("Only one of --dtype and --quantize can be given")
    changes: dict[str, Any] = {}
    wanted = dtype or asked.quantize
    if wanted is not None:
        changes["precision"] = PRECISIONS.get(wanted, "auto")
        if wanted not in (changes["precision"], "auto"):
            option = "dtype" if dtype else "quantize"
            notes.append(f"--{option} {wanted}: weights are {_said(changes['precision'])}")
    if asked.kv_cache_dtype not in (None, "auto"):
        changes["kv_precision"] = "int8"
        notes.append(f"--kv-cache-dtype {asked.kv_cache_dtype}: keys and values are int8 here")
    if asked.max_batch_size is not None:
        changes["max_sequences"] = asked.max_batch_size
    if asked.max_batch_total_tokens is not None:
        changes["kv_tokens"] = asked.max_batch_total_tokens
    return msgspec.structs.replace(model, **changes)


def _said(precision: str) -> str:
    return "as the checkpoint has them" if precision == "auto" else f"{precision} here"


def _scheduling(asked: LauncherSettings, scheduling: SchedulerSettings) -> SchedulerSettings:
    changes: dict[str, Any] = {}
    if asked.max_batch_prefill_tokens is not None:
        changes["step_tokens"] = asked.max_batch_prefill_tokens
    if asked.speculate is not None:
        # One row for the next token, and one for each drafted token.
        changes["speculation"] = asked.speculate + 1 if asked.speculate else 0
    return msgspec.structs.replace(scheduling, **changes)


def _server(asked: LauncherSettings, server: ServerSettings, tgi: TgiSettings, notes: list[str]) -> ServerSettings:
    changes: dict[str, Any] = {}
    if asked.hostname is not None:
        changes["host"] = asked.hostname
        try:
            ipaddress.ip_address(asked.hostname)
        except ValueError:
            changes["host"] = "0.0.0.0"
            notes.append(f"--hostname {asked.hostname[:64]} is no IP address: listening on 0.0.0.0")
    if asked.tokenizer_config_path is not None:
        changes["chat_template"] = asked.tokenizer_config_path
    if asked.prometheus_port is not None:
        changes["metrics_port"] = asked.prometheus_port
    if asked.graceful_termination_timeout is not None:
        changes["drain_s"] = asked.graceful_termination_timeout
    if server.dialect == "tgi":
        # The dialect's own limit is the one that clients should reach first.
        changes["max_waiting"] = max(server.max_waiting, tgi.max_concurrent_requests)
    return msgspec.structs.replace(server, **changes)


def _work(start: ServeSettings, tgi: TgiSettings) -> WorkSettings:
    if start.server.dialect != "tgi":
        return start.work
    return msgspec.structs.replace(start.work, text_threads=max(start.work.text_threads, tgi.validation_workers))


def _keys(start: ServeSettings, host: str, notes: list[str]) -> KeySettings:
    """Return the keys' settings: without a key the original is open to everyone, wherever it listens."""
    keys = start.keys
    guarded = keys.insecure or keys.api_key or keys.api_key_file
    if start.server.dialect != "tgi" or guarded or not reaches_others(host):
        return keys
    notes.append("open to everyone who reaches it, as the original: --api-key closes it")
    return msgspec.structs.replace(keys, insecure=True)


def _dialect(asked: LauncherSettings, tgi: TgiSettings) -> TgiSettings:
    if asked.max_input_length is None:
        return tgi
    if tgi.max_input_tokens is not None:
        raise DragomanError(
            "Both `max_input_tokens` and `max_input_length` are set. Please set only `max_input_tokens`"
        )
    return msgspec.structs.replace(tgi, max_input_tokens=asked.max_input_length)


def _useless(name: str, reason: str) -> str:
    return f"--{name.replace('_', '-')} has no effect: {reason}"
