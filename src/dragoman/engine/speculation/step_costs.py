"""What steps cost on this machine, learned from those that ran, and how long drafts pay by that."""

from __future__ import annotations

import math

DECAY = 0.98
"""Weight that an older step keeps with each new one: the speed of a machine changes within seconds."""
ROWS_WITHOUT_COST = 12.0
"""Rows that cost as much as reading the weights does, until steps of several sizes have shown it."""
PRIOR_WEIGHT = 4.0
"""Steps that count as much as that assumption."""
LEAST_GAIN = 1.03
"""How many times as many tokens drafts have to promise: what is measured varies, and the largest of several promises is
one that is too large."""


class StepCosts:
    """Seconds of a step by its rows, as a straight line: reading the weights, and something for each row.

    Fitted by least squares, older steps counting less. A step of a size that is rare says little, and one that others
    disturbed is forgotten.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._rows_squared = self._seconds = self._products = 0.0

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a step of so many rows, none of them a prompt's."""
        self._weight = DECAY * self._weight + 1
        self._rows = DECAY * self._rows + rows
        self._rows_squared = DECAY * self._rows_squared + rows * rows
        self._seconds = DECAY * self._seconds + seconds
        self._products = DECAY * self._products + rows * seconds

    @property
    def is_known(self) -> bool:
        """Return whether any step has run."""
        return self._weight > 0

    def seconds(self, rows: float) -> float:
        """Return the expected seconds of a step."""
        mean_rows, mean_s = self._rows / self._weight, self._seconds / self._weight
        assumed = mean_s / (ROWS_WITHOUT_COST + mean_rows)
        spread = self._rows_squared - self._rows * mean_rows
        slope = (self._products - self._rows * mean_s + PRIOR_WEIGHT * assumed) / (spread + PRIOR_WEIGHT)
        slope = min(max(slope, 0.0), mean_s / mean_rows)
        return mean_s + slope * (rows - mean_rows)


def expected_tokens(acceptance: float, length: int) -> float:
    """Return the tokens that a step gives, on average, to a sequence with a draft of so many tokens.

    ``acceptance``: probability that a token is right where all before it are. The sum of its powers 0 to ``length``
    (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, equation 1).
    """
    if acceptance >= 1:
        return length + 1.0
    return float((1 - math.pow(acceptance, length + 1)) / (1 - acceptance))


def best_length(
    acceptance: float, most: int, running: int, drafting: int, step: StepCosts, draft_s: float
) -> tuple[int, float]:
    """Return the length of drafts that gives most tokens in a second, 0 where none pays, and how many times as many
    tokens that is.

    ``most``: the longest draft. ``running``: sequences of a step, of which ``drafting`` get a draft. ``step``: of the
    model that verifies them. ``draft_s``: seconds of one step of the draft model. Less
    than ``LEAST_GAIN`` does not pay.
    """
    plain = running / step.seconds(running)
    best, gain = 0, LEAST_GAIN
    for length in range(1, most + 1):
        seconds = step.seconds(running + drafting * length) + length * draft_s
        tokens = running + drafting * (expected_tokens(acceptance, length) - 1)
        found = tokens / seconds / plain
        if found > gain:
            best, gain = length, found
    return (best, gain) if best else (0, 1.0)
