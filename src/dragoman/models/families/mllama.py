"""Llama 3.2 Vision, for prompts without images: a Llama between whose layers are others that read images alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import WITH_IMAGES, Family
from dragoman.models.families.llama import LLAMA_NAMES, llama_like
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import FirstRows, Tensor

_LAYER = re.compile(r"((?:model\.)?layers\.)(\d+)(\..+)")
_TABLE = re.compile(r"(model\.)?embed_tokens\.weight")


def _read_mllama(config: Config) -> DecoderSpec:
    """Return the decoder without its layers of cross-attention: a prompt without an image passes them by."""
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
    return llama_like(kept, architecture="MllamaForConditionalGeneration", theta=500_000.0)


def _without_cross_attention(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the layers that read text, counted without the others, and the rows of the embedding for
    text: the eight after them are of images, and have no logits."""
    layers = {name: match for name in tensors if (match := _LAYER.fullmatch(name))}
    crossed = {int(match[2]) for match in layers.values() if match[3].startswith(".cross_attn")}
    kept = sorted({int(match[2]) for match in layers.values()} - crossed)
    places = {layer: place for place, layer in enumerate(kept)}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (match := layers.get(name)) is not None:
            if (place := places.get(int(match[2]))) is not None:
                found[f"{match[1]}{place}{match[3]}"] = tensor
        elif _TABLE.fullmatch(name) and len(tensor.shape) == 2 and tensor.shape[0] == spec.vocab_size + 8:
            found[name] = FirstRows(tensor, spec.vocab_size)
        else:
            found[name] = tensor
    return found


_ALIASES = ((r"^(model\.)?(vision_model)\.", r"model.\2."), *WITH_IMAGES)

FAMILIES: dict[str, Family] = {
    "MllamaForConditionalGeneration": Family(
        _read_mllama,
        LLAMA_NAMES,
        "mllama",
        base="model.",
        aliases=_ALIASES,
        divide=_without_cross_attention,
        ignored=re.compile(r"(vision_model|multi_modal_projector)\..*"),
        title="Llama 3.2 Vision",
        examples=("meta-llama/Llama-3.2-11B-Vision-Instruct",),
        note="Text only: neither the vision model nor the layers of cross-attention are loaded.",
    ),
}
