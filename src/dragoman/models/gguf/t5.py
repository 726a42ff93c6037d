"""Architecture of GGUF files of T5, Flan-T5, mT5 and UMT5: an encoder's blocks and a decoder's."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.models.config import MOST
from dragoman.models.gguf.architecture import Architecture, Config, Tensors
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.tensors import GgufTensor

_UNGATED, _BESIDE_GATE = ".DenseReluDense.wi.weight", ".DenseReluDense.wi_1.weight"


def _stack(side: str, last: int) -> dict[str, str]:
    """Return the names of an encoder's or a decoder's blocks. ``last``: the place of the feed-forward network."""
    start, block = side[:3], f"{side}.block.{{layer}}.layer."
    attention, network = f"{block}0.SelfAttention.", f"{block}{last}.DenseReluDense."
    return {
        f"{start}.blk.attn_norm": f"{block}0.layer_norm",
        f"{start}.blk.attn_q": f"{attention}q",
        f"{start}.blk.attn_k": f"{attention}k",
        f"{start}.blk.attn_v": f"{attention}v",
        f"{start}.blk.attn_o": f"{attention}o",
        f"{start}.blk.attn_rel_b": f"{attention}relative_attention_bias",
        f"{start}.blk.ffn_norm": f"{block}{last}.layer_norm",
        f"{start}.blk.ffn_gate": f"{network}wi_0",
        f"{start}.blk.ffn_up": f"{network}wi",
        f"{start}.blk.ffn_down": f"{network}wo",
        f"{start}.output_norm": f"{side}.final_layer_norm",
    }


_ACROSS = "decoder.block.{layer}.layer.1."
_NAMES = _stack("encoder", 1) | _stack("decoder", 2) | {
    "token_embd": "shared",
    "output": "lm_head",
    "dec.blk.cross_attn_norm": f"{_ACROSS}layer_norm",
    "dec.blk.cross_attn_q": f"{_ACROSS}EncDecAttention.q",
    "dec.blk.cross_attn_k": f"{_ACROSS}EncDecAttention.k",
    "dec.blk.cross_attn_v": f"{_ACROSS}EncDecAttention.v",
    "dec.blk.cross_attn_o": f"{_ACROSS}EncDecAttention.o",
    "dec.blk.cross_attn_rel_b": f"{_ACROSS}EncDecAttention.relative_attention_bias",  # of old files; not used
}  # fmt: skip
_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "d_model",
    "block_count": "num_layers",
    "feed_forward_length": "d_ff",
    "attention.head_count": "num_heads",
    "attention.key_length": "d_kv",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
}


def _t5(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.value_length", config["d_kv"])
    keys.refuse("attention.head_count_kv", config["num_heads"])
    keys.has("attention.layer_norm_epsilon")  # repeats that of RMS norms
    layers = keys.size("decoder_block_count", config["num_layers"])
    if layers > (most := MOST["num_decoder_layers"]):
        raise keys.file.fail("decoder_block_count", f"{layers} is more than {most:,}")
    found: Config = {
        "num_decoder_layers": layers,
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in tensors else "relu",
        "decoder_start_token_id": keys.count("decoder_start_token_id"),
    }
    if "enc.blk.1.attn_rel_b.weight" in tensors:  # each layer has biases of distances
        found |= {"architectures": ["UMT5ForConditionalGeneration"], "model_type": "umt5"}
    return found


def _adjust(config: Config, tensor: GgufTensor) -> Iterable[GgufTensor]:
    """Return the tensor; where there are gates, what is multiplied by them has the family's other name."""
    if tensor.name.endswith(_UNGATED) and config["feed_forward_proj"] != "relu":
        tensor = replace(tensor, name=tensor.name.removesuffix(_UNGATED) + _BESIDE_GATE)
    return (tensor,)


T5 = Architecture(
    name="T5ForConditionalGeneration",
    model_type="t5",
    names=_NAMES,
    extra=_t5,
    sizes=_SIZES,
    rotary=False,
    adjust=_adjust,
)
