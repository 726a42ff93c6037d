"""EAGLE-3 heads: checkpoints of one layer, trained apart, that guess what a model says next.

Such a head reads the model's residual stream at three depths, and the token that came next (Li et al. 2025, EAGLE-3,
https://arxiv.org/abs/2503.01840): g = [low, middle, high] · Wstates, or for its own further guesses its own stream;
x = [norm(embedding), norm(g)] is the input of attention; attention and a feed-forward network are added to g; its
logits are those of a smaller vocabulary, whose token i is the model's token i + d2t[i].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.config import LARGEST_HEAD, Config, read_json
from dragoman.models.families import REFUSED, Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.head_spec import EagleSpec
from dragoman.models.hub import DownloadWatcher
from dragoman.models.quantized import find_scheme
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.settings import RequestedPrecision
from dragoman.models.source import Source, find_source, find_weights, open_files
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import Tensor, TensorFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPTION = "--draft-eagle"
ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3DraftModel",
    "Eagle3Speculator",
)
"""Names of such heads in configs. The first of them were called LlamaForCausalLM, with a draft_vocab_size."""
STATES = 3
"""Depths at which the model is read."""

_MAPS = ("d2t", "t2d")
_NAMES: dict[str, tuple[str, ...]] = {
    **{module: tuple(each.removeprefix("model.") for each in names) for module, names in LLAMA_NAMES.items()},
    "states_norm": ("input_norm",),
    "state_norms": tuple(f"fc_norm.{place}" for place in range(STATES)),
    "states_in": ("fc",),
    "hidden_norm": ("layers.0.hidden_norm",),
    "token_norm": ("layers.0.input_layernorm",),
}
# Fields that would change what a head computes, each with the values that it accepts.
_REFUSED: dict[str, tuple[object, ...]] = REFUSED | {
    "bias": (False,),
    "logit_scale": (1, 1.0),
    "num_aux_hidden_states": (STATES,),
    "parallel_drafting": (False,),
    "use_moe": (False,),
}


class EagleChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An EAGLE-3 head that is to draft: a folder, a GGUF file or a hub id, and the precision of its weights; auto: the
    model's."""

    source: str
    precision: RequestedPrecision = "auto"


def find_eagle(choice: EagleChoice, token: str | None = None, watcher: DownloadWatcher | None = None) -> Source:
    """Return the files that describe a head. Raises ModelError, which names the option, where there are none."""
    try:
        return find_source(choice.source, token=token, mmproj="none", watcher=watcher)
    except ModelError as error:
        raise ModelError(f"{OPTION} {choice.source}: {error.message}") from None


def describe_eagle(source: Source, target: DecoderSpec, target_name: str) -> EagleSpec:
    """Return the head that a config describes, of a model. While its weights are not here, it counts as one with a
    table of embeddings.

    Raises ModelError for what is not an EAGLE-3 head, and for one that does not fit the model.
    """
    try:
        spec = read_eagle(read_json(source.folder / "config.json"), target, target_name)
        if find_scheme(source.folder, read_json(source.folder / "config.json")) is not None:
            raise ModelError("quantized weights of heads are not read")
        if source.repository is None or source.weight_files or source.gguf:
            files = open_files(source if source.weight_files else find_weights(source))
            return replace(spec, own_embedding=_has_embedding(files))
        return replace(spec, own_embedding=True)
    except ModelError as error:
        raise _named(source, error) from None


def open_eagle(
    source: Source, target: DecoderSpec, target_name: str, *, token: str | None = None
) -> tuple[Checkpoint, NDArray[np.int32] | None]:
    """Return a head's parameters, and the model's token for each of its own; None: they are the same.

    Downloads missing weights. Raises ModelError for one that does not fit the model, and for damaged files.
    """
    try:
        source = find_weights(source, token=token)
        spec = describe_eagle(source, target, target_name)
        files = open_files(source)
        if not spec.own_embedding and spec.width != target.embedding_width:
            raise ModelError(
                f"it has no embeddings and hidden states of {spec.width} numbers, {target_name} has embeddings of "
                f"{target.embedding_width}"
            )
        maps = {short: tensor for name, tensor in files.tensors.items() if (short := _short(name)) in _MAPS}
        others = {name: tensor for name, tensor in files.tensors.items() if _short(name) not in _MAPS}
        checkpoint = Checkpoint(replace(files, tensors=others), _FAMILY, spec)
        return checkpoint, _target_ids(spec, files, maps.get("d2t"), maps.get("t2d"))
    except ModelError as error:
        raise _named(source, error) from None


def read_eagle(values: dict[str, Any], target: DecoderSpec, target_name: str) -> EagleSpec:
    """Return the head that a config describes, without a table of embeddings. Raises ModelError."""
    declared = values.get("architectures")
    names = [str(name) for name in declared] if isinstance(declared, list) else []
    is_plain = "LlamaForCausalLM" in names and values.get("draft_vocab_size") is not None
    if not is_plain and not set(names) & set(ARCHITECTURES):
        raise ModelError(
            f"architecture {', '.join(names) or 'without a name'} is not an EAGLE-3 head; known: "
            f"{', '.join(ARCHITECTURES)}"
        )
    for key in ("transformer_layer_config", "eagle_config", "rope_scaling", "rope_parameters"):
        if values.get(key) is not None and not isinstance(values[key], dict):
            raise ModelError(f"config.json: {key} must be an object, got {str(values[key])[:80]}")
    config = Config(values).within("transformer_layer_config")
    for key, harmless in _REFUSED.items():
        config.refuse(key, *harmless)
    if config.flag("use_sliding_window", True):
        config.refuse("sliding_window")
    if (layers := config.size("num_hidden_layers", 1)) != 1:
        raise ModelError(f"config.json: num_hidden_layers {layers} is not supported: such heads have one layer")
    _refuse_layer_types(config)
    bias = config.flag("attention_bias", False)
    layer = llama_like(
        config.having({"num_hidden_layers": 1}),
        architecture=ARCHITECTURES[0],
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
    )
    if layer.head_dim > LARGEST_HEAD:
        raise ModelError(f"config.json: heads of {layer.head_dim} numbers are not supported")
    vocab, width = config.size("vocab_size"), config.size("target_hidden_size", layer.width)
    own = config.size("draft_vocab_size", vocab)
    if own > vocab:
        raise ModelError(f"config.json: draft_vocab_size {own} is more than vocab_size {vocab}")
    _require_fit(target, target_name, width, vocab)
    whole, each = _flag(config, "norm_before_fc"), _flag(config, "fc_norm")
    if whole and each:
        raise ModelError("config.json: norm_before_fc and fc_norm exclude each other")
    taken = {each: getattr(layer, each) for each in DecoderSpec.__struct_fields__}
    return EagleSpec(
        **taken | {"vocab_size": own, "context": min(layer.context, target.context), "tied": False},
        target_vocab=vocab,
        target_width=width,
        aux_layers=_aux_layers(config, target, target_name),
        states_norm="whole" if whole else "each" if each else None,
        stream_normed=_flag(config, "norm_before_residual"),
        feeds_normed=_flag(config, "norm_output"),
    )


def _refuse_layer_types(config: Config) -> None:
    """Raise ModelError for layers that see a window: the list may be the model's, whose layers it then counts."""
    types = config.value("layer_types")
    if types is not None and (not isinstance(types, list) or any(each != "full_attention" for each in types)):
        raise ModelError(f"config.json: layer_types = {str(types)[:80]} is not supported: such heads see all positions")


def _require_fit(target: DecoderSpec, name: str, width: int, vocab: int) -> None:
    """Raise ModelError for a head of another model, and for a model whose layers have no single residual stream."""
    if width != target.width:
        raise ModelError(f"it reads hidden states of {width} numbers, {name} has {target.width}")
    if vocab != target.vocab_size:
        raise ModelError(f"it is for a vocabulary of {vocab} tokens, {name} has {target.vocab_size}")
    delayed = target.experts is not None and target.experts.delayed
    if target.encoder is not None or not target.causal or target.altup or delayed or target.cross_attention_layers:
        raise ModelError(f"{name} is {target.architecture}, whose hidden states such heads do not read")


def _aux_layers(config: Config, target: DecoderSpec, name: str) -> tuple[int, ...]:
    """Return after how many layers the model is read, for each auxiliary hidden state.

    Configs count in two ways: most the layers that come before, some, whose first number is 1, the last of these from
    0 on. The first layer alone is never read, so the first number tells. GGUF files count in the first way.
    """
    key, block = "eagle_aux_hidden_state_layer_ids", Config(config.block("eagle_config"), "config.json: eagle_config")
    if not block.flag("use_aux_hidden_state", True):
        raise ModelError("config.json: use_aux_hidden_state false is not supported: EAGLE-3 heads read three layers")
    ids, before = config.value(key, block.value(key)), config.value("layers_before_states")
    if before is not None:
        key, ids = "layers_before_states", before
    if ids is None:
        found = (2, target.layers // 2, target.layers - 3)
        if sorted(found) != list(found):
            raise ModelError(f"{name} has {target.layers} layers, too few for a head that does not say which it reads")
        return found
    is_listed = isinstance(ids, list) and len(ids) == STATES
    if not is_listed or not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        raise ModelError(f"config.json: {key} must be {STATES} numbers of layers, got {str(ids)[:80]}")
    found = tuple(each + (ids[0] == 1 and before is None) for each in ids)
    if sorted(found) != list(found) or found[0] < 1 or found[-1] > target.layers:
        raise ModelError(
            f"config.json: {key} must be in ascending order, and within the {target.layers} layers of {name}, got {ids}"
        )
    return found


def _flag(config: Config, key: str) -> bool:
    """Return a flag of the config, or of its block ``eagle_config``."""
    block = Config(config.block("eagle_config"), "config.json: eagle_config")
    return config.flag(key, block.flag(key, False))


def _target_ids(
    spec: EagleSpec, files: TensorFiles, offsets: Tensor | None, mask: Tensor | None
) -> NDArray[np.int32] | None:
    """Return the model's token for each token of a head, by the offsets that it stores, or as a GGUF file says."""
    if files.target_ids is not None:
        ids = files.target_ids()
        if ids.shape != (spec.vocab_size,):
            raise ModelError(
                f"{files.where}: tensor d2t: its shape is {list(ids.shape)}, where the output table has "
                f"{spec.vocab_size} rows"
            )
    elif offsets is not None:
        ids = np.arange(spec.vocab_size, dtype=np.int64) + _integers(offsets, spec.vocab_size)
    elif spec.vocab_size != spec.target_vocab:
        raise ModelError(f"{files.where}: tensor d2t is missing, the model's token for each of the head's")
    else:
        return None
    if (beyond := ids[(ids < 0) | (ids >= spec.target_vocab)]).size:
        raise ModelError(
            f"{files.where}: tensor d2t: names token {beyond[0]}, beyond the model's vocabulary of {spec.target_vocab}"
        )
    if len(np.unique(ids)) != len(ids):
        raise ModelError(f"{files.where}: tensor d2t: names a token of the model twice")
    if mask is not None and not np.array_equal(np.flatnonzero(_integers(mask, spec.target_vocab)), np.sort(ids)):
        raise mask.fail("marks other tokens than d2t names")
    return ids.astype(np.int32)


def _integers(tensor: Tensor, count: int) -> NDArray[np.int64]:
    if not isinstance(tensor, StoredTensor) or tensor.dtype not in ("I64", "I32", "BOOL", "U8"):
        raise tensor.fail(f"its type {tensor.dtype} is not supported; known: I64, I32, BOOL")
    if tensor.shape != (count,):
        raise tensor.fail(f"its shape is {list(tensor.shape)}, where the config asks for {[count]}")
    return tensor.read_stored().astype(np.int64)


def _short(name: str) -> str:
    return name.removeprefix("model.")


def _has_embedding(files: TensorFiles) -> bool:
    return any(_short(name) == "embed_tokens.weight" for name in files.tensors)


def _named(source: Source, error: ModelError) -> ModelError:
    begun = f"{OPTION} {source.name}: "
    return error if error.message.startswith(begun) else ModelError(begun + error.message)


def _unread(config: Config) -> DecoderSpec:
    raise ModelError("an EAGLE-3 head is no model")


_FAMILY = Family(
    _unread,
    _NAMES,
    "eagle3",
    base="",
    ignored=ROTARY_BUFFER,
    aliases=((r"^(model\.)?midlayer\.", "layers.0."), (r"^model\.", "")),
)
