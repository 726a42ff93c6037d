"""Sizes of published models with states, from their configs: (config, number of parameters). Counts include the learned
biases of routers, which some pages leave out."""

from __future__ import annotations

from typing import Any

_QWEN: dict[str, Any] = {
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
_GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "vocab_size": 100352,
    "num_local_experts": 0,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "mamba_n_heads": 48,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "tie_word_embeddings": True,
}
_ZAMBA2: dict[str, Any] = {
    "architectures": ["Zamba2ForCausalLM"],
    "vocab_size": 32000,
    "num_attention_heads": 32,
    "adapter_rank": 128,
    "time_step_limit": None,
    "use_long_context": False,
}

RECURRENT: dict[str, tuple[dict[str, Any], int]] = {
    "LFM2 8B A1B": (
        {
            "architectures": ["Lfm2MoeForCausalLM"],
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "vocab_size": 65536,
            "layer_types": [
                "conv",
                "conv",
                "full_attention",
                "conv",
                "conv",
                "conv",
                "full_attention",
                "conv",
                "conv",
                "conv",
                "full_attention",
                "conv",
                "conv",
                "conv",
                "full_attention",
                "conv",
                "conv",
                "conv",
                "full_attention",
                "conv",
                "conv",
                "full_attention",
                "conv",
                "conv",
            ],
            "num_dense_layers": 2,
            "num_experts": 32,
            "num_experts_per_tok": 4,
        },
        8_339_930_560,
    ),
    "Mamba 130M": (
        {"architectures": ["MambaForCausalLM"], "vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24},
        129_135_360,
    ),
    "Mamba 2.8B": (
        {"architectures": ["MambaForCausalLM"], "vocab_size": 50280, "hidden_size": 2560, "num_hidden_layers": 64},
        2_768_345_600,
    ),
    "Falcon Mamba 7B": (
        {
            "architectures": ["FalconMambaForCausalLM"],
            "vocab_size": 65024,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "time_step_rank": 256,
            "tie_word_embeddings": False,
        },
        7_272_665_088,
    ),
    "Mamba Codestral 7B": (
        {
            "architectures": ["Mamba2ForCausalLM"],
            "vocab_size": 32768,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
        },
        7_285_403_648,
    ),
    "Jamba 52B": (
        {
            "architectures": ["JambaForCausalLM"],
            "vocab_size": 65536,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "mamba_dt_rank": 256,
        },
        51_570_323_328,
    ),
    "Jamba 2 3B": (
        {
            "architectures": ["JambaForCausalLM"],
            "vocab_size": 65536,
            "hidden_size": 2560,
            "num_hidden_layers": 28,
            "intermediate_size": 8192,
            "num_attention_heads": 20,
            "num_key_value_heads": 1,
            "mamba_dt_rank": 160,
            "num_experts": 1,
            "attn_layer_period": 14,
            "attn_layer_offset": 7,
            "tie_word_embeddings": True,
        },
        3_029_337_472,
    ),
    "Bamba 9B": (
        {
            "architectures": ["BambaForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_indices": [9, 18, 27],
            "mamba_d_state": 128,
        },
        9_780_235_392,
    ),
    "Falcon-H1 0.5B": (
        {
            "architectures": ["FalconH1ForCausalLM"],
            "vocab_size": 32784,
            "hidden_size": 1024,
            "num_hidden_layers": 36,
            "intermediate_size": 2048,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "mamba_d_ssm": 1536,
            "mamba_n_heads": 24,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
        },
        521_411_104,
    ),
    "Nemotron Nano 9B v2": (
        {
            "architectures": ["NemotronHForCausalLM"],
            "vocab_size": 131072,
            "hidden_size": 4480,
            "intermediate_size": 15680,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
            "mamba_num_heads": 128,
            "mamba_head_dim": 80,
            "ssm_state_size": 128,
            "n_groups": 8,
        },
        8_888_227_328,
    ),
    "Nemotron 3 Nano 30B": (
        {
            "architectures": ["NemotronHForCausalLM"],
            "vocab_size": 131072,
            "hidden_size": 2688,
            "intermediate_size": 1856,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
        },
        31_577_940_288,
    ),
    "RecurrentGemma 2B": (
        {
            "architectures": ["RecurrentGemmaForCausalLM"],
            "vocab_size": 256000,
            "hidden_size": 2560,
            "num_hidden_layers": 26,
            "intermediate_size": 15360,
            "num_attention_heads": 10,
            "num_key_value_heads": 1,
            "lru_width": 2560,
        },
        2_682_862_080,
    ),
    "RecurrentGemma 9B": (
        {
            "architectures": ["RecurrentGemmaForCausalLM"],
            "vocab_size": 256000,
            "hidden_size": 4096,
            "num_hidden_layers": 38,
            "intermediate_size": 24576,
            "num_attention_heads": 16,
            "num_key_value_heads": 1,
            "lru_width": 4096,
        },
        8_579_977_216,
    ),
    "Kimi-Linear 48B A3B": (
        {
            "architectures": ["KimiLinearForCausalLM"],
            "first_k_dense_replace": 1,
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        },
        49_122_681_728,
    ),
    "OLMo-Hybrid 7B": (
        {
            "architectures": ["OlmoHybridForCausalLM"],
            "vocab_size": 100352,
            "hidden_size": 3840,
            "num_hidden_layers": 32,
            "intermediate_size": 11008,
            "num_attention_heads": 30,
            "rope_parameters": {"rope_theta": None},
        },
        7_430_870_688,
    ),
    "Qwen3-Next 80B A3B": (
        _QWEN
        | {"architectures": ["Qwen3NextForCausalLM"], "vocab_size": 151936, "hidden_size": 2048}
        | {"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32}
        | {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
        | {"shared_expert_intermediate_size": 512, "intermediate_size": 5120},
        79_674_391_296,
    ),
    "Qwen 3.5 0.8B": (
        _QWEN
        | {"architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 248320, "hidden_size": 1024}
        | {"intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2}
        | {"linear_num_value_heads": 16, "tie_word_embeddings": True},
        752_393_024,
    ),
    "Qwen 3.5 4B": (
        _QWEN
        | {"architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 248320, "hidden_size": 2560}
        | {"intermediate_size": 9216, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4}
        | {"linear_num_value_heads": 32, "tie_word_embeddings": True},
        4_205_751_296,
    ),
    "Qwen 3.5 27B": (
        _QWEN
        | {"architectures": ["Qwen3_5ForCausalLM"], "vocab_size": 248320, "hidden_size": 5120}
        | {"intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4}
        | {"linear_num_value_heads": 48},
        26_895_998_464,
    ),
    "Qwen 3.5 35B A3B": (
        _QWEN
        | {"architectures": ["Qwen3_5MoeForCausalLM"], "vocab_size": 248320, "hidden_size": 2048}
        | {"num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32}
        | {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
        | {"shared_expert_intermediate_size": 512},
        34_660_610_688,
    ),
    "Granite 4.0 H 350M": (
        _GRANITE
        | {"hidden_size": 768, "shared_intermediate_size": 2048, "num_hidden_layers": 32, "mamba_d_head": 32}
        | {"layer_types": ["attention" if i in (10, 13, 17, 27) else "mamba" for i in range(32)]},
        340_332_224,
    ),
    "Granite 4.0 H 1B": (
        _GRANITE
        | {"hidden_size": 1536, "shared_intermediate_size": 4096, "num_hidden_layers": 40, "mamba_d_head": 64}
        | {"layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)]},
        1_461_538_368,
    ),
    "MiniMax M1": (
        {"architectures": ["MiniMaxM1ForCausalLM"], "attn_type_list": [*[0] * 7, 1] * 10, "head_dim": 128}
        | {"hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80, "num_attention_heads": 64}
        | {"num_key_value_heads": 8, "num_local_experts": 32, "vocab_size": 200064, "rotary_dim": 64, "postnorm": True},
        456_089_655_296,
    ),
    "Zamba 7B": ({"architectures": ["ZambaForCausalLM"]}, 7_232_490_496),
    "Zamba 2 1.2B": (
        _ZAMBA2
        | {"hidden_size": 2048, "num_hidden_layers": 38, "n_mamba_heads": 64, "mamba_d_state": 128}
        | {"use_shared_attention_adapter": True, "use_mem_rope": True}
        | {"layers_block_type": ["hybrid" if i in (5, 11, 17, 23, 29, 35) else "mamba" for i in range(38)]},
        1_215_064_704,
    ),
    "Zamba 2 2.7B": (_ZAMBA2 | {"hidden_size": 2560, "n_mamba_heads": 80, "num_mem_blocks": 2}, 2_662_214_560),
    "Zamba 2 7B": (
        _ZAMBA2
        | {"hidden_size": 3584, "num_hidden_layers": 81, "n_mamba_heads": 112, "mamba_ngroups": 2, "num_mem_blocks": 2}
        | {"layers_block_type": ["hybrid" if i == 6 or (i > 6 and i % 6 == 5) else "mamba" for i in range(81)]}
        | {"use_mem_rope": True},
        7_356_749_648,
    ),
}
