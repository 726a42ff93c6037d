"""Configs of decoders with latent attention, whose small checkpoints transformers' own classes make."""

from __future__ import annotations

from typing import Any

from variants import Config, family_config

_LATENT: Config = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 12,
    "qk_nope_head_dim": 10,
    "v_head_dim": 32,
}
_ROUTED: Config = {"moe_intermediate_size": 33, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3}
_YARN: Config = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}
_INDEX: Config = {"index_topk": 128, "first_k_dense_replace": 1}

LATENT: dict[str, Config] = {
    "deepseek-v3": family_config("DeepseekV3ForCausalLM", "deepseek_v3", **_LATENT, **_ROUTED)
    | {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "attention_bias": True}
    | {"rope_parameters": _YARN},
    "deepseek-v2": family_config("DeepseekV2ForCausalLM", "deepseek_v2", **_LATENT, **_ROUTED)
    | {"q_lora_rank": None, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
    | {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "kv_lora_rank": 64},
    "minicpm3": family_config("MiniCPM3ForCausalLM", "minicpm3", **_LATENT)
    | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32, "tie_word_embeddings": True, "hidden_size": 128},
    "glm4-moe-lite": family_config("Glm4MoeLiteForCausalLM", "glm4_moe_lite", **_LATENT, **_ROUTED)
    | {"routed_scaling_factor": 1.8, "kv_lora_rank": 96, "qk_rope_head_dim": 30},
    "mistral4": family_config("Mistral4ForCausalLM", "mistral4", **_LATENT, **_ROUTED)
    | {"first_k_dense_replace": 1, "rope_parameters": _YARN | {"llama_4_scaling_beta": 0.5}},
    "deepseek-v3.2": family_config("DeepseekV32ForCausalLM", "deepseek_v32", **_LATENT, **_ROUTED, **_INDEX)
    | {"n_group": 2, "topk_group": 1},
    "glm-5": family_config("GlmMoeDsaForCausalLM", "glm_moe_dsa", **_LATENT, **_ROUTED, **_INDEX)
    | {"n_group": 1, "topk_group": 1},
    "youtu": family_config("YoutuForCausalLM", "youtu", **_LATENT)
    | {"rope_interleave": False, "v_head_dim": 64, "pad_token_id": None},
    "axk1": family_config("AXK1ForCausalLM", "axk1", **_LATENT, **_ROUTED)
    | {"n_group": 4, "topk_group": 2, "mlp_layer_types": ["sparse", "dense", "sparse"], "rope_parameters": _YARN},
    "longcat-flash": {
        "architectures": ["LongcatFlashForCausalLM"],
        "model_type": "longcat_flash",
        "hidden_size": 64,
        "num_layers": 2,
        "num_attention_heads": 4,
        "ffn_hidden_size": 90,
        "expert_ffn_hidden_size": 33,
        "vocab_size": 131,
        "max_position_embeddings": 256,
        "n_routed_experts": 5,
        "zero_expert_num": 3,
        "moe_topk": 3,
        "head_dim": 12,
        "routed_scaling_factor": 1.5,
        "pad_token_id": 0,
    }
    | _LATENT,
}

REPEATED = ("axk1", "glm4-moe-lite", "deepseek-v3.2", "glm-5", "youtu")
"""Variants whose operations are those of others, in the same order."""


def _published(architecture: str, width: int, layers: int, heads: int, inner: int, vocab: int, **more: Any) -> Config:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocab}
    return {"architectures": [architecture], "intermediate_size": inner, "num_key_value_heads": heads} | sizes | more


PUBLISHED: dict[str, tuple[Config, int]] = {
    "LongCat-Flash": (
        {"architectures": ["LongcatFlashForCausalLM"], "hidden_size": 6144, "num_layers": 28, "vocab_size": 131072}
        | {"num_attention_heads": 64, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "moe_topk": 12}
        | {"n_routed_experts": 512, "zero_expert_num": 256},
        560_664_980_480,
    ),
    "A.X K1": (
        _published("AXK1ForCausalLM", 7168, 61, 64, 18432, 163840) | {"moe_intermediate_size": 2048},
        518_983_063_808,
    ),
    "DeepSeek V2-Lite": (
        _published("DeepseekV2ForCausalLM", 2048, 27, 16, 10944, 102400, q_lora_rank=None, num_experts_per_tok=6)
        | {"moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 1},
        15_706_484_224,
    ),
    "DeepSeek V2": (
        _published("DeepseekV2ForCausalLM", 5120, 60, 128, 12288, 102400, num_experts_per_tok=6)
        | {"moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "first_k_dense_replace": 1}
        | {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3, "routed_scaling_factor": 16.0},
        235_741_434_880,
    ),
    "DeepSeek V3": (_published("DeepseekV3ForCausalLM", 7168, 61, 128, 18432, 129280), 671_026_419_200),
    "Kimi K2": (
        _published("DeepseekV3ForCausalLM", 7168, 61, 64, 18432, 163840, n_group=1, topk_group=1)
        | {"n_routed_experts": 384, "first_k_dense_replace": 1},
        1_026_408_232_448,
    ),
    "GLM-4.7-Flash": (_published("Glm4MoeLiteForCausalLM", 2048, 47, 20, 10240, 154880), 29_943_393_920),
    "Youtu-LLM 2B": (_published("YoutuForCausalLM", 2048, 32, 16, 6144, 128256), 1_961_560_064),
    "MiniCPM3 4B": (_published("MiniCPM3ForCausalLM", 2560, 62, 40, 6400, 73448), 4_073_875_968),
    "Mistral Small 4": (_published("Mistral4ForCausalLM", 4096, 36, 32, 12288, 131072), 118_972_826_624),
}
