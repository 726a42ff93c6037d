"""Configs of small models with images, one of each kind, and transformers' models made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
CONFIGS: dict[str, dict[str, Any]] = {
    "idefics3": _IDEFICS3
    | {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3"}
    | {"vision_config": _TOWER | {"model_type": "idefics3_vision"}},
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
}
PREPROCESSORS: dict[str, dict[str, Any]] = {
    "idefics3": {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 224},
        "max_image_size": {"longest_edge": 56},
        "do_image_splitting": True,
    },
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 112, "width": 112}},
    "smolvlm": {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": 168},
        "max_image_size": {"longest_edge": 56},
        "do_image_splitting": True,
    },
}


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
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSORS[name]))
    return model.eval()
