"""Shapes of published models that see images: configs, and the tensors of a checkpoint, as transformers names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.make_models import make_model, make_tokenizer, tensor_shapes

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

TILES = 6
"""Tiles in a row and in a column that have a tag."""

_AROUND, _IMAGE = "<fake_token_around_image>", "<image>"
TAGS = (
    *(f"<row_{row}_col_{column}>" for row in range(1, TILES + 1) for column in range(1, TILES + 1)),
    "<global-img>",
    _AROUND,
    _IMAGE,
)
_SPECIAL_TOKENS = 3  # after the tags

_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SEEING_SHAPES: dict[str, Config] = {
    "smolvlm-256m": {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "vocab_size": 49280,
        "scale_factor": 4,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "intermediate_size": 1536,
            "vocab_size": 49280,
            "max_position_embeddings": 8192,
            "rope_theta": 100000.0,
            "rms_norm_eps": 1e-5,
        },
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 512,
            "patch_size": 16,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
    },
}


def seeing_tensors(config: Config) -> Shapes:
    """Return names and shapes of the tensors of an Idefics 3 or SmolVLM."""
    text = tensor_shapes(config["text_config"] | {"tie_word_embeddings": config["tie_word_embeddings"]})
    found = {name.replace("model.", "model.text_model.", 1): shape for name, shape in text.items()}
    tower = config["vision_config"]
    width, inner, patch = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    at = "model.vision_model."

    def add(name: str, *shape: int) -> None:
        found[f"{at}{name}.weight"] = shape
        found[f"{at}{name}.bias"] = shape[:1]

    add("embeddings.patch_embedding", width, 3, patch, patch)
    found[f"{at}embeddings.position_embedding.weight"] = ((tower["image_size"] // patch) ** 2, width)
    for layer in range(tower["num_hidden_layers"]):
        module = f"encoder.layers.{layer}."
        for norm in (1, 2):
            add(f"{module}layer_norm{norm}", width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            add(f"{module}self_attn.{name}", width, width)
        add(f"{module}mlp.fc1", inner, width)
        add(f"{module}mlp.fc2", width, inner)
    add("post_layernorm", width)
    found["model.connector.modality_projection.proj.weight"] = (
        config["text_config"]["hidden_size"],
        width * config["scale_factor"] ** 2,
    )
    return found


def make_seeing_model(folder: Path, config: Config, *, corpus_bytes: int = 12 << 20) -> None:
    """Write a model of such a config with random weights, its tokenizer, and how it prepares images."""
    vocab, side = config["vocab_size"], config["vision_config"]["image_size"]
    image_id = vocab - _SPECIAL_TOKENS - 1
    config = config | {"image_token_id": image_id, "pad_token_id": vocab - 1}
    make_model(folder, config, shapes=seeing_tensors(config))
    make_tokenizer(folder, vocab, corpus_bytes=corpus_bytes, tags=TAGS, template=_TEMPLATE)
    prepared = {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_image_splitting": True,
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"longest_edge": 4 * side},
        "max_image_size": {"longest_edge": side},
        "resample": 1,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared, indent=1))
