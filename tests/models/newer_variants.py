"""Configs of newer families, whose small checkpoints transformers' own classes make."""

from __future__ import annotations

from variants import Config, family_config

_GPT_BIGCODE: Config = {
    "architectures": ["GPTBigCodeForCausalLM"],
    "model_type": "gpt_bigcode",
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "vocab_size": 131,
}
_MINISTRAL = family_config("MinistralForCausalLM", "ministral", sliding_window=20, head_dim=24)
_SEED_OSS = family_config("SeedOssForCausalLM", "seed_oss", head_dim=24)
_EXAONE4 = family_config("Exaone4ForCausalLM", "exaone4", sliding_window=20, sliding_window_pattern=2)
_ERNIE = family_config("Ernie4_5ForCausalLM", "ernie4_5", head_dim=24)
_HUNYUAN = family_config("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", head_dim=24)
_ALPHA: Config = {"type": "dynamic", "alpha": 8.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}

_ARCEE = family_config("ArceeForCausalLM", "arcee", attention_bias=True, mlp_bias=True)
_APERTUS = family_config("ApertusForCausalLM", "apertus")
_BITNET = family_config("BitNetForCausalLM", "bitnet", tie_word_embeddings=True)
_MINISTRAL3 = family_config(
    "Ministral3ForCausalLM",
    "ministral3",
    head_dim=24,
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "max_position_embeddings": 256,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.5,
    },
)
_IMAGES: Config = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_MISTRAL3: Config = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": {k: v for k, v in _MINISTRAL3.items() if k != "architectures"},
    "vision_config": _IMAGES,
    "vocab_size": 131,
    "image_token_index": 10,
    "tie_word_embeddings": False,
}
_MPT: Config = {
    "architectures": ["MptForCausalLM"],
    "model_type": "mpt",
    "d_model": 60,
    "n_layers": 3,
    "n_heads": 6,
    "vocab_size": 131,
    "max_seq_len": 256,
    "attn_config": {"clip_qkv": 0.6},
}
_DBRX: Config = {
    "architectures": ["DbrxForCausalLM"],
    "model_type": "dbrx",
    "d_model": 64,
    "n_layers": 3,
    "n_heads": 4,
    "vocab_size": 131,
    "max_seq_len": 256,
    "attn_config": {"clip_qkv": 0.6, "kv_n_heads": 2, "rope_theta": 500.0},
    "ffn_config": {"ffn_hidden_size": 50, "moe_num_experts": 4, "moe_top_k": 2},
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
_ROUTED: Config = {"moe_intermediate_size": 33, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
_GLM_MOE = family_config("Glm4MoeForCausalLM", "glm4_moe", **_ROUTED, n_routed_experts=6, head_dim=24)
_DOTS = family_config("Dots1ForCausalLM", "dots1", **_ROUTED, n_routed_experts=8, n_shared_experts=2)
_MINIMAX = family_config(
    "MiniMaxM2ForCausalLM",
    "minimax_m2",
    intermediate_size=40,
    head_dim=24,
    rotary_dim=12,
    num_local_experts=5,
    num_experts_per_tok=2,
)
_ERNIE_MOE = family_config(
    "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_intermediate_size=33, moe_num_experts=5, moe_k=2
)
_HUNYUAN_MOE = family_config("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", num_experts=4, moe_topk=2, head_dim=24)
_PHI_MOE = family_config(
    "PhimoeForCausalLM", "phimoe", intermediate_size=40, num_local_experts=4, router_jitter_noise=0.05
)
_LLAMA4_TEXT = family_config(
    "Llama4ForCausalLM",
    "llama4_text",
    intermediate_size=40,
    intermediate_size_mlp=90,
    head_dim=24,
    num_hidden_layers=4,
    num_local_experts=4,
    interleave_moe_layer_step=2,
    attention_chunk_size=20,
    floor_scale=16,
    attn_scale=0.5,
)
_LLAMA4: Config = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": {k: v for k, v in _LLAMA4_TEXT.items() if k != "architectures"} | {"use_qk_norm": False},
    "vision_config": {
        "model_type": "llama4_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "vision_output_dim": 16,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    },
    "vocab_size": 131,
    "image_token_index": 130,
    "boi_token_index": 128,
    "eoi_token_index": 129,
}
_MLLAMA: Config = {
    "architectures": ["MllamaForConditionalGeneration"],
    "model_type": "mllama",
    "text_config": {
        "model_type": "mllama_text_model",
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "cross_attention_layers": [1, 3],
        "max_position_embeddings": 256,
        "rope_theta": 10_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    "vocab_size": 131,
    "image_token_index": 131,
}
_GPT_OSS = family_config(
    "GptOssForCausalLM",
    "gpt_oss",
    head_dim=24,
    intermediate_size=40,
    num_local_experts=5,
    num_experts_per_tok=2,
    sliding_window=20,
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
)

_GEMMA4 = family_config(
    "Gemma4ForCausalLM",
    "gemma4_text",
    head_dim=24,
    global_head_dim=40,
    num_hidden_layers=4,
    layer_types=["sliding_attention", "full_attention"] * 2,
    sliding_window=20,
    hidden_size_per_layer_input=20,
    vocab_size_per_layer_input=131,
    final_logit_softcapping=30.0,
)
_GEMMA3N = family_config(
    "Gemma3nForCausalLM",
    "gemma3n_text",
    head_dim=24,
    num_hidden_layers=4,
    intermediate_size=[90, 90, 70, 110],
    layer_types=["sliding_attention", "full_attention"] * 2,
    sliding_window=20,
    hidden_size_per_layer_input=20,
    vocab_size_per_layer_input=128,
    num_kv_shared_layers=2,
    laurel_rank=12,
    activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.8],
)
_SENSES: Config = {
    "model_type": "gemma4_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 4,
    "position_embedding_size": 840,
}

NEWER: dict[str, Config] = {
    "ministral": _MINISTRAL | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    "seed-oss": _SEED_OSS,
    "exaone4": _EXAONE4,
    "exaone4-full": _EXAONE4 | {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    "ernie4.5": _ERNIE | {"use_bias": True},
    "hunyuan": _HUNYUAN | {"rope_scaling": _ALPHA, "tie_word_embeddings": True},
    "gpt-bigcode": _GPT_BIGCODE,
    "gpt-bigcode-own-heads": _GPT_BIGCODE | {"multi_query": False, "n_inner": 70, "tie_word_embeddings": False},
    "arcee": _ARCEE,
    "apertus": _APERTUS,
    "bitnet": _BITNET,
    "ministral3": _MINISTRAL3,
    "mistral3-images": _MISTRAL3,
    "mpt": _MPT,
    "dbrx": _DBRX,
    "glm4-moe": _GLM_MOE | {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5},
    "dots1-groups": _DOTS
    | {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    | {"sliding_window": 20, "max_window_layers": 2},
    "minimax-m2": _MINIMAX,
    "ernie4.5-moe": _ERNIE_MOE,
    "hunyuan-moe": _HUNYUAN_MOE | {"attention_bias": True},
    "phi-moe": _PHI_MOE | {"attention_bias": True, "lm_head_bias": True},
    "llama4-text": _LLAMA4_TEXT,
    "llama4-images": _LLAMA4,
    "mllama": _MLLAMA,
    "gpt-oss": _GPT_OSS,
    "gemma4": _GEMMA4,
    "gemma4-shared": _GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    "gemma3n": _GEMMA3N,
    "gemma3n-options": _GEMMA3N
    | {"altup_num_inputs": 3, "altup_active_idx": 1, "altup_correct_scale": False, "num_kv_shared_layers": 0}
    | {"intermediate_size": 90, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gemma4-images": {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {k: v for k, v in _GEMMA4.items() if k != "architectures"} | {"num_kv_shared_layers": 2},
        "vision_config": _SENSES,
        "vocab_size": 131,
        "image_token_id": 130,
        "boi_token_id": 129,
        "eoi_token_id": 128,
    },
    "gemma4-moe": _GEMMA4
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
    | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 33},
}

ONLY_THOROUGH = {"gemma4", "gemma4-images", "gemma3n-options", "kimi-linear-options", "recurrent-gemma-options"}
"""Variants that are held against transformers only with DRAGOMAN_THOROUGH."""

UNMADE: dict[str, Config] = {
    "idefics": family_config("IdeficsForVisionText2Text", "idefics", qk_layer_norms=True, vision_config={}),
    "baichuan": family_config("BaichuanForCausalLM", "baichuan"),
    "baichuan-alibi": family_config("BaichuanForCausalLM", "baichuan", max_position_embeddings=None),
    "gemma3n-images": {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "text_config": {k: v for k, v in _GEMMA3N.items() if k != "architectures"},
        "vision_config": {"model_type": "gemma3n_vision"},
        "audio_config": {"model_type": "gemma3n_audio"},
    },
    "exaone": {
        "architectures": ["ExaoneForCausalLM"],
        "model_type": "exaone",
        "hidden_size": 64,
        "num_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 131,
        "max_position_embeddings": 256,
        "layer_norm_epsilon": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "internlm2": family_config("InternLM2ForCausalLM", "internlm2", intermediate_size=96, rms_norm_eps=1e-5),
    "minicpm": family_config("MiniCPMForCausalLM", "minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=32),
    "phi4-multimodal": family_config("Phi4MMForCausalLM", "phi4mm", rms_norm_eps=1e-5),
    "mimo": family_config("MiMoForCausalLM", "mimo", intermediate_size=96, rms_norm_eps=1e-5, attention_bias=True),
    "mimo-v2.5": family_config("MiMoV2ForCausalLM", "mimo_v2", head_dim=96, v_head_dim=64, num_attention_heads=4)
    | {"num_key_value_heads": 2, "swa_num_key_value_heads": 4, "sliding_window": 19, "sliding_window_size": 19}
    | {"moe_intermediate_size": 33, "num_experts_per_tok": 2, "n_routed_experts": 6, "layernorm_epsilon": 1e-5}
    | {"hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1], "attention_projection_layout": "fused_qkv"}
    | {"rope_theta": 5_000_000, "swa_rope_theta": 10_000, "partial_rotary_factor": 0.334, "n_shared_experts": None}
    | {"attention_value_scale": 0.612, "routed_scaling_factor": None, "add_swa_attention_sink_bias": True},
    "ling": family_config("BailingMoeV2ForCausalLM", "bailing_moe", head_dim=24, num_hidden_layers=2)
    | {"num_experts": 6, "num_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 33}
    | {"n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
    | {"rms_norm_eps": 1e-5, "rope_theta": 10_000, "partial_rotary_factor": 0.5},
    "ling-linear": family_config("BailingMoeLinearV2ForCausalLM", "bailing_moe_linear", head_dim=24)
    | {"num_hidden_layers": 4, "num_attention_heads": 6, "layer_group_size": 3, "group_norm_size": 3}
    | {"num_experts": 6, "num_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 33}
    | {"n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
    | {"rms_norm_eps": 1e-5, "rope_theta": 10_000, "partial_rotary_factor": 0.5, "linear_silu": False},
    "ling-hybrid": family_config("BailingMoeV2_5ForCausalLM", "bailing_hybrid", head_dim=24)
    | {"num_hidden_layers": 4, "num_attention_heads": 6, "layer_group_size": 3, "group_norm_size": 3}
    | {"num_experts": 6, "num_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 33}
    | {"n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
    | {"kv_lora_rank": 64, "q_lora_rank": 24, "qk_rope_head_dim": 12, "qk_nope_head_dim": 20, "v_head_dim": 32}
    | {"rope_theta": 10_000, "partial_rotary_factor": 0.5, "linear_silu": False, "rope_interleave": True}
    | {"score_function": "sigmoid", "scoring_func": "sigmoid", "topk_method": "noaux_tc", "seq_aux": True},
}
"""Configs of which transformers makes no models, or only with further packages, or none that take tokens alone."""
