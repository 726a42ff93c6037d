"""Error feedback: numbers of IQ4_NL's table, chosen so that a matrix's outputs err least on given inputs.

Inputs are rounded one after the other, and what one errs by is made up for by those that are not yet rounded (Frantar
et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022,
https://arxiv.org/abs/2210.17323). With H the mean of x · xᵀ over inputs x, and Uᵀ · U = H⁻¹, the squared error of an
output is the sum of the squares of (what input i lost) / U[i, i], and input j has to lose U[i, j] times that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.tensors import BLOCK_SIZES, Blocks

MOST_INPUTS = 16384
"""Of a matrix whose H is computed: H and its factor then take 3 GiB."""

_GROUP, _BLOCK_BYTES = BLOCK_SIZES["iq4_nl"]
_TOGETHER = 4 * _GROUP  # inputs whose errors all later ones make up for in one product
_DAMPING = 0.1
"""Of H's mean diagonal, added to all of it: inputs that the texts do not have are not free. From 0.03 to 0.3 there is
no difference."""
_TRIALS = 3
_EXACT_INPUTS = 4096  # up to here in float64; with this damping float32 does for more, and takes half as long
_SMALL = 256  # rows of a triangle that is inverted as any matrix


def inverse_factor(seen: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return U, upper triangular, with Uᵀ · U the inverse of the damped mean ``seen`` ``[K, K]`` of products of inputs.
    None where it has none: no input was seen, or some are not finite."""
    mean = float(np.mean(seen.diagonal(), dtype=np.float64))
    if not np.isfinite(mean) or mean <= 0:
        return None
    damped: NDArray[Any] = seen.astype(np.float64 if len(seen) <= _EXACT_INPUTS else np.float32)
    for trial in range(_TRIALS):
        added = _DAMPING * 10**trial * mean
        damped[np.diag_indices_from(damped)] = seen.diagonal() + added
        try:
            lower = np.linalg.cholesky(damped[::-1, ::-1])  # of the last input first: H = V · Vᵀ with V upper
        except np.linalg.LinAlgError:
            continue
        upper = np.ascontiguousarray(lower[::-1, ::-1])  # a view of falling rows would be multiplied without BLAS
        factor = np.ascontiguousarray(_inverse(upper), np.float32)
        if np.isfinite(factor).all():
            return factor
    return None


def _inverse(upper: NDArray[Any]) -> NDArray[Any]:
    """Return the inverse of an upper triangular matrix, by halves."""
    size = len(upper)
    if size <= _SMALL:
        inverse: NDArray[Any] = np.triu(np.linalg.inv(upper))
        return inverse
    half, found = size // 2, np.zeros_like(upper)
    found[:half, :half] = _inverse(upper[:half, :half])
    found[half:, half:] = _inverse(upper[half:, half:])
    found[:half, half:] = -found[:half, :half] @ (upper[:half, half:] @ found[half:, half:])
    return found


def quantize_for_inputs(weight: NDArray[np.float32], factor: NDArray[np.float32]) -> Blocks:
    """Return a matrix ``[N, K]`` as blocks of IQ4_NL, rounded for inputs with this ``inverse_factor``. K is a multiple
    of 32."""
    outputs, inputs = weight.shape
    left = np.array(weight.T, np.float32, order="C")  # a copy, in which every input is a row
    blocks = np.empty((outputs, inputs // _GROUP, _BLOCK_BYTES), np.uint8)
    for first in range(0, inputs, _TOGETHER):
        last = min(first + _TOGETHER, inputs)
        errors = np.empty((last - first, outputs), np.float32)
        for start in range(first, last, _GROUP):
            stop = start + _GROUP
            block, lost = kernels.round_with_feedback(left[start:stop], factor[start:stop, start:stop])
            blocks[:, start // _GROUP] = block
            errors[start - first : stop - first] = lost
            left[stop:last] -= factor[start:stop, stop:last].T @ lost
        left[last:] -= factor[first:last, last:].T @ errors
    return Blocks(blocks.reshape(outputs, -1), _GROUP, _BLOCK_BYTES)
