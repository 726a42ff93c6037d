"""Five bits: numbers of ggml's Q5_K for matrices of floats, with or without error feedback (``error_feedback``).

256 inputs of an output are a block. It has two float16 factors; each 32 of its inputs have a scale and a minimum, whole
numbers of 6 bits times these factors; a number is 0 to 31 times its scale, less its minimum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman.models.tensors import BLOCK_SIZES, Blocks

BLOCK, _BLOCK_BYTES = BLOCK_SIZES["q5_k"]
_GROUP = 32
_GROUPS = BLOCK // _GROUP
_MOST, _MOST_SCALE = 31, 63
_TOPS = (1.0, 0.97, 0.94, 0.9, 0.86, 0.8)
_BOTTOMS = (1.0, 0.92, 0.85)
"""Shares of a group's range that are tried: a smaller one rounds all but the extremes better."""
_SMALLEST = np.float32(2.0**-24)  # a float16 above 0

Floats = NDArray[np.float32]


def round_to_five_bits(weight: Floats, factor: Floats | None = None) -> Blocks:
    """Return a matrix ``[N, K]`` as blocks of Q5_K. K is a multiple of 256.

    ``factor``: the ``inverse_factor`` of its inputs, by which later inputs make up for the errors of earlier ones;
    None: they do not.
    """
    outputs, inputs = weight.shape
    left = np.array(weight.T, np.float32, order="C")  # a copy, in which every input is a row
    blocks = np.empty((outputs, inputs // BLOCK, _BLOCK_BYTES), np.uint8)
    for first in range(0, inputs, BLOCK):
        last = first + BLOCK
        own = None if factor is None else factor[first:last, first:last]
        blocks[:, first // BLOCK], errors = _round_block(left[first:last], own)
        if factor is not None:
            left[last:] -= factor[first:last, last:].T @ errors
    return Blocks(blocks.reshape(outputs, -1), BLOCK, _BLOCK_BYTES)


def _round_block(left: Floats, factor: Floats | None) -> tuple[NDArray[np.uint8], Floats]:
    """Return the bytes of a block of all outputs, and the errors that later inputs make up for. ``left`` ``[256, N]``
    is overwritten."""
    outputs = left.shape[1]
    groups = left.reshape(_GROUPS, _GROUP, outputs)
    least = np.minimum(groups.min(1), 0)
    scale_factor = _half((groups.max(1) - least).max(0) / (_MOST * _MOST_SCALE))
    minimum_factor = _half(-least.min(0) / _MOST_SCALE)
    numbers, errors = np.empty((_GROUPS, _GROUP, outputs), np.uint8), np.zeros(left.shape, np.float32)
    scales, minimums = (np.empty((_GROUPS, outputs), np.uint8) for _ in range(2))
    for group in range(_GROUPS):
        start, stop = group * _GROUP, (group + 1) * _GROUP
        scales[group], minimums[group] = _search(left[start:stop], scale_factor, minimum_factor)
        scale, minimum = scale_factor * scales[group], minimum_factor * minimums[group]
        for place in range(start, stop):
            rounded = np.clip(np.rint((left[place] + minimum) / scale), 0, _MOST)
            numbers[group, place - start] = rounded.astype(np.uint8)
            if factor is not None:
                errors[place] = (left[place] - (scale * rounded - minimum)) / factor[place, place]
                left[place + 1 : stop] -= factor[place, place + 1 : stop, None] * errors[place]
        if factor is not None:
            left[stop:] -= factor[start:stop, stop:].T @ errors[start:stop]
    return _stored(scale_factor, minimum_factor, scales, minimums, numbers), errors


def _half(values: Floats) -> Floats:
    """Return the nearest float16 of each, above 0."""
    found: Floats = np.maximum(values, _SMALLEST).astype(np.float16).astype(np.float32)
    return found


def _search(group: Floats, scale_factor: Floats, minimum_factor: Floats) -> tuple[Floats, Floats]:
    """Return the whole numbers of the scale and the minimum of 32 inputs ``[32, N]`` that lose least of them."""
    most, least = group.max(0), np.minimum(group.min(0), 0)
    lost, found = np.full(len(most), np.inf, np.float32), np.zeros((2, len(most)), np.float32)
    for bottom in _BOTTOMS:
        minimum = np.clip(np.rint(-least * np.float32(bottom) / minimum_factor), 0, _MOST_SCALE)
        shifted = group + minimum_factor * minimum
        for top in _TOPS:
            range_ = most * np.float32(top) + minimum_factor * minimum
            scale = np.clip(np.rint(range_ / (_MOST * scale_factor)), 1, _MOST_SCALE)
            step = scale_factor * scale
            error = shifted - step * np.clip(np.rint(shifted / step), 0, _MOST)
            sums = np.einsum("ij,ij->j", error, error)
            better = sums < lost
            lost[better] = sums[better]
            found[0, better], found[1, better] = scale[better], minimum[better]
    return found[0], found[1]


def _stored(
    scale_factor: Floats, minimum_factor: Floats, scales: NDArray[np.uint8], minimums: NDArray[np.uint8],
    numbers: NDArray[np.uint8],
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the bytes of a block of each output, as ggml has them: scales and minimums of 6 bits in 12 bytes, the
    fifth bits of the numbers, and the other four."""
    found = np.zeros((numbers.shape[2], _BLOCK_BYTES), np.uint8)
    found[:, 0:2] = scale_factor.astype(np.float16)[:, None].view(np.uint8)
    found[:, 2:4] = minimum_factor.astype(np.float16)[:, None].view(np.uint8)
    found[:, 4:8] = (scales[:4] | scales[4:] >> 4 << 6).T
    found[:, 8:12] = (minimums[:4] | minimums[4:] >> 4 << 6).T
    found[:, 12:16] = (scales[4:] & 15 | (minimums[4:] & 15) << 4).T
    for group in range(_GROUPS):
        found[:, 16:48] |= (numbers[group] >> 4 << group).T
    for pair in range(_GROUPS // 2):
        low, high = numbers[2 * pair] & 15, (numbers[2 * pair + 1] & 15) << 4
        found[:, 48 + 32 * pair : 80 + 32 * pair] = (low | high).T
    return found
