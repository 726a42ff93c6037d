"""Decoders of other families behind a vision tower: Idefics 3 and SmolVLM.

The tower is described by ``models/vision``; here is the decoder that its embeddings go to, and all names of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import FAMILIES as LLAMA
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, ROTARY_BUFFER
from dragoman.models.families.mistral import FAMILIES as MISTRAL
from dragoman.models.families.qwen import FAMILIES as QWEN
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.parameters import siglip_names

_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
_TEXT: dict[str, tuple[Family, Mapping[str, Any]]] = {
    "llama": (LLAMA["LlamaForCausalLM"], _SIZES | {"intermediate_size": 11008}),
    "mistral": (MISTRAL["MistralForCausalLM"], _SIZES | {"intermediate_size": 14336, "num_key_value_heads": 8}),
    "qwen2": (QWEN["Qwen2ForCausalLM"], {}),
    "qwen3": (QWEN["Qwen3ForCausalLM"], {}),
}
"""Decoders by the ``model_type`` of ``text_config``, with the values of sizes that a config may leave out."""


def _read_text(config: Config, architecture: str) -> DecoderSpec:
    """Return the decoder of ``text_config`` under the architecture of the whole."""
    block = config.block("text_config")
    kind = block.get("model_type", "llama")
    if not isinstance(kind, str) or kind not in _TEXT:
        raise ModelError(f"config.json: text_config of model_type {kind!r} is not supported; known: {', '.join(_TEXT)}")
    family, sizes = _TEXT[kind]
    tied = config.flag("tie_word_embeddings", False)
    text = config.within("text_config").over(dict(sizes)).having({"tie_word_embeddings": tied})
    return replace(family.read(text), architecture=architecture)


def _read_idefics3(config: Config) -> DecoderSpec:
    return _read_text(config, "Idefics3ForConditionalGeneration")


def _read_smolvlm(config: Config) -> DecoderSpec:
    return _read_text(config, "SmolVLMForConditionalGeneration")


_NAMES = LLAMA_NAMES | HEAD_NORM_NAMES
_IDEFICS3_NAMES = (
    _NAMES | siglip_names("model.vision_model.") | {"vision_project_out": ("model.connector.modality_projection.proj",)}
)
_IDEFICS3_ALIASES = ((r"^model\.text_model\.", "model."),)

FAMILIES: dict[str, Family] = {
    "Idefics3ForConditionalGeneration": Family(
        _read_idefics3,
        _IDEFICS3_NAMES,
        "idefics3",
        base="model.",
        ignored=ROTARY_BUFFER,
        aliases=_IDEFICS3_ALIASES,
        title="Idefics 3",
        examples=("HuggingFaceM4/Idefics3-8B-Llama3", "HuggingFaceTB/SmolVLM-256M-Instruct"),
        note="It [sees images](vision.md).",
    ),
    "SmolVLMForConditionalGeneration": Family(
        _read_smolvlm,
        _IDEFICS3_NAMES,
        "smolvlm",
        base="model.",
        ignored=ROTARY_BUFFER,
        aliases=_IDEFICS3_ALIASES,
        title="SmolVLM",
        examples=("HuggingFaceTB/SmolVLM2-256M-Video-Instruct", "HuggingFaceTB/SmolVLM2-2.2B-Instruct"),
        note="It [sees images](vision.md). Video is not read.",
    ),
}
