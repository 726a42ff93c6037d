"""A real decoder with random weights, small enough that a step takes a fraction of a millisecond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from dragoman.models.families import FAMILIES, find_family, read_spec
from dragoman.models.head_spec import head_spec
from dragoman.models.parameters import parameters

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


MIXTURE = CONFIG | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "qkv_bias": False,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}

# Sliding and other layers with rotations of their own, norms around branches and of heads, a soft cap.
GEMMA3 = CONFIG | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "head_dim": 16,
    "sliding_window": 40,
    "sliding_window_pattern": 2,
    "final_logit_softcapping": 20.0,
    "tie_word_embeddings": True,
}
# Heads of two sizes, values that are keys, two layers that use the keys and values of others, inputs of layers.
GEMMA4 = CONFIG | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "sliding_window": 40,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 190,
    "tie_word_embeddings": True,
}
# Parallel branches, LayerNorm, biases everywhere, partly rotated heads.
PHI = CONFIG | {"architectures": ["PhiForCausalLM"], "model_type": "phi", "num_key_value_heads": 4}
# Short convolutions with biases before and after a layer of attention.
LFM2 = CONFIG | {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention", "conv"],
    "num_hidden_layers": 3,
    "conv_bias": True,
    "conv_L_cache": 4,
    "block_auto_adjust_ff_dim": False,
    "tie_word_embeddings": False,
}
# Gated delta rules around a layer of attention whose output is gated.
QWEN35 = CONFIG | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 20,
}
# State spaces around a layer of attention.
GRANITE4 = CONFIG | {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention", "mamba"],
    "num_hidden_layers": 3,
    "num_local_experts": 0,
    "shared_intermediate_size": 96,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "embedding_multiplier": 4.0,
    "attention_multiplier": 0.25,
}
# Latent attention.
YOUTU = CONFIG | {
    "architectures": ["YoutuForCausalLM"],
    "model_type": "youtu",
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "tie_word_embeddings": False,
}


# The same with experts, chosen by groups; the first layer has none.
DEEPSEEK_V3 = YOUTU | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
# Experts after ordinary attention with norms of heads.
GLM4_MOE = CONFIG | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "num_hidden_layers": 3,
    "head_dim": 16,
    "use_qk_norm": True,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
# Experts in layers of two kinds.
QWEN3_NEXT = QWEN35 | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}


# Selective scans in every layer, and no attention.
MAMBA = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "state_size": 8,
    "vocab_size": 199,
}
# Attention and a state space in every layer.
FALCON_H1 = CONFIG | {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_state": 16,
    "attention_out_multiplier": 0.5,
    "mlp_multipliers": [0.7, 0.8],
}


# Delta rules with a decay for each number of a key, around a layer of latent attention.
KIMI_LINEAR = YOUTU | {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "dense"],
    "linear_num_heads": 3,
    "linear_head_dim": 20,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 32,
}
# RG-LRUs around a layer of attention within a window.
RECURRENT_GEMMA = CONFIG | {
    "architectures": ["RecurrentGemmaForCausalLM"],
    "model_type": "recurrent_gemma",
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "intermediate_size": 192,
    "attention_window_size": 70,
    "block_types": ["recurrent", "attention", "recurrent"],
    "tie_word_embeddings": False,
}


def make_tiny_llama(folder: Path) -> Path:
    """Write ``config.json`` and ``model.safetensors``. Weights are large enough for peaked, varied logits."""
    return _make(folder, CONFIG, {"": 96})


def make_tiny_mistral(folder: Path) -> Path:
    """The same where 70 positions are seen, in every layer."""
    sliding = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 70}
    return _make(folder, CONFIG | sliding, {"": 96})


def make_tiny_mixture(folder: Path) -> Path:
    """The same with experts, a shared one among them, in place of each feed-forward network."""
    experts = {f"experts.{expert}.": 32 for expert in range(6)}
    return _make(folder, MIXTURE, experts | {"shared_expert.": 48})


def make_tiny_gemma3(folder: Path) -> Path:
    """Write Gemma 3."""
    return make_tiny_family(folder, GEMMA3)


def make_tiny_gemma4(folder: Path) -> Path:
    """Write Gemma 4: heads of two sizes, shared keys and values, inputs of layers, and experts."""
    return make_tiny_family(folder, GEMMA4)


def make_tiny_phi(folder: Path) -> Path:
    """Write Phi-2."""
    return make_tiny_family(folder, PHI)


def make_tiny_lfm2(folder: Path) -> Path:
    """Write LFM2."""
    return make_tiny_family(folder, LFM2)


def make_tiny_qwen35(folder: Path) -> Path:
    """Write Qwen 3.5."""
    return make_tiny_family(folder, QWEN35)


def make_tiny_granite4(folder: Path) -> Path:
    """Write Granite 4."""
    return make_tiny_family(folder, GRANITE4)


def make_tiny_mamba(folder: Path) -> Path:
    """Write Mamba."""
    return make_tiny_family(folder, MAMBA)


def make_tiny_falcon_h1(folder: Path) -> Path:
    """Write Falcon-H1."""
    return make_tiny_family(folder, FALCON_H1)


def make_tiny_recurrent_gemma(folder: Path) -> Path:
    """Write RecurrentGemma."""
    return make_tiny_family(folder, RECURRENT_GEMMA)


def make_tiny_kimi_linear(folder: Path) -> Path:
    """Write Kimi-Linear."""
    return make_tiny_family(folder, KIMI_LINEAR)


def make_tiny_head(folder: Path, config: dict[str, object], *, is_right: bool = False) -> Path:
    """Write a model of any family whose heads are known, with one.

    ``is_right``: no layer adds anything, and the head reads the token alone: it says what the model is going to say.
    """
    make_tiny_family(folder, config)
    family, rng, weights = find_family(config), np.random.default_rng(11), load_file(folder / "model.safetensors")
    spec = read_spec(config)
    assert family.head is not None
    names = family.head
    single = {
        "hidden_in": names.joined,
        "hidden_norm": names.hidden_norm,
        "token_norm": names.token_norm,
        "final_norm": names.final_norm,
    }
    for parameter in parameters(head_spec(spec, feeds_normed=names.feeds_normed)):
        stored = [single.get(parameter.module, "")]
        if not stored[0]:
            stored = [
                name.removeprefix("model.layers.{layer}.").format(expert=parameter.expert)
                for name in family.names[parameter.module]
            ]
            stored = [names.layer + name for name in stored]
        for name, size in zip(stored, parameter.parts if len(stored) > 1 else parameter.shape[:1], strict=True):
            shape = parameter.stored or (size, *parameter.shape[1:])
            values = rng.normal(scale=1.5 / np.sqrt(shape[-1]), size=shape)
            if "norm" in parameter.module:
                values = rng.normal(1 - family.norm_offset, 0 if is_right else 0.2, size=shape)
            if is_right and parameter.module == "hidden_in":
                values = np.concatenate([np.eye(size), np.zeros((size, size))], axis=1)
            short = name.format(layers=spec.layers)
            base = "" if short.startswith("mtp.") else family.base
            weights[f"{base}{short}.{parameter.kind}"] = values.astype(np.float32)
    if is_right:
        last = ("o_proj.weight", "down_proj.weight", "out_proj.weight")
        weights |= {name: np.zeros_like(value) for name, value in weights.items() if name.endswith(last)}
    save_file(weights, folder / "model.safetensors")
    return folder


def make_tiny_youtu(folder: Path) -> Path:
    """Write Youtu-LLM."""
    return make_tiny_family(folder, YOUTU)


def make_tiny_family(folder: Path, config: dict[str, object]) -> Path:
    """Write whatever parameters the decoder of a config has, under the names of its family."""
    spec, family, rng, weights = read_spec(config), find_family(config), np.random.default_rng(7), {}
    for parameter in parameters(spec):
        names = family.names.get(f"{parameter.module}.{parameter.kind}") or family.names[parameter.module]
        for name, size in zip(names, parameter.parts if len(names) > 1 else (parameter.shape[0],), strict=True):
            shape = parameter.stored or (size, *parameter.shape[1:])
            scale = 0.5 if parameter.module in ("mixer_rate", "mixer_step_bias") else 1.5 / np.sqrt(shape[-1])
            values = rng.normal(scale=scale, size=shape)
            if "norm" in parameter.module and parameter.kind == "weight":
                values = np.full(shape, 1 - family.norm_offset)
            stored = name.format(layer=parameter.layer, expert=parameter.expert)
            whole = ("A_log", "dt_bias", ".D", "dt_proj.bias", ".layer_scalar", "_param", "_weight", "_gate_bias")
            if not name.endswith(whole):
                stored = f"{stored}.{parameter.kind}"
            weights[stored] = values.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


def _make(folder: Path, config: dict[str, object], networks: dict[str, int]) -> Path:
    rng = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(scale=1.5 / np.sqrt(columns), size=(rows, columns)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": rng.normal(size=(199, 64)).astype(np.float32),
        "model.norm.weight": np.ones(64, np.float32),
        "lm_head.weight": matrix(199, 64),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", 64, 64),
            ("self_attn.k_proj", 32, 64),
            ("self_attn.v_proj", 32, 64),
            ("self_attn.o_proj", 64, 64),
            *(("mlp.gate", 6, 64), ("mlp.shared_expert_gate", 1, 64))[: 2 * (len(networks) > 1)],
            *((f"mlp.{name}{half}_proj", inner, 64) for name, inner in networks.items() for half in ("gate", "up")),
            *((f"mlp.{name}down_proj", 64, inner) for name, inner in networks.items()),
        ):
            weights[f"{prefix}{name}.weight"] = matrix(rows, columns)
        weights[f"{prefix}input_layernorm.weight"] = np.ones(64, np.float32)
        weights[f"{prefix}post_attention_layernorm.weight"] = np.ones(64, np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


# What adapters of these models change, in each layer: matrices, their outputs and inputs.
_ATTENTION = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
_NETWORK = {"gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}
_CHANGED = {
    "Qwen2MoeForCausalLM": (_ATTENTION, {}),
    "PhiForCausalLM": (
        dict.fromkeys(("q_proj", "k_proj", "v_proj", "dense"), (64, 64)),
        {"fc1": (96, 64), "fc2": (64, 96)},
    ),
    "YoutuForCausalLM": (
        {"q_a_proj": (24, 64), "q_b_proj": (96, 24), "kv_a_proj_with_mqa": (40, 64), "o_proj": (64, 128)},
        _NETWORK,
    ),
}

# The same of models whose layers differ, by layer.
_CHANGED_LAYERS = {
    "Lfm2ForCausalLM": {
        "0.conv.in_proj": (192, 64),
        "1.self_attn.q_proj": (64, 64),
        "2.conv.in_proj": (192, 64),
        **{f"{layer}.feed_forward.w2": (64, 96) for layer in range(3)},
    },
    "Qwen3_5ForCausalLM": {
        "0.linear_attn.in_proj_qkv": (144, 64),
        "0.linear_attn.in_proj_a": (4, 64),
        "1.self_attn.q_proj": (128, 64),
        "2.linear_attn.in_proj_qkv": (144, 64),
        "2.linear_attn.in_proj_a": (4, 64),
        **{f"{layer}.mlp.down_proj": (64, 96) for layer in range(3)},
    },
    "Gemma4ForCausalLM": {
        **{f"{layer}.self_attn.q_proj": (64 + 64 * (layer % 2), 64) for layer in range(4)},
        **{f"{layer}.mlp.down_proj": (64, 96 if layer < 2 else 192) for layer in range(4)},
        **{f"{layer}.per_layer_input_gate": (24, 64) for layer in range(4)},
    },
    "GraniteMoeHybridForCausalLM": {
        "0.mamba.in_proj": (328, 64),
        "1.self_attn.q_proj": (64, 64),
        "2.mamba.in_proj": (328, 64),
    },
    "MambaForCausalLM": {
        **{f"{layer}.mixer.in_proj": (256, 64) for layer in range(2)},
        **{f"{layer}.mixer.x_proj": (20, 128) for layer in range(2)},
        **{f"{layer}.mixer.dt_proj": (128, 4) for layer in range(2)},
    },
    "RecurrentGemmaForCausalLM": {
        **{f"{layer}.temporal_block.linear_{part}": (64, 64) for layer in (0, 2) for part in "xy"},
        "1.temporal_block.q_proj": (64, 64),
        **{f"{layer}.mlp_block.down_proj": (64, 96) for layer in range(3)},
    },
    "KimiLinearForCausalLM": {
        **{f"{layer}.self_attn.k_proj": (60, 64) for layer in (0, 2)},
        **{f"{layer}.self_attn.f_a_proj": (20, 64) for layer in (0, 2)},
        **{f"{layer}.self_attn.g_b_proj": (60, 20) for layer in (0, 2)},
        "1.self_attn.q_b_proj": (96, 24),
    },
    "FalconH1ForCausalLM": {
        **{f"{layer}.mamba.in_proj": (230, 64) for layer in range(2)},
        **{f"{layer}.self_attn.q_proj": (64, 64) for layer in range(2)},
    },
}


def make_tiny_adapter(folder: Path, seed: int, *, architecture: str = "LlamaForCausalLM") -> Path:
    """Write a random adapter in PEFT's layout, of all matrices that it can change; its rank differs by seed."""
    attention, network = _CHANGED.get(architecture, (_ATTENTION, _NETWORK))
    rng, rank = np.random.default_rng(seed), 2 + 3 * seed
    weights = _low_rank(rng, "lm_head", rank, 199, 64)
    if architecture in _CHANGED_LAYERS:
        attention, network = {}, {}
        for name, (rows, columns) in _CHANGED_LAYERS[architecture].items():
            base = FAMILIES[architecture].base
            weights |= _low_rank(rng, f"{base}layers.{name}", rank, rows, columns)
    for layer in range(2):
        for name, (rows, columns) in attention.items():
            weights |= _low_rank(rng, f"model.layers.{layer}.self_attn.{name}", rank, rows, columns)
        for name, (rows, columns) in network.items():
            weights |= _low_rank(rng, f"model.layers.{layer}.mlp.{name}", rank, rows, columns)
    targets = sorted({name.split(".")[-3] for name in weights})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def _low_rank(rng: np.random.Generator, module: str, rank: int, rows: int, columns: int) -> dict[str, np.ndarray]:
    shapes = {"lora_A": (rank, columns), "lora_B": (rows, rank)}
    return {
        f"base_model.model.{module}.{kind}.weight": rng.normal(scale=0.2, size=shape).astype(np.float32)
        for kind, shape in shapes.items()
    }


T5_CONFIG = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 199,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
}


def make_tiny_t5(folder: Path) -> Path:
    """The same of an encoder-decoder model."""
    rng = np.random.default_rng(8)
    spec, names = read_spec(T5_CONFIG), FAMILIES["T5ForConditionalGeneration"].names
    weights = {}
    for parameter in parameters(spec):
        modules = names[parameter.module]
        for part, rows in enumerate(parameter.parts):
            module = modules[part if len(modules) > 1 else 0].format(layer=parameter.layer, part=part)
            shape = (rows, *parameter.shape[1:])
            scale = 1.2 / np.sqrt(shape[-1]) if parameter.matrix and parameter.module != "embedding" else 1.0
            value = np.ones(shape) if parameter.module.endswith("norm") else rng.normal(scale=scale, size=shape)
            weights[f"{module}.weight"] = value.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(T5_CONFIG), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder
