"""How far the loading of a model is, said while it goes on."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Told what is being done, in one word, and which share of all of it is done, from 0 to 1; the share never falls."""

DOWNLOADING, READING, PACKING = "downloading", "reading", "packing"


def nobody(stage: str, share: float) -> None:
    """For loading that nobody watches."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """Progress of something that is only the part from ``start`` to ``end`` of the whole."""
    return lambda stage, share: progress(stage, start + (end - start) * share)
