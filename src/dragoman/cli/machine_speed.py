"""Measurements of the machine's current speed. On shared machines it changes within seconds: measure it with every
figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from dragoman import kernels
from dragoman.models.limits import Machine

BANDWIDTH_S = 0.5
LEAST_S = 1e-9
TRIES = 3
PEAKS: tuple[kernels.Precision, ...] = ("bfloat16", "int8")


def measured(precisions: Iterable[kernels.Precision] = PEAKS, *, in_a_hurry: bool = False) -> Machine:
    """Return the speeds with as many threads as the kernels use, after two thirds of a second of measuring.

    ``in_a_hurry``: after as little measuring as gives any speeds, for who wants to see that the rest works.
    """
    tries = 1 if in_a_hurry else TRIES
    peaks: dict[str, float] = {each: max(kernels.multiply_peak(each) for _ in range(tries)) for each in precisions}
    passes = kernels.memory_passes(LEAST_S if in_a_hurry else BANDWIDTH_S)
    # Passes are of the same size: all bytes over all the time.
    return Machine(statistics.harmonic_mean(passes), peaks, max(passes))


def between(looks: Sequence[Machine]) -> Machine:
    """Return the speeds that figures between some looks could have had: the mean of the bandwidths, which drift, and
    the greatest of the multiply rates, which only other work can lower."""
    peaks = {name: max(look.operations_per_s[name] for look in looks) for name in looks[0].operations_per_s}
    return Machine(
        statistics.mean(look.bytes_per_s for look in looks),
        peaks,
        statistics.mean(look.best_bytes_per_s for look in looks),
    )
