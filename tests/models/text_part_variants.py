"""Configs of models that see or hear, of which text alone is served; transformers' own classes make them."""

from __future__ import annotations

from typing import Any

from hybrid_variants import HYBRIDS
from latent_variants import LATENT
from newer_variants import NEWER
from newer_variants import UNMADE as UNMADE_DECODERS
from variants import MADE_BY_TRANSFORMERS, Config, family_config

_QWEN_TOWER: Config = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
_SIGLIP: Config = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_GLM_ROTATION: Config = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
_GEMMA = {key: value for key, value in NEWER["gemma4"].items() if "per_layer_input" not in key}
_GEMMA |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1}

_LLAMA = family_config("", "llama")
_QWEN2 = family_config("", "qwen2")
_HEARING: Config = {"num_mel_bins": 16, "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
_HEARING |= {"encoder_ffn_dim": 16, "max_source_positions": 20}
_MROPE: Config = {"rope_type": "default", "rope_theta": 3000.0, "mrope_section": [2, 3, 3]}

_MUSE = family_config("", "muse_glimmer_text", head_dim=24, sliding_window=20, qk_scale_factor=1.5)
_MUSE_TOWER: Config = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def _whole(architecture: str, model_type: str, text: Config, tower: Config, **more: Any) -> Config:
    inner = {key: value for key, value in text.items() if key != "architectures"}
    whole = {"architectures": [architecture], "model_type": model_type, "text_config": inner, "vision_config": tower}
    return whole | {"tie_word_embeddings": False, "vocab_size": 131} | more


def _glm(text: Config, model_type: str, head_dim: int) -> Config:
    sections = [1, 1, head_dim // 4 - 2]
    kept = {key: value for key, value in text.items() if key not in ("head_dim", "use_qk_norm")}
    return kept | {"model_type": model_type, "rope_parameters": _GLM_ROTATION | {"mrope_section": sections}}


TEXT_PARTS: dict[str, Config] = {
    "exaone4.5": _whole(
        "Exaone4_5_ForConditionalGeneration",
        "exaone4_5",
        NEWER["exaone4"],
        _QWEN_TOWER | {"num_key_value_heads": 1},
        image_token_id=130,
        video_token_id=129,
    ),
    "glm4v": _whole(
        "Glm4vForConditionalGeneration",
        "glm4v",
        _glm(MADE_BY_TRANSFORMERS["glm4"], "glm4v_text", 16),
        _QWEN_TOWER | {"image_size": 28},
    ),
    "glm4.6v": _whole(
        "Glm46VForConditionalGeneration",
        "glm46v",
        _glm(MADE_BY_TRANSFORMERS["glm4"], "glm4v_text", 16),
        _QWEN_TOWER | {"model_type": "glm4v_vision", "image_size": 28},
    ),
    "glm4v-moe": _whole(
        "Glm4vMoeForConditionalGeneration",
        "glm4v_moe",
        _glm(NEWER["glm4-moe"], "glm4v_moe_text", 16),
        _QWEN_TOWER | {"image_size": 28},
    ),
    "gemma4-12b-text": _GEMMA | {"architectures": ["Gemma4UnifiedForCausalLM"], "model_type": "gemma4_unified_text"},
    "gemma4-12b": _whole(
        "Gemma4UnifiedForConditionalGeneration",
        "gemma4_unified",
        _GEMMA | {"model_type": "gemma4_unified_text"},
        {"mm_embed_dim": 16, "mm_posemb_size": 8, "patch_size": 4, "output_proj_dims": 64},
        tie_word_embeddings=True,
        audio_config={"audio_embed_dim": 8},
        image_token_id=130,
        audio_token_id=129,
        video_token_id=128,
        vocab_size=128,  # of prompts: transformers has other embeddings for those three
    ),
    "kimi-k2.5": _whole(
        "KimiK25ForConditionalGeneration",
        "kimi_k25",
        LATENT["deepseek-v3"],
        {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        projection_hidden_size=16,
        image_token_id=130,
        video_token_id=129,
    ),
    "minicpm-v-4.6": _whole(
        "MiniCPMV4_6ForConditionalGeneration",
        "minicpmv4_6",
        MADE_BY_TRANSFORMERS["qwen3.5"],
        _SIGLIP | {"image_size": 56},
        insert_layer_id=0,
        image_token_id=130,
        video_token_id=129,
    ),
    "aya-vision": _whole(
        "AyaVisionForConditionalGeneration",
        "aya_vision",
        MADE_BY_TRANSFORMERS["cohere2"],
        _SIGLIP | {"model_type": "siglip_vision_model"},
        tie_word_embeddings=True,
        image_token_index=130,
    ),
    "cohere2-vision": _whole(
        "Cohere2VisionForConditionalGeneration",
        "cohere2_vision",
        MADE_BY_TRANSFORMERS["cohere2"],
        _SIGLIP | {"model_type": "siglip_vision_model"},
        tie_word_embeddings=True,
        alignment_intermediate_size=16,
        image_token_id=130,
    ),
    "llava-onevision": _whole(
        "LlavaOnevisionForConditionalGeneration",
        "llava_onevision",
        _QWEN2 | {"model_type": "qwen2"},
        _SIGLIP | {"model_type": "siglip_vision_model"},
        image_token_index=130,
        video_token_index=129,
    ),
    "ovis2": _whole(
        "Ovis2ForConditionalGeneration",
        "ovis2",
        _QWEN2,
        _SIGLIP | {"vocab_size": 20, "hidden_stride": 2},
        hidden_size=64,
        tie_word_embeddings=True,
        image_token_id=130,
    ),
    "deepseek-vl": _whole(
        "DeepseekVLForConditionalGeneration",
        "deepseek_vl",
        _LLAMA,
        _SIGLIP | {"model_type": "siglip_vision_model"},
        tie_word_embeddings=True,
        image_token_id=130,
    ),
    "deepseek-vl-hybrid": _whole(
        "DeepseekVLHybridForConditionalGeneration",
        "deepseek_vl_hybrid",
        _LLAMA,
        _SIGLIP | {"model_type": "siglip_vision_model"},
        high_res_vision_config=_SIGLIP
        | {"model_type": "sam_vision_model", "output_channels": 8, "global_attn_indexes": [0]},
        tie_word_embeddings=True,
        image_token_id=130,
    ),
    "lighton-ocr": _whole(
        "LightOnOcrForConditionalGeneration",
        "lighton_ocr",
        _QWEN2 | {"model_type": "qwen3", "head_dim": 24},
        _SIGLIP | {"model_type": "pixtral", "head_dim": 8},
        image_token_id=130,
    ),
    "qwen2-audio": _whole(
        "Qwen2AudioForConditionalGeneration",
        "qwen2_audio",
        _QWEN2,
        {},
        audio_config=_HEARING,
        audio_token_index=130,
    ),
    "voxtral": _whole(
        "VoxtralForConditionalGeneration",
        "voxtral",
        _LLAMA | {"rope_theta": 500.0, "head_dim": 24},
        {},
        audio_config=_HEARING
        | {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
        | {"intermediate_size": 64},
        audio_token_id=130,
    ),
    "qwen2.5-omni": _whole(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "qwen2_5_omni_thinker",
        _QWEN2 | {"model_type": "qwen2_5_omni_text", "rope_parameters": _MROPE},
        _QWEN_TOWER,
        audio_config=_HEARING | {"output_dim": 64},
    ),
    "qwen3-omni": _whole(
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "qwen3_omni_moe_thinker",
        _QWEN2
        | {"model_type": "qwen3_omni_moe_text", "rope_parameters": _MROPE, "moe_intermediate_size": 33}
        | {"num_experts": 6, "num_experts_per_tok": 2, "mlp_only_layers": [1]},
        _QWEN_TOWER | {"deepstack_visual_indexes": [0], "num_position_embeddings": 4},
        audio_config=_HEARING | {"output_dim": 64, "downsample_hidden_size": 8},
    ),
    "minicpm-v-4.7": _whole(
        "MiniCPMV4_7ForConditionalGeneration",
        "minicpmv4_7",
        MADE_BY_TRANSFORMERS["qwen3.5"],
        _SIGLIP | {"image_size": 56},
        insert_layer_id=0,
        image_token_id=130,
        video_token_id=129,
    ),
    "lfm3-vl": _whole(
        "Lfm3VlForConditionalGeneration",
        "lfm3_vl",
        family_config("", "lfm3", head_dim=24, sliding_window=20)
        | {"num_hidden_layers": 4, "layer_types": ["conv", "sliding_attention", "conv", "full_attention"]},
        {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"num_key_value_heads": 1},
        tie_word_embeddings=True,
        projector_hidden_size=16,
        image_token_id=130,
        video_token_id=129,
    ),
    "granite4-vision": _whole(
        "Granite4VisionForConditionalGeneration",
        "granite4_vision",
        MADE_BY_TRANSFORMERS["granite"] | {"model_type": "granite4_vision_text"},
        _SIGLIP | {"model_type": "siglip_vision_model", "hidden_size": 64},
        image_token_index=130,
        downsample_rate="1/2",
        deepstack_layer_map=[[0, 1]],
        spatial_target_layers=[0, 1, 1, 2],
        qformer_config={"num_hidden_layers": 1, "intermediate_size": 16, "model_type": "blip_2_qformer"},
    ),
    "granite-docling": _whole(
        "GraniteDoclingForConditionalGeneration",
        "granite_docling",
        MADE_BY_TRANSFORMERS["granite"] | {"model_type": "granite_docling_text", "logits_scaling": 3.0},
        _SIGLIP | {"image_size": 56, "scale_factor": 2, "out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        image_token_id=130,
    ),
    "hyperclova-x-vision": _whole(
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        "hyperclovax_vision_v2",
        family_config("", "hyperclovax", logits_scaling=0.3, residual_multiplier=0.5),
        _QWEN_TOWER | {"model_type": "qwen2_5_vl_vision", "fullatt_block_indexes": [0]},
        image_token_id=130,
        video_token_id=129,
    ),
    "glm-ocr": _whole(
        "GlmOcrForConditionalGeneration",
        "glm_ocr",
        _LLAMA
        | {"model_type": "glm_ocr_text", "head_dim": 24}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [4, 4, 4]}},
        _QWEN_TOWER,
    ),
    "paddleocr-vl": _whole(
        "PaddleOCRVLForConditionalGeneration",
        "paddleocr_vl",
        _LLAMA
        | {"model_type": "paddleocr_vl_text", "head_dim": 24, "use_bias": True, "rms_norm_eps": 1e-6}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [4, 4, 4]}},
        _SIGLIP | {"spatial_merge_size": 1},
        image_token_id=130,
        video_token_id=129,
        vision_start_token_id=128,
        vision_end_token_id=127,
    ),
    "hunyuan-vl": _whole(
        "HunYuanVLForConditionalGeneration",
        "hunyuan_vl",
        _LLAMA
        | {"model_type": "hunyuan_vl_text", "head_dim": 24}
        | {"rope_scaling": {"type": "xdrope", "alpha": 50.0, "factor": 1.0, "xdrope_section": [3, 3, 3, 3]}},
        _SIGLIP | {"out_hidden_size": 64},
        image_token_id=130,
    ),
    "muse-glimmer": _whole("MuseGlimmerForConditionalGeneration", "muse_glimmer", _MUSE, _MUSE_TOWER),
    "muse-glimmer-options": _whole(
        "MuseGlimmerForConditionalGeneration",
        "muse_glimmer",
        _MUSE
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "layer_rope_theta": [5.0, 0, 0]}
        | {"qk_scale_factor": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 4.0, "post_norm_eps": 0.3}
        | {"hidden_activation": "gelu"},
        _MUSE_TOWER,
    ),
}

WHOLES: dict[str, Config] = {
    "qwen2.5-omni-whole": {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "thinker_config": {key: value for key, value in TEXT_PARTS["qwen2.5-omni"].items() if key != "architectures"},
    },
    "qwen3-omni-whole": {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": {key: value for key, value in TEXT_PARTS["qwen3-omni"].items() if key != "architectures"},
    },
}
NEMOTRON_OMNI: Config = {
    "architectures": ["NemotronH_Nano_VL_V2"],
    "model_type": "NemotronH_Nano_VL_V2",
    "llm_config": {key: value for key, value in HYBRIDS["nemotron-h"].items() if key != "architectures"},
}
"""Models of which transformers computes logits only within."""

UNMADE = UNMADE_DECODERS | WHOLES | {"nemotron-omni": NEMOTRON_OMNI}
