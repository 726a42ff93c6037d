"""Configs of published models of newer families, and their published numbers of parameters."""

from __future__ import annotations

from typing import Any

from earlier_variants import PUBLISHED as EARLIER
from latent_variants import PUBLISHED as LATENT
from variants import Config


def _sizes(
    architecture: str, width: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, **more: Any
) -> Config:
    return {
        "architectures": [architecture],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
    } | more


_FULL, _LOCAL = "full_attention", "sliding_attention"
_EXAONE_LAYERS = (["sliding_attention"] * 3 + ["full_attention"]) * 16

_GEMMA4: Config = {"architectures": ["Gemma4ForCausalLM"], "global_head_dim": 512}
_GEMMA4_SMALL = _GEMMA4 | {"num_attention_heads": 8}
_GEMMA4_LARGE = _GEMMA4 | {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
_FIVE, _SIX = ([*["sliding_attention"] * sliding, "full_attention"] * 7 for sliding in (4, 5))

_BAICHUAN_13B: Config = {"max_position_embeddings": None, "model_max_length": 4096}

PUBLISHED: dict[str, tuple[Config, int]] = {
    "Baichuan 7B": (_sizes("BaiChuanForCausalLM", 4096, 32, 32, 32, 11008, 64000), 7_000_559_616),
    "Baichuan 13B": (
        _sizes("BaichuanForCausalLM", 5120, 40, 40, 40, 13696, 64000, **_BAICHUAN_13B),
        13_264_901_120,
    ),
    "Baichuan 2 13B": (
        _sizes("BaichuanForCausalLM", 5120, 40, 40, 40, 13696, 125696, **_BAICHUAN_13B),
        13_896_668_160,
    ),
    "Gemma 4 E2B": (
        _GEMMA4_SMALL
        | {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "layer_types": _FIVE}
        | {"num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True},
        4_628_569_379,
    ),
    "Gemma 4 E4B": (
        _GEMMA4_SMALL
        | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "layer_types": _SIX}
        | {"num_key_value_heads": 2, "num_kv_shared_layers": 18},
        7_463_013_418,
    ),
    "Gemma 4 31B": (
        _GEMMA4_LARGE
        | {"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60}
        | {"num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4},
        30_697_345_340,
    ),
    "Gemma 4 26B-A4B": (
        _GEMMA4_LARGE
        | {"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30}
        | {"num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2}
        | {"enable_moe_block": True, "num_experts": 128, "moe_intermediate_size": 704, "top_k_experts": 8},
        25_233_141_790,
    ),
    "Gemma 3n E2B": (
        {"architectures": ["Gemma3nForCausalLM"], "intermediate_size": 8192, "num_hidden_layers": 30}
        | {"num_kv_shared_layers": 10},
        4_435_182_688,
    ),
    "Gemma 3n E4B": ({"architectures": ["Gemma3nForCausalLM"]}, 6_835_235_568),
    "Ministral 8B": (
        _sizes("MinistralForCausalLM", 4096, 36, 32, 8, 12288, 131072, head_dim=128, sliding_window=32768),
        8_019_808_256,
    ),
    "Seed-OSS 36B": (
        _sizes("SeedOssForCausalLM", 5120, 64, 80, 8, 27648, 155136, head_dim=128, attention_bias=True),
        36_151_104_512,
    ),
    "EXAONE 4.0 1.2B": (
        _sizes("Exaone4ForCausalLM", 2048, 30, 32, 8, 4096, 102400, head_dim=64, sliding_window=None)
        | {"layer_types": ["full_attention"] * 30, "tie_word_embeddings": True},
        1_279_391_488,
    ),
    "EXAONE 4.0 32B": (
        _sizes("Exaone4ForCausalLM", 5120, 64, 40, 8, 27392, 102400, head_dim=128, layer_types=_EXAONE_LAYERS),
        32_003_216_384,
    ),
    "ERNIE 4.5 0.3B": (_sizes("Ernie4_5ForCausalLM", 1024, 18, 16, 2, 3072, 103424), 360_748_032),
    "Hunyuan 0.5B": (
        _sizes("HunYuanDenseV1ForCausalLM", 1024, 24, 16, 8, 3584, 120818, head_dim=128, tie_word_embeddings=True),
        539_010_048,
    ),
    "StarCoder": (
        {"architectures": ["GPTBigCodeForCausalLM"], "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576}
        | {"n_positions": 8192, "vocab_size": 49152},
        15_517_456_384,
    ),
    "SantaCoder": (
        {"architectures": ["GPTBigCodeForCausalLM"], "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_inner": 8192}
        | {"n_positions": 2048, "vocab_size": 49280},
        1_124_886_528,
    ),
    "Arcee AFM 4.5B": (_sizes("ArceeForCausalLM", 2560, 36, 20, 4, 18432, 128256, head_dim=128), 4_620_474_880),
    "Apertus 8B": (_sizes("ApertusForCausalLM", 4096, 32, 32, 8, 21504, 131072), 8_053_338_240),
    "BitNet b1.58 2B": (
        _sizes("BitNetForCausalLM", 2560, 30, 20, 5, 6912, 128256, tie_word_embeddings=True),
        2_412_820_480,
    ),
    "Ministral 3 3B": (
        _sizes("Ministral3ForCausalLM", 3072, 26, 32, 8, 9216, 131072, head_dim=128, tie_word_embeddings=True),
        3_429_006_336,
    ),
    "Mistral Small 3.2": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "text_config": _sizes("", 5120, 40, 32, 8, 32768, 131072, head_dim=128, sliding_window=None)
            | {"model_type": "mistral"},
        },
        23_572_403_200,
    ),
    "MPT 7B": (
        {"architectures": ["MptForCausalLM"], "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432},
        6_649_286_656,
    ),
    "DBRX": (
        {"architectures": ["DbrxForCausalLM"], "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}
        | {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500_000}}
        | {"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        131_596_523_520,
    ),
    "GLM-4.5-Air": (
        _sizes("Glm4MoeForCausalLM", 4096, 46, 96, 8, 10944, 151552, head_dim=128, attention_bias=True)
        | {"moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "first_k_dense_replace": 1},
        106_852_251_264,
    ),
    "dots.llm1": (
        _sizes("Dots1ForCausalLM", 4096, 62, 32, 32, 10944, 152064, moe_intermediate_size=1408, sliding_window=None)
        | {"n_routed_experts": 128, "n_shared_experts": 2, "first_k_dense_replace": 1, "num_experts_per_tok": 6},
        142_774_381_696,
    ),
    "MiniMax-M2": (
        _sizes("MiniMaxM2ForCausalLM", 3072, 62, 48, 8, 1536, 200064, rotary_dim=64, num_local_experts=256),
        228_689_764_864,
    ),
    "ERNIE 4.5 21B A3B": (
        _sizes("Ernie4_5_MoeForCausalLM", 2560, 28, 20, 4, 12288, 103424, moe_intermediate_size=1536, moe_k=6)
        | {"moe_num_experts": 64, "moe_num_shared_experts": 2},
        21_825_437_888,
    ),
    "Hunyuan A13B": (
        _sizes("HunYuanMoEV1ForCausalLM", 4096, 32, 32, 8, 3072, 128167, head_dim=128, num_experts=64)
        | {"moe_topk": [8] * 32, "moe_intermediate_size": [3072] * 32, "num_shared_expert": [1] * 32}
        | {"tie_word_embeddings": True},
        80_393_183_232,
    ),
    "Phi-3.5-MoE": (
        _sizes("PhimoeForCausalLM", 4096, 32, 32, 8, 6400, 32064, attention_bias=True, lm_head_bias=True),
        41_873_153_344,
    ),
    "Llama 4 Scout": (
        {
            "architectures": ["Llama4ForConditionalGeneration"],
            "text_config": _sizes("", 5120, 48, 40, 8, 8192, 202048, intermediate_size_mlp=16384),
        },
        107_769_861_120,
    ),
    "gpt-oss 20B": (
        _sizes("GptOssForCausalLM", 2880, 24, 64, 8, 2880, 201088, num_local_experts=32, num_experts_per_tok=4),
        20_914_757_184,
    ),
    "gpt-oss 120B": (
        _sizes("GptOssForCausalLM", 2880, 36, 64, 8, 2880, 201088, num_local_experts=128, num_experts_per_tok=4),
        116_829_156_672,
    ),
    "Minitron 4B": (
        _sizes("NemotronForCausalLM", 3072, 32, 24, 8, 9216, 256000, head_dim=128, partial_rotary_factor=0.5),
        4_190_509_056,
    ),
    "Jais 2 8B": (_sizes("Jais2ForCausalLM", 3328, 32, 26, 26, 26624, 150272, head_dim=128), 8_090_401_280),
    "CWM 32B": (_sizes("CwmForCausalLM", 6144, 64, 48, 8, 21504, 128256, head_dim=128), 32_581_097_472),
    "Helium 1 2B": (
        _sizes("HeliumForCausalLM", 2048, 28, 16, 8, 8192, 64000, head_dim=128, tie_word_embeddings=False),
        2_023_868_416,
    ),
    "HyperCLOVA X SEED Think 14B": (
        _sizes("HyperCLOVAXForCausalLM", 6144, 38, 48, 8, 14336, 110592, head_dim=128, tie_word_embeddings=False),
        14_748_112_896,
    ),
    "OLMo 1B": (_sizes("OlmoForCausalLM", 2048, 16, 16, 16, 8192, 50304, tie_word_embeddings=True), 1_176_764_416),
    "OLMo 7B 0724": (_sizes("OlmoForCausalLM", 4096, 32, 32, 32, 11008, 50304), 6_888_095_744),
    "FlexOlmo 7x7B": (
        _sizes("FlexOlmoForCausalLM", 4096, 32, 32, 32, 11008, 100352, num_experts=7, num_experts_per_tok=5),
        33_270_665_216,
    ),
    "VaultGemma 1B": (
        _sizes(
            "VaultGemmaForCausalLM",
            1152,
            26,
            4,
            4,
            6912,
            256000,
            head_dim=256,
            tie_word_embeddings=True,
            query_pre_attn_scalar=256,
        ),
        1_038_741_120,
    ),
    "Trinity Mini": (
        _sizes(
            "AfmoeForCausalLM",
            2048,
            32,
            32,
            4,
            6144,
            200192,
            head_dim=128,
            moe_intermediate_size=1024,
            num_experts=128,
            num_experts_per_tok=8,
            num_shared_experts=1,
            num_dense_layers=2,
            sliding_window=2048,
        ),
        26_123_974_400,
    ),
    "Trinity Nano": (
        _sizes(
            "AfmoeForCausalLM",
            1024,
            56,
            8,
            2,
            3072,
            200192,
            head_dim=128,
            moe_intermediate_size=256,
            num_experts=128,
            num_experts_per_tok=8,
            num_shared_experts=1,
            num_dense_layers=2,
            sliding_window=2048,
        ),
        6_120_003_328,
    ),
    "Solar Open 100B": (
        _sizes(
            "SolarOpenForCausalLM",
            4096,
            48,
            64,
            8,
            10240,
            196608,
            head_dim=128,
            moe_intermediate_size=1280,
            n_routed_experts=128,
            n_shared_experts=1,
        ),
        102_651_799_552,
    ),
    "K-EXAONE 236B A23B": (
        _sizes(
            "ExaoneMoeForCausalLM",
            6144,
            48,
            64,
            8,
            18432,
            153600,
            head_dim=128,
            moe_intermediate_size=2048,
            num_experts=128,
            num_shared_experts=1,
            sliding_window=128,
        ),
        236_571_156_352,
    ),
    "Hy3": (_sizes("HYV3ForCausalLM", 4096, 80, 64, 8, 13312, 120832, head_dim=128), 295_033_543_488),
    "Mellum 2": (
        _sizes(
            "MellumForCausalLM", 2304, 28, 32, 4, 7168, 98304, head_dim=128, moe_intermediate_size=896, num_experts=64
        ),
        12_149_923_072,
    ),
    "EXAONE 3.5 2.4B": (
        {"architectures": ["ExaoneForCausalLM"], "num_layers": 30, "tie_word_embeddings": True, "head_dim": 80}
        | {"hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 7168}
        | {"vocab_size": 102400},
        2_405_327_360,
    ),
    "InternLM2 1.8B": (
        _sizes("InternLM2ForCausalLM", 2048, 24, 16, 8, 8192, 92544, bias=False),
        1_889_110_016,
    ),
    "InternLM3 8B": (
        _sizes("InternLM3ForCausalLM", 4096, 48, 32, 2, 10240, 128512, head_dim=128, bias=False, qkv_bias=False)
        | {"rope_scaling": {"rope_type": "dynamic", "factor": 6.0}, "rope_theta": 50_000_000},
        8_804_241_408,
    ),
    "MiniCPM4 0.5B": (
        _sizes("MiniCPMForCausalLM", 1024, 24, 16, 2, 4096, 73448, scale_emb=12, scale_depth=1.4, dim_model_base=256),
        433_873_920,
    ),
    "Ling-mini 2.0": (
        _sizes("BailingMoeV2ForCausalLM", 2048, 20, 16, 4, 5120, 157184, head_dim=128, moe_intermediate_size=512)
        | {"num_experts": 256, "num_shared_experts": 1, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 1},
        16_255_643_392,
    ),
    "Ring-mini linear 2.0": (
        _sizes("BailingMoeLinearV2ForCausalLM", 2048, 20, 16, 4, 5120, 157184, head_dim=128, moe_intermediate_size=512)
        | {"num_experts": 256, "num_shared_experts": 1, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 1}
        | {"layer_group_size": 5, "group_norm_size": 4},
        16_423_448_320,
    ),
    "Flint": (_sizes("FlintForCausalLM", 2048, 49, 32, 4, 6144, 150144, head_dim=128), 39_785_287_456),
    "Laguna XS.2": (
        _sizes("LagunaForCausalLM", 2048, 40, 48, 8, 8192, 100352)
        | {"num_attention_heads_per_layer": [48, 64, 64, 64] * 10, "layer_types": [_FULL, *[_LOCAL] * 3] * 10},
        33_442_617_088,
    ),
    "MiMo-V2-Flash": ({"architectures": ["MiMoV2FlashForCausalLM"]}, 308_778_780_864),
    "MiMo-V2.5-Pro": (  # its files have 1,023,244,718,976 with scales and the layers that predict further tokens
        _sizes("MiMoV2ForCausalLM", 6144, 70, 128, 8, 16384, 152576, head_dim=192, v_head_dim=128)
        | {"moe_intermediate_size": 2048, "n_routed_experts": 384, "moe_layer_freq": [0] + [1] * 69}
        | {"hybrid_layer_pattern": [0, *[1] * 6, *[0, *[1] * 7] * 6, *[0, *[1] * 6] * 2, 0]},
        1_021_248_126_336,
    ),
    "Aya Vision 8B": (
        {"architectures": ["AyaVisionForConditionalGeneration"]}
        | {"text_config": _sizes("", 4096, 32, 32, 8, 14336, 256000, model_type="cohere2", head_dim=128)},
        8_028_033_024,
    ),
    "Qwen2.5-Omni 7B": (
        {"architectures": ["Qwen2_5OmniModel"], "thinker_config": {"text_config": {"vocab_size": 152064}}},
        7_615_616_512,
    ),
}

PUBLISHED |= LATENT | EARLIER
