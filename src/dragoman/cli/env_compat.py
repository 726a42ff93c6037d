"""Variables of other servers, read in place of our own where their dialect is chosen with ``--dialect``.

So a service file or a container that was written for them starts this server as it did theirs. Variables without a
meaning here are named once at the start. None of them is read otherwise: other programs use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dragoman.cli.tgi_launcher import variables as tgi_variables

Environment = Mapping[str, str]

# Where several variables set one option, the first that is set counts.
LOCALLAB: dict[str, tuple[str, ...]] = {
    "model": ("HUGGINGFACE_MODEL", "DEFAULT_MODEL"),
    "token": ("HUGGINGFACE_TOKEN",),
    "host": ("LOCALLAB_HOST",),
    "port": ("LOCALLAB_PORT",),
    "locallab_max_length": ("LOCALLAB_MODEL_MAX_LENGTH", "DEFAULT_MAX_LENGTH"),
    "locallab_temperature": ("LOCALLAB_MODEL_TEMPERATURE", "DEFAULT_TEMPERATURE"),
    "locallab_top_p": ("LOCALLAB_MODEL_TOP_P", "DEFAULT_TOP_P"),
    "locallab_top_k": ("LOCALLAB_TOP_K", "DEFAULT_TOP_K"),
    "locallab_repetition_penalty": ("LOCALLAB_REPETITION_PENALTY", "DEFAULT_REPETITION_PENALTY"),
    "locallab_max_time_s": ("LOCALLAB_MAX_TIME", "DEFAULT_MAX_TIME"),
    "locallab_rate_limit": ("LOCALLAB_RATE_LIMIT",),
    "locallab_burst": ("LOCALLAB_BURST_SIZE",),
    "locallab_instructions": ("LOCALLAB_MODEL_INSTRUCTIONS",),
    "public": ("LOCALLAB_USE_NGROK",),
    "log_level": ("LOCALLAB_LOG_LEVEL",),
    "cors_origin": ("LOCALLAB_CORS_ORIGINS",),
}

CORS_SWITCH = "LOCALLAB_ENABLE_CORS"

LOCALLAB_CHAT: dict[str, tuple[str, ...]] = {
    "url": ("LOCALLAB_URL",),
    "max_new_tokens": ("LOCALLAB_MAX_TOKENS",),
    "temperature": ("LOCALLAB_TEMPERATURE",),
    "top_p": ("LOCALLAB_TOP_P",),
    "timeout": ("LOCALLAB_TIMEOUT",),
}
"""The variables of LocalLab's terminal client; read by ``chat`` where a mode is chosen, which is an option of that
client."""

ALEXANDRIA: dict[str, tuple[str, ...]] = {
    "model": ("MODEL_PATH",),
    "host": ("SERVER_HOST",),
    "port": ("SERVER_PORT",),
    "log_level": ("LOG_LEVEL",),
    "continue_max_entries": ("MAX_CACHE_SIZE",),
    "continue_ttl_s": ("MAX_CACHE_TTL",),
    "max_context": ("LLAMA_CPP_MAX_CONTEXT",),
    "alexandria_seed": ("MODEL_SEED",),
    "alexandria_num_beams": ("MODEL_DEFAULT_NUM_BEAMS",),
    "alexandria_do_sample": ("MODEL_DEFAULT_DO_SAMPLE",),
    "alexandria_temperature": ("MODEL_DEFAULT_TEMPERATURE",),
    "alexandria_top_p": ("MODEL_DEFAULT_TOP_P",),
    "alexandria_top_k": ("MODEL_DEFAULT_TOP_K",),
    "alexandria_max_new_tokens": ("MODEL_DEFAULT_MAX_NEW_TOKENS",),
    "alexandria_repetition_penalty": ("MODEL_DEFAULT_REPETITION_PENALTY",),
    "alexandria_length_penalty": ("MODEL_DEFAULT_LENGTH_PENALTY",),
}

OLLAMA: dict[str, tuple[str, ...]] = {
    "ollama_keep_alive": ("OLLAMA_KEEP_ALIVE",),
    "ollama_origins": ("OLLAMA_ORIGINS",),
    "max_sequences": ("OLLAMA_NUM_PARALLEL",),
    "max_waiting": ("OLLAMA_MAX_QUEUE",),
    "max_context": ("OLLAMA_CONTEXT_LENGTH",),
    "kv_precision": ("OLLAMA_KV_CACHE_TYPE",),
}
OLLAMA_ADDRESS = "OLLAMA_HOST"
OLLAMA_PORT = "11434"
OLLAMA_DEBUG, OLLAMA_TRACE = "OLLAMA_DEBUG", "2"

LLAMACPP: dict[str, tuple[str, ...]] = {
    "model": ("LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO"),
    "host": ("LLAMA_ARG_HOST",),
    "port": ("LLAMA_ARG_PORT",),
    "api_key": ("LLAMA_API_KEY",),
    "name": ("LLAMA_ARG_ALIAS",),
    "max_context": ("LLAMA_ARG_CTX_SIZE",),
    "max_sequences": ("LLAMA_ARG_N_PARALLEL",),
    "threads": ("LLAMA_ARG_THREADS",),
    "step_tokens": ("LLAMA_ARG_UBATCH",),
    "kv_precision": ("LLAMA_ARG_CACHE_TYPE_K",),
    "mmproj": ("LLAMA_ARG_MMPROJ",),
    "chat_template": ("LLAMA_ARG_CHAT_TEMPLATE_FILE",),
    "draft_model": ("LLAMA_ARG_MODEL_DRAFT",),
    "tls_cert": ("LLAMA_ARG_SSL_CERT_FILE",),
    "tls_key": ("LLAMA_ARG_SSL_KEY_FILE",),
    "models_folder": ("LLAMA_ARG_MODELS_DIR",),
}

KV_PRECISIONS = {
    "f32": "float32",
    "f16": "bfloat16",
    "bf16": "bfloat16",
    "q8_0": "int8",
    "q4_0": "int4",
    "q4_1": "int4",
    "iq4_nl": "int4",
}
"""By the names of Ollama and llama.cpp; others are left to be refused."""

COUNTS = ("max_sequences", "max_context", "threads", "step_tokens")
"""Options whose variables are 0 or below where Ollama or llama.cpp choose themselves."""

PREFIXES = {"ollama": "OLLAMA_", "llamacpp": "LLAMA_ARG_"}
"""By dialect, how all variables of the original begin: those that are not read have no effect."""

WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "locallab": (
        "LOCALLAB_ENABLE_CPU_OFFLOADING",
        "LOCALLAB_ENABLE_ATTENTION_SLICING",
        "LOCALLAB_ENABLE_FLASH_ATTENTION",
        "LOCALLAB_ENABLE_BETTERTRANSFORMER",
        "LOCALLAB_ENABLE_REQUEST_VALIDATION",
        "LOCALLAB_MAX_BATCH_SIZE",
        "LOCALLAB_REQUEST_TIMEOUT",
        "LOCALLAB_MAX_CONCURRENT_REQUESTS",
        "LOCALLAB_WORKERS",
        "LOCALLAB_ENABLE_COMPRESSION",
        "LOCALLAB_MIN_FREE_MEMORY",
        "LOCALLAB_UNLOAD_TIMEOUT",
        "LOCALLAB_MODEL_UNLOAD_TIMEOUT",
        "LOCALLAB_LOG_FILE",
        "LOCALLAB_ENABLE_FILE_LOGGING",
    ),
    "alexandria": (
        "MODEL_LOADER",
        "ENABLE_CUDA",
        "DEVICE_MAP_AUTO",
        "TARGET_GPU_INDEX",
        "SPACE_TOKEN_CHAR",
        "USE_LLAMA_CPP",
        "LLAMA_CPP_BATCH_TOKENS",
        "LLAMA_RAM_CACHE_MB",
    ),
}
"""By dialect, variables of the original that are recognised and have no effect."""


def borrowed(dialect: object, environment: Environment) -> dict[str, str]:
    """Return the options that the variables of the dialect's original server set; empty ones count as none."""
    read = _READERS.get(str(dialect))
    return read(environment) if read is not None else {}


def chat_variables(environment: Environment) -> dict[str, str]:
    """Return the defaults of LocalLab's terminal client, by option."""
    return {"temperature": "0.7", "top_p": "0.9", **_named(LOCALLAB_CHAT, environment)}


def useless(dialect: str, environment: Environment) -> tuple[str, ...]:
    """Return a sentence for each variable that is set and has no effect."""
    names = [name for name in WITHOUT_EFFECT.get(dialect, ()) if environment.get(name)]
    if prefix := PREFIXES.get(dialect):
        read = _read(dialect)
        names += sorted(
            each for each, text in environment.items() if text and each.startswith(prefix) and each not in read
        )
    said = tuple(f"{name} has no effect here" for name in names)
    return said if dialect != "locallab" else (*said, *_cors_notes(environment))


class Texts(dict[str, str]):
    """Texts of options. ``variables``: by option, where its text comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: dict[str, str] = {}


def _named(table: Mapping[str, tuple[str, ...]], environment: Environment) -> Texts:
    found = Texts()
    for option, names in table.items():
        variable = next((name for name in names if environment.get(name)), None)
        if variable is not None:
            found[option], found.variables[option] = environment[variable], variable
    return found


def _cors_notes(environment: Environment) -> tuple[str, ...]:
    """Return notes on the effects that LocalLab's CORS switch does not have here, where it is set."""
    switch, origins = environment.get(CORS_SWITCH), environment.get("LOCALLAB_CORS_ORIGINS")
    if not switch:
        return ()
    if _is_on(switch):
        if origins:
            return ()
        return (f"{CORS_SWITCH} names no origin: LOCALLAB_CORS_ORIGINS or --cors-origin says whose pages may call",)
    if origins:
        return (f"LOCALLAB_CORS_ORIGINS has no effect: {CORS_SWITCH} is {switch}",)
    return (f"{CORS_SWITCH} is {switch}: no origin is named, but pages that have an API key may call",)


def _locallab(environment: Environment) -> dict[str, str]:
    """Return the options of LocalLab's variables. Weights are quantized, and pages of other origins accepted, only
    on request: the original's own defaults would be a surprise."""
    found = _named(LOCALLAB, environment)
    if "cors_origin" in found:
        origins = found.pop("cors_origin").replace(",", " ")
        if _is_on(environment.get(CORS_SWITCH) or "true") and origins.strip():
            found["cors_origin"] = origins
    kind = environment.get("LOCALLAB_QUANTIZATION_TYPE", "int8")
    if _is_on(environment.get("LOCALLAB_ENABLE_QUANTIZATION")) and kind in ("int8", "int4"):
        found["precision"] = kind
    return found


def _alexandria(environment: Environment) -> dict[str, str]:
    found = _named(ALEXANDRIA, environment)
    for name, precision in (("LOAD_IN_4BIT", "int4"), ("LOAD_IN_8BIT", "int8")):
        if _is_on(environment.get(name)):
            found.setdefault("precision", precision)
    return found


def _ollama(environment: Environment) -> dict[str, str]:
    found = _of_llamas(OLLAMA, environment)
    if address := environment.get(OLLAMA_ADDRESS):
        found["host"], found["port"] = _host_and_port(address)
        found.variables |= dict.fromkeys(("host", "port"), OLLAMA_ADDRESS)
    if _is_on(environment.get(OLLAMA_DEBUG)) or environment.get(OLLAMA_DEBUG) == OLLAMA_TRACE:
        found["log_level"] = "debug"
    return found


def _llamacpp(environment: Environment) -> dict[str, str]:
    return _of_llamas(LLAMACPP, environment)


def _of_llamas(table: Mapping[str, tuple[str, ...]], environment: Environment) -> Texts:
    found = _named(table, environment)
    for name in COUNTS:
        if re.fullmatch(r"\s*(0+|-\d+)\s*", found.get(name, "")):
            del found[name]
    if "kv_precision" in found:
        found["kv_precision"] = KV_PRECISIONS.get(found["kv_precision"].strip().lower(), found["kv_precision"])
    for name in ("ollama_origins", "api_key"):
        if name in found:
            found[name] = found[name].replace(",", " ")
    return found


def _host_and_port(address: str) -> tuple[str, str]:
    """Return what Ollama listens on: ``HOST``, ``HOST:PORT``, ``:PORT`` or the URL that its clients get."""
    scheme, _, rest = address.strip().rpartition("://")
    place = rest.partition("/")[0]
    split = re.fullmatch(r"\[?(?P<host>.*?)\]?(:(?P<port>[^:\]]*))?", place)
    if split is None or (place.count(":") > 1 and not place.startswith("[")):  # an IPv6 address alone
        return place, OLLAMA_PORT
    ports = {"http": "80", "https": "443"}
    return split["host"] or "127.0.0.1", split["port"] or ports.get(scheme, OLLAMA_PORT)


def _read(dialect: str) -> set[str]:
    tables = {"ollama": OLLAMA, "llamacpp": LLAMACPP}
    return {name for names in tables[dialect].values() for name in names} | {OLLAMA_ADDRESS, OLLAMA_DEBUG}


def _is_on(text: str | None) -> bool:
    return text is not None and text.strip().lower() in ("1", "true", "yes", "on")


_READERS: dict[str, Callable[[Environment], dict[str, str]]] = {
    "tgi": tgi_variables,
    "locallab": _locallab,
    "alexandria": _alexandria,
    "ollama": _ollama,
    "llamacpp": _llamacpp,
}
