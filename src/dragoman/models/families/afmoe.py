"""Trinity (AFMoE): norms around both branches, gated attention that rotates only in layers with a window, and experts
chosen by sigmoid scores."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.families.mixtures import checked
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES, DEEPSEEK_STACKS
from dragoman.models.optional_parts import AttentionGate
from dragoman.models.spec import Block, DecoderSpec, Embedding, Experts, HeadNorm

_NAMES = (
    DEEPSEEK_NAMES
    | HEAD_NORM_NAMES
    | {
        "qkv": (
            "model.layers.{layer}.self_attn.q_proj",
            "model.layers.{layer}.self_attn.gate_proj",
            "model.layers.{layer}.self_attn.k_proj",
            "model.layers.{layer}.self_attn.v_proj",
        ),
        "attention_out_norm": LLAMA_NAMES["feed_forward_norm"],
        "feed_forward_norm": ("model.layers.{layer}.pre_mlp_layernorm",),
        "feed_forward_out_norm": ("model.layers.{layer}.post_mlp_layernorm",),
        "router": ("model.layers.{layer}.mlp.router.gate",),
        "router_choice": ("model.layers.{layer}.mlp.expert_bias",),
    }
)


def _read_afmoe(config: Config) -> DecoderSpec:
    config.refuse("attention_bias", False)
    config.refuse("score_func", "sigmoid")
    config.refuse("route_norm", True)
    config.refuse("n_group", 1)
    config.refuse("topk_group", 1)
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 16_384, "sliding_window": 1024})
    layers, window = config.size("num_hidden_layers"), config.size("sliding_window")
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    if windows is None:
        every = config.size("global_attn_every_n_layers", 4)
        windows = tuple(window if (layer + 1) % every else 0 for layer in range(layers))
    scale = config.size("hidden_size") ** 0.5 if config.flag("mup_enabled", False) else 1.0
    spec = llama_like(
        config,
        architecture="AfmoeForCausalLM",
        default_head_dim=128,
        embedding=Embedding(scale=scale),
        block=Block(norms="around"),
        head_norm=HeadNorm(),
        attention_gate=AttentionGate(),
        experts=_read_experts(config),
        windows=windows,
    )
    return replace(spec, ropes=tuple(rope if seen else None for rope, seen in zip(spec.ropes, windows, strict=True)))


def _read_experts(config: Config) -> Experts:
    inner, dense = config.size("moe_intermediate_size"), config.count("num_dense_layers", 1)
    experts = Experts(
        count=config.size("num_experts", 64),
        active=config.size("num_experts_per_tok", 6),
        feed_forward=inner,
        scores="sigmoid",
        choice_bias=True,
        least=1e-20,
        factor=config.number("route_scale", 1.0),
        shared=inner * config.count("num_shared_experts", 2),
        dense_layers=tuple(range(min(dense, config.size("num_hidden_layers")))),
    )
    return checked(experts)


FAMILIES: dict[str, Family] = {
    "AfmoeForCausalLM": Family(
        _read_afmoe,
        _NAMES,
        "afmoe",
        base="model.",
        other_names=DEEPSEEK_STACKS,
        ignored=ROTARY_BUFFER,
        title="Trinity",
        examples=("arcee-ai/Trinity-Nano-Preview", "arcee-ai/Trinity-Mini"),
    ),
}
