"""GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323), as AutoGPTQ and GPTQModel store it.

A matrix ``[N, K]`` is ``qweight`` int32 ``[K·bits/32, N]``, packed along the inputs, ``qzeros`` int32
``[G, N·bits/32]``, packed along the outputs, ``scales`` ``[G, N]`` and, for inputs quantized in a different order
(act-order), ``g_idx`` int32 ``[K]``: the group of each. w = scale * (q - zero).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.quantized.bit_packing import KNOWN_BITS, packed_words, unpack
from dragoman.models.quantized.matrices import Grid, IntegerMatrix, input_order, integer_form
from dragoman.models.quantized.module_names import compile_patterns, in_layers, is_kept
from dragoman.models.quantized.scheme import FLOATS, Options, Pieces, find_pieces, read_finite, replace_pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor

_DECISIVE = frozenset(
    {"quant_method", "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "pack_dtype", "lm_head"}
    | {"dynamic", "modules_in_block_to_quantize", "block_name_to_quantize", "modules_to_not_convert"}
)
# Options for how the weights were found, and how other programs run them.
_HARMLESS = frozenset(
    {"damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "act_group_aware", "mse", "meta"}
    | {"model_name_or_path", "model_file_base_name", "dataset", "tokenizer", "batch_size", "pad_token_id", "quantizer"}
    | {"module_name_preceding_first_block", "max_input_length", "model_seqlen", "cache_block_outputs", "backend"}
    | {"use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "parallel_packing", "device", "version"}
    | {"cache_examples_on_gpu", "inside_layer_modules", "offload_to_disk", "v2"}
)
_OVERRIDES = frozenset({"bits", "group_size", "sym", "desc_act"})


class _Groups(msgspec.Struct, frozen=True):
    """The quantization of one module. ``size``: inputs of a group; -1: all."""

    bits: int
    size: int
    symmetric: bool
    act_order: bool

    @property
    def form(self) -> Format:
        return integer_form(self.bits, self.symmetric, self.size if self.size > 0 else None)


class Gptq(msgspec.Struct, frozen=True):
    """Attributes: groups: of modules that ``dynamic`` does not name; there None is a module that is not quantized.
    zero_offset: the number added to a stored zero point: 1 in the first version of the format. blocks: ends of the
    names of the quantized modules of a layer; empty: all. kept: modules that are not quantized.
    """

    groups: _Groups
    zero_offset: int
    head: bool
    blocks: tuple[str, ...]
    kept: tuple[str, ...]
    dynamic: tuple[tuple[re.Pattern[str], _Groups | None], ...]
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The method, bits and groups."""
        size = "one group an output" if self.groups.size < 0 else f"groups of {self.groups.size}"
        kind = "symmetric" if self.groups.symmetric else "asymmetric"
        return f"gptq, {self.groups.bits} bits, {size}, {kind}{', act-order' if self.groups.act_order else ''}"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        groups = self._groups_of(module)
        return groups.form if groups else None

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each ``qweight`` and its pieces as one matrix."""
        modules = find_pieces(stored, "qweight", ("qzeros", "scales", "g_idx"))
        return replace_pieces(stored, modules, [self._matrix(pieces) for pieces in modules.values()])

    def _groups_of(self, module: str) -> _Groups | None:
        if not in_layers(module):
            return self.groups if self.head else None
        for pattern, groups in self.dynamic:
            if pattern.match(module):
                return groups
        if self.blocks and not any(module.endswith(f".{end}") for end in self.blocks):
            return None
        if is_kept(module, self.kept):
            return None
        return self.groups

    def _matrix(self, pieces: Pieces) -> IntegerMatrix:
        words = pieces.piece("qweight", ("I32",))
        groups = self._groups_of(pieces.module)
        if groups is None:
            raise words.fail("is quantized, where the config says that its module is not")
        bits = groups.bits
        if len(words.shape) != 2 or words.shape[0] * 32 % bits:
            raise words.fail(f"its shape {list(words.shape)} is not one of integers of {bits} bits")
        inputs, outputs = words.shape[0] * 32 // bits, words.shape[1]
        size = inputs if groups.size < 0 else groups.size
        count = -(-inputs // size)
        zeros = pieces.piece("qzeros", ("I32",), (count, packed_words(outputs, bits)))
        scales = pieces.piece("scales", FLOATS, (count, outputs))
        if "g_idx" in pieces.stored:
            pieces.piece("g_idx", ("I32",), (inputs,))
        elif groups.act_order and groups.size > 0:
            raise words.fail(f"has no {pieces.module}.g_idx beside it, where the config says desc_act")

        def read_integers() -> NDArray[np.int8]:
            return unpack(words.read_stored().T, bits, inputs)

        def read_grid() -> Grid:
            lifted = unpack(zeros.read_stored(), bits, outputs).astype(np.int16) + self.zero_offset
            # A stored zero point one below the lowest wraps around to the highest: there are no other bits.
            half = 1 << (bits - 1)
            points = ((lifted + half) & ((1 << bits) - 1)) - half
            if groups.symmetric and points.any():
                raise zeros.fail("holds zero points other than the middle, where the config says sym")
            return Grid(
                np.ascontiguousarray(read_finite(scales).T),
                None if not points.any() else np.ascontiguousarray(points.T),
                size,
                input_order(pieces.stored.get("g_idx"), inputs, size, count),
            )

        return IntegerMatrix(
            name=f"{pieces.module}.weight",
            file=words.file,
            shape=(outputs, inputs),
            nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
            bits=bits,
            read_integers=read_integers,
            read_grid=read_grid,
        )


def read_gptq(options: Options) -> Gptq:
    """Return the scheme of a ``quantization_config`` or ``quantize_config.json``."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    options.one_of("pack_dtype", "int32", ("int32",))
    version = options.one_of(
        "checkpoint_format", options.one_of("format", "gptq", ("gptq", "gptq_v2")), ("gptq", "gptq_v2")
    )
    return Gptq(
        groups=_read_groups(options, None),
        zero_offset=1 if version == "gptq" else 0,
        head=options.flag("lm_head", False),
        blocks=_read_blocks(options),
        kept=options.names("modules_to_not_convert"),
        dynamic=_read_dynamic(options),
    )


def _read_groups(options: Options, default: _Groups | None) -> _Groups:
    size = options.values.get("group_size", default.size if default else 128)
    if not isinstance(size, int) or isinstance(size, bool) or (size != -1 and not 0 < size < 2**31):
        raise ModelError(f"{options.where}: group_size must be -1 or a positive integer, got {size!r}")
    if default is None and "bits" not in options.values:
        raise ModelError(f"{options.where}: bits is missing")
    return _Groups(
        bits=options.one_of("bits", default.bits if default else None, KNOWN_BITS),
        size=size,
        symmetric=options.flag("sym", default.symmetric if default else True),
        act_order=options.flag("desc_act", default.act_order if default else False),
    )


def _read_blocks(options: Options) -> tuple[str, ...]:
    """Return the names in ``modules_in_block_to_quantize``, a list of lists of names within a layer."""
    lists: Any = options.values.get("modules_in_block_to_quantize") or []
    known = isinstance(lists, list) and all(isinstance(names, list) for names in lists)
    if not known or not all(isinstance(name, str) for names in lists for name in names):
        raise ModelError(f"{options.where}: modules_in_block_to_quantize must be a list of lists of names")
    return tuple(name for names in lists for name in names)


def _read_dynamic(options: Options) -> tuple[tuple[re.Pattern[str], _Groups | None], ...]:
    """Return the patterns of ``dynamic``: ``+:`` or nothing precedes those with different options, ``-:`` those that
    are not quantized. The first that matches counts."""
    block = options.block("dynamic")
    where = f"{options.where}: dynamic"
    patterns = compile_patterns([key.removeprefix("+:").removeprefix("-:") for key in block], where)
    base = _read_groups(options, None)
    found: list[tuple[re.Pattern[str], _Groups | None]] = []
    for (key, values), pattern in zip(block.items(), patterns, strict=True):
        if not isinstance(values, dict):
            raise ModelError(f"{where}: {key[:80]!r} must have an object, got {str(values)[:80]}")
        overrides = Options(values, f"{where}: {key[:80]!r}")
        overrides.refuse_unknown(_OVERRIDES, _HARMLESS)
        found.append((pattern, None if key.startswith("-:") else _read_groups(overrides, replace(base))))
    return tuple(found)
