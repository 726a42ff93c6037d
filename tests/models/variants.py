"""Configs whose small checkpoints transformers' own classes make: every option of a family, odd in every way."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

_SIZES: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 90,
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}


def family_config(architecture: str, model_type: str, **options: Any) -> Config:
    """A small config of a family with the usual names of sizes."""
    return {"architectures": [architecture], "model_type": model_type} | _SIZES | options


_PHI = family_config("PhiForCausalLM", "phi")
_PHI3 = family_config("Phi3ForCausalLM", "phi3", rms_norm_eps=1e-5)
_GEMMA = family_config("GemmaForCausalLM", "gemma", head_dim=24, hidden_act="gelu")
_GEMMA2 = family_config("Gemma2ForCausalLM", "gemma2", head_dim=24, sliding_window=20, query_pre_attn_scalar=30)
_GEMMA3 = family_config(
    "Gemma3ForCausalLM",
    "gemma3_text",
    head_dim=24,
    sliding_window=20,
    sliding_window_pattern=2,
    rope_theta=1_000_000.0,
    rope_local_base_freq=10_000.0,
    query_pre_attn_scalar=30,
)
_STABLELM = family_config("StableLmForCausalLM", "stablelm", partial_rotary_factor=0.25)
_STARCODER2 = family_config("Starcoder2ForCausalLM", "starcoder2")
_OLMO2 = family_config("Olmo2ForCausalLM", "olmo2")
_OLMO3 = family_config("Olmo3ForCausalLM", "olmo3", sliding_window=20, rope_theta=500_000.0)
_GRANITE = family_config(
    "GraniteForCausalLM",
    "granite",
    embedding_multiplier=12.0,
    residual_multiplier=0.22,
    attention_multiplier=0.3,
    logits_scaling=6.0,
)
_SMOLLM3 = family_config("SmolLM3ForCausalLM", "smollm3", no_rope_layer_interval=2)
_COHERE = family_config("CohereForCausalLM", "cohere", logit_scale=0.3)
_COHERE2 = family_config("Cohere2ForCausalLM", "cohere2", logit_scale=0.3, sliding_window=20, sliding_window_pattern=2)
_LFM2 = family_config(
    "Lfm2ForCausalLM",
    "lfm2",
    layer_types=["conv", "full_attention", "conv"],
    intermediate_size=150,
    block_multiple_of=10,
    block_ffn_dim_multiplier=1.1,
)
_QWEN35 = family_config(
    "Qwen3_5ForCausalLM",
    "qwen3_5_text",
    head_dim=24,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=12,
    linear_value_head_dim=20,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 7777.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 2, 2],
        "mrope_interleaved": True,
    },
)
_QWEN3_NEXT = _QWEN35 | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 7777.0, "partial_rotary_factor": 0.5},
    "attention_bias": True,
    "moe_intermediate_size": 33,
    "shared_expert_intermediate_size": 50,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
}
_QWEN35_MOE = {key: value for key, value in _QWEN35.items() if key != "intermediate_size"} | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 33,
    "shared_expert_intermediate_size": 50,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}

_GRANITE4 = _GRANITE | {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 0,
    "shared_intermediate_size": 70,
    "mamba_n_heads": 16,
    "mamba_d_head": 8,
    "mamba_expand": 2,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "position_embedding_type": "nope",
}


def _with_images(config: Config, architecture: str, model_type: str) -> Config:
    text = {key: value for key, value in config.items() if key != "architectures"}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
    return {"architectures": [architecture], "model_type": model_type, "text_config": text, "vision_config": vision} | {
        "vocab_size": config["vocab_size"],
        "image_token_id": 130,
        "video_token_id": 129,
        "vision_start_token_id": 128,
        "vision_end_token_id": 127,
    }


_GLM = family_config("GlmForCausalLM", "glm", head_dim=16)
_GLM4 = family_config("Glm4ForCausalLM", "glm4", head_dim=24)

_GRANITE_MOE = _GRANITE | {
    "architectures": ["GraniteMoeForCausalLM"],
    "model_type": "granitemoe",
    "intermediate_size": 40,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}
_NEOX = family_config("GPTNeoXForCausalLM", "gpt_neox", rotary_pct=0.25)
_GPTJ: Config = {
    "architectures": ["GPTJForCausalLM"],
    "model_type": "gptj",
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "rotary_dim": 6,
    "vocab_size": 131,
}
_OPT = family_config("OPTForCausalLM", "opt", ffn_dim=90)
_BLOOM: Config = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 60,
    "n_layer": 3,
    "n_head": 6,
    "vocab_size": 131,
    "seq_length": 256,
}
_FALCON = family_config("FalconForCausalLM", "falcon")
for _config, _absent in (
    (_NEOX, ("num_key_value_heads",)),
    (_OPT, ("num_key_value_heads", "intermediate_size")),
    (_FALCON, ("num_key_value_heads", "intermediate_size")),
):
    for _key in _absent:
        del _config[_key]

_GEMMA3_BOTH: Config = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {k: v for k, v in _GEMMA3.items() if k != "architectures"},
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "image_token_index": 130,
    "boi_token_index": 128,
    "eoi_token_index": 129,
    "vocab_size": 131,
}


def _longrope(pairs: int) -> Config:
    return {
        "type": "longrope",
        "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
        "long_factor": [1.0 + 0.9 * i for i in range(pairs)],
    }


MADE_BY_TRANSFORMERS: dict[str, Config] = {
    "qwen3.5": _QWEN35,
    "qwen3.5-moe": _QWEN35_MOE,
    "qwen3.5-images": _with_images(_QWEN35, "Qwen3_5ForConditionalGeneration", "qwen3_5"),
    "qwen3.5-moe-images": _with_images(_QWEN35_MOE, "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
    "qwen3-next": _QWEN3_NEXT,
    "granite4": _GRANITE4,
    "granite4-moe": _GRANITE4
    | {
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 40,
        "mamba_proj_bias": True,
        "mamba_conv_bias": False,
        "mamba_n_groups": 1,
        "position_embedding_type": "rope",
        "tie_word_embeddings": True,
    },
    "granite4-attention": _GRANITE4 | {"layer_types": ["full_attention"] * 3, "position_embedding_type": "rope"},
    "lfm2": _LFM2,
    "lfm2-options": _LFM2
    | {
        "layer_types": ["full_attention", "conv", "full_attention"],
        "conv_L_cache": 4,
        "conv_bias": True,
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7777.0},
    },
    "phi": _PHI,
    "phi-norms": _PHI
    | {"qk_layernorm": True, "partial_rotary_factor": 0.4, "hidden_size": 80, "tie_word_embeddings": True},
    "phi3": _PHI3,
    "phi3-window": _PHI3 | {"sliding_window": 20, "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    "phi3-long": _PHI3 | {"original_max_position_embeddings": 32, "rope_scaling": _longrope(8)},
    "phi3-short-partial": _PHI3
    | {
        "original_max_position_embeddings": 256,  # all of the context: the short factors
        "partial_rotary_factor": 0.75,
        "rope_scaling": _longrope(6) | {"factor": 4.0},
    },
    "gemma": _GEMMA,
    "gemma-biases": _GEMMA | {"attention_bias": True, "hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 1},
    "gemma2": _GEMMA2,
    "gemma2-uncapped": _GEMMA2
    | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": False,
    },
    "gemma2-tight-caps": _GEMMA2 | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3": _GEMMA3,
    "gemma3-newer-config": {k: v for k, v in _GEMMA3.items() if k not in ("rope_theta", "rope_local_base_freq")}
    | {
        "attention_bias": True,
        "final_logit_softcapping": 5.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
        },
    },
    "gemma3-images": _GEMMA3_BOTH,
    "stablelm": _STABLELM,
    "stablelm-parallel": _STABLELM
    | {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "stablelm-yarn": _STABLELM
    | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "starcoder2": _STARCODER2,
    "starcoder2-window": _STARCODER2
    | {"sliding_window": 20, "use_bias": False, "tie_word_embeddings": False, "hidden_act": "gelu"},
    "olmo2": _OLMO2,
    "olmo2-biases": _OLMO2 | {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
    "olmo3": _OLMO3 | {"num_hidden_layers": 4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "granite": _GRANITE,
    "granite-biases": _GRANITE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "granite-moe": _GRANITE_MOE,
    "granite-moe-shared": _GRANITE_MOE
    | {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
    | {"shared_intermediate_size": 70, "attention_bias": True, "tie_word_embeddings": True},
    "gpt-neox": _NEOX,
    "gpt-neox-sequential": _NEOX
    | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_fast"}
    | {"hidden_size": 50, "num_attention_heads": 5, "rotary_pct": 1.0, "rotary_emb_base": 500},
    "gptj": _GPTJ,
    "gptj-whole-heads": _GPTJ | {"rotary_dim": 12, "n_inner": 70, "tie_word_embeddings": True},
    "opt": _OPT,
    "opt-350m": _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 40},
    "opt-plain": _OPT
    | {"enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"}
    | {"tie_word_embeddings": False},
    "opt-old": _OPT | {"_remove_final_layer_norm": True},
    "bloom": _BLOOM,
    "bloom-untied": _BLOOM | {"tie_word_embeddings": False, "n_head": 4},
    "falcon": _FALCON,
    "falcon-40b": _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    "falcon-11b": _FALCON
    | {"new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 90}
    | {"tie_word_embeddings": False, "rope_theta": 500.0},
    "falcon-rw": _FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    "smollm3": _SMOLLM3,
    "smollm3-windows": _SMOLLM3
    | {
        "use_sliding_window": True,
        "sliding_window": 20,
        "no_rope_layers": [1, 0, 0],
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    },
    "smollm3-layer-types": _SMOLLM3
    | {
        "use_sliding_window": True,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5_000.0},
    },
    "cohere": _COHERE,
    "cohere-norms": _COHERE
    | {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False}
    | {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "cohere2": _COHERE2,
    "cohere2-biases": _COHERE2
    | {
        "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": False,
    },
    "glm": _GLM,
    "glm-no-biases": _GLM | {"attention_bias": False, "partial_rotary_factor": 1.0, "tie_word_embeddings": True},
    "glm4": _GLM4,
    "glm4-no-biases": _GLM4 | {"attention_bias": False, "partial_rotary_factor": 0.25, "num_key_value_heads": 1},
}
