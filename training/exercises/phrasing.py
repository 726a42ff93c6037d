"""The ways to say something, of which training never sees the last."""

from collections.abc import Sequence
from random import Random


def phrased(rng: Random, ways: Sequence[str], *, held_out: bool) -> str:
    """One of the ways: of all but the last for training, the last one where it is held out."""
    return ways[-1] if held_out else rng.choice(ways[:-1])
