"""EAGLE-3 heads in GGUF files, as llama.cpp's converter writes them
(https://github.com/ggml-org/llama.cpp/pull/18039).

Such a file has the tokens of the model, and may lack a table of their embeddings. Where the head guesses among fewer
tokens, a tensor ``d2t`` of integers has the model's token for each: the token itself, not an offset as in checkpoints.
"""

from __future__ import annotations

from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import Architecture, Config, Tensors, heads, interleaved_rows, rms
from dragoman.models.gguf.metadata import Metadata

_STATES = 3
_DEPTHS = ("target_layers", "extract_layers")  # the second until June 2026


def _eagle(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    """Return what the config has besides: the depths at which the model is read, in layers that come before."""
    found = [depths for key in _DEPTHS if (depths := keys.numbers(key, _STATES)) is not None]
    if len(found) != 1:
        raise keys.file.fail(_DEPTHS[0], "is missing" if not found else f"is there beside {_DEPTHS[1]}")
    if found[0].dtype.kind not in "iu":
        raise keys.file.fail(_DEPTHS[0], f"must be {_STATES} numbers of layers, got {found[0].tolist()}")
    return heads(keys, config) | rms(keys) | {
        "draft_vocab_size": _guessed(keys, tensors),
        "target_hidden_size": keys.size("target_hidden_size"),
        "layers_before_states": [int(each) for each in found[0]],
        "norm_before_residual": keys.flag("norm_before_residual", False),
        "norm_before_fc": keys.flag("norm_before_fc", False),
    }  # fmt: skip


def _guessed(keys: Metadata, tensors: Tensors) -> int:
    """Return among how many tokens it guesses."""
    table = tensors.get("output.weight")
    if table is None or len(table.shape) != 2:
        raise keys.file.fail("tensor output.weight", "is missing or not a matrix; heads without it are not read")
    return table.shape[0]


EAGLE = Architecture(
    name="LlamaForCausalLMEagle3",
    model_type="llama",
    names=names.EAGLE,
    extra=_eagle,
    row_order=interleaved_rows,
    is_head=True,
)
