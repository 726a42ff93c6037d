"""Llama 3.2 Vision: a Llama with gated cross-attention layers between its layers, which look at images."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import WITH_IMAGES, Family
from dragoman.models.families.llama import LLAMA_NAMES, llama_like
from dragoman.models.optional_parts import ImageLayers
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import FirstRows, Tensor
from dragoman.models.vision.parameters import mllama_names
from dragoman.models.vision.readers_mllama import IMAGE_TOKENS

_LAYER = re.compile(r"((?:model\.)?)layers\.(\d+)(\..+)")
_GLOBAL_LAYER = re.compile(r"(.*vision_model\.)global_transformer\.layers\.(\d+)(\..+)")
_TABLE = re.compile(r"(model\.)?embed_tokens\.weight")


def _read_mllama(config: Config) -> DecoderSpec:
    """Return the decoder without its cross-attention layers, which ``image_layers`` and the vision tower describe."""
    config = config.within("text_config")
    config = config.over({"num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-5})
    config = config.over({"hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32})
    config = config.over({"vocab_size": 128_256, "max_position_embeddings": 131_072})
    layers = config.size("num_hidden_layers")
    crossed = config.value("cross_attention_layers", [3, 8, 13, 18, 23, 28, 33, 38])
    listed = crossed if isinstance(crossed, list) else [-1]
    if not all(type(layer) is int and 0 <= layer < layers for layer in listed) or len({*listed}) >= layers:
        raise ModelError(f"{config.where}: cross_attention_layers must list some of {layers} layers, got {crossed!r}")
    kept = config.having({"num_hidden_layers": layers - len({*listed})})
    return llama_like(kept, architecture="MllamaForConditionalGeneration", theta=500_000.0, image_layers=ImageLayers())


def _with_layers_apart(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the layers that read text, counted without those that look at images, which are
    ``image_layers``; the tower's second stage counted on after its first; and of a decoder that sees no images the rows
    of the embedding for text alone."""
    layers = {name: match for name in tensors if (match := _LAYER.fullmatch(name))}
    crossed = sorted({int(match[2]) for match in layers.values() if match[3].startswith(".cross_attn")})
    kept = sorted({int(match[2]) for match in layers.values()} - {*crossed})
    places = {layer: f"layers.{place}" for place, layer in enumerate(kept)}
    places |= {layer: f"image_layers.{place}" for place, layer in enumerate(crossed)}
    first = spec.vision.layers.first_stage if spec.vision else 0
    text = spec.vocab_size - spec.embedding.unspoken
    sees = spec.vision is not None and any("vision_model." in name or "projector." in name for name in tensors)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (match := layers.get(name)) is not None:
            found[f"{match[1]}{places[int(match[2])]}{match[3]}"] = tensor
        elif (match := _GLOBAL_LAYER.fullmatch(name)) is not None:
            found[f"{match[1]}transformer.layers.{first + int(match[2])}{match[3]}"] = tensor
        elif _TABLE.fullmatch(name) and len(tensor.shape) == 2 and tensor.shape[0] == text + IMAGE_TOKENS and not sees:
            found[name] = FirstRows(tensor, text)
        else:
            found[name] = tensor
    return found


_LOOKING = "model.image_layers.{layer}."
_LOOKING_NAMES: dict[str, tuple[str, ...]] = {
    "image_norm": (f"{_LOOKING}input_layernorm",),
    "image_query": (f"{_LOOKING}cross_attn.q_proj",),
    "image_key_value": (f"{_LOOKING}cross_attn.k_proj", f"{_LOOKING}cross_attn.v_proj"),
    "image_query_norm": (f"{_LOOKING}cross_attn.q_norm",),
    "image_key_norm": (f"{_LOOKING}cross_attn.k_norm",),
    "image_out": (f"{_LOOKING}cross_attn.o_proj",),
    "image_out_gate": (f"{_LOOKING}cross_attn_attn_gate",),
    "image_feed_forward_norm": (f"{_LOOKING}post_attention_layernorm",),
    "image_feed_forward_in": (f"{_LOOKING}mlp.gate_proj", f"{_LOOKING}mlp.up_proj"),
    "image_feed_forward_out": (f"{_LOOKING}mlp.down_proj",),
    "image_feed_forward_out_gate": (f"{_LOOKING}cross_attn_mlp_gate",),
}
_ALIASES = ((r"^(model\.)?(vision_model)\.", r"model.\2."), *WITH_IMAGES)

FAMILIES: dict[str, Family] = {
    "MllamaForConditionalGeneration": Family(
        _read_mllama,
        LLAMA_NAMES | _LOOKING_NAMES | mllama_names("model.vision_model.", "model.multi_modal_projector"),
        "mllama",
        base="model.",
        aliases=_ALIASES,
        divide=_with_layers_apart,
        renumbers=True,
        ignored=re.compile(r"(vision_model|multi_modal_projector|image_layers)\..*"),
        title="Llama 3.2 Vision",
        examples=("meta-llama/Llama-3.2-11B-Vision-Instruct",),
        note="It [sees images](vision.md).",
    ),
}
