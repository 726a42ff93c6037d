"""nanochat: norms without weights, of the embeddings and of rotated queries and keys too; a soft cap of the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.families.family import Family
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.parameter import Parameter
from dragoman.models.spec import DecoderSpec, Embedding, HeadNorm, Output

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMES = {name: stored for name, stored in LLAMA_NAMES.items() if not name.endswith("norm")} | {
    "feed_forward_in": ("model.layers.{layer}.mlp.fc1",),
    "feed_forward_out": ("model.layers.{layer}.mlp.fc2",),
}


def _read_nanochat(config: Config) -> DecoderSpec:
    config = config.over({"hidden_act": "relu2"})
    bias = config.flag("attention_bias", False)
    cap = config.values.get("final_logit_softcapping", 15.0)  # null is none, its absence is not
    return llama_like(
        config,
        architecture="NanoChatForCausalLM",
        embedding=Embedding(norm=True),
        output=Output(softcap=0.0 if cap is None else config.number("final_logit_softcapping", 15.0)),
        norm_weight=False,
        gated=False,
        qkv_bias=bias,
        attention_out_bias=bias,
        head_norm=HeadNorm(rotated=True, weighted=False),
    )


def _row_order(spec: DecoderSpec, parameter: Parameter) -> NDArray[np.intp] | None:
    """Return the stored row of each row. Queries and keys are rotated backwards: that is forwards with the halves of
    each head exchanged, which no product of a query and a key shows."""
    if parameter.module != "qkv":
        return None
    rotated = spec.query_width + spec.kv_width
    halves = np.arange(rotated).reshape(-1, 2, spec.head_dim // 2)[:, ::-1]
    return np.concatenate([halves.ravel(), np.arange(rotated, spec.qkv_width)])


FAMILIES: dict[str, Family] = {
    "NanoChatForCausalLM": Family(
        _read_nanochat,
        _NAMES,
        "nanochat",
        base="model.",
        ignored=ROTARY_BUFFER,
        row_order=_row_order,
        title="nanochat",
        examples=("karpathy/nanochat-d32",),
    ),
}
