"""Configs of models that see or hear, of which text alone is served; transformers' own classes make them."""

from __future__ import annotations

from typing import Any

from latent_variants import LATENT
from newer_variants import NEWER
from variants import MADE_BY_TRANSFORMERS, Config

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
}
