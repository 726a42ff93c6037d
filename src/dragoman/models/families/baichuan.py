"""Baichuan 1 and 2: a Llama with queries, keys and values in one matrix.

Those of 7 billion parameters rotate, those of 13 billion have ALiBi, and no number of positions in their config.
Baichuan 2 divides the rows of its output projection by their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dragoman.core.lazy_imports import np
from dragoman.models.alibi import alibi_slopes
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import Format, Quantized, Tensor, View, to_bfloat16, to_float32

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VOCABULARY_2 = 125_696  # Baichuan 2 is known by it alone: its config names no other difference


def _read_baichuan(config: Config) -> DecoderSpec:
    variant: dict[str, Any] = {}
    if config.value("max_position_embeddings") is None:
        heads, layers = config.size("num_attention_heads"), config.size("num_hidden_layers")
        positions = config.size("model_max_length", 4096)  # of training: ALiBi has no limit
        variant = {"alibi_slopes": alibi_slopes(heads), "ropes": (None,) * layers, "context": positions}
    return llama_like(config, architecture="BaichuanForCausalLM", **variant)


def _with_unit_rows(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Have the rows of Baichuan 2's output projection divided by their lengths."""
    head = tensors.get("lm_head.weight")
    if spec.vocab_size != _VOCABULARY_2 or head is None or len(head.shape) != 2:
        return tensors
    return {**tensors, "lm_head.weight": _UnitRows(head)}


class _UnitRows(View, frozen=True):
    """A matrix whose rows are divided by their lengths when it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def read(self) -> NDArray[Any]:
        values = self.stored.read()
        rows = to_float32(values)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
        return to_bfloat16(rows) if values.dtype == np.uint16 else rows.astype(values.dtype)

    def codes(self, form: Format) -> Quantized | None:
        return None

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        raise self.fail("is not a stack of matrices")


FAMILIES: dict[str, Family] = {
    "BaichuanForCausalLM": Family(
        _read_baichuan,
        LLAMA_NAMES | {"qkv": ("model.layers.{layer}.self_attn.W_pack",)},
        "baichuan",
        base="model.",
        other_names={"qkv": LLAMA_NAMES["qkv"]},  # GGUF files
        ignored=ROTARY_BUFFER,
        divide=_with_unit_rows,
        title="Baichuan",
        examples=("baichuan-inc/Baichuan2-7B-Chat", "baichuan-inc/Baichuan2-13B-Chat", "baichuan-inc/Baichuan-7B"),
    ),
}
