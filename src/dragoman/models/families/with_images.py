"""Decoders of other families behind a vision tower: Idefics 2 and 3, SmolVLM, LLaVA and LLaVA-NeXT, InternVL,
Qwen2-VL, Qwen2.5-VL and Qwen3-VL, dense and with experts.

The tower is described by ``models/vision``; here is the decoder that its embeddings go to, and all names of weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.cohere import FAMILIES as COHERE
from dragoman.models.families.family import IMAGE_PARTS, WITH_IMAGES, Family, even_head_dim
from dragoman.models.families.granite import FAMILIES as GRANITE
from dragoman.models.families.lfm2 import FAMILIES as LFM2
from dragoman.models.families.lfm2 import LFM2_NAMES
from dragoman.models.families.llama import FAMILIES as LLAMA
from dragoman.models.families.llama import HEAD_NORM_NAMES, LLAMA_NAMES, ROTARY_BUFFER
from dragoman.models.families.mistral import FAMILIES as MISTRAL
from dragoman.models.families.mixtures import FAMILIES as MIXTURES
from dragoman.models.families.mixtures import QWEN_MOE_NAMES, QWEN_STACKS
from dragoman.models.families.qwen import FAMILIES as QWEN
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import Tensor, Transposed
from dragoman.models.vision.parameters import (
    internvl_chat_names,
    internvl_names,
    pixtral_names,
    qwen3_names,
    qwen_names,
    resampler_names,
    siglip_names,
)

_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
_QWEN_SIZES = _SIZES | {"intermediate_size": 22016, "num_key_value_heads": 32, "vocab_size": 151_936}
_QWEN_SIZES |= {"max_position_embeddings": 32_768}
_COHERE_SIZES = {"hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40, "num_attention_heads": 64}
_COHERE_SIZES |= {"vocab_size": 256_000}
_LFM2_SIZES = _SIZES | {"hidden_size": 2560, "intermediate_size": 12288, "num_key_value_heads": 8, "vocab_size": 65536}
_TEXT: dict[str, tuple[Family, Mapping[str, Any]]] = {
    "llama": (LLAMA["LlamaForCausalLM"], _SIZES | {"intermediate_size": 11008}),
    "mistral": (MISTRAL["MistralForCausalLM"], _SIZES | {"intermediate_size": 14336, "num_key_value_heads": 8}),
    "qwen2": (QWEN["Qwen2ForCausalLM"], _QWEN_SIZES),
    "qwen3": (QWEN["Qwen3ForCausalLM"], _QWEN_SIZES),
    "granite": (GRANITE["GraniteForCausalLM"], _SIZES | {"intermediate_size": 11008}),
    "lfm2": (LFM2["Lfm2ForCausalLM"], _LFM2_SIZES),
    "cohere": (COHERE["CohereForCausalLM"], _COHERE_SIZES),
    "cohere2": (COHERE["Cohere2ForCausalLM"], _COHERE_SIZES),
}
"""Decoders by the ``model_type`` of ``text_config``, with the values of sizes that a config may leave out."""


def read_text(config: Config, architecture: str) -> DecoderSpec:
    """Return the decoder of ``text_config`` under the architecture of the whole."""
    block = config.block("text_config")
    kind = block.get("model_type", "llama")
    if not isinstance(kind, str) or kind not in _TEXT:
        raise ModelError(f"config.json: text_config of model_type {kind!r} is not supported; known: {', '.join(_TEXT)}")
    family, sizes = _TEXT[kind]
    # Files that have an output table of their own are not tied, whatever their configs say.
    tied = config.flag("tie_word_embeddings", False) or block.get("tie_word_embeddings") is True
    text = config.within("text_config").over(dict(sizes)).having({"tie_word_embeddings": tied})
    # In transformers the factor on logits (Granite, Cohere) is part of the model with a head of its own: not of this.
    spec = family.read(text)
    return replace(spec, architecture=architecture, output=replace(spec.output, scale=1.0))


def _read_idefics2(config: Config) -> DecoderSpec:
    config = config.having({"text_config": {"model_type": "mistral"} | config.block("text_config")})
    return read_text(config, "Idefics2ForConditionalGeneration")


def _read_idefics3(config: Config) -> DecoderSpec:
    return read_text(config, "Idefics3ForConditionalGeneration")


def _read_smolvlm(config: Config) -> DecoderSpec:
    return read_text(config, "SmolVLMForConditionalGeneration")


def _read_llava(config: Config) -> DecoderSpec:
    return read_text(config, "LlavaForConditionalGeneration")


def _read_llava_next(config: Config) -> DecoderSpec:
    return read_text(config, "LlavaNextForConditionalGeneration")


def _read_internvl(config: Config) -> DecoderSpec:
    return read_text(config.over({"tie_word_embeddings": True}), "InternVLForConditionalGeneration")


def _read_internvl_chat(config: Config) -> DecoderSpec:
    return read_text(config.having({"text_config": config.block("llm_config")}), "InternVLChatModel")


def _read_lfm2_vl(config: Config) -> DecoderSpec:
    text = {"model_type": "lfm2"} | config.block("text_config")
    tied = text.get("tie_embedding", config.value("tie_embedding", True))
    return read_text(
        config.over({"tie_word_embeddings": tied}).having({"text_config": text}), "Lfm2VlForConditionalGeneration"
    )


def _read_qwen2_vl(config: Config) -> DecoderSpec:
    return read_qwen(config, "Qwen2VLForConditionalGeneration")


def _read_qwen25_vl(config: Config) -> DecoderSpec:
    return read_qwen(config, "Qwen2_5_VLForConditionalGeneration")


def _read_qwen3_vl(config: Config) -> DecoderSpec:
    sizes = {"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32}
    config = config.over({"text_config": {}})
    block = sizes | {"vocab_size": 151_936, "rope_theta": 500_000.0, "rms_norm_eps": 1e-6} | config.block("text_config")
    return read_qwen(config.having({"text_config": block}), "Qwen3VLForConditionalGeneration", QWEN["Qwen3ForCausalLM"])


def _read_qwen3_vl_moe(config: Config) -> DecoderSpec:
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16}
    sizes |= {"num_key_value_heads": 16, "moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4}
    config = config.over({"text_config": {}})
    block = sizes | {"vocab_size": 151_936, "rope_theta": 500_000.0, "rms_norm_eps": 1e-6} | config.block("text_config")
    if block.get("head_dim") is None:  # that of Qwen 3 MoE is 128
        text = Config(block, where="config.json: text_config")
        width, heads = text.size("hidden_size"), text.size("num_attention_heads")
        block["head_dim"] = even_head_dim(width, heads, "hidden_size", "num_attention_heads")
    block |= {"norm_topk_prob": True, "use_sliding_window": False}  # whatever a config says, as transformers has it
    if block.get("mlp_only_layers") is None:
        block["mlp_only_layers"] = []
    return read_qwen(
        config.having({"text_config": block}), "Qwen3VLMoeForConditionalGeneration", MIXTURES["Qwen3MoeForCausalLM"]
    )


def read_qwen(config: Config, architecture: str, decoder: Family = QWEN["Qwen2ForCausalLM"]) -> DecoderSpec:
    """Return Qwen 2 or 3 with the rotation of text: of three equal positions it is the usual one."""
    text = config.within("text_config")
    plain = {}
    for key in ("rope_scaling", "rope_parameters"):
        block = {name: value for name, value in text.block(key).items() if name not in _IMAGE_POSITIONS}
        if block.get("rope_type", block.get("type")) in ("mrope", "default"):
            block = {name: value for name, value in block.items() if name not in ("type", "rope_type")}
        plain[key] = ({"rope_type": "default"} | block if key == "rope_parameters" else block) if block else None
    tied = config.block("text_config").get("tie_word_embeddings") is True or config.flag("tie_word_embeddings", False)
    text = text.having({**plain, "tie_word_embeddings": tied}).over({"rms_norm_eps": 1e-5})
    return replace(decoder.read(text), architecture=architecture)


def _upright_experts(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors with stacks of experts ``[experts, outputs, inputs]``: published files have them transposed,
    those that transformers saves have not. Its rule tells them apart: what has the right shape is upright."""
    experts = spec.experts
    assert experts is not None
    shapes = {
        "gate_up_proj": (experts.count, 2 * experts.feed_forward, spec.width),
        "down_proj": (experts.count, spec.width, experts.feed_forward),
    }

    def upright(name: str, tensor: Tensor) -> Tensor:
        _, stacked, matrix = name.removesuffix(".weight").rpartition(".mlp.experts.")
        known = stacked and len(tensor.shape) == 3 and shapes.get(matrix, tensor.shape) != tensor.shape
        return Transposed(tensor) if known else tensor

    return {name: upright(name, tensor) for name, tensor in tensors.items()}


TEXT_NAMES = LLAMA_NAMES | HEAD_NORM_NAMES
"""Names of the decoders that `text_config` may be of."""
_IDEFICS3_NAMES = (
    TEXT_NAMES
    | siglip_names("model.vision_model.")
    | {"vision_project_out": ("model.connector.modality_projection.proj",)}
)
_IDEFICS3_ALIASES = ((r"^model\.text_model\.", "model."),)
_PROJECTOR = "model.multi_modal_projector."
_TWO_PRODUCTS = {
    "vision_project_in": (f"{_PROJECTOR}linear_1",),
    "vision_project_out": (f"{_PROJECTOR}linear_2",),
}
_LLAVA_NAMES = TEXT_NAMES | siglip_names("model.vision_tower.") | _TWO_PRODUCTS
_INTERNVL_NAMES = (
    TEXT_NAMES
    | internvl_names("model.vision_tower.")
    | _TWO_PRODUCTS
    | {"vision_project_norm": (f"{_PROJECTOR}layer_norm",)}
)
_LLAVA_ALIASES = ((r"^(model\.)?image_newline$", "model.image_newline"), *WITH_IMAGES)
_INTERNVL_CHAT_ALIASES = (
    (r"^language_model\.model\.", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(vision_model|mlp1)\.", r"model.\1."),
)
_QWEN_ALIASES = (
    (r"^(model\.)?visual\.", "model.visual."),
    (r"^model\.language_model\.", "model."),
)
_IMAGE_POSITIONS = ("mrope_section", "mrope_interleaved")
_QWEN_TOWER = re.compile(r"visual\..*")

FAMILIES: dict[str, Family] = {
    "Idefics2ForConditionalGeneration": Family(
        _read_idefics2,
        TEXT_NAMES | siglip_names("model.vision_model.") | resampler_names("model.connector."),
        "idefics2",
        base="model.",
        ignored=ROTARY_BUFFER,
        aliases=_IDEFICS3_ALIASES,
        title="Idefics 2",
        examples=("HuggingFaceM4/idefics2-8b", "HuggingFaceM4/idefics2-8b-chatty"),
        note="It [sees images](vision.md).",
    ),
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
    "LlavaForConditionalGeneration": Family(
        _read_llava,
        _LLAVA_NAMES,
        "llava",
        base="model.",
        ignored=IMAGE_PARTS,
        aliases=_LLAVA_ALIASES,
        other_names=pixtral_names("model.vision_tower."),
        title="LLaVA 1.5 and Pixtral",
        examples=("llava-hf/llava-1.5-7b-hf", "mistral-community/pixtral-12b"),
        note="It [sees images](vision.md).",
    ),
    "LlavaNextForConditionalGeneration": Family(
        _read_llava_next,
        _LLAVA_NAMES | {"vision_row_end": ("model.image_newline",)},
        "llava_next",
        base="model.",
        ignored=IMAGE_PARTS,
        aliases=_LLAVA_ALIASES,
        title="LLaVA-NeXT and Granite Vision",
        examples=("llava-hf/llava-v1.6-mistral-7b-hf", "ibm-granite/granite-vision-3.3-2b"),
        note="It [sees images](vision.md).",
    ),
    "InternVLForConditionalGeneration": Family(
        _read_internvl,
        _INTERNVL_NAMES,
        "internvl",
        base="model.",
        ignored=IMAGE_PARTS,
        aliases=WITH_IMAGES,
        title="InternVL 2.5, 3 and 3.5",
        examples=("OpenGVLab/InternVL3-1B-hf", "OpenGVLab/InternVL3-2B-hf"),
        note="It [sees images](vision.md). Video is not read.",
    ),
    "InternVLChatModel": Family(
        _read_internvl_chat,
        TEXT_NAMES | internvl_chat_names("model.vision_model.", "model.mlp1."),
        "internvl_chat",
        base="model.",
        ignored=re.compile(r"(vision_model|mlp1)\..*"),
        aliases=_INTERNVL_CHAT_ALIASES,
        title="InternVL 2.5, 3 and 3.5, without -hf",
        examples=("OpenGVLab/InternVL3-1B", "OpenGVLab/InternVL3_5-2B"),
        note="The same models as their authors first published them. It [sees images](vision.md). Video is not read. "
        "Decoders of InternLM 2 are refused.",
    ),
    "Qwen2VLForConditionalGeneration": Family(
        _read_qwen2_vl,
        LLAMA_NAMES | qwen_names("model.visual.", gated=False),
        "qwen2_vl",
        base="model.",
        ignored=_QWEN_TOWER,
        aliases=_QWEN_ALIASES,
        title="Qwen2-VL",
        examples=("Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2-VL-7B-Instruct"),
        note="It [sees images](vision.md). Video is not read.",
    ),
    "Qwen2_5_VLForConditionalGeneration": Family(
        _read_qwen25_vl,
        LLAMA_NAMES | qwen_names("model.visual.", gated=True),
        "qwen2_5_vl",
        base="model.",
        ignored=_QWEN_TOWER,
        aliases=_QWEN_ALIASES,
        title="Qwen2.5-VL",
        examples=("Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"),
        note="It [sees images](vision.md). Video is not read.",
    ),
    "Qwen3VLForConditionalGeneration": Family(
        _read_qwen3_vl,
        TEXT_NAMES | qwen3_names("model.visual."),
        "qwen3_vl",
        base="model.",
        ignored=_QWEN_TOWER,
        aliases=_QWEN_ALIASES,
        title="Qwen3-VL",
        examples=("Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"),
        note="It [sees images](vision.md). Video is not read.",
    ),
    "Qwen3VLMoeForConditionalGeneration": Family(
        _read_qwen3_vl_moe,
        QWEN_MOE_NAMES | HEAD_NORM_NAMES | qwen3_names("model.visual."),
        "qwen3_vl_moe",
        base="model.",
        other_names=QWEN_STACKS,
        divide=_upright_experts,
        ignored=_QWEN_TOWER,
        aliases=_QWEN_ALIASES,
        title="Qwen3-VL MoE",
        examples=("Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3-VL-235B-A22B-Instruct"),
        note="It [sees images](vision.md). Video is not read.",
    ),
    "Lfm2VlForConditionalGeneration": Family(
        _read_lfm2_vl,
        LFM2_NAMES
        | siglip_names("model.vision_tower.")
        | _TWO_PRODUCTS
        | {"vision_project_norm": (f"{_PROJECTOR}layer_norm",)},
        "lfm2_vl",
        base="model.",
        ignored=IMAGE_PARTS,
        aliases=WITH_IMAGES,
        title="LFM2-VL",
        examples=("LiquidAI/LFM2-VL-450M", "LiquidAI/LFM2-VL-1.6B"),
        note="It [sees images](vision.md). Most layers of its decoder keep a [state](recurrent-state.md).",
    ),
}
