"""Families of decoders: for each, the reader of its config and the names of its weights in a checkpoint.

A module holds the families of one lineage; ``FAMILIES`` joins them all. ``docs/adding-a-model.md`` shows how to add
one.
"""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families import (
    afmoe,
    baichuan,
    bart,
    bert,
    bloom,
    cohere,
    eleuther,
    ernie,
    falcon,
    gemma,
    gemma3n,
    gemma4,
    glm,
    gpt2,
    gpt_neo,
    gpt_oss,
    granite,
    granite_hybrid,
    hunyuan,
    idefics,
    kimi_linear,
    laguna,
    latent,
    lfm2,
    ling,
    llama,
    llama4,
    llama_variants,
    longcat,
    mamba,
    mamba_hybrids,
    mimo_v2,
    minimax,
    mistral,
    mixtures,
    mllama,
    modern_bert,
    mosaic,
    muse_glimmer,
    nanochat,
    nemotron,
    nemotron_h,
    nested_text_parts,
    olmo,
    olmo_hybrid,
    opt,
    own_code,
    phi,
    qwen,
    qwen_hybrid,
    recurrent_gemma,
    scored_mixtures,
    smollm,
    stablelm,
    starcoder,
    t5,
    text_parts,
    with_images,
    zamba,
    zamba2,
)
from dragoman.models.families.family import Family
from dragoman.models.families.missing import MISSING
from dragoman.models.spec import DecoderSpec

__all__ = ["FAMILIES", "MISSING", "REFUSED", "Family", "find_family", "read_spec"]

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **mistral.FAMILIES,
    **llama4.FAMILIES,
    **mllama.FAMILIES,
    **idefics.FAMILIES,
    **qwen.FAMILIES,
    **mixtures.FAMILIES,
    **gpt2.FAMILIES,
    **gpt_neo.FAMILIES,
    **nanochat.FAMILIES,
    **phi.FAMILIES,
    **gemma.FAMILIES,
    **gemma3n.FAMILIES,
    **gemma4.FAMILIES,
    **stablelm.FAMILIES,
    **starcoder.FAMILIES,
    **olmo.FAMILIES,
    **granite.FAMILIES,
    **smollm.FAMILIES,
    **lfm2.FAMILIES,
    **qwen_hybrid.FAMILIES,
    **granite_hybrid.FAMILIES,
    **mamba_hybrids.FAMILIES,
    **nemotron.FAMILIES,
    **nemotron_h.FAMILIES,
    **olmo_hybrid.FAMILIES,
    **mamba.FAMILIES,
    **recurrent_gemma.FAMILIES,
    **kimi_linear.FAMILIES,
    **minimax.FAMILIES,
    **cohere.FAMILIES,
    **glm.FAMILIES,
    **llama_variants.FAMILIES,
    **baichuan.FAMILIES,
    **ernie.FAMILIES,
    **hunyuan.FAMILIES,
    **scored_mixtures.FAMILIES,
    **afmoe.FAMILIES,
    **laguna.FAMILIES,
    **mimo_v2.FAMILIES,
    **latent.FAMILIES,
    **longcat.FAMILIES,
    **mosaic.FAMILIES,
    **gpt_oss.FAMILIES,
    **eleuther.FAMILIES,
    **opt.FAMILIES,
    **own_code.FAMILIES,
    **ling.FAMILIES,
    **bloom.FAMILIES,
    **falcon.FAMILIES,
    **t5.FAMILIES,
    **bart.FAMILIES,
    **bert.FAMILIES,
    **modern_bert.FAMILIES,
    **with_images.FAMILIES,
    **text_parts.FAMILIES,
    **nested_text_parts.FAMILIES,
    **muse_glimmer.FAMILIES,
    **zamba.FAMILIES,
    **zamba2.FAMILIES,
}

# Features that only some families, or only other readers of config.json, support: refused by name where a family's
# reader does not read the field itself, unless it has a value that turns it off. (``auto_map``, a repository's own
# code, is not listed: that code is never run, and its architecture is implemented here.)
REFUSED: dict[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "partial_rotary_factor": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),  # Hunyuan's dense models say 1
}


def find_family(values: dict[str, Any]) -> Family:
    """Return the family of a config. Raises ModelError naming the architecture and the known ones."""
    return FAMILIES[_architecture(values)]


def read_spec(values: dict[str, Any]) -> DecoderSpec:
    """Return the decoder that a ``config.json`` describes. Raises ModelError for what is not supported."""
    config = Config(values)
    spec = find_family(values).read(config)
    for key, harmless in REFUSED.items():
        if key not in config.accessed.read:
            config.refuse(key, *harmless)
    return spec


def _architecture(values: dict[str, Any]) -> str:
    declared = values.get("architectures")
    names = [str(name) for name in declared] if isinstance(declared, list) else []
    for name in names:
        if found := _BY_NAME.get(name.lower()):
            return found
    if not names and (found := _BY_MODEL_TYPE.get(str(values.get("model_type")))):
        return found
    if not names and values.get("model_type") is None:
        raise ModelError("config.json names no architecture: it has neither architectures nor model_type")
    requested = ", ".join(names) or f"model_type {values.get('model_type')!r}"
    needs = next((f": it needs {MISSING[name]}" for name in names if name in MISSING), "")
    hint = "; the model comes with code of its own (auto_map), which is never run" if values.get("auto_map") else ""
    raise ModelError(f"architecture {requested} is not supported{needs}{hint}; known: {', '.join(FAMILIES)}")


# In small letters: authors and transformers write some differently, as MPTForCausalLM and MptForCausalLM.
_BY_NAME = {
    name.lower(): architecture for architecture, family in FAMILIES.items() for name in (architecture, *family.others)
}
_BY_MODEL_TYPE = {family.model_type: architecture for architecture, family in FAMILIES.items()}
