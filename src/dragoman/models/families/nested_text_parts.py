"""Models that see or hear through parts that are not loaded, whose config names the family of their decoder: text is
served. ``text_parts`` has those whose decoder is of one family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.llama import ROTARY_BUFFER
from dragoman.models.families.mixtures import FAMILIES as MIXTURES
from dragoman.models.families.qwen import FAMILIES as QWEN
from dragoman.models.families.with_images import TEXT_NAMES, read_qwen, read_text
from dragoman.models.spec import DecoderSpec

NOTE = "Text only: the parts for images and sound are not loaded."
_SENSES = (
    r"visual|visual_embeddings_table|vision_(tower|model|encoder|projection)|high_res_vision_(model|proj|neck)|"
    r"global_attn_pool|image_newline|audio_tower|multi_modal_projector|aligner|high_res_vision_alpha"
)
_ALIASES = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(language_model\.model|model\.language_model)\.", "model."),
    (rf"^({_SENSES})(?=\.|$)", r"model.\1"),
)
_THINKER_ALIASES = (
    (r"^thinker\.lm_head\.", "lm_head."),
    (r"^(thinker\.)?model\.(language_model\.)?", "model."),
    (r"^(thinker\.)?(visual|audio_tower)\.", r"model.\2."),
    (r"^(talker|token2wav|code2wav)\.", r"model.\1."),
)
_OTHER_PARTS = re.compile(rf"({_SENSES})(\..*)?|{ROTARY_BUFFER.pattern}")
_TALKING_PARTS = re.compile(rf"(visual|audio_tower|talker|token2wav|code2wav)\..*|{ROTARY_BUFFER.pattern}")

# Fields that configs may omit, with the defaults of transformers' classes.
_VOXTRAL: dict[str, Any] = {
    "vocab_size": 131_072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000_000.0,
    "head_dim": 128,
}
_QWEN25_OMNI: dict[str, Any] = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "sliding_window": 32_768,
}
_QWEN3_OMNI: dict[str, Any] = {
    "vocab_size": 3584,
    "hidden_size": 2048,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": True,
}


def _around_text(
    architecture: str,
    model_type: str,
    kind: str,
    title: str,
    *examples: str,
    tied: bool = False,
    defaults: Mapping[str, Any] = {},
    **more: Any,
) -> Family:
    """Return a family whose decoder is that of ``text_config``, by default of ``kind``."""

    def read(config: Config) -> DecoderSpec:
        text = {"model_type": kind, **defaults, **config.block("text_config")}
        return read_text(config.over({"tie_word_embeddings": tied}).having({"text_config": text}), architecture)

    return Family(
        read,
        TEXT_NAMES,
        model_type,
        base="model.",
        aliases=_ALIASES,
        ignored=_OTHER_PARTS,
        title=title,
        examples=examples,
        note=NOTE,
        **more,
    )


def _omni(decoder: Family, architecture: str, model_type: str, title: str, example: str, **more: Any) -> Family:
    """Return a family of Qwen's models that talk, or of the part that thinks of one."""
    defaults = _QWEN3_OMNI if decoder is _QWEN3_MOE else _QWEN25_OMNI

    def read(config: Config) -> DecoderSpec:
        thinker = config.within("thinker_config") if "thinker_config" in config.values else config
        text = {**defaults, **thinker.block("text_config"), "tie_word_embeddings": False}
        thinker = thinker.having({"text_config": text, "tie_word_embeddings": False})  # it has a head, whatever it says
        if text.get("head_dim") is None:
            inner = thinker.within("text_config")
            width, heads = inner.size("hidden_size"), inner.size("num_attention_heads")
            text["head_dim"] = even_head_dim(width, heads, "hidden_size", "num_attention_heads")
        return read_qwen(thinker, architecture, decoder)

    return replace(
        decoder,
        read=read,
        model_type=model_type,
        aliases=_THINKER_ALIASES,
        ignored=_TALKING_PARTS,
        title=title,
        examples=(example,),
        note=f"{NOTE} Answers are not spoken.",
        **more,
    )


_QWEN2, _QWEN3_MOE = QWEN["Qwen2ForCausalLM"], MIXTURES["Qwen3MoeForCausalLM"]
_QWEN25_EXAMPLE, _QWEN3_EXAMPLE = "Qwen/Qwen2.5-Omni-7B", "Qwen/Qwen3-Omni-30B-A3B-Instruct"

FAMILIES: dict[str, Family] = {
    "AyaVisionForConditionalGeneration": _around_text(
        "AyaVisionForConditionalGeneration",
        "aya_vision",
        "cohere2",
        "Aya Vision",
        "CohereLabs/aya-vision-8b",
        "CohereLabs/aya-vision-32b",
        tied=True,
    ),
    "Cohere2VisionForConditionalGeneration": _around_text(
        "Cohere2VisionForConditionalGeneration",
        "cohere2_vision",
        "cohere2",
        "Command A Vision",
        "CohereLabs/command-a-vision-07-2025",
        tied=True,
    ),
    "LlavaOnevisionForConditionalGeneration": _around_text(
        "LlavaOnevisionForConditionalGeneration",
        "llava_onevision",
        "qwen2",
        "LLaVA-OneVision",
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",
    ),
    "Ovis2ForConditionalGeneration": _around_text(
        "Ovis2ForConditionalGeneration", "ovis2", "qwen2", "Ovis 2", "thisisiron/Ovis2-1B-hf", tied=True
    ),
    "DeepseekVLForConditionalGeneration": _around_text(
        "DeepseekVLForConditionalGeneration",
        "deepseek_vl",
        "llama",
        "DeepSeek-VL 1.3B",
        "deepseek-community/deepseek-vl-1.3b-chat",
        tied=True,
    ),
    "DeepseekVLHybridForConditionalGeneration": _around_text(
        "DeepseekVLHybridForConditionalGeneration",
        "deepseek_vl_hybrid",
        "llama",
        "DeepSeek-VL 7B",
        "deepseek-community/deepseek-vl-7b-chat",
        tied=True,
    ),
    "LightOnOcrForConditionalGeneration": _around_text(
        "LightOnOcrForConditionalGeneration",
        "lighton_ocr",
        "qwen3",
        "LightOnOCR",
        "lightonai/LightOnOCR-1B-1025",
        tied=True,
    ),
    "Qwen2AudioForConditionalGeneration": _around_text(
        "Qwen2AudioForConditionalGeneration", "qwen2_audio", "qwen2", "Qwen2-Audio", "Qwen/Qwen2-Audio-7B-Instruct"
    ),
    "VoxtralForConditionalGeneration": _around_text(
        "VoxtralForConditionalGeneration",
        "voxtral",
        "llama",
        "Voxtral",
        "mistralai/Voxtral-Mini-3B-2507",
        "mistralai/Voxtral-Small-24B-2507",
        defaults=_VOXTRAL,
    ),
    "Qwen2_5OmniForConditionalGeneration": _omni(
        _QWEN2,
        "Qwen2_5OmniForConditionalGeneration",
        "qwen2_5_omni",
        "Qwen2.5-Omni",
        _QWEN25_EXAMPLE,
        others={"Qwen2_5OmniModel": None},
    ),
    "Qwen2_5OmniThinkerForConditionalGeneration": _omni(
        _QWEN2,
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "qwen2_5_omni_thinker",
        "Qwen2.5-Omni, the part that thinks",
        _QWEN25_EXAMPLE,
    ),
    "Qwen3OmniMoeForConditionalGeneration": _omni(
        _QWEN3_MOE,
        "Qwen3OmniMoeForConditionalGeneration",
        "qwen3_omni_moe",
        "Qwen3-Omni",
        _QWEN3_EXAMPLE,
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": _omni(
        _QWEN3_MOE,
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "qwen3_omni_moe_thinker",
        "Qwen3-Omni, the part that thinks",
        _QWEN3_EXAMPLE,
    ),
}
