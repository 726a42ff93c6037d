"""Small GGUF files made with the `gguf` package, llama.cpp's own, and the same weights in Hugging Face layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

# Where the blocks of the types that the package cannot quantize to hold float16 numbers.
K_HALVES = {
    Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,),
    Type.IQ4_NL: (0,), Type.IQ4_XS: (0,),
}  # fmt: skip
# The largest number of a block, of scale one: random weights should be as large as those of the other types.
_LARGEST = {
    Type.Q2_K: 30, Type.Q3_K: 40, Type.Q4_K: 400, Type.Q5_K: 900, Type.Q6_K: 1800, Type.IQ4_NL: 80, Type.IQ4_XS: 1200
}  # fmt: skip

Weights = dict[str, np.ndarray]


def quantize(values: np.ndarray, kind: Type, seed: int = 0) -> np.ndarray:
    """A matrix in the blocks of a type; random blocks where the package has no quantizer for it."""
    if kind not in K_HALVES and kind != Type.MXFP4:
        return np.asarray(gguf.quantize(values, kind))
    rng = np.random.default_rng(seed)
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (values.size // per_block, size), dtype=np.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = rng.integers(120, 124, len(blocks))
    for place in K_HALVES.get(kind, ()):
        halves = rng.normal(0, 0.15 / _LARGEST[kind], (len(blocks), 1)).astype(np.float16)
        blocks[:, place : place + 2] = halves.view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def interleave_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of queries and keys: dimensions that rotate together are neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def add_tokens(writer: gguf.GGUFWriter) -> None:
    """A byte-level vocabulary just large enough for a text."""
    tokens = ["<|end|>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyzĠ", "th"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_gguf(
    path: Path,
    folder: Path,
    arch: str,
    kind: Callable[[str], Type],
    describe: Callable[[gguf.GGUFWriter, dict[str, Any]], None],
    change: Callable[[str, np.ndarray, dict[str, Any]], np.ndarray] = lambda name, value, config: value,
    back: Callable[[str, np.ndarray, dict[str, Any]], np.ndarray] = lambda name, value, config: value,
    gather: Callable[[Weights], Weights] = lambda weights: weights,
    names_of: str = "",
    **options: Any,
) -> Path:
    """Write a folder's model as GGUF, and its weights, dequantized again, back into the folder.

    ``kind``: the type of a matrix by its name in the folder. ``change``: what llama.cpp's converter does to a tensor,
    and ``back`` its inverse; ``gather`` joins or renames tensors before that, and then the folder stays as it is.
    ``describe`` adds the metadata of the architecture. Names are those of the package's map, or, of an architecture
    that it does not have yet, of the map of another one, ``names_of``.
    """
    config = json.loads((folder / "config.json").read_text())
    originals = load_file(folder / "model.safetensors")
    weights = gather(originals)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == (names_of or arch))
    layers = (
        config.get("num_hidden_layers") or config.get("n_layer") or config.get("n_layers") or config.get("num_layers")
    )
    names = gguf.get_tensor_name_map(number, layers or len(config["layers_block_type"]))
    writer = gguf.GGUFWriter(path, arch, **options)
    describe(writer, config)
    add_tokens(writer)
    restored: Weights = {}
    for place, (name, value) in enumerate(sorted(weights.items())):
        # The converter gives some tensors their names in the file by itself.
        stored_name = (
            name
            if name.startswith(("blk.", "dense_", "cls."))
            else names.get_name(name, try_suffixes=(".weight", ".bias"))
        )
        assert stored_name is not None, name
        stored = np.ascontiguousarray(change(name, value.astype(np.float32), config))
        if stored.ndim == 1:
            writer.add_tensor(stored_name, stored)
            continue
        blocks = quantize(stored, kind(name), seed=place)
        writer.add_tensor(stored_name, blocks, raw_dtype=kind(name))
        if kind(name) == Type.F32:
            continue
        floats = gguf.dequantize(blocks, kind(name)).astype(np.float32)
        restored[name] = np.ascontiguousarray(back(name, floats.reshape(stored.shape), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if weights.keys() == originals.keys():
        save_file({**weights, **restored}, folder / "model.safetensors", metadata={"format": "pt"})
    return path
