"""MiMo-V2-Flash and MiMo-V2.5: values narrower than keys, more of them where attention has a window, and sinks there.

MiMo-V2.5 has queries, keys and values in one matrix. In float8 that is one of shards, as many as layers with full
attention have keys: each has the queries, keys and values of its heads, and is quantized by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import llama_like
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES, DEEPSEEK_STACKS, deepseek_experts
from dragoman.models.optional_parts import LayerSizes
from dragoman.models.rope import Rope
from dragoman.models.rope_config import blocks_by_layer_type, read_rope_block
from dragoman.models.spec import DecoderSpec, Experts
from dragoman.models.tensors import Format, InShards, Quantized, Tensor, View

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 32
"""Numbers of keys and values that differ in size come in multiples of this: a limit of the kernels."""

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 152_576,
    "hidden_size": 4096,
    "intermediate_size": 16_384,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "n_routed_experts": 256,
    "max_position_embeddings": 131_072,
    "head_dim": 192,
    "v_head_dim": 128,
}
_THETAS = (5_000_000.0, 10_000.0)
_ROTATED = 0.334


def _read_flash(config: Config) -> DecoderSpec:
    return _read_mimo_v2(config.over(_DEFAULTS), "MiMoV2FlashForCausalLM")


def _read_2_5(config: Config) -> DecoderSpec:
    """Read a config of MiMo-V2.5, where a layer is what the lists say that the published models have."""
    for key in ("hybrid_layer_pattern", "moe_layer_freq"):
        if config.value(key) is None:
            raise ModelError(f"{config.where}: {key} is missing")
    config.choice("attention_projection_layout", "split", {"split": False, "fused_qkv": True})  # tensors decide
    defaults = {
        "attention_value_scale": 1.0,
        "rope_theta": 10_000_000.0,
        "swa_num_key_value_heads": config.value("num_key_value_heads", config.value("num_attention_heads")),
    }
    return _read_mimo_v2(config.over(defaults), "MiMoV2ForCausalLM")


def _read_mimo_v2(config: Config, architecture: str) -> DecoderSpec:
    config = config.over({"rms_norm_eps": config.value("layernorm_epsilon", 1e-5)})
    _refuse_other_sizes(config)
    config.refuse("scoring_func", "sigmoid")
    config.refuse("topk_method", "noaux_tc")
    config.refuse("add_full_attention_sink_bias", False)
    config.refuse("add_swa_attention_sink_bias", True)
    layers = config.size("num_hidden_layers")
    slides = _read_kinds(config, layers)
    # Published configs count the positions before a token's own.
    before = config.value("sliding_window_size")
    window = config.size("sliding_window", 129) if before is None else config.size("sliding_window_size") + 1
    values, head_dim = config.size("v_head_dim"), config.size("head_dim")
    if values > head_dim or (values < head_dim and (values % _BLOCK or head_dim % _BLOCK)):
        raise ModelError(
            f"config.json: values of {values} numbers (v_head_dim) beside keys of {head_dim} (head_dim) are not "
            f"supported: known are as many, or less, both multiples of {_BLOCK}"
        )
    spec = llama_like(
        config,
        architecture=architecture,
        qkv_bias=config.flag("attention_bias", False),
        narrow_values=values if values < head_dim else 0,
        value_scale=_read_scale(config),
        sinks=tuple(layer for layer in range(layers) if slides[layer]),
        experts=_read_experts(config, layers),
        windows=tuple(window if sliding else 0 for sliding in slides),
        ropes=(),
    )
    full, local = _read_ropes(config, spec)
    more = config.size("swa_num_key_value_heads", 2 * spec.kv_heads)
    if spec.heads % more:
        raise ModelError(f"config.json: {spec.heads} query heads cannot share {more} key-value heads evenly")
    sizes = tuple(
        LayerSizes(kv_heads=more if sliding else spec.kv_heads, head_dim=head_dim, feed_forward=spec.feed_forward)
        for sliding in slides
    )
    ropes = tuple(local if sliding else full for sliding in slides)
    return replace(spec, ropes=ropes, context=full.scaling.context(spec.context), sizes=sizes)


def _refuse_other_sizes(config: Config) -> None:
    """Raise ModelError where layers with a window have other heads than keys and values: no published model does."""
    for key in ("num_attention_heads", "head_dim", "v_head_dim"):
        config.refuse(f"swa_{key}", config.size(key))


def _read_scale(config: Config) -> float:
    is_given = "attention_value_scale" in config.values
    scale = config.value("attention_value_scale")  # null: none; absent: the published one
    return (1.0 if is_given else 0.707) if scale is None else config.number("attention_value_scale", 1.0)


def _read_kinds(config: Config, layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has a window."""
    found = config.choices("layer_types", layers, {"full_attention": False, "sliding_attention": True})
    if found is None:
        found = config.switches("hybrid_layer_pattern", layers)
    return found or tuple(bool(layer and (layer + 1) % 6) for layer in range(layers))


def _read_ropes(config: Config, spec: DecoderSpec) -> tuple[Rope, Rope]:
    """Return the rotations of layers with full attention and of those with a window."""
    full, local = blocks_by_layer_type(config)
    if not local and "partial_rotary_factor" in full:  # one block is of both but for their bases
        local = {"partial_rotary_factor": full["partial_rotary_factor"]}
    if (theta := config.value("swa_rope_theta")) is not None:
        local.setdefault("rope_theta", theta)
    local.setdefault("rope_theta", _THETAS[1])  # the config's own is of the others
    return (
        read_rope_block(config, full, spec.head_dim, spec.context, theta=_THETAS[0], partial=_ROTATED),
        read_rope_block(config, local, spec.head_dim, spec.context, theta=_THETAS[1], partial=_ROTATED),
    )


def _read_experts(config: Config, layers: int) -> Experts:
    config.refuse("n_shared_experts", 0)
    kinds = config.choices("mlp_layer_types", layers, {"dense": False, "sparse": True})
    if kinds is None:
        kinds = config.switches("moe_layer_freq", layers)
    routed = kinds or tuple(layer > 0 for layer in range(layers))
    experts = deepseek_experts(config.having({"n_shared_experts": 0}), dense=1, normalized=True)
    return replace(experts, dense_layers=tuple(layer for layer in range(layers) if not routed[layer]))


_FUSED = re.compile(r"(?:model\.)?layers\.(\d+)\.self_attn\.qkv_proj\.weight")


def _join_shards(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Have the rows of matrices in shards in the order of those that are not."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        place = _FUSED.fullmatch(name)
        if place and isinstance(tensor, InShards) and int(place[1]) < spec.layers:
            found[name] = _OfShards(tensor.in_shards(spec.kv_heads), spec.kv_heads, spec.of_layer(int(place[1])))
    return found


class _OfShards(View, frozen=True):
    """A matrix of all queries, keys and values, stored in shards that each have those of some heads.

    Attributes:
        count: of shards. spec: the decoder with the sizes of the matrix's layer.
    """

    count: int
    spec: DecoderSpec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def read(self) -> NDArray[Any]:
        spec, rows = self.spec, np.arange(self.shape[0])
        queries, keys = spec.query_width, spec.kv_width
        values = spec.kv_heads * (spec.narrow_values or spec.head_dim)
        if spec.heads % self.count or spec.kv_heads % self.count or queries + keys + values != len(rows):
            raise self.fail(f"its {len(rows)} rows are not {self.count} shards of the config's heads")
        parts = np.split(rows.reshape(self.count, -1), np.cumsum([queries, keys]) // self.count, axis=1)
        order: NDArray[np.intp] = np.concatenate([part.ravel() for part in parts])
        return self.stored.read()[order]

    def codes(self, form: Format) -> Quantized | None:
        return None

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        raise self.fail("is not a stack of matrices")


_NAMES = DEEPSEEK_NAMES | {"sinks": ("model.layers.{layer}.self_attn.sinks",)}
_OTHER_NAMES = DEEPSEEK_STACKS | {"qkv": ("model.layers.{layer}.self_attn.qkv_proj",)}
_ALIASES = ((r"\.self_attn\.attention_sink_bias$", ".self_attn.sinks"),)

FAMILIES: dict[str, Family] = {
    "MiMoV2FlashForCausalLM": Family(
        _read_flash,
        _NAMES,
        "mimo_v2_flash",
        base="model.",
        aliases=_ALIASES,
        other_names=_OTHER_NAMES,
        ignored=re.compile(r"mtp\..*"),
        title="MiMo-V2-Flash",
        examples=("XiaomiMiMo/MiMo-V2-Flash",),
    ),
    "MiMoV2ForCausalLM": Family(
        _read_2_5,
        _NAMES,
        "mimo_v2",
        base="model.",
        aliases=_ALIASES,
        other_names=_OTHER_NAMES,
        divide=_join_shards,
        ignored=re.compile(r"(mtp|visual|audio_encoder|speech_embeddings)\..*"),
        title="MiMo-V2.5",
        examples=("XiaomiMiMo/MiMo-V2.5", "XiaomiMiMo/MiMo-V2.5-Pro", "XiaomiMiMo/MiMo-V2.6-Flash-RL"),
        note="Text only: the parts for images and sound are not loaded.",
    ),
}
