"""Decoders of one other family each in models that see or hear, of which text alone is served: EXAONE 4.5, GLM-4.1V to
4.6V, Gemma 4 12B, Granite 4 Vision, Kimi K2.5, LFM3-VL, MiniCPM-V 4.6 and 4.7, Nemotron Omni and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.models.config import Config
from dragoman.models.families.family import Family, even_head_dim
from dragoman.models.families.gemma4 import FAMILIES as GEMMA4
from dragoman.models.families.gemma4 import OTHER_SENSES
from dragoman.models.families.glm import FAMILIES as GLM
from dragoman.models.families.granite import FAMILIES as GRANITE
from dragoman.models.families.hunyuan import FAMILIES as HUNYUAN
from dragoman.models.families.latent import FAMILIES as LATENT
from dragoman.models.families.lfm2 import FAMILIES as LFM2
from dragoman.models.families.llama import FAMILIES as LLAMA
from dragoman.models.families.llama_variants import FAMILIES as LLAMA_VARIANTS
from dragoman.models.families.nemotron_h import FAMILIES as NEMOTRON_H
from dragoman.models.families.nested_text_parts import NOTE
from dragoman.models.families.phi import FAMILIES as PHI
from dragoman.models.families.qwen_hybrid import FAMILIES as QWEN_HYBRID
from dragoman.models.families.qwen_hybrid import without_image_positions
from dragoman.models.families.scored_mixtures import FAMILIES as SCORED_MIXTURES
from dragoman.models.spec import DecoderSpec

_PREFIXES = (
    (r"^language_model\.model\.blocks\.", "model.layers."),  # Kimi K2.5 as transformers saves it
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^model\.language_model\.lm_head\.", "lm_head."),
    (r"^(language_model\.model|model\.language_model(\.model)?|model\.text_model)\.", "model."),
    (r"^(visual|vision_tower|vision_embedder|mm_projector|merger|embed_vision|embed_audio|vit|mlp_AR)\.", r"model.\1."),
)
_SENSES = (
    r"(visual|vision_(tower|model|embedder|projector)|mm_projector|merger|multi_modal_projector|projector|connector|"
    r"(layerwise|spatial)_projectors|density_router|vit|mlp_AR)\..*|image_newline|"
    rf"{OTHER_SENSES.pattern}"
)

# Of Gemma 4 12B and of the text parts of GLM-4V, the defaults of fields that configs may omit, from transformers'
# classes.
_GEMMA4_12B: dict[str, Any] = {
    "sliding_window": 1024,
    "max_position_embeddings": 262_144,
    "hidden_size_per_layer_input": 0,
    "use_bidirectional_attention": "vision",
}
_GLM4V: dict[str, Any] = {
    "vocab_size": 151_552,
    "hidden_size": 4096,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
}
_GLM4V_MOE: dict[str, Any] = {
    "vocab_size": 151_424,
    "intermediate_size": 10_944,
    "num_hidden_layers": 46,
    "max_position_embeddings": 65_536,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "attention_bias": True,
}
_GRANITE_DOCLING: dict[str, Any] = {
    "vocab_size": 133_800,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "embedding_multiplier": 12.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.263,
    "attention_multiplier": 0.015625,
}
_GLM_OCR: dict[str, Any] = {
    "vocab_size": 59_392,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
}
_PADDLE_OCR: dict[str, Any] = {
    "vocab_size": 103_424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "head_dim": 128,
}
_LFM3_VL: dict[str, Any] = {
    "vocab_size": 128_000,
    "hidden_size": 2048,
    "intermediate_size": 7680,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
_LLAMA: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def _reader(
    decoder: Family, architecture: str, defaults: Mapping[str, Any], values: Mapping[str, Any], tied: bool
) -> Callable[[Config], DecoderSpec]:
    """Return the reader of a config whose ``text_config`` is that of ``decoder``; ``values`` go before its own."""

    def read(config: Config) -> DecoderSpec:
        part = _tied_text(config, by_whole=True) if tied else without_image_positions(config.within("text_config"))
        text = part.over(dict(defaults)).having(dict(values))
        narrow = defaults is _GLM4V or text.value("head_dim") is None
        if decoder is GLM["Glm4ForCausalLM"] and narrow:  # its own default is 128
            width, heads = text.size("hidden_size"), text.size("num_attention_heads")
            text = text.having({"head_dim": even_head_dim(width, heads, "hidden_size", "num_attention_heads")})
        return replace(decoder.read(text), architecture=architecture)

    return read


def _read_phi4_multimodal(config: Config) -> DecoderSpec:
    """Return Phi-3: images and sound have adapters of its matrices, of which text uses none."""
    return replace(PHI["Phi3ForCausalLM"].read(config), architecture="Phi4MMForCausalLM")


def _tied_text(config: Config, *, by_whole: bool = False) -> Config:
    """Return the config of the decoder, which is tied unless that of the whole and its own say otherwise.
    ``by_whole``: its own says nothing."""
    whole, own = config.flag("tie_word_embeddings", True), config.block("text_config").get("tie_word_embeddings")
    tied = whole or (not by_whole and own is not False)
    return without_image_positions(config.within("text_config")).having({"tie_word_embeddings": tied})


def _read_paddle_ocr(config: Config) -> DecoderSpec:
    """Return a Llama, whose config may be that of the whole."""
    text = _tied_text(config).over(_PADDLE_OCR)
    bias = text.flag("use_bias", False)
    spec = LLAMA["LlamaForCausalLM"].read(text.having({"attention_bias": bias, "mlp_bias": bias}))
    return replace(spec, architecture="PaddleOCRVLForConditionalGeneration")


def _read_hunyuan_vl(config: Config) -> DecoderSpec:
    """Return Hunyuan, whose config may be that of the whole, and names its rotation otherwise."""
    text = _tied_text(config).over(_LLAMA)
    for key in ("rope_scaling", "rope_parameters"):
        block = text.block(key)
        if "xdrope" in (block.get("rope_type"), block.get("type")):
            named = {name: value for name, value in block.items() if name not in ("type", "rope_type")}
            text = text.having({key: {"rope_type": "dynamic"} | named})
    return replace(HUNYUAN["HunYuanDenseV1ForCausalLM"].read(text), architecture="HunYuanVLForConditionalGeneration")


def _read_nemotron_omni(config: Config) -> DecoderSpec:
    """Return Nemotron-H, whose config has one of two names."""
    part = "llm_config" if "llm_config" in config.values else "text_config"
    spec = NEMOTRON_H["NemotronHForCausalLM"].read(config.within(part))
    return replace(spec, architecture="NemotronH_Omni_Reasoning_V3")


def _family(
    decoder: Family,
    architecture: str,
    model_type: str,
    title: str,
    examples: tuple[str, ...],
    *,
    defaults: Mapping[str, Any] = {},
    values: Mapping[str, Any] = {},
    tied: bool = False,
    also_ignored: str = r"mtp\..*",
    **more: Any,
) -> Family:
    return replace(
        decoder,
        read=_reader(decoder, architecture, defaults, values, tied),
        model_type=model_type,
        aliases=(*_PREFIXES, *decoder.aliases),
        ignored=re.compile(f"{_SENSES}|{also_ignored}|{decoder.ignored.pattern}"),
        head=None,
        title=title,
        examples=examples,
        note=NOTE,
        **more,
    )


FAMILIES: dict[str, Family] = {
    "Exaone4_5_ForConditionalGeneration": _family(
        LLAMA_VARIANTS["Exaone4ForCausalLM"],
        "Exaone4_5_ForConditionalGeneration",
        "exaone4_5",
        "EXAONE 4.5",
        ("LGAI-EXAONE/EXAONE-4.5-33B",),
    ),
    "Glm4vForConditionalGeneration": _family(
        GLM["Glm4ForCausalLM"],
        "Glm4vForConditionalGeneration",
        "glm4v",
        "GLM-4.1V",
        ("zai-org/GLM-4.1V-9B-Thinking",),
        defaults=_GLM4V,
        values={"attention_bias": True},
    ),
    "Glm46VForConditionalGeneration": _family(
        GLM["Glm4ForCausalLM"],
        "Glm46VForConditionalGeneration",
        "glm46v",
        "GLM-4.6V",
        ("zai-org/GLM-4.6V-Flash",),
        defaults=_GLM4V,
        values={"attention_bias": True},
    ),
    "Glm4vMoeForConditionalGeneration": _family(
        SCORED_MIXTURES["Glm4MoeForCausalLM"],
        "Glm4vMoeForConditionalGeneration",
        "glm4v_moe",
        "GLM-4.5V and 4.6V MoE",
        ("zai-org/GLM-4.5V", "zai-org/GLM-4.6V"),
        defaults=_GLM4V_MOE,
    ),
    "Gemma4UnifiedForCausalLM": replace(
        GEMMA4["Gemma4ForCausalLM"],
        read=_reader(GEMMA4["Gemma4ForCausalLM"], "Gemma4UnifiedForCausalLM", _GEMMA4_12B, {}, False),
        model_type="gemma4_unified_text",
        title="Gemma 4 12B, text part",
        examples=("google/gemma-4-12B-it (its text part)",),
        note="",
    ),
    "Gemma4UnifiedForConditionalGeneration": _family(
        GEMMA4["Gemma4ForCausalLM"],
        "Gemma4UnifiedForConditionalGeneration",
        "gemma4_unified",
        "Gemma 4 12B",
        ("google/gemma-4-12B-it",),
        defaults=_GEMMA4_12B,
    ),
    "KimiK25ForConditionalGeneration": _family(
        LATENT["DeepseekV3ForCausalLM"],
        "KimiK25ForConditionalGeneration",
        "kimi_k25",
        "Kimi K2.5",
        ("moonshotai/Kimi-K2.5",),
        others={"Kimi_K25ForConditionalGeneration": None},
    ),
    "MiniCPMV4_6ForConditionalGeneration": _family(
        QWEN_HYBRID["Qwen3_5ForCausalLM"],
        "MiniCPMV4_6ForConditionalGeneration",
        "minicpmv4_6",
        "MiniCPM-V 4.6",
        ("openbmb/MiniCPM-V-4.6",),
    ),
    "MiniCPMV4_7ForConditionalGeneration": _family(
        QWEN_HYBRID["Qwen3_5ForCausalLM"],
        "MiniCPMV4_7ForConditionalGeneration",
        "minicpmv4_7",
        "MiniCPM-V 4.7",
        ("openbmb/MiniCPM-V-4.7",),
    ),
    "Lfm3VlForConditionalGeneration": _family(
        LFM2["Lfm3ForCausalLM"],
        "Lfm3VlForConditionalGeneration",
        "lfm3_vl",
        "LFM3-VL",
        ("LiquidAI/LFM3-VL-1.9B",),
        defaults=_LFM3_VL,
    ),
    "Granite4VisionForConditionalGeneration": _family(
        GRANITE["GraniteForCausalLM"],
        "Granite4VisionForConditionalGeneration",
        "granite4_vision",
        "Granite 4 Vision",
        ("ibm-granite/granite-4.0-3b-vision",),
        defaults=_LLAMA,
    ),
    "GraniteDoclingForConditionalGeneration": _family(
        GRANITE["GraniteForCausalLM"],
        "GraniteDoclingForConditionalGeneration",
        "granite_docling",
        "Granite Docling 2",
        ("ibm-granite/granite-docling-2-500M",),
        defaults=_GRANITE_DOCLING,
        tied=True,
    ),
    "HyperCLOVAXVisionV2ForConditionalGeneration": _family(
        GRANITE["HyperCLOVAXForCausalLM"],
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        "hyperclovax_vision_v2",
        "HyperCLOVA X SEED with images",
        ("naver-hyperclovax/HyperCLOVAX-SEED-Think-32B",),
        defaults=_LLAMA,
        others={"HCXVisionV2ForCausalLM": None},
    ),
    "GlmOcrForConditionalGeneration": _family(
        GLM["Glm4ForCausalLM"],
        "GlmOcrForConditionalGeneration",
        "glm_ocr",
        "GLM-OCR",
        ("zai-org/GLM-OCR",),
        defaults=_GLM_OCR,
        values={"attention_bias": False},
        also_ignored=r"layers\.16\..*",  # guesses one token more
    ),
    "PaddleOCRVLForConditionalGeneration": replace(
        _family(
            LLAMA["LlamaForCausalLM"],
            "PaddleOCRVLForConditionalGeneration",
            "paddleocr_vl",
            "PaddleOCR-VL",
            ("PaddlePaddle/PaddleOCR-VL",),
        ),
        read=_read_paddle_ocr,
    ),
    "HunYuanVLForConditionalGeneration": replace(
        _family(
            HUNYUAN["HunYuanDenseV1ForCausalLM"],
            "HunYuanVLForConditionalGeneration",
            "hunyuan_vl",
            "HunyuanOCR",
            ("tencent/HunyuanOCR",),
        ),
        read=_read_hunyuan_vl,
    ),
    "NemotronH_Omni_Reasoning_V3": replace(
        NEMOTRON_H["NemotronHForCausalLM"],
        read=_read_nemotron_omni,
        model_type="nemotron_h_omni",
        aliases=(
            (r"^language_model\.(backbone|model)\.", "backbone."),
            (r"^language_model\.lm_head\.", "lm_head."),
        ),
        ignored=re.compile(
            r"((language_model\.)?mtp|vision_model|mlp1|sound_encoder|sound_projection|multi_modal_projector|audio_tower|"
            r"embed_audio)\..*"
        ),
        title="Nemotron Nano 2 VL, Nemotron 3 Nano Omni",
        examples=(
            "nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16",
            "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",
        ),
        note=f"{NOTE} Layers with Mamba-2 keep a [state](recurrent-state.md).",
        others={"NemotronH_Nano_VL_V2": None, "NemotronH_Nano_Omni_Reasoning_V3": None},
    ),
    "Phi4MMForCausalLM": replace(
        PHI["Phi3ForCausalLM"],
        read=_read_phi4_multimodal,
        model_type="phi4mm",
        aliases=((r"\.base_layer\.", "."),),
        ignored=re.compile(rf"embed_tokens_extend\..*|.*\.lora_[AB]\..*|{PHI['Phi3ForCausalLM'].ignored.pattern}"),
        title="Phi-4-multimodal",
        examples=("microsoft/Phi-4-multimodal-instruct",),
        note=f"{NOTE} LongRoPE as in Phi-3.",
    ),
}
