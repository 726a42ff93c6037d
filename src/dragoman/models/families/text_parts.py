"""Decoders of other families in models that see or hear, of which text alone is served: EXAONE 4.5, GLM-4.1V to 4.6V,
Gemma 4 12B, Kimi K2.5, MiniCPM-V 4.6 and Phi-4-multimodal."""

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
from dragoman.models.families.latent import FAMILIES as LATENT
from dragoman.models.families.llama_variants import FAMILIES as LLAMA_VARIANTS
from dragoman.models.families.phi import FAMILIES as PHI
from dragoman.models.families.qwen_hybrid import FAMILIES as QWEN_HYBRID
from dragoman.models.families.qwen_hybrid import without_image_positions
from dragoman.models.families.scored_mixtures import FAMILIES as SCORED_MIXTURES
from dragoman.models.spec import DecoderSpec

_NOTE = "Text only: the parts for images and sound are not loaded."
_PREFIXES = (
    (r"^language_model\.model\.blocks\.", "model.layers."),  # Kimi K2.5 as transformers saves it
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(language_model\.model|model\.language_model)\.", "model."),
    (r"^(visual|vision_tower|vision_embedder|mm_projector|merger|embed_vision|embed_audio)\.", r"model.\1."),
)
_SENSES = rf"(visual|vision_tower|vision_embedder|mm_projector|merger)\..*|{OTHER_SENSES.pattern}"

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


def _reader(
    decoder: Family, architecture: str, defaults: Mapping[str, Any], values: Mapping[str, Any]
) -> Callable[[Config], DecoderSpec]:
    """Return the reader of a config whose ``text_config`` is that of ``decoder``; ``values`` go before its own."""

    def read(config: Config) -> DecoderSpec:
        text = without_image_positions(config.within("text_config")).over(dict(defaults)).having(dict(values))
        if decoder is GLM["Glm4ForCausalLM"]:  # its own default is 128
            width, heads = text.size("hidden_size"), text.size("num_attention_heads")
            text = text.having({"head_dim": even_head_dim(width, heads, "hidden_size", "num_attention_heads")})
        return replace(decoder.read(text), architecture=architecture)

    return read


def _read_phi4_multimodal(config: Config) -> DecoderSpec:
    """Return Phi-3: images and sound have adapters of its matrices, of which text uses none."""
    return replace(PHI["Phi3ForCausalLM"].read(config), architecture="Phi4MMForCausalLM")


def _family(
    decoder: Family,
    architecture: str,
    model_type: str,
    title: str,
    examples: tuple[str, ...],
    *,
    defaults: Mapping[str, Any] = {},
    values: Mapping[str, Any] = {},
    also_ignored: str = r"mtp\..*",
    **more: Any,
) -> Family:
    return replace(
        decoder,
        read=_reader(decoder, architecture, defaults, values),
        model_type=model_type,
        aliases=(*_PREFIXES, *decoder.aliases),
        ignored=re.compile(f"{_SENSES}|{also_ignored}|{decoder.ignored.pattern}"),
        head=None,
        title=title,
        examples=examples,
        note=_NOTE,
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
        read=_reader(GEMMA4["Gemma4ForCausalLM"], "Gemma4UnifiedForCausalLM", _GEMMA4_12B, {}),
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
    "Phi4MMForCausalLM": replace(
        PHI["Phi3ForCausalLM"],
        read=_read_phi4_multimodal,
        model_type="phi4mm",
        aliases=((r"\.base_layer\.", "."),),
        ignored=re.compile(rf"embed_tokens_extend\..*|.*\.lora_[AB]\..*|{PHI['Phi3ForCausalLM'].ignored.pattern}"),
        title="Phi-4-multimodal",
        examples=("microsoft/Phi-4-multimodal-instruct",),
        note=f"{_NOTE} LongRoPE as in Phi-3.",
    ),
}
