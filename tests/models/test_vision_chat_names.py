"""InternVL as its authors first published it: the same models under other names of fields and tensors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vision_models
from small_models import prompt, run_rows
from vision_models import CONFIGS, PREPROCESSORS, image

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.model import Model
from dragoman.models.vision.preprocess import preprocess

pytest.importorskip("torch")
pytest.importorskip("transformers")

SETTINGS = models.ModelSettings(precision="float32", max_tokens=512, kv_tokens=2048, cache_bytes=0)
NAMES = (
    (r"^(?:model\.)?vision_tower\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"^(?:model\.)?vision_tower\.", "vision_model."),
    (r"embeddings\.cls_token$", "embeddings.class_embedding"),
    (r"embeddings\.position_embeddings$", "embeddings.position_embedding"),
    (r"embeddings\.patch_embeddings\.projection\.", "embeddings.patch_embedding."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.attention\.([qk])_norm\.", r".attn.\1_norm."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"^(?:model\.)?multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^(?:model\.)?multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^(?:model\.)?multi_modal_projector\.linear_2\.", "mlp1.3."),
    (r"^model\.language_model\.", "language_model.model."),
    (r"^(?:language_model\.)?lm_head\.", "language_model.lm_head."),
)


def chat_name(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def chat_config(config: dict[str, Any]) -> dict[str, Any]:
    vision = dict(config["vision_config"])
    for key in ("image_size", "patch_size"):
        vision[key] = vision[key][0]
    vision["qkv_bias"] = vision.pop("attention_bias")
    vision["qk_normalization"] = vision.pop("use_qk_norm", False)
    return {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
        "llm_config": config["text_config"] | {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": False},
        "vision_config": vision | {"model_type": "intern_vit_6b", "initializer_factor": 1.0},
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": 56,
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 12,
        "pad2square": False,
        "ps_version": "v2",
        "select_layer": -1,
        "use_thumbnail": True,
    }


PREPROCESSOR = {
    "crop_size": 56,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": 56,
}


def save(folder: Path) -> None:
    """Save the small InternVL of transformers under the names of its authors, queries, keys and values in one."""
    from safetensors.torch import load_file, save_file

    vision_models.save(folder, "internvl")
    (folder / "preprocessor_config.json").write_text(
        json.dumps(PREPROCESSORS["internvl"] | {"image_std": PREPROCESSOR["image_std"]})
    )
    theirs, named, parts = load_file(folder / "model.safetensors"), {}, {}
    for name, tensor in theirs.items():
        if found := re.fullmatch(r"(.*vision_tower.*)\.attention\.([qkv])_proj\.(weight|bias)", name):
            parts[f"{chat_name(found[1])}.attn.qkv.{found[3]}", "qkv".index(found[2])] = tensor
        else:
            named[chat_name(name)] = tensor
    import torch

    for name in {name for name, _ in parts}:
        named[name] = torch.cat([parts[name, place] for place in range(3)])
    chat = folder / "chat"
    chat.mkdir()
    save_file(named, chat / "model.safetensors", metadata={"format": "pt"})
    (chat / "config.json").write_text(json.dumps(chat_config(CONFIGS["internvl"])))
    (chat / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (chat / "added_tokens.json").write_text(json.dumps({"<img>": 127, "<IMG_CONTEXT>": 129}))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model, Path]:
    folder = tmp_path_factory.mktemp("internvl")
    save(folder)
    return models.load(folder, SETTINGS), models.load(folder / "chat", SETTINGS), folder / "chat"


def test_tiles_embeddings_and_logits_are_the_same(both: tuple[Model, Model, Path]) -> None:
    named, chat, _ = both
    assert named.tower is not None
    assert chat.tower is not None
    assert chat.tower.vision == named.tower.vision
    for size in ((100, 70), (300, 500)):
        found = preprocess(image(*size), chat.tower.vision)
        np.testing.assert_array_equal(found.pixels, preprocess(image(*size), named.tower.vision).pixels)
        expected = named.tower.encode(found.pixels, found.grid)
        np.testing.assert_array_equal(chat.tower.encode(found.pixels, found.grid), expected)
    np.testing.assert_array_equal(run_rows(chat, prompt(60)), run_rows(named, prompt(60)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"added_tokens": [{"id": 128, "content": "<IMG_CONTEXT>"}, "junk"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"128": {"content": "<IMG_CONTEXT>"}, "x": {}, "3": 4}}),
    ],
)
def test_the_image_token_is_the_tokenizers(both: tuple[Model, Model, Path], name: str, content: Any) -> None:
    folder = both[2]
    before = (folder / "added_tokens.json").read_text()
    (folder / "added_tokens.json").write_text("{}")
    try:
        (folder / name).write_text(json.dumps(content))
        vision = models.describe(folder).spec.vision
        assert vision is not None
        assert vision.tags.image_id == 128
    finally:
        (folder / name).unlink()
        (folder / "added_tokens.json").write_text(before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad2square": True}, "pad2square = True is not supported"),
        ({"ps_version": "v1"}, "ps_version = 'v1' is not supported"),
        ({"use_thumbnail": False}, "use_thumbnail = False is not supported"),
        ({"force_image_size": 112}, "force_image_size 112 differs from the tower's image_size 56"),
        ({"llm_config": {"model_type": "internlm2"}}, "model_type 'internlm2' is not supported"),
        ({"vision_config": 3}, "vision_config must be an object"),
        ({"max_dynamic_patch": 1000}, "max_patches must be 1 to 255, got 1000"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    both: tuple[Model, Model, Path], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for each in ("preprocessor_config.json", "added_tokens.json", "model.safetensors"):
        (tmp_path / each).write_bytes((both[2] / each).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(chat_config(CONFIGS["internvl"]) | changes))
    with pytest.raises(ModelError, match=message):
        models.describe(tmp_path)


def test_without_tiles_an_image_is_one(both: tuple[Model, Model, Path], tmp_path: Path) -> None:
    for each in ("preprocessor_config.json", "added_tokens.json", "model.safetensors"):
        (tmp_path / each).write_bytes((both[2] / each).read_bytes())
    config = chat_config(CONFIGS["internvl"]) | {"dynamic_image_size": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    vision = models.describe(tmp_path).spec.vision
    assert vision is not None
    assert len(preprocess(image(300, 500), vision).pixels) == 1
