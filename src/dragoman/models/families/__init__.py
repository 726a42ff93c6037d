"""The families of decoders: for each, how its config reads and what its checkpoint calls each weight.

A chapter holds the families of one lineage; ``FAMILIES`` joins them all. ``docs/adding-a-model.md`` walks through
adding one.
"""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families import (
    bart,
    bloom,
    cohere,
    eleuther,
    falcon,
    gemma,
    glm,
    gpt2,
    granite,
    llama,
    mixtures,
    olmo,
    opt,
    phi,
    qwen,
    smollm,
    stablelm,
    starcoder,
    t5,
)
from dragoman.models.families.family import Family
from dragoman.models.spec import DecoderSpec

__all__ = ["FAMILIES", "REFUSED", "Family", "find_family", "read_spec"]

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **qwen.FAMILIES,
    **mixtures.FAMILIES,
    **gpt2.FAMILIES,
    **phi.FAMILIES,
    **gemma.FAMILIES,
    **stablelm.FAMILIES,
    **starcoder.FAMILIES,
    **olmo.FAMILIES,
    **granite.FAMILIES,
    **smollm.FAMILIES,
    **cohere.FAMILIES,
    **glm.FAMILIES,
    **eleuther.FAMILIES,
    **opt.FAMILIES,
    **bloom.FAMILIES,
    **falcon.FAMILIES,
    **t5.FAMILIES,
    **bart.FAMILIES,
}

# Features that some families honour, or other readers of config.json for any: refused by name where a family's reader
# does not ask for the field itself, unless it has a value that turns it off. (``auto_map``, a repository's own code, is
# none: that is never run, and what its architecture is called here, we compute ourselves.)
REFUSED: dict[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "partial_rotary_factor": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "num_local_experts": (0,),
    "num_experts": (0,),
}


def find_family(values: dict[str, Any]) -> Family:
    """The family of a config; ModelError naming the architecture and the known ones otherwise."""
    return FAMILIES[_architecture(values)]


def read_spec(values: dict[str, Any]) -> DecoderSpec:
    """The decoder that a ``config.json`` describes. Raises ModelError where it asks for what is not there."""
    config = Config(values)
    spec = find_family(values).read(config)
    for key, harmless in REFUSED.items():
        if key not in config.asked.read:
            config.refuse(key, *harmless)
    return spec


def _architecture(values: dict[str, Any]) -> str:
    declared = values.get("architectures")
    names = [str(name) for name in declared] if isinstance(declared, list) else []
    for name in names:
        if name in FAMILIES:
            return name
    if not names and (found := _BY_MODEL_TYPE.get(str(values.get("model_type")))):
        return found
    asked = ", ".join(names) or f"model_type {values.get('model_type')!r}"
    raise ModelError(f"architecture {asked} is not supported; known: {', '.join(FAMILIES)}")


_BY_MODEL_TYPE = {family.model_type: architecture for architecture, family in FAMILIES.items()}
