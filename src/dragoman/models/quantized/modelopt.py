"""FP8 checkpoints of NVIDIA's Model Optimizer (``modelopt``), whose options are in ``config.json`` or in
``hf_quant_config.json``. The matrices are those of ``float8``."""

from __future__ import annotations

from dragoman.models.quantized.float8 import Float8
from dragoman.models.quantized.scheme import Options

_DECISIVE = frozenset({"quant_method", "quant_algo", "ignore", "exclude_modules", "kv_cache_quant_algo"})
_HARMLESS = frozenset({"kv_cache_scheme", "config_groups", "producer", "quantization"})
_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")


def read_modelopt(options: Options) -> Float8:
    """Return the scheme of a ``quantization_config``, or of the file that older repositories have beside it."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    inner = options
    if block := options.block("quantization"):
        inner = Options(block, f"{options.where}: quantization")
        inner.refuse_unknown(_DECISIVE, ())
    inner.one_of("quant_algo", None, _ALGORITHMS)
    notes = ["the activations' own 8-bit format is not used: products take them as the precision says"]
    if inner.values.get("kv_cache_quant_algo") or inner.values.get("kv_cache_scheme"):
        notes.append("the cache's own format is not used: keys and values are kept in the server's own precision")
    kept = (*inner.names("ignore"), *inner.names("exclude_modules"))
    return Float8("modelopt", None, kept, tuple(notes))
