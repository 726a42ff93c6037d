"""Configs of families with a state, whose small checkpoints transformers' own classes make."""

from __future__ import annotations

from variants import MADE_BY_TRANSFORMERS, Config, family_config

_LFM2_MOE = {key: value for key, value in MADE_BY_TRANSFORMERS["lfm2"].items() if not key.startswith("block_")} | {
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 40,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_dense_layers": 1,
}
_MAMBA_SIZES: Config = {
    "mamba_n_heads": 16,
    "mamba_d_head": 8,
    "mamba_expand": 2,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
}
_BAMBA = family_config("BambaForCausalLM", "bamba", attn_layer_indices=[1], **_MAMBA_SIZES)
_FALCON_H1 = family_config("FalconH1ForCausalLM", "falcon_h1", mamba_d_ssm=128, head_dim=24, **_MAMBA_SIZES)
_JAMBA = family_config(
    "JambaForCausalLM",
    "jamba",
    attn_layer_period=3,
    attn_layer_offset=0,
    expert_layer_period=2,
    expert_layer_offset=1,
    num_experts=4,
    num_experts_per_tok=2,
    mamba_d_state=6,
    mamba_dt_rank=20,
)
_NEMOTRON_H: Config = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 90,
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
    "mamba_num_heads": 6,
    "mamba_head_dim": 20,
    "n_groups": 2,
    "ssm_state_size": 24,
}
_RECURRENT_GEMMA = family_config(
    "RecurrentGemmaForCausalLM",
    "recurrent_gemma",
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=140,
    attention_window_size=20,
    block_types=["recurrent", "attention", "recurrent"],
    rope_parameters={"rope_type": "default", "rope_theta": 7777.0, "partial_rotary_factor": 0.25},
)
_KIMI_LINEAR = {
    key: value for key, value in family_config("", "kimi_linear").items() if key != "num_key_value_heads"
} | {
    "architectures": ["KimiLinearForCausalLM"],
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "linear_num_heads": 3,
    "linear_head_dim": 20,
    "moe_intermediate_size": 33,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_expert_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10,
    "v_head_dim": 32,
}
_MINIMAX = family_config(
    "MiniMaxForCausalLM",
    "minimax",
    head_dim=20,
    intermediate_size=40,
    num_local_experts=5,
    block_size=16,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
)
_MAMBA: Config = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "hidden_size": 50,
    "num_hidden_layers": 3,
    "state_size": 12,
    "vocab_size": 131,
    "pad_token_id": 0,
}
_MAMBA2 = _MAMBA | {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 64,
    "num_heads": 16,
    "head_dim": 8,
    "n_groups": 2,
}
_OLMO_HYBRID = family_config(
    "OlmoHybridForCausalLM",
    "olmo_hybrid",
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=40,  # transformers saves convolutions in parts of equal size
    linear_value_head_dim=20,
    rope_parameters={"rope_type": "default", "rope_theta": None},
)
_ZAMBA2: Config = {
    "architectures": ["Zamba2ForCausalLM"],
    "model_type": "zamba2",
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
    "num_attention_heads": 4,
    "intermediate_size": 90,
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "mamba_d_state": 24,
    "n_mamba_heads": 16,
    "num_mem_blocks": 2,
    "adapter_rank": 20,
    "pad_token_id": 0,
}
_ZAMBA: Config = {
    "architectures": ["ZambaForCausalLM"],
    "model_type": "zamba",
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "linear_attention", "hybrid"],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 90,
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "mamba_d_state": 12,
    "pad_token_id": 0,
}

HYBRIDS: dict[str, Config] = {
    "lfm2-moe": _LFM2_MOE,
    "lfm2-moe-plain": _LFM2_MOE
    | {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5, "conv_bias": True}
    | {"num_dense_layers": 0, "tie_word_embeddings": False},
    "bamba": _BAMBA,
    "bamba-biases": _BAMBA
    | {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False}
    | {"attn_layer_indices": [0, 1], "mamba_d_head": "auto", "tie_word_embeddings": True},
    "falcon-h1": _FALCON_H1,
    "falcon-h1-multipliers": _FALCON_H1
    | {
        "embedding_multiplier": 2.5,
        "lm_head_multiplier": 0.4,
        "attention_in_multiplier": 0.8,
        "attention_out_multiplier": 0.7,
        "key_multiplier": 0.6,
        "mlp_multipliers": [0.9, 0.6],
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.5,
        "ssm_multipliers": [0.6, 0.7, 0.8, 0.9, 1.2],
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "projectors_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7777.0},
    },
    "falcon-h1-biases": _FALCON_H1
    | {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False}
    | {"mamba_rms_norm": True, "mamba_d_ssm": None},
    "nemotron-h": _NEMOTRON_H,
    "nemotron-h-biases": _NEMOTRON_H
    | {"use_bias": True, "use_conv_bias": False, "mlp_bias": True, "mlp_hidden_act": "relu"}
    | {"layers_block_type": ["mlp", "full_attention", "linear_attention"]},
    "nemotron-h-moe": _NEMOTRON_H
    | {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "mlp"],
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "n_group": 3,
        "topk_group": 2,
        "moe_intermediate_size": 33,
        "moe_shared_expert_intermediate_size": 50,
        "routed_scaling_factor": 2.5,
    },
    "olmo-hybrid": _OLMO_HYBRID,
    "olmo-hybrid-rotated": _OLMO_HYBRID
    | {
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": None,
        "linear_key_head_dim": None,
        "linear_value_head_dim": 12,
        "linear_allow_neg_eigval": False,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7777.0},
    },
    "recurrent-gemma": _RECURRENT_GEMMA,
    "recurrent-gemma-options": _RECURRENT_GEMMA
    | {"attention_bias": True, "num_key_value_heads": None, "conv1d_width": 3, "logits_soft_cap": 3.0}
    | {"block_types": ["attention", "recurrent"], "tie_word_embeddings": False},
    "kimi-linear": _KIMI_LINEAR,
    "kimi-linear-options": _KIMI_LINEAR
    | {"q_lora_rank": 24, "linear_conv_kernel_dim": 3, "moe_renormalize": False, "num_shared_experts": 2}
    | {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
    "minimax": _MINIMAX
    | {"full_attn_alpha_factor": 1.5, "linear_attn_alpha_factor": 3.5, "mlp_alpha_factor": 2.5}
    | {"full_attn_beta_factor": 0.6, "linear_attn_beta_factor": 0.7, "mlp_beta_factor": 0.8},
    "minimax-options": _MINIMAX
    | {"layer_types": None, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_act": "gelu", "head_dim": None}
    | {"hidden_size": 60, "tie_word_embeddings": True, "sliding_window": 20},
    "mamba2": _MAMBA2,
    "mamba2-biases": _MAMBA2 | {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True},
    "mamba": _MAMBA,
    "mamba-biases": _MAMBA
    | {"use_bias": True, "use_conv_bias": False, "time_step_rank": 9, "tie_word_embeddings": False, "expand": 3},
    "falcon-mamba": _MAMBA | {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"},
    "jamba": _JAMBA,
    "jamba-dense": _JAMBA
    | {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False}
    | {"tie_word_embeddings": True, "mamba_dt_rank": "auto"},
    "zamba": _ZAMBA,
    "zamba-options": _ZAMBA
    | {"num_key_value_heads": 2, "attention_head_dim": 24, "n_mamba_heads": 4, "mamba_dt_rank": 7, "mamba_d_conv": 3}
    | {"mamba_proj_bias": True, "mamba_conv_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-4}
    | {"layers_block_type": None, "num_hidden_layers": 6, "attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba2": _ZAMBA2 | {"num_key_value_heads": 2, "mamba_ngroups": 2, "rms_norm_eps": 1e-4, "time_step_min": 0.4},
    "zamba2-options": _ZAMBA2
    | {"use_shared_attention_adapter": True, "use_mem_rope": True, "add_bias_linear": True, "num_mem_blocks": 1}
    | {"layers_block_type": ["hybrid", "linear_attention", "hybrid"], "num_hidden_layers": 3, "hidden_act": "silu"}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 7777.0}},
}
