"""Checkpoints written by transformers itself: a random model of a config, saved as it saves any."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

Config = dict[str, Any]

# AutoModelForCausalLM has no such model, or its text alone.
_ONLY_WITH_IMAGES = {"mistral3", "llama4", "gemma4", "gemma4_unified", "exaone4_5", "glm4v", "glm46v", "glm4v_moe"}
_ONLY_WITH_IMAGES |= {"kimi_k25", "minicpmv4_6", "aya_vision", "cohere2_vision", "llava_onevision", "ovis2"}
_ONLY_WITH_IMAGES |= {
    "minicpmv4_7",
    "lfm3_vl",
    "granite4_vision",
    "granite_docling",
    "hyperclovax_vision_v2",
    "glm_ocr",
}
_ONLY_WITH_IMAGES |= {"paddleocr_vl", "hunyuan_vl", "muse_glimmer", "deepseek_vl", "deepseek_vl_hybrid", "lighton_ocr"}
_WITHOUT_AUTO_CLASS = {"mistral4", "qwen2_audio", "voxtral", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"}
_LEARNED_BUFFERS = ("e_score_correction_bias", "expert_bias")
_LEARNED_FACTOR = "layer_scalar"
_STORED_BUFFERS = (*_LEARNED_BUFFERS, _LEARNED_FACTOR, "act_fn.beta", "act_fn.eps")
_UNCOUNTED = re.compile("vision|visual|audio|projector|merger|indexer|aligner|image_newline|global_attn_pool")
_UNSCALED_SCORES = ("gemma3n", "gemma4")  # what other models divide scores by is in their trained norms of queries
# As in trained models the stream is mostly tokens and mixers, and blocks add little: else errors grow in each.
_ZAMBA_FACTORS = {"embed_tokens.weight": 12.0, ".linear.weight": 0.3}
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def make_model(folder: Path, config: Config, *, dtype: str, seed: int, std: float, **saving: Any) -> None:
    """Weights are normal with deviation ``std``, norms the same around what changes nothing.

    ``config.json`` is the config as it is given.
    ``saving``: of ``save_pretrained``. Tests that need it are skipped where torch is not.
    """
    torch = pytest.importorskip("torch")
    random = torch.Generator().manual_seed(seed)
    model = _model(config, "cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            neutral = 1.0 if name.endswith("weight") and bool((parameter == 1).all()) else 0.0
            if name.endswith("q_norm.weight") and config["model_type"].startswith(_UNSCALED_SCORES):
                neutral = 0.2
            if name.endswith((".shared_transf.input_layernorm.weight", ".shared_transformer.input_layernorm.weight")):
                neutral = 0.3
            of_zamba = next((f for end, f in _ZAMBA_FACTORS.items() if name.endswith(end)), 1.0)
            parameter.normal_(
                neutral, std * (of_zamba if config["model_type"].startswith("zamba") else 1.0), generator=random
            )
        for name, buffer in model.named_buffers():
            if name.endswith(_LEARNED_BUFFERS):
                buffer.normal_(0.0, std, generator=random)
            elif name.endswith(_LEARNED_FACTOR):
                buffer.normal_(1.0, std, generator=random)
    model.to(getattr(torch, _TYPES[dtype])).save_pretrained(folder, **saving)
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": _TYPES[dtype]}, indent=1))


def parameter_count(config: Config) -> int:
    """Numbers in the parameters of transformers' own model, without what it sees and hears with, and indexers."""
    model = _model(config, "meta")
    numbers = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n.endswith(_STORED_BUFFERS))]
    count = sum(p.numel() for name, p in numbers if not _UNCOUNTED.search(name))
    if config["model_type"] == "longcat_flash":  # transformers makes halves of matrices for experts that have none
        count -= (
            model.config.num_layers
            * config["zero_expert_num"]
            * 2
            * config["expert_ffn_hidden_size"]
            * config["hidden_size"]
        )
    if config["model_type"] in (
        "lfm3",
        "lfm3_vl",
    ):  # a head's gate is stored in one row, and packed in as many as the head has
        gates = sum(p.numel() for name, p in numbers if name.endswith("self_attn.g_proj.weight"))
        count += gates * (model.config.get_text_config().head_dim - 1)
    if config["model_type"] == "mllama":  # layers and rows of the embedding that read images
        text = config["text_config"]
        crossed = re.compile(rf"model\.layers\.({'|'.join(map(str, text['cross_attention_layers']))})\.")
        count -= sum(p.numel() for name, p in numbers if crossed.search(name)) + 8 * text["hidden_size"]
    return int(count)


def _model(config: Config, device: str) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device(device):
        made = transformers.AutoConfig.for_model(**copy.deepcopy(config))
        made_by = auto_class(config)
        make = made_by._from_config if hasattr(made_by, "_from_config") else made_by.from_config
        return make(made, dtype=torch.float32)


def auto_class(config: Config) -> Any:
    """The class of transformers that makes a model of a config."""
    transformers = pytest.importorskip("transformers")
    if config.get("model_type") in _WITHOUT_AUTO_CLASS:
        return getattr(transformers, config["architectures"][0])
    with_images = config.get("model_type") in _ONLY_WITH_IMAGES
    return transformers.AutoModelForImageTextToText if with_images else transformers.AutoModelForCausalLM
