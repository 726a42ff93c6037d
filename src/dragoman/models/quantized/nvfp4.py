"""NVFP4, 4-bit floating-point numbers with a scale for 16 inputs, as NVIDIA's Model Optimizer and compressed-tensors
store it (https://arxiv.org/abs/2509.25149).

A matrix ``[N, K]`` is bytes ``[N, K / 2]`` of two numbers (E2M1), the lower half first; ``weight_scale`` E4M3
``[N, K / 16]``; and one float32 scale, by which the Optimizer's numbers are multiplied and those of compressed-tensors
divided. Activations have the same format there; here they have that of the selected precision.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman.models.quantized.float8 import float8_numbers
from dragoman.models.quantized.matrices import Grid, NumberMatrix
from dragoman.models.quantized.mxfp4 import integers
from dragoman.models.quantized.scheme import FLOATS, Pieces, read_finite
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format

NVFP4_FORM = Format("int8")
NVFP4_GROUP = 16


def nvfp4_matrix(pieces: Pieces, main: str, whole: str, *, divides: bool) -> NumberMatrix:
    """Return the matrix of a module. ``main``, ``whole``: names of its numbers and of its one scale, by which the
    others are divided (``divides``) or multiplied."""
    halves = pieces.piece(main, ("U8",))
    if len(halves.shape) != 2:
        raise halves.fail(f"its shape {list(halves.shape)} is not that of a matrix")
    outputs, inputs = halves.shape[0], 2 * halves.shape[1]
    if inputs % NVFP4_GROUP:
        raise halves.fail(f"it has {inputs} inputs, which are no multiple of {NVFP4_GROUP}")
    scales = pieces.piece("weight_scale", ("F8_E4M3",), (outputs, inputs // NVFP4_GROUP))
    factor = pieces.piece(whole, FLOATS)
    if factor.shape not in ((), (1,)):
        raise factor.fail(f"its shape is {list(factor.shape)}, where [1] would fit")

    def read_numbers() -> NDArray[np.float32]:
        numbers = integers(halves.read_stored().reshape(outputs, -1)).astype(np.float32)
        numbers *= np.float32(0.5)
        Grid(_scales(scales, factor, divides), None, NVFP4_GROUP).scale(numbers)
        return numbers

    return NumberMatrix(
        name=f"{pieces.module}.weight",
        file=halves.file,
        shape=(outputs, inputs),
        nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
        form=NVFP4_FORM,
        read_numbers=read_numbers,
    )


def _scales(scales: StoredTensor, factor: StoredTensor, divides: bool) -> NDArray[np.float32]:
    """Return the scales of 16 inputs. Raises ModelError where one is not finite."""
    found = float8_numbers(scales.read_stored().reshape(scales.shape), scales.dtype)
    if not np.isfinite(found).all():
        raise scales.fail("holds numbers that are not finite")
    (whole,) = read_finite(factor).reshape(-1)
    if divides and not whole:
        raise factor.fail("is 0, by which the scales are divided")
    with np.errstate(over="ignore"):  # the reader of the numbers checks them
        return found / whole if divides else found * whole
