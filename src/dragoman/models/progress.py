"""Progress reports of loading a model."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with the name of the stage and the share of the whole that is done, from 0 to 1; the share never falls."""

DOWNLOADING, READING, PACKING, WRITING = "downloading", "reading", "packing", "writing"
CALIBRATING = "calibrating"


def ignore_progress(stage: str, share: float) -> None:
    """Ignore the progress of loading."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """Return the progress of a part, from ``start`` to ``end`` of the whole."""
    return lambda stage, share: progress(stage, start + (end - start) * share)
