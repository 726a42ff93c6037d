"""Configs of small models with images, one of each kind, and transformers' models made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.models.vision.description import VisionDescription

_TEXT = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 131,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
}
_TOWER = {
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 56,
    "patch_size": 14,
}
_IDEFICS3 = {
    "text_config": _TEXT,
    "vision_config": _TOWER,
    "scale_factor": 2,
    "image_token_id": 129,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
_LLAVA = {
    "text_config": _TEXT,
    "image_token_index": 129,
    "pad_token_id": 0,
    "vision_feature_layer": -2,
    "tie_word_embeddings": False,
}
_INTERNVL = {
    "architectures": ["InternVLForConditionalGeneration"],
    "model_type": "internvl",
    "text_config": _TEXT | {"model_type": "qwen2"},
    "vision_config": _TOWER
    | {"model_type": "internvl_vision", "image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True}
    | {"layer_scale_init_value": 0.5},
    "image_token_id": 129,
    "tie_word_embeddings": False,
}
_QWEN = {
    "text_config": _TEXT
    | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "bos_token_id": 1, "eos_token_id": 2},
    "image_token_id": 129,
    "video_token_id": 130,
    "vision_start_token_id": 127,
    "vision_end_token_id": 128,
    "tie_word_embeddings": False,
}
_QWEN_TOWER = {"depth": 3, "num_heads": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
_PALIGEMMA = {
    "architectures": ["PaliGemmaForConditionalGeneration"],
    "model_type": "paligemma",
    "vision_config": _TOWER | {"model_type": "siglip_vision_model", "image_size": 112, "vision_use_head": False},
    "image_token_index": 129,
    "projection_dim": 64,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_QWEN3_TOWER = {
    "hidden_size": 48,
    "out_hidden_size": 64,
    "intermediate_size": 88,
    "num_heads": 3,
    "patch_size": 16,
    "num_position_embeddings": 36,
}
_GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "audio_config": None,
    "image_token_id": 129,
    "boi_token_id": 127,
    "eoi_token_id": 128,
    "video_token_id": 126,
    "audio_token_id": 125,
    "tie_word_embeddings": True,
}
_GEMMA4_TEXT = _TEXT | {
    "model_type": "gemma4_text",
    "head_dim": 16,
    "global_head_dim": 24,
    "num_hidden_layers": 4,
    "sliding_window": 150,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "vocab_size_per_layer_input": 131,
}
_GEMMA4_TOWER = {
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "patch_size": 8,
    "pooling_kernel_size": 3,
    "position_embedding_size": 1000,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "idefics3": _IDEFICS3
    | {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3"}
    | {"vision_config": _TOWER | {"model_type": "idefics3_vision"}},
    "idefics2": {
        "architectures": ["Idefics2ForConditionalGeneration"],
        "model_type": "idefics2",
        "text_config": _TEXT | {"model_type": "mistral", "sliding_window": None},
        "vision_config": _TOWER | {"image_size": 98},
        "perceiver_config": {"hidden_size": 64, "resampler_n_latents": 9, "resampler_depth": 2, "resampler_n_heads": 4}
        | {"resampler_head_dim": 24, "num_key_value_heads": 2},
        "image_token_id": 129,
        "tie_word_embeddings": False,
    },
    "smolvlm": _IDEFICS3
    | {"architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm"}
    | {"vision_config": _TOWER | {"model_type": "smolvlm_vision"}},
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": _TEXT
        | {
            "model_type": "gemma3_text",
            "head_dim": 24,
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 30,
        },
        "vision_config": _TOWER | {"model_type": "siglip_vision_model", "image_size": 112, "vision_use_head": False},
        "mm_tokens_per_image": 16,
        "image_token_index": 129,
        "boi_token_index": 127,
        "eoi_token_index": 128,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    },
    "paligemma": _PALIGEMMA
    | {"text_config": _TEXT | {"model_type": "gemma", "head_dim": 24, "num_key_value_heads": 1}},
    "paligemma2": _PALIGEMMA
    | {
        "text_config": _TEXT
        | {"model_type": "gemma2", "head_dim": 24, "sliding_window": 1024, "query_pre_attn_scalar": 30}
        | {"attn_logit_softcapping": 5.0, "num_hidden_layers": 3}
    },
    "gemma4": _GEMMA4
    | {"text_config": _GEMMA4_TEXT | {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"}}
    | {"vision_config": _GEMMA4_TOWER | {"standardize": True}},
    "gemma4-small": _GEMMA4
    | {"text_config": _GEMMA4_TEXT | {"hidden_size_per_layer_input": 24, "num_kv_shared_layers": 2, "pad_token_id": 3}}
    | {"vision_config": _GEMMA4_TOWER | {"use_clipped_linears": True}},
    "llava": _LLAVA
    | {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    | {"vision_config": _TOWER | {"model_type": "clip_vision_model"}},
    "llava-siglip": _LLAVA
    | {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    | {"vision_config": _TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False}}
    | {"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
    "pixtral": _LLAVA
    | {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    | {"text_config": _TEXT | {"model_type": "mistral", "sliding_window": None}}
    | {"vision_config": _TOWER | {"model_type": "pixtral", "hidden_act": "gelu", "head_dim": 16}}
    | {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    "llava_next": _LLAVA
    | {"architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next"}
    | {"text_config": _TEXT | {"model_type": "mistral", "sliding_window": None}}
    | {"vision_config": _TOWER | {"model_type": "clip_vision_model"}, "image_grid_pinpoints": _PINPOINTS},
    "granite-vision": _LLAVA
    | {"architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next"}
    | {"text_config": _TEXT | {"model_type": "granite", "embedding_multiplier": 12.0, "logits_scaling": 6.0}}
    | {"vision_config": _TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False}}
    | {"image_grid_pinpoints": [*_PINPOINTS, [56, 224]], "vision_feature_select_strategy": "full"}
    | {"vision_feature_layer": [-3, -2, -1]},
    "qwen2_vl": _QWEN
    | {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    | {"text_config": _QWEN["text_config"] | {"model_type": "qwen2_vl_text"}}
    | {"vision_config": _QWEN_TOWER | {"model_type": "qwen2_vl_vision", "embed_dim": 48, "hidden_size": 64}},
    "qwen2_5_vl": _QWEN
    | {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"}
    | {"text_config": _QWEN["text_config"] | {"model_type": "qwen2_5_vl_text"}}
    | {
        "vision_config": _QWEN_TOWER
        | {"model_type": "qwen2_5_vl_vision", "hidden_size": 48, "out_hidden_size": 64, "intermediate_size": 90}
        | {"window_size": 112, "fullatt_block_indexes": [1]}
    },
    "qwen3_vl": _QWEN
    | {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"}
    | {
        "text_config": _QWEN["text_config"]
        | {"model_type": "qwen3_vl_text", "head_dim": 24, "num_hidden_layers": 4}
        | {"rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 3, 3]}}
    }
    | {"vision_config": _QWEN3_TOWER | {"model_type": "qwen3_vl", "depth": 4, "deepstack_visual_indexes": [0, 2]}},
    "qwen3_vl_moe": _QWEN
    | {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe"}
    | {
        "text_config": _QWEN["text_config"]
        | {"model_type": "qwen3_vl_moe_text", "num_hidden_layers": 3, "mlp_only_layers": [1]}
        | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
        | {"rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}}
    }
    | {"vision_config": _QWEN3_TOWER | {"model_type": "qwen3_vl_moe", "depth": 3, "deepstack_visual_indexes": [0]}},
    "qwen3_5": _QWEN
    | {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    | {
        "text_config": _TEXT
        | {"model_type": "qwen3_5_text", "head_dim": 32, "partial_rotary_factor": 0.5, "full_attention_interval": 2}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
        | {"linear_value_head_dim": 16, "num_hidden_layers": 4, "eos_token_id": 2}
    }
    | {"vision_config": _QWEN3_TOWER | {"model_type": "qwen3_5", "depth": 2}},
    "mistral3": {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": _TEXT | {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
        "vision_config": _TOWER | {"model_type": "pixtral", "hidden_act": "silu", "head_dim": 16},
        "image_token_index": 129,
        "spatial_merge_size": 2,
        "tie_word_embeddings": False,
    },
    "internvl": _INTERNVL,
    "lfm2_vl": {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "model_type": "lfm2_vl",
        "text_config": _TEXT
        | {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}
        | {"block_auto_adjust_ff_dim": False, "eos_token_id": 2, "tie_embedding": True},
        "vision_config": {
            "model_type": "siglip2_vision_model",
            "hidden_size": 48,
            "intermediate_size": 88,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "patch_size": 8,
            "num_patches": 49,
            "vision_use_head": False,
        },
        "image_token_id": 129,
        "downsample_factor": 2,
        "projector_hidden_size": 80,
        "tie_word_embeddings": True,
    },
    "internvl-rms": _INTERNVL
    | {"vision_config": _INTERNVL["vision_config"] | {"norm_type": "rms_norm", "use_qk_norm": True}}
    | {"text_config": _TEXT | {"model_type": "qwen3", "head_dim": 24}, "vision_feature_layer": -2},
}
PREPROCESSORS: dict[str, dict[str, Any]] = {
    "idefics3": {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 224},
        "max_image_size": {"longest_edge": 56},
        "do_image_splitting": True,
    },
    "llava": {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
    "llava-siglip": {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}, "resample": 2},
    "pixtral": {"size": {"longest_edge": 150}, "patch_size": 14},
    "llava_next": {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    | {"image_grid_pinpoints": _PINPOINTS},
    "granite-vision": {"size": {"height": 56, "width": 56}, "crop_size": {"height": 56, "width": 56}}
    | {"image_grid_pinpoints": [*_PINPOINTS, [56, 224]], "image_mean": [0.5, 0.5, 0.5]},
    "qwen2_vl": {"min_pixels": 56 * 56, "max_pixels": 300 * 300},
    "qwen2_5_vl": {"size": {"shortest_edge": 112 * 112, "longest_edge": 500 * 500}},
    "qwen3_vl": {"size": {"shortest_edge": 64 * 64, "longest_edge": 300 * 300}, "patch_size": 16}
    | {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    "qwen3_vl_moe": {"size": {"shortest_edge": 64 * 64, "longest_edge": 300 * 300}, "patch_size": 16},
    "qwen3_5": {"size": {"shortest_edge": 64 * 64, "longest_edge": 300 * 300}, "patch_size": 16},
    "mistral3": {"size": {"longest_edge": 300}, "patch_size": 28},
    "internvl": {"size": {"height": 56, "width": 56}, "image_mean": [0.485, 0.456, 0.406]},
    "internvl-rms": {"size": {"height": 56, "width": 56}, "min_patches": 2, "max_patches": 6},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 112, "width": 112}},
    "gemma4": {"max_soft_tokens": 70, "patch_size": 8, "image_seq_length": 70},
    "gemma4-small": {"max_soft_tokens": 140, "patch_size": 8, "resample": 2},
    "lfm2_vl": {"encoder_patch_size": 8, "tile_size": 64, "min_image_tokens": 4, "max_image_tokens": 20}
    | {"min_tiles": 2, "max_tiles": 6},
    "idefics2": {"size": {"shortest_edge": 60, "longest_edge": 150}, "do_image_splitting": True},
    "paligemma": {"size": {"height": 112, "width": 112}, "image_seq_length": 64},
    "paligemma2": {"size": {"height": 112, "width": 112}, "resample": 2},
    "smolvlm": {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": 168},
        "max_image_size": {"longest_edge": 56},
        "do_image_splitting": True,
    },
}


def description(name: str) -> VisionDescription:
    found = VisionDescription.from_config(CONFIGS[name], PREPROCESSORS[name])
    assert found is not None
    return found


def image(width: int, height: int, seed: int = 0) -> Any:
    """Noise over a slope: resampling it wrongly shows."""
    from PIL import Image

    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)) // 2
    levels += (np.arange(width) * 127 // width)[:, None]
    return Image.fromarray(levels.astype(np.uint8))


def kind_of(name: str) -> str:
    """transformers' module of a model and its processor."""
    if name == "pixtral":
        return name
    return str(CONFIGS[name]["model_type"])


def save(folder: Path, name: str) -> Any:
    """A random model of transformers, saved as it saves any; in evaluation mode."""
    import torch
    import transformers

    config = CONFIGS[name]
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = getattr(transformers, config["architectures"][0])(transformers.AutoConfig.for_model(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for buffer_name, buffer in model.named_buffers():  # limits and means, which are trained
            if buffer_name.endswith(("_min", "_max")):
                buffer.fill_((0.3 + torch.rand(()).item()) * (1 if buffer_name.endswith("_max") else -1))
            elif buffer_name.endswith(("std_bias", "std_scale")):
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSORS[name]))
    return model.eval()
