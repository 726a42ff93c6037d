"""Configs of the newest families of transformers, whose small checkpoints transformers' own classes make."""

from __future__ import annotations

from text_part_variants import TEXT_PARTS
from variants import Config, family_config

_ROUTED: Config = {"moe_intermediate_size": 33, "num_experts_per_tok": 2}
_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
_LINEAR: Config = {"rope_type": "linear", "factor": 2.0, "rope_theta": 3000.0}

_NEMOTRON = family_config("NemotronForCausalLM", "nemotron", head_dim=24)
_JAIS2 = family_config("Jais2ForCausalLM", "jais2")
_CWM = family_config("CwmForCausalLM", "cwm", head_dim=24, sliding_window=20)
_HELIUM = family_config("HeliumForCausalLM", "helium", head_dim=16)
_HYPERCLOVA = family_config("HyperCLOVAXForCausalLM", "hyperclovax", logits_scaling=0.3, residual_multiplier=0.5)
_GRANITE_SWA = family_config("GraniteSWAForCausalLM", "granite_swa", sliding_window=20, attention_multiplier=0.3)
_GRANITE_MOE_SWA = _GRANITE_SWA | {
    "architectures": ["GraniteMoeSWAForCausalLM"],
    "model_type": "granitemoe_swa",
    "intermediate_size": 40,
    "shared_intermediate_size": 50,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "layer_types": _SLIDING,
}
_OLMO = family_config("OlmoForCausalLM", "olmo", clip_qkv=0.6)
_FLEX_OLMO = family_config(
    "FlexOlmoForCausalLM", "flex_olmo", intermediate_size=40, num_experts=5, num_experts_per_tok=2
)
_VAULT = family_config("VaultGemmaForCausalLM", "vaultgemma", head_dim=24, sliding_window=20, query_pre_attn_scalar=30)
_AFMOE = family_config("AfmoeForCausalLM", "afmoe", **_ROUTED, head_dim=24, num_experts=6, sliding_window=20)
_SOLAR = family_config("SolarOpenForCausalLM", "solar_open", **_ROUTED, head_dim=24, n_routed_experts=6)
_EXAONE = family_config("ExaoneMoeForCausalLM", "exaone_moe", **_ROUTED, num_experts=6, sliding_window=20)
_HY3 = family_config("HYV3ForCausalLM", "hy_v3", **_ROUTED, head_dim=24, num_experts=6)
_MELLUM = family_config("MellumForCausalLM", "mellum", **_ROUTED, head_dim=24, num_experts=6, sliding_window=20)
_FLINT = family_config("FlintForCausalLM", "flint", **_ROUTED, head_dim=24, num_experts=6, sliding_window=20)
_INTERNLM3 = family_config("InternLM3ForCausalLM", "internlm3", head_dim=24)
_IQUEST = family_config("IQuestCoderForCausalLM", "iquestcoder", head_dim=24, tie_word_embeddings=True)
_LFM3 = family_config(
    "Lfm3ForCausalLM",
    "lfm3",
    head_dim=24,
    num_hidden_layers=4,
    layer_types=["conv", "sliding_attention", "conv", "full_attention"],
    sliding_window=20,
)
_LAGUNA = family_config(
    "LagunaForCausalLM",
    "laguna",
    **_ROUTED,
    head_dim=32,
    num_experts=6,
    shared_expert_intermediate_size=50,
    sliding_window=20,
    layer_types=_SLIDING,
)
_MIMO_V2 = family_config(
    "MiMoV2FlashForCausalLM",
    "mimo_v2_flash",
    **_ROUTED,
    head_dim=96,
    v_head_dim=64,
    n_routed_experts=6,
    num_attention_heads=4,
    num_key_value_heads=1,
    sliding_window=20,
)
_COHERE2_MOE = family_config("Cohere2MoeForCausalLM", "cohere2_moe", head_dim=24, num_experts=6, sliding_window=20)

NEWCOMERS: dict[str, Config] = {
    "nemotron": _NEMOTRON,
    "nemotron-biases": _NEMOTRON
    | {"attention_bias": True, "mlp_bias": True}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 3000.0, "partial_rotary_factor": 0.25}},
    "jais2": _JAIS2,
    "cwm": _CWM,
    "cwm-layer-types": _CWM | {"layer_types": _SLIDING, "rope_parameters": _LINEAR},
    "helium": _HELIUM | {"attention_bias": True, "mlp_bias": True},
    "hyperclova-x": _HYPERCLOVA | {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "mlp_bias": True},
    "hyperclova-x-no-post-norms": _HYPERCLOVA | {"use_post_norm": False, "attention_bias": True},
    "granite-swa": _GRANITE_SWA | {"layer_rope_theta": [10_000.0, 0, 500.0], "logits_scaling": 6.0},
    "granite-moe-swa": _GRANITE_MOE_SWA,
    "olmo": _OLMO | {"num_key_value_heads": 4},
    "flex-olmo": _FLEX_OLMO | {"norm_topk_prob": True},
    "vault-gemma": _VAULT | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
    "afmoe": _AFMOE | {"mup_enabled": True, "route_scale": 1.5, "global_attn_every_n_layers": 2},
    "solar-open": _SOLAR | {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5, "attention_bias": True},
    "exaone-moe": _EXAONE | {"sliding_window_pattern": 2, "num_shared_experts": 2},
    "hy3": _HY3 | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "mellum": _MELLUM
    | {"layer_types": _SLIDING, "mlp_layer_types": ["sparse", "dense", "sparse"]}
    | {"rope_parameters": {"full_attention": _LINEAR, "sliding_attention": {"rope_theta": 500.0}}},
    "internlm3": _INTERNLM3 | {"attention_bias": True, "mlp_bias": True},
    "iquest-coder": _IQUEST,
    "lfm3": _LFM3,
    "lfm3-options": _LFM3
    | {"use_sandwich_norm": False, "conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False}
    | {"rope_parameters": {"full_attention": _LINEAR, "sliding_attention": {"rope_theta": 500.0}}},
    "flint": _FLINT | {"layer_types": _SLIDING, "mlp_only_layers": [1], "shared_expert_intermediate_size": 50},
    "laguna": _LAGUNA | {"num_attention_heads_per_layer": [6, 4, 2], "moe_routed_scaling_factor": 2.5},
    "laguna-by-element": _LAGUNA
    | {"gating": "per-element", "head_dim": 24, "layer_types": None, "mlp_layer_types": ["dense", "dense", "sparse"]},
    "laguna-ropes": _LAGUNA
    | {
        "num_attention_heads_per_layer": [8, 2, 8],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 3000.0,
                "partial_rotary_factor": 0.25,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "mimo-v2": _MIMO_V2,
    "mimo-v2-options": _MIMO_V2
    | {"layer_types": _SLIDING, "mlp_layer_types": ["sparse", "dense", "sparse"], "v_head_dim": 64}
    | {"attention_value_scale": None, "attention_bias": True, "n_group": 3, "topk_group": 2, "head_dim": 64}
    | {"routed_scaling_factor": 1.5, "norm_topk_prob": False}
    | {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 3000.0,
                "partial_rotary_factor": 0.25,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        }
    },
    "cohere2-moe": _COHERE2_MOE
    | {"num_shared_experts": 2, "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 50, "logit_scale": 0.3},
    "cohere2-moe-options": _COHERE2_MOE
    | {"num_shared_experts": 1, "shared_expert_combination_strategy": "sum", "expert_selection_fn": "sigmoid"}
    | {"rms_norm_eps": 1e-6, "mlp_layer_types": ["sparse", "dense", "sparse"], "layer_types": _SLIDING},
    "cohere2-moe-sigmoids": _COHERE2_MOE
    | {"expert_selection_fn": "sigmoid", "norm_topk_prob": False, "sliding_window_pattern": 2, "hidden_act": "gelu"}
    | {"first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2},
} | TEXT_PARTS

RARELY_JUDGED = NEWCOMERS.keys() - {"afmoe", "granite-swa", "lfm3", "nemotron"}
"""Variants that are held against transformers' numbers only with DRAGOMAN_THOROUGH."""
