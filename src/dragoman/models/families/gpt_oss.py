"""gpt-oss: alternating windows, a learned score in each head's softmax, and experts with biases and clamped gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, llama_like
from dragoman.models.families.mixtures import checked
from dragoman.models.parameter import Parameter
from dragoman.models.rope_config import read_rope_block
from dragoman.models.spec import DecoderSpec, Experts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMES: dict[str, tuple[str, ...]] = LLAMA_NAMES | {
    "sinks": ("model.layers.{layer}.self_attn.sinks",),
    "router": ("model.layers.{layer}.mlp.router",),
    "expert_in": ("model.layers.{layer}.mlp.experts.gate_up_proj",),
    "expert_in.bias": ("model.layers.{layer}.mlp.experts.gate_up_proj_bias",),
    "expert_out": ("model.layers.{layer}.mlp.experts.down_proj",),
    "expert_out.bias": ("model.layers.{layer}.mlp.experts.down_proj_bias",),
}
_GATES_APART: dict[str, tuple[str, ...]] = {  # in GGUF files
    "expert_in": (
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
        "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    ),
    "expert_out": ("model.layers.{layer}.mlp.experts.{expert}.down_proj",),
}
# Where a config has no rotation at all.
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _read_gpt_oss(config: Config) -> DecoderSpec:
    config.refuse("swiglu_alpha", 1.702)
    config.refuse("swiglu_limit", 7.0, 7)
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 131_072, "head_dim": 64})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    layers, positions = config.size("num_hidden_layers"), config.size("max_position_embeddings")
    head_dim = config.size("head_dim", config.size("hidden_size") // config.size("num_attention_heads"))
    block = config.block("rope_scaling") or config.block("rope_parameters") or _YARN
    rope = read_rope_block(config, block, head_dim, positions, theta=150_000.0)
    window = 0 if config.values.get("sliding_window", 128) is None else config.size("sliding_window", 128)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        windows = tuple(0 if layer % 2 else window for layer in range(layers))
    experts = Experts(
        count=config.size("num_local_experts", config.size("num_experts", 128)),
        active=config.size("num_experts_per_tok", config.size("experts_per_token", 4)),
        feed_forward=config.size("intermediate_size"),
        bias=True,
    )
    bias = config.flag("attention_bias", True)
    return llama_like(
        config,
        architecture="GptOssForCausalLM",
        activations={"silu": "clamped_swiglu"},
        context=rope.scaling.context(positions),
        ropes=(rope,) * layers,
        qkv_bias=bias,
        attention_out_bias=bias,
        experts=checked(experts),
        windows=windows,
        sinks=True,
    )


def _gates_first(spec: DecoderSpec, parameter: Parameter) -> NDArray[np.intp] | None:
    """Return the stored row of each row of the experts' first product: rows of gate and up alternate."""
    if parameter.module != "expert_in":
        return None
    rows = np.arange(sum(parameter.parts))
    return np.concatenate([rows[::2], rows[1::2]])


FAMILIES: dict[str, Family] = {
    "GptOssForCausalLM": Family(
        _read_gpt_oss,
        _NAMES,
        "gpt_oss",
        base="model.",
        transposed=frozenset({"expert_in", "expert_out"}),
        row_order=_gates_first,
        other_names=_GATES_APART,
        title="gpt-oss",
        examples=("openai/gpt-oss-20b", "openai/gpt-oss-120b"),
        note="Experts in MXFP4 are read exactly: [quantized.md](quantized.md).",
    ),
}
