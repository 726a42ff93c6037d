"""Slopes of scores that fall with the distance, for each head."""

from __future__ import annotations


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return the slopes of ALiBi, scores that fall with the distance, by the paper's own code for any
    number of heads (https://arxiv.org/abs/2108.12409, section 3).

    For a power of two n they are a geometric series from 2^(-8/n). Further heads get every other one of the series
    for twice as many.
    """
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / whole) for head in range(whole)]
    slopes += [2.0 ** (-4 * (2 * head + 1) / whole) for head in range(heads - whole)]
    return tuple(slopes)
