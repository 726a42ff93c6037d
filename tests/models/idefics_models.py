"""A small Idefics with random weights: transformers' own, and what it makes of images and prompts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.models.vision.description import VisionDescription

IMAGE, END = 132, 2
CONFIG: dict[str, Any] = {
    "architectures": ["IdeficsForVisionText2Text"],
    "model_type": "idefics",
    "vocab_size": 131,
    "additional_vocab_size": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "cross_layer_interval": 2,
    "alpha_type": "vector",
    "qk_layer_norms": True,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": END,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "use_resampler": True,
    "perceiver_config": {
        "qk_layer_norms_perceiver": True,
        "resampler_depth": 2,
        "resampler_head_dim": 12,
        "resampler_n_heads": 3,
        "resampler_n_latents": 9,
    },
    "vision_config": {
        "embed_dim": 48,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "image_size": 56,
        "patch_size": 14,
    },
    "image_token_id": IMAGE,
}
PREPROCESSOR: dict[str, Any] = {"image_size": 56}


def description(**changes: Any) -> VisionDescription:
    found = VisionDescription.from_config(CONFIG | changes, PREPROCESSOR)
    assert found is not None
    return found


def save(folder: Path, **changes: Any) -> Any:
    """transformers' model, saved as it saves any; no gate is closed."""
    import torch
    import transformers

    config = CONFIG | changes
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = transformers.IdeficsForVisionText2Text(transformers.AutoConfig.for_model(**config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if "alpha" in name:
                parameter.add_(0.6)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return model.eval()


def their_pixels(picture: Any) -> NDArray[np.float32]:
    """The one tile of an image ``[3, side, side]``, by the processor of transformers that resizes by Pillow."""
    module = importlib.import_module("transformers.models.idefics.image_processing_pil_idefics")
    return np.asarray(module.IdeficsImageProcessorPil(**PREPROCESSOR)([picture], return_tensors="np"))[0]


class _Tokenizer:
    """What transformers asks of its tokenizer."""

    eos_token_id = END

    def convert_tokens_to_ids(self, token: str) -> int:
        assert token == "<image>"
        return IMAGE


def their_inputs(ids: list[int], pictures: list[Any]) -> dict[str, Any]:
    """What transformers' model takes of a prompt with images, or without any."""
    import torch
    from transformers.models.idefics import processing_idefics as theirs

    tokens = torch.tensor([ids])
    if not pictures:
        mask = torch.zeros(1, len(ids), 1, dtype=torch.bool)
        return {"input_ids": tokens, "pixel_values": torch.zeros(1, 1, 3, 56, 56), "image_attention_mask": mask}
    pixels = torch.tensor(np.stack([their_pixels(picture) for picture in pictures]))[None]
    seen, _ = theirs.image_attention_mask_for_packed_input_ids(tokens, _Tokenizer(), "pt")
    mask = theirs.incremental_to_binary_attention_mask(seen, "pt", num_classes=len(pictures))
    return {"input_ids": tokens, "pixel_values": pixels, "image_attention_mask": mask}
