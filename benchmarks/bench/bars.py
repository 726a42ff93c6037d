"""The goal of each row. On the llama-3.2-1b shape, and of images, a goal is a part of the limit; else it is a figure,
set by the best result of other servers on two cores of a Zen 5 server (llama.cpp, vLLM's CPU build; November 2026)."""

from __future__ import annotations

from benchmarks.bench.workloads import Unit

FRACTIONS: dict[str, dict[str, float]] = {
    "one-stream": {"bfloat16": 0.92, "int8": 0.92, "int4": 0.92},
    "repeating": {"bfloat16": 2.0, "int8": 2.0, "int4": 2.0},
    "first-512": {"bfloat16": 0.98 / 1.12, "int8": 0.49 / 0.62},
    "first-2048": {"bfloat16": 4.2 / 4.7, "int8": 2.2 / 2.75},
    "8-streams": {"bfloat16": 102 / 117, "int8": 185 / 237},
    "32-streams": {"bfloat16": 185 / 231, "int8": 320 / 460},
    "prefix": {"bfloat16": 12.6 / 15, "int8": 6.5 / 8.5},
}
OF_IMAGES = {"bfloat16": 0.7, "int8": 0.7}
MEMORY_GB = 0.25
"""Beyond weights, keys and values."""

FIGURES: dict[str, dict[str, dict[str, float]]] = {
    "llama-3.2-1b": {"start": {"bfloat16": 1.2, "int8": 1.2, "int4": 1.2}},
    "qwen2.5-0.5b": {
        "one-stream": {"bfloat16": 43, "int8": 60.5},
        "8-streams": {"bfloat16": 178, "int8": 1.4 * 178},
        "32-streams": {"bfloat16": 319, "int8": 1.4 * 319},
        "first-512": {"bfloat16": 0.52},
        "first-2048": {"bfloat16": 2.28},
    },
    "tiny": {"one-stream": {"int8": 2500}, "8-streams": {"int8": 6000}, "32-streams": {"int8": 10000}},
}


def bar(model: str, row: str, precision: str, unit: Unit, limit: float | None) -> float | None:
    """The value that a row is to reach, or to stay below; None where none is set."""
    figure = FIGURES.get(model, {}).get(row, {}).get(precision)
    if figure is None and limit is not None and row == "image" and precision in OF_IMAGES:
        return limit / OF_IMAGES[precision]
    if figure is not None or limit is None or model != "llama-3.2-1b":
        return figure
    if unit is Unit.SIZE:
        return limit + MEMORY_GB
    part = FRACTIONS.get(row, {}).get(precision)
    if part is None:
        return None
    return part * limit if unit is Unit.RATE else limit / part
