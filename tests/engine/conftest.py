"""The models that the promises of this room are checked on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import pytest

from dragoman import models
from dragoman.engine.runner import Runner
from dragoman.models.settings import KVPrecision, Precision

sys.path.insert(0, str(Path(__file__).parents[1] / "engine_client"))
sys.path.insert(0, str(Path(__file__).parent))

from tiny_model import (
    CONFIG,
    make_tiny_falcon_h1,
    make_tiny_family,
    make_tiny_gemma3,
    make_tiny_gemma4,
    make_tiny_granite4,
    make_tiny_kimi_linear,
    make_tiny_lfm2,
    make_tiny_llama,
    make_tiny_mamba,
    make_tiny_mistral,
    make_tiny_mixture,
    make_tiny_phi,
    make_tiny_qwen35,
    make_tiny_recurrent_gemma,
    make_tiny_youtu,
)

from simulation import stub

# Two blocks of attention that three of four layers share, beside state spaces.
_ZAMBA2 = CONFIG | {
    "architectures": ["Zamba2ForCausalLM"],
    "num_hidden_layers": 4,
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
    "n_mamba_heads": 8,
    "mamba_d_state": 16,
    "num_mem_blocks": 2,
    "adapter_rank": 12,
    "use_mem_rope": True,
    "tie_word_embeddings": True,
}

_MAKERS = {
    "int4 kv": make_tiny_gemma3,
    "int8 mixture": make_tiny_mixture,
    "window": make_tiny_mistral,
    "gemma 3": make_tiny_gemma3,
    "gemma 4": make_tiny_gemma4,
    "int4 phi": make_tiny_phi,
    "lfm2": make_tiny_lfm2,
    "qwen 3.5": make_tiny_qwen35,
    "granite 4": make_tiny_granite4,
    "falcon h1": make_tiny_falcon_h1,
    "mamba": make_tiny_mamba,
    "recurrent gemma": make_tiny_recurrent_gemma,
    "kimi linear": make_tiny_kimi_linear,
    "latent": make_tiny_youtu,
    "zamba 2": lambda folder: make_tiny_family(folder, _ZAMBA2),
}
_PRECISIONS = {"int8 mixture": "int8", "window": "bfloat16", "gemma 3": "bfloat16", "int4 phi": "int4", "lfm2": "int8"}
_PRECISIONS |= {"qwen 3.5": "bfloat16", "granite 4": "int4", "falcon h1": "int8", "mamba": "int8", "latent": "int8"}
_PRECISIONS |= {"gemma 4": "int8", "recurrent gemma": "int8", "kimi linear": "int8", "zamba 2": "int8"}


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """By name: the stub, whose logits depend on every cell of the history, or a small decoder in that precision.

    "int8 kv" and "int4 kv" have their keys and values in that, beside weights in bfloat16, "int4 kv" in groups of
    layers; "int8 mixture" has experts; "window" sees 70 positions in every layer; "gemma 3", "gemma 4" and "int4 phi"
    are other families than Llama; "lfm2", "qwen 3.5", "granite 4", "falcon h1" and "stub with states" have states of
    recurrent layers, "recurrent gemma" windows too, and "mamba" has nothing else; "stub with groups" has these and
    layers of three windows, which are groups in "gemma 3" and "gemma 4" as well; "stub with own blocks" has these, as
    "int4 kv"; "latent" has latent attention, "kimi linear" that beside states; "zamba 2" has
    blocks that layers share.
    """
    if "stub" in request.param:
        limits = {"num_blocks": 256, "max_tokens": 256, "max_sequences": 64, "max_logit_rows": 64}
        window = 40 if request.param == "stub with a window" else 0
        states = 70 if request.param in ("stub with states", "stub with groups") else 0
        period = 19 if request.param in ("repeating stub", "stub with states", "stub with groups") else 0
        groups = ((40, 20), (90, 24)) if request.param == "stub with groups" else ()
        own = {"own_blocks": 80 if request.param == "stub with own blocks" else 0}
        return stub(vocab_size=199, period=period, window=window, num_states=states, more_pools=groups, **own, **limits)
    make = _MAKERS.get(request.param, make_tiny_llama)
    folder = make(tmp_path_factory.mktemp("tiny"))
    if request.param in ("int8 kv", "int4 kv"):
        kept = cast(KVPrecision, request.param.removesuffix(" kv"))
        settings = models.ModelSettings(precision="bfloat16", kv_precision=kept, max_tokens=256, cache_bytes=0)
    else:
        precision = cast(Precision, _PRECISIONS.get(request.param, request.param))
        settings = models.ModelSettings(precision=precision, max_context=512, max_tokens=256, cache_bytes=0)
    return models.load(folder, settings)
