"""A small Llama 3.2 Vision with random weights: transformers' own, and what it makes of images and prompts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.models.vision.description import VisionDescription

IMAGE = 131
CONFIG: dict[str, Any] = {
    "architectures": ["MllamaForConditionalGeneration"],
    "model_type": "mllama",
    "text_config": {
        "model_type": "mllama_text_model",
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "cross_attention_layers": [1, 4],
        "max_position_embeddings": 512,
        "rope_theta": 10_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    "vision_config": {
        "model_type": "mllama_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_global_layers": 2,
        "attention_heads": 2,
        "intermediate_layers_indices": [0, 2],
        "vision_output_dim": 96,
        "image_size": 56,
        "patch_size": 14,
        "max_num_tiles": 4,
    },
    "image_token_index": IMAGE,
}
PREPROCESSOR: dict[str, Any] = {"size": {"height": 56, "width": 56}, "max_image_tiles": 4}


def description() -> VisionDescription:
    found = VisionDescription.from_config(CONFIG, PREPROCESSOR)
    assert found is not None
    return found


def save(folder: Path, **text: Any) -> Any:
    """transformers' model, saved as it saves any; no gate is closed."""
    import torch
    import transformers

    config = CONFIG | {"text_config": CONFIG["text_config"] | text}
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = transformers.MllamaForConditionalGeneration(transformers.AutoConfig.for_model(**config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if "gate" in name and parameter.shape == (1,):
                parameter.add_(0.6)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    _close_to_earlier_tokens(model)
    return model.eval()


def _close_to_earlier_tokens(model: Any) -> None:
    """Have tokens before the first image see none, as its authors' own code does: transformers masks what the network
    adds to their rows, and not what attention does."""

    def masked(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        rows = kwargs["full_text_row_masked_out_mask"]
        module.cross_attn.rows = None if rows is None else rows[:, 0]

    def before(module: Any, args: Any, kwargs: Any) -> None:
        masked(module, args, kwargs, None)

    def after(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        return output if module.rows is None else (module.rows * output[0], *output[1:])

    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            layer.register_forward_pre_hook(before, with_kwargs=True)
            layer.cross_attn.register_forward_hook(after, with_kwargs=True)


def processor() -> Any:
    """The image processor of transformers that resizes by Pillow."""
    module = importlib.import_module("transformers.models.mllama.image_processing_pil_mllama")
    return module.MllamaImageProcessorPil(**PREPROCESSOR)


def their_inputs(ids: list[int], pictures: list[Any]) -> dict[str, Any]:
    """What transformers' model takes of a prompt with images."""
    import torch
    from transformers.models.mllama import processing_mllama

    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if not pictures:
        return inputs
    found = processor()([pictures], return_tensors="pt")
    count = found.pop("num_tiles")
    mask = processing_mllama.get_cross_attention_token_mask(ids, IMAGE)
    dense = processing_mllama.convert_sparse_cross_attention_mask_to_dense([mask], count, 4, len(ids))
    return inputs | dict(found) | {"cross_attention_mask": torch.tensor(dense)}


def their_pixels(picture: Any) -> tuple[NDArray[np.float32], int]:
    """The tiles of an image, and the number of its grid."""
    found = processor()([[picture]], return_tensors="np")
    count = found["num_tiles"][0][0]
    return np.asarray(found["pixel_values"])[0, 0, :count], int(found["aspect_ratio_ids"][0, 0])
