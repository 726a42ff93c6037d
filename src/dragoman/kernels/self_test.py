"""The kernels in use beside the portable ones, on the same numbers.

Each check computes the same thing with both; its error is the largest difference, relative to the largest magnitude of
the portable result. What only the kernels in use can answer, such as whether a row has the same bits alone and in a
batch, is a check whose result is a count of failures, and whose bound is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.kernels import _native

Floats = NDArray[np.float32]


class Check(NamedTuple):
    """One computation. ``kernel``: the line of the report that it belongs to."""

    kernel: str
    bound: float
    compute: Callable[[], Floats]


def relative_error(found: Floats, expected: Floats) -> float:
    """Return the largest difference, relative to the largest finite magnitude of ``expected`` (to 1 where that is 0).

    Infinite where the shapes differ, or where one has NaN or an infinity and the other does not have the same.
    """
    if found.shape != expected.shape:
        return float("inf")
    finite = np.isfinite(expected)
    same = np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    if not same or not np.isfinite(found[finite]).all():
        return float("inf")
    magnitude = float(np.abs(expected[finite]).max(initial=0.0)) or 1.0
    difference = np.abs(found[finite].astype(np.float64) - expected[finite])
    return float(difference.max(initial=0.0)) / magnitude


def run(checks: Iterable[Check], level: str) -> Iterator[tuple[Check, float]]:
    """Compute each check with the kernels ``level`` and with the portable ones, and yield its error."""
    before = _native.instruction_set()
    try:
        for check in checks:
            _native.force("portable")
            expected = check.compute()
            _native.force(level)
            yield check, relative_error(check.compute(), expected)
    finally:
        _native.force(before)
