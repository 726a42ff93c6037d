"""The options that ``--help`` shows for commands with hundreds of them; ``--help-all`` shows all."""

from __future__ import annotations

MODEL = frozenset({"model", "precision", "kv_precision", "max_context", "threads", "cpus"})
"""The model, and its use of the machine."""

SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "seed", "stop"})
"""The choice of tokens."""

SERVE = (
    MODEL
    | SAMPLING
    | {
        "host",
        "port",
        "name",
        "dialect",
        "chat_template",
        "generation_config",
        "max_sequences",
        "api_key",
        "api_key_file",
        "insecure",
        "cors_origin",
        "lora_adapters",
        "offer",
        "models_folder",
        "log_level",
        "public",
    }
)
"""The common options of ``serve``."""

START = SERVE | {
    "quantized",
    "quantize_type",
    "ngrok_token",
    "locallab_max_length",
    "locallab_temperature",
    "locallab_top_p",
    "locallab_top_k",
    "locallab_repetition_penalty",
}
"""The common options of ``start``."""

TALK = (
    MODEL
    | SAMPLING
    | {"url", "api_key", "system", "verbose", "plain", "image", "json_schema", "regex", "choice", "prompt"}
)
"""The common options of ``chat``, ``generate`` and ``run``."""

MEASURE = MODEL | {
    "url",
    "api_key",
    "streams",
    "prompt_tokens",
    "output_tokens",
    "rounds",
    "json",
    "html",
    "format",
    "compare",
    "kernels",
}
"""The common options of ``bench``, ``plan``, ``pack`` and ``doctor``."""
