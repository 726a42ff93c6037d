"""compressed-tensors, as llm-compressor and vLLM write it: groups of modules, each with its own numbers and scales.

The format of a group says how its matrices ``[N, K]`` are stored; all have ``weight_scale``, and asymmetric ones
``weight_zero_point``: for the matrix, for each output, for groups of inputs, or for blocks. w = scale * (q - zero).

* ``pack-quantized``: ``weight_packed`` int32 ``[N, K·bits/32]``, ``weight_shape``, and ``weight_g_idx`` where inputs
  were quantized in a different order; zero points are packed along the outputs.
* ``nvfp4-pack-quantized``: ``weight_packed`` bytes ``[N, K / 2]``, and ``weight_global_scale``.
* ``int-quantized``, ``float-quantized``, ``naive-quantized``: ``weight`` int8 or float8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.quantized.bit_packing import packed_words, unpack
from dragoman.models.quantized.float8 import FLOAT8_FORM, float8_matrix, scale_blocks
from dragoman.models.quantized.matrices import Grid, IntegerMatrix, block_grid, input_order, integer_form
from dragoman.models.quantized.module_names import compile_patterns
from dragoman.models.quantized.nvfp4 import NVFP4_GROUP, nvfp4_matrix
from dragoman.models.quantized.scheme import FLOATS, Options, Pieces, find_pieces, read_finite, replace_pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor

_NVFP4 = "nvfp4-pack-quantized"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", _NVFP4)
_PACKED_BITS = (2, 4, 8)  # widths for which no version of the format splits an integer between words
_PIECES = ("weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "input_scale", "input_zero_point",
           "output_scale", "output_zero_point", "weight_global_scale", "input_global_scale")  # fmt: skip
_CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale")

_DECISIVE = frozenset(
    {"quant_method", "config_groups", "ignore", "format", "quantization_status", "kv_cache_scheme", "sparsity_config"}
)
_HARMLESS = frozenset({"global_compression_ratio", "version", "compressor_version"})
# Where inputs have a different order, ``weight_g_idx`` gives it.
_ORDERS = (None, False, True, "group", "dynamic", "weight", "static")
_GROUP_FIELDS = frozenset({"targets", "weights", "format", "input_activations", "output_activations"})
_WEIGHT_FIELDS = frozenset(
    {"num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder"}
)
_GROUPS = ("group", "tensor_group")
_WEIGHT_HARMLESS = frozenset({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"})


class _Targets(msgspec.Struct, frozen=True):
    """Names of modules: whole names, kinds of modules (only ``Linear`` is one with weights here), and patterns."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    def match(self, module: str) -> int:
        """Return how closely a module matches: 3 by its name, 2 by a pattern, 1 as a linear layer, 0 not."""
        if module in self.names:
            return 3
        if any(pattern.match(module) for pattern in self.patterns):
            return 2
        return 1 if "Linear" in self.names else 0


class _Group(msgspec.Struct, frozen=True):
    """One of the config's groups.

    Attributes:
        size: inputs that share a scale, under the strategies ``group`` and ``tensor_group``.
        shared: outputs and inputs that share one, under these and ``block``.
    """

    targets: _Targets
    layout: str
    bits: int
    floating: bool
    symmetric: bool
    strategy: str
    size: int
    shared: tuple[int, int] | None

    @property
    def form(self) -> Format:
        if self.floating:
            return FLOAT8_FORM
        bits = self.bits if self.layout == "pack-quantized" else 8
        return integer_form(bits, self.symmetric, self.shared[1] if self.shared else None)


class CompressedTensors(msgspec.Struct, frozen=True):
    """``groups``: a module belongs to the one that matches it most closely, unless ``ignored`` matches it."""

    groups: tuple[_Group, ...]
    ignored: _Targets
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The method, and bits and scales of each group."""
        kinds = dict.fromkeys(
            f"{'float' if group.floating else 'int'}{group.bits} with scales by "
            + (f"group of {group.size}" if group.strategy in _GROUPS else group.strategy)
            for group in self.groups
        )
        return f"compressed-tensors, {', '.join(kinds)}"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        group = self._group_of(module)
        return group.form if group else None

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each quantized ``weight`` or ``weight_packed`` and its pieces as one matrix."""
        packed = find_pieces(stored, "weight_packed", _PIECES)
        plain = {
            module: pieces
            for module, pieces in find_pieces(stored, "weight", _PIECES).items()
            if "weight_scale" in pieces.stored and module not in packed
        }
        modules = packed | plain
        tensors = replace_pieces(stored, modules, [self._matrix(pieces) for pieces in modules.values()])
        return {name: tensor for name, tensor in tensors.items() if not name.endswith(_CACHE_SCALES)}

    def _group_of(self, module: str) -> _Group | None:
        if self.ignored.match(module):
            return None
        closest = max(self.groups, key=lambda group: group.targets.match(module))
        return closest if closest.targets.match(module) else None

    def _matrix(self, pieces: Pieces) -> Tensor:
        main = next(iter(pieces.stored.values()))
        group = self._group_of(pieces.module)
        if group is None:
            raise main.fail("is quantized, where the config says that its module is not")
        if group.layout == _NVFP4:
            return nvfp4_matrix(pieces, "weight_packed", "weight_global_scale", divides=True)
        if group.floating:
            return float8_matrix(pieces, pieces.piece("weight", ("F8_E4M3",)), _scales(pieces), group.shared)
        if group.layout == "pack-quantized":
            return _packed_matrix(pieces, group)
        weight = pieces.piece("weight", ("I8",))
        if len(weight.shape) != 2:
            raise weight.fail(f"its shape {list(weight.shape)} is not that of a matrix")
        return _integers(pieces, group, weight, weight.shape)


def _scales(pieces: Pieces) -> StoredTensor:
    return pieces.piece("weight_scale", FLOATS)


def _packed_matrix(pieces: Pieces, group: _Group) -> Tensor:
    words, sizes = pieces.piece("weight_packed", ("I32",)), pieces.piece("weight_shape", ("I32", "I64"), (2,))
    outputs, inputs = (int(size) for size in sizes.read_stored())
    if not (0 < outputs < 2**31 and 0 < inputs < 2**31):
        raise sizes.fail(f"says {outputs} x {inputs}")
    expected = (outputs, packed_words(inputs, group.bits))
    if words.shape != expected:
        raise words.fail(f"its shape is {list(words.shape)}, where {list(expected)} hold {outputs} x {inputs} integers")
    return _integers(pieces, group, words, (outputs, inputs))


def _integers(pieces: Pieces, group: _Group, main: StoredTensor, shape: tuple[int, ...]) -> IntegerMatrix:
    inputs = shape[1]
    scales = _scales(pieces)
    size = group.size if group.strategy == "group" else inputs
    counts, block = scale_blocks(scales, shape, group.shared)
    zeros = None if group.symmetric else _zero_points(pieces, group, counts)
    order = pieces.piece("weight_g_idx", ("I32",), (inputs,)) if "weight_g_idx" in pieces.stored else None

    def read_integers() -> NDArray[np.int8]:
        stored = main.read_stored()
        return stored if group.layout != "pack-quantized" else unpack(stored, group.bits, inputs)

    def read_grid() -> Grid:
        points = None if zeros is None else _read_points(zeros, group, counts)
        of_input = input_order(order, inputs, size, counts[1])
        return block_grid(read_finite(scales).reshape(counts), shape, block, points, of_input)

    return IntegerMatrix(
        name=f"{pieces.module}.weight",
        file=main.file,
        shape=shape,
        nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
        bits=group.bits if group.layout == "pack-quantized" else 8,
        read_integers=read_integers,
        read_grid=read_grid,
    )


def _zero_points(pieces: Pieces, group: _Group, counts: tuple[int, int]) -> StoredTensor:
    """Return the stored zero points: packed along the outputs where packed weights have several; else one int8 per
    scale."""
    zeros = pieces.piece("weight_zero_point", ("I8", "I32"))
    if zeros.dtype == "I32":
        expected: tuple[tuple[int, ...], ...] = ((packed_words(counts[0], group.bits), counts[1]),)
    else:
        expected = (counts,) if counts[1] != 1 else (counts, (counts[0],), (1,) if counts[0] == 1 else counts)
    if zeros.shape not in expected:
        raise zeros.fail(f"its shape is {list(zeros.shape)}, where {list(expected[0])} would fit")
    return zeros


def _read_points(zeros: StoredTensor, group: _Group, counts: tuple[int, int]) -> NDArray[np.int16]:
    stored = zeros.read_stored()
    if zeros.dtype == "I32":
        stored = unpack(stored.T, group.bits, counts[0]).T
    return stored.reshape(counts).astype(np.int16)


def read_compressed_tensors(options: Options) -> CompressedTensors:
    """Return the scheme of a ``quantization_config``, or of ``compression_config``, its former name."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    sparsity = options.block("sparsity_config")
    if sparsity.get("format", "dense") != "dense":
        raise ModelError(f"{options.where}: sparsity_config = {sparsity['format']!r} is not supported")
    groups = options.block("config_groups")
    if not groups:
        raise ModelError(f"{options.where}: config_groups is missing")
    options.one_of("quantization_status", "compressed", ("compressed", "frozen"))
    layout = options.values.get("format")
    read = [_read_group(name, group, layout, options.where) for name, group in groups.items()]
    notes = []
    if any(isinstance(group, dict) and group.get("input_activations") for group in groups.values()):
        notes.append("the activations' own format is not used: products take them as the precision says")
    if options.values.get("kv_cache_scheme"):
        notes.append("kv_cache_scheme is not used: keys and values are kept in the server's own precision")
    found = tuple(group for group in read if group is not None)
    if not found:
        raise ModelError(f"{options.where}: no group quantizes weights")
    return CompressedTensors(found, _read_targets(options, "ignore"), tuple(notes))


def _read_targets(options: Options, key: str) -> _Targets:
    names = options.names(key)
    patterns = [name.removeprefix("re:") for name in names if name.startswith("re:")]
    return _Targets(frozenset(names), tuple(compile_patterns(patterns, f"{options.where}: {key}")))


def _read_group(name: str, values: object, layout: object, where: str) -> _Group | None:
    """Return one group; None where it does not quantize weights."""
    if not isinstance(values, dict):
        raise ModelError(f"{where}: the group {name[:80]!r} must be an object, got {str(values)[:80]}")
    options = Options(values, f"{where}: {name[:80]}")
    options.refuse_unknown(_GROUP_FIELDS, ())
    if not options.block("weights"):
        return None
    weights = Options(options.block("weights"), f"{options.where}: weights")
    weights.refuse_unknown(_WEIGHT_FIELDS, _WEIGHT_HARMLESS)
    own = Options({"format": options.values.get("format") or layout}, options.where).one_of("format", None, _FORMATS)
    if own == "naive-quantized":
        own = "int-quantized"
    floating = weights.one_of("type", "int", ("int", "float")) == "float"
    if weights.flag("dynamic", False):
        raise ModelError(f"{weights.where}: dynamic = true is not supported: weights are quantized once")
    if weights.values.get("actorder") not in _ORDERS:
        raise ModelError(f"{weights.where}: actorder {weights.values['actorder']!r} is not known")
    strategy, size = _read_strategy(weights, own)
    if own == _NVFP4 and (not floating or size != NVFP4_GROUP):
        raise ModelError(f"{weights.where}: {_NVFP4} has floats in groups of {NVFP4_GROUP}, not of {size}")
    known = _PACKED_BITS if own == "pack-quantized" else (4,) if own == _NVFP4 else (8,) if floating else (4, 8)
    return _Group(
        targets=_read_targets(options, "targets"),
        layout=own,
        bits=weights.one_of("num_bits", 8, known),
        floating=floating,
        symmetric=weights.flag("symmetric", True),
        strategy=strategy,
        size=size,
        shared=(1, size) if strategy in _GROUPS else _read_block(weights) if strategy == "block" else None,
    )


def _read_strategy(weights: Options, layout: str) -> tuple[str, int]:
    """Return the strategy, which decides what shares a scale, and for groups their size."""
    size = weights.values.get("group_size")
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    known = ("tensor_group",) if layout == _NVFP4 else ("tensor", "channel", "group", "block")
    strategy = str(weights.one_of("strategy", default, known))
    return strategy, weights.size("group_size") if strategy in _GROUPS else 0


def _read_block(weights: Options) -> tuple[int, int]:
    block = weights.values.get("block_structure")
    sizes = block.split("x") if isinstance(block, str) else block
    try:
        outputs, inputs = (int(size) for size in sizes)  # type: ignore[union-attr]
    except (TypeError, ValueError):
        outputs = inputs = 0
    if not (0 < outputs < 2**31 and 0 < inputs < 2**31):
        raise ModelError(f"{weights.where}: block_structure must be two positive integers, got {str(block)[:80]}")
    return outputs, inputs
