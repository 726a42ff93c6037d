"""MXFP4, the microscaling format of gpt-oss: blocks of 32 inputs share a power of two
(https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf).

A stack of matrices ``[E, N, K]`` is ``NAME_blocks`` ``[E, N, K / 32, 16]``, two numbers to a byte, the lower half
first, and ``NAME_scales`` ``[E, N, K / 32]``, exponents around 127. Twice each of the sixteen numbers is a small
integer, so a matrix is integers of 8 bits and half the power of two, without a rounding. It is packed as the blocks
that ggml stores the same numbers in: the exponent, and 16 bytes of the first 16 numbers in the lower halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.quantized.matrices import Grid, IntegerMatrix
from dragoman.models.quantized.module_names import is_kept
from dragoman.models.quantized.scheme import Options, Pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import BLOCK_SIZES, Blocks, Codes, Format, Quantized, Tensor

BLOCK = 32
FORM = Format("mxfp4")
_EXPERTS = (".gate_up_proj", ".down_proj")
_DECISIVE = frozenset({"quant_method", "modules_to_not_convert"})
_HARMLESS = frozenset({"dequantize"})

TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the number of each code."""


class Mxfp4(msgspec.Struct, frozen=True):
    """``kept``: modules that are not quantized."""

    kept: tuple[str, ...]
    notes: tuple[str, ...] = ()
    upright: bool = True

    @property
    def summary(self) -> str:
        """The method and its groups."""
        return "mxfp4, 4 bits, groups of 32"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        expert = ".experts." in module and module.endswith(_EXPERTS)
        return FORM if expert and not is_kept(module, self.kept) else None

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each pair of blocks and scales as one stack."""
        tensors: dict[str, Tensor] = dict(stored)
        for name, blocks in stored.items():
            if not name.endswith("_blocks"):
                continue
            module = name.removesuffix("_blocks")
            scales = stored.get(f"{module}_scales")
            if scales is None:
                raise blocks.fail(f"has no {module}_scales beside it")
            if module in tensors:
                raise blocks.fail("is stored both quantized and not")
            del tensors[name], tensors[f"{module}_scales"]
            tensors[module] = _stack(module, blocks, scales)
        return tensors


class _Stored(msgspec.Struct, frozen=True):
    """Blocks and scales, as one tensor."""

    name: str
    blocks: StoredTensor
    scales: StoredTensor
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The type of the numbers that ``read`` returns."""
        return "float32"

    @property
    def file(self) -> Path:
        """The file of the blocks."""
        return self.blocks.file

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return self.blocks.nbytes + self.scales.nbytes

    @property
    def form(self) -> Format:
        """The packed format of its matrices."""
        return FORM

    def fail(self, reason: str) -> ModelError:
        """Return an error that names file and tensor."""
        return self.blocks.fail(reason)


class Mxfp4Stack(_Stored, frozen=True):
    """A stack of matrices ``[E, N, K]``."""

    def read(self) -> NDArray[np.float32]:
        """Raise ModelError: it is read matrix by matrix."""
        raise self.fail("is a stack of matrices")

    def codes(self, form: Format) -> Codes | None:
        """Return None: it is read matrix by matrix."""
        return None

    def matrix(self, index: int, count: int | None = None) -> Mxfp4Matrix:
        """Return one matrix of the stack."""
        outputs, inputs = self.shape[1:]
        return Mxfp4Matrix(self.name, self.blocks.matrix(index), self.scales.matrix(index), (outputs, inputs))


class Mxfp4Matrix(_Stored, frozen=True):
    """One matrix ``[N, K]``."""

    def read(self) -> NDArray[np.float32]:
        """Return its numbers."""
        return self._integers().read()

    def codes(self, form: Format) -> Quantized | None:
        """Return its blocks as they are stored, or its integers."""
        return self._blocks() if form == FORM else self._integers().codes(form)

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        """Raise ModelError: the tensor is a single matrix."""
        raise self.fail("is one matrix, not a stack of them")

    def _blocks(self) -> Blocks:
        outputs, inputs = self.shape
        values, size = BLOCK_SIZES["mxfp4"]
        halves = self.blocks.read_stored().reshape(outputs, inputs // values, 16)
        blocks = np.empty((outputs, inputs // values, size), np.uint8)
        blocks[..., 0] = _exponents(self.scales).reshape(outputs, -1)
        pairs = np.empty((outputs, inputs // values, values), np.uint8)
        pairs[..., ::2], pairs[..., 1::2] = halves & 15, halves >> 4
        blocks[..., 1:] = pairs[..., :16] | pairs[..., 16:] << 4
        return Blocks(blocks.reshape(outputs, -1), values, size)

    def _integers(self) -> IntegerMatrix:
        outputs, inputs = self.shape

        def read_integers() -> NDArray[np.int8]:
            return integers(self.blocks.read_stored().reshape(outputs, inputs // 2))

        def read_grid() -> Grid:
            scales = np.ldexp(np.float32(1), _exponents(self.scales).astype(np.int32) - 128)
            return Grid(scales.astype(np.float32), None, BLOCK)

        return IntegerMatrix(
            name=self.name,
            file=self.file,
            shape=self.shape,
            nbytes=self.nbytes,
            bits=8,
            read_integers=read_integers,
            read_grid=read_grid,
        )


def integers(halves: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return twice the numbers ``[N, K]`` of bytes ``[N, K / 2]``."""
    numbers = np.empty((len(halves), halves.shape[1] * 2), np.int8)
    numbers[:, ::2], numbers[:, 1::2] = TWICE[halves & 15], TWICE[halves >> 4]
    return numbers


def _exponents(scales: StoredTensor) -> NDArray[np.uint8]:
    exponents = scales.read_stored().view(np.uint8)
    if (exponents == 255).any():
        raise scales.fail("holds numbers that are not finite")
    return exponents


def _stack(module: str, blocks: StoredTensor, scales: StoredTensor) -> Mxfp4Stack:
    for piece in (blocks, scales):
        if piece.dtype not in ("U8", "F8_E8M0"):
            raise piece.fail(f"its type {piece.dtype} does not fit; this piece of a matrix must be U8")
    if len(blocks.shape) != 4 or blocks.shape[3] != BLOCK // 2:
        raise blocks.fail(f"its shape {list(blocks.shape)} is not that of blocks of {BLOCK} numbers")
    if scales.shape != blocks.shape[:3]:
        raise scales.fail(f"its shape is {list(scales.shape)}, where {list(blocks.shape[:3])} would fit")
    experts, outputs, groups, _ = blocks.shape
    return Mxfp4Stack(module, blocks, scales, (experts, outputs, groups * BLOCK))


def mxfp4_matrix(pieces: Pieces) -> Mxfp4Matrix:
    """Return a matrix that is stored by itself: ``weight`` ``[N, K / 2]``, ``weight_scale`` ``[N, K / 32]``."""
    weight = pieces.piece("weight", ("U8",))
    if len(weight.shape) != 2 or weight.shape[1] % (BLOCK // 2):
        raise weight.fail(f"its shape {list(weight.shape)} is not that of a matrix of blocks of {BLOCK} numbers")
    outputs, inputs = weight.shape[0], weight.shape[1] * 2
    scales = pieces.piece("weight_scale", ("U8", "F8_E8M0"), (outputs, inputs // BLOCK))
    return Mxfp4Matrix(f"{pieces.module}.weight", weight, scales, (outputs, inputs))


def read_mxfp4(options: Options) -> Mxfp4:
    """Return the scheme of a ``quantization_config`` of the method ``mxfp4``."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    return Mxfp4(options.names("modules_to_not_convert"))
