"""bitsandbytes: int8 (https://arxiv.org/abs/2208.07339), and the four bits of QLoRA (https://arxiv.org/abs/2305.14314).

int8: ``weight`` int8 ``[N, K]`` and ``SCB``, the largest magnitude of each output: w = SCB / 127 * q.

nf4 and fp4: ``weight`` holds two codes a byte, the first in the high half, of the matrix row by row; a code is a place
in ``weight.quant_map`` (16 numbers), and blocks of codes in a row share a factor, ``weight.absmax``. These factors may
be quantized themselves: bytes that are places in ``weight.nested_quant_map``, times ``weight.nested_absmax`` of their
block, plus an offset. Sizes and offset are JSON in ``weight.quant_state.bitsandbytes__nf4``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.quantized.matrices import Grid, IntegerMatrix, NumberMatrix, integer_form
from dragoman.models.quantized.module_names import in_layers, is_kept
from dragoman.models.quantized.scheme import Options, Pieces, find_pieces, read_finite, replace_pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor

_DECISIVE = frozenset(
    {"quant_method", "load_in_8bit", "load_in_4bit", "_load_in_8bit", "_load_in_4bit", "bnb_4bit_quant_type"}
    | {"llm_int8_skip_modules"}
)
_HARMLESS = frozenset(
    {"llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "bnb_4bit_compute_dtype"}
    | {"bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"}
)
_TYPES = ("nf4", "fp4")
_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in _TYPES)
_FOUR_BITS = ("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", *_STATES)
_EIGHT_BITS = ("SCB", "weight_format")
_LARGEST_STATE_BYTES = 1 << 16
_STORAGES = ("U8", "I8", "float16", "bfloat16", "float32", "F64")


class BitsAndBytes(msgspec.Struct, frozen=True):
    """``bits``: 8 or 4. ``kind``: of the four bits. ``kept``: modules that are not quantized."""

    bits: int
    kind: str
    kept: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The method and its numbers."""
        return f"bitsandbytes, {'int8' if self.bits == 8 else self.kind}"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        if not in_layers(module) or is_kept(module, self.kept):
            return None
        return integer_form(8, True, None) if self.bits == 8 else Format("int8")

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each quantized ``weight`` and its pieces as one matrix."""
        names = _EIGHT_BITS if self.bits == 8 else _FOUR_BITS
        found = find_pieces(stored, "weight", names)
        modules = {module: pieces for module, pieces in found.items() if len(pieces.stored) > 1}
        make = _int8_matrix if self.bits == 8 else self._four_bit_matrix
        return replace_pieces(stored, modules, [make(pieces) for pieces in modules.values()])

    def _four_bit_matrix(self, pieces: Pieces) -> Tensor:
        weight = pieces.piece("weight", _STORAGES)
        state = _read_state(pieces, self.kind)
        outputs, inputs = state.shape
        count, blocks = outputs * inputs, -(-outputs * inputs // state.block)
        if weight.nbytes != -(-count // 2):
            raise weight.fail(f"holds {weight.nbytes} bytes, where {outputs} x {inputs} codes take {-(-count // 2)}")
        table = pieces.piece("weight.quant_map", ("float32",), (16,))
        factors = _block_factors(pieces, state, blocks)

        def read_numbers() -> NDArray[np.float32]:
            codes = weight.read_stored().reshape(-1).view(np.uint8)
            levels = read_finite(table)
            pairs = np.stack([np.repeat(levels, 16), np.tile(levels, 16)], axis=1)  # of each byte the two numbers
            numbers = np.zeros(blocks * state.block, np.float32)
            numbers[:count] = np.take(pairs, codes, axis=0).reshape(-1)[:count]
            by_block = numbers.reshape(blocks, state.block)
            by_block *= factors()[:, None]
            return numbers[:count].reshape(outputs, inputs)

        return NumberMatrix(
            name=f"{pieces.module}.weight",
            file=weight.file,
            shape=state.shape,
            nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
            form=Format("int8"),
            read_numbers=read_numbers,
        )


class _State(msgspec.Struct, frozen=True):
    """The quantization state in JSON: the matrix's shape, and how many codes, and how many factors, share one."""

    shape: tuple[int, int]
    block: int
    nested_block: int
    nested_offset: float


def _read_state(pieces: Pieces, kind: str) -> _State:
    name = f"weight.quant_state.bitsandbytes__{kind}"
    stored = pieces.piece(name, ("U8",))
    if stored.nbytes > _LARGEST_STATE_BYTES:
        raise stored.fail(f"is too large: {stored.nbytes} bytes")
    try:
        state: Any = json.loads(stored.read_stored().tobytes())
    except (ValueError, RecursionError) as error:
        raise stored.fail(f"is not valid JSON: {error}") from None
    match state:
        case {"quant_type": str(said), "blocksize": int(block), "shape": [int(outputs), int(inputs)]}:
            pass
        case _:
            raise stored.fail("lacks one of quant_type, blocksize and a shape of two sizes")
    nested_block, offset = state.get("nested_blocksize", 256), state.get("nested_offset", 0.0)
    sizes_fit = all(isinstance(size, int) and 0 < size < 2**31 for size in (block, outputs, inputs, nested_block))
    if said != kind or not sizes_fit or not isinstance(offset, int | float) or not math.isfinite(offset):
        raise stored.fail(f"contradicts the config or itself: {str(state)[:120]}")
    return _State((outputs, inputs), block, nested_block, float(offset))


def _block_factors(pieces: Pieces, state: _State, blocks: int) -> Callable[[], NDArray[np.float32]]:
    """Return a reader of the factor of each block of codes."""
    nested = "weight.nested_absmax" in pieces.stored
    stored = pieces.piece("weight.absmax", ("U8",) if nested else ("float32",), (blocks,))
    if not nested:
        return lambda: read_finite(stored)
    outer = pieces.piece("weight.nested_absmax", ("float32",), (-(-blocks // state.nested_block),))
    table = pieces.piece("weight.nested_quant_map", ("float32",), (256,))

    def read() -> NDArray[np.float32]:
        wide = np.repeat(read_finite(outer), state.nested_block)[:blocks]
        factors: NDArray[np.float32] = read_finite(table)[stored.read_stored()] * wide + np.float32(state.nested_offset)
        return factors

    return read


def _int8_matrix(pieces: Pieces) -> Tensor:
    weight = pieces.piece("weight", ("I8",))
    if len(weight.shape) != 2:
        raise weight.fail(f"its shape {list(weight.shape)} is not that of a matrix")
    outputs, inputs = weight.shape
    largest = pieces.piece("SCB", ("float32",), (outputs,))
    layout = pieces.stored.get("weight_format")
    if layout is not None and layout.read_stored().any():
        raise layout.fail("is not 0: the matrix lies in an order of some graphics card, not row by row")
    return IntegerMatrix(
        name=f"{pieces.module}.weight",
        file=weight.file,
        shape=weight.shape,
        nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
        bits=8,
        read_integers=weight.read_stored,
        read_grid=lambda: Grid(read_finite(largest)[:, None] / np.float32(127), None, inputs),
    )


def read_bitsandbytes(options: Options) -> BitsAndBytes:
    """Return the scheme of a ``quantization_config``."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    eight = options.flag("load_in_8bit", options.flag("_load_in_8bit", False))
    four = options.flag("load_in_4bit", options.flag("_load_in_4bit", False))
    if eight == four:
        raise ModelError(f"{options.where}: one of load_in_8bit and load_in_4bit must be true")
    kind = options.one_of("bnb_4bit_quant_type", "fp4", _TYPES)
    notes = ("no inputs are multiplied apart in 16 bits (llm_int8_threshold)",) if eight else ()
    return BitsAndBytes(8 if eight else 4, kind, options.names("llm_int8_skip_modules"), notes)
