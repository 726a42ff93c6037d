"""The tables as bar charts: one SVG for each model, every bar a part of what the machine allows."""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.bench.beside import read
from benchmarks.bench.report import OURS, Row, Sample, number, rows_of
from benchmarks.bench.workloads import Unit

LABELS, PLOT, FIGURES, MARGIN = 300, 380, 140, 16
"""Widths of the row's names, of the bars up to 100 %, and of the figures behind them, in pixels."""

BAR, GAP, TOP = 14, 12, 64

STYLE = """
    .limit { fill: #eaeef2; stroke: #8c959f }
    .ours { fill: #0969da }
    .other { fill: #bf8700 }
    .other2 { fill: #8250df }
    .text { fill: #1f2328 }
    .small { fill: #57606a; font-size: 12px }
    @media (prefers-color-scheme: dark) {
      .limit { fill: #21262d; stroke: #6e7681 }
      .ours { fill: #58a6ff }
      .other { fill: #d29922 }
      .other2 { fill: #bc8cff }
      .text { fill: #f0f6fc }
      .small { fill: #b1bac4 }
    }
"""
SHADES = ("other", "other2")


class Bar(msgspec.Struct, frozen=True):
    """One server's result: ``part`` of the limit, 1 being all of it, and the figure as it was measured."""

    server: str
    part: float
    figure: str


def draw(samples: Sequence[Sample], folder: Path) -> list[Path]:
    """Write ``bench-MODEL.svg`` for each model that has a row with a limit, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for model in dict.fromkeys(sample.model for sample in samples):
        text = chart(model, [sample for sample in samples if sample.model == model])
        if text:
            written.append(folder / f"bench-{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}.svg")
            written[-1].write_text(text, encoding="utf-8")
    return written


def chart(model: str, samples: Sequence[Sample]) -> str:
    """Return the SVG of one model's rows; empty where none has a limit."""
    groups = [(row, bars) for row in rows_of(samples) if (bars := bars_of(row))]
    if not groups:
        return ""
    others = list(dict.fromkeys(bar.server for _, bars in groups for bar in bars if bar.server != OURS))
    most = max(1.0, *(bar.part for _, bars in groups for bar in bars))
    width = LABELS + PLOT + FIGURES + 2 * MARGIN
    lines, y = _legend(model, others), TOP
    for row, bars in groups:
        lines += _group(row, bars, others, y, PLOT / most)
        y += BAR * len(bars) + GAP
    title = html.escape(f"{model}: parts of what the machine allows")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img"'
            ' aria-labelledby="title" font-family="system-ui, sans-serif" font-size="13">',
            f'  <title id="title">{title}</title>',
            f"  <style>{STYLE}  </style>",
            *lines,
            "</svg>",
            "",
        ]
    )


def bars_of(row: Row) -> list[Bar]:
    """Ours and the others' bars of a row; none where it has no limit or was not measured.

    Another server's part follows from how many times better ours was in the same rounds.
    """
    if row.measured is None or row.limit is None or row.fraction is None or row.unit is Unit.SIZE:
        return []
    bars = [Bar(OURS, row.fraction.median, f"{number(row.measured.median)} {row.unit}")]
    for name, times in row.ratios.items():
        value = row.measured.median / times.median if row.unit is Unit.RATE else row.measured.median * times.median
        bars.append(Bar(name, row.fraction.median / times.median, f"{number(value)} {row.unit}"))
    return bars


def _legend(model: str, others: Sequence[str]) -> list[str]:
    lines = [f'  <text class="text" x="{MARGIN}" y="24" font-size="16" font-weight="600">{html.escape(model)}</text>']
    x = MARGIN
    shades = {OURS: "ours", **{name: shade_of(name, others) for name in others}, "what the machine allows": "limit"}
    for name, shade in shades.items():
        lines.append(f'  <rect class="{shade}" x="{x}" y="36" width="12" height="12"/>')
        lines.append(f'  <text class="small" x="{x + 18}" y="46">{html.escape(name)}</text>')
        x += 40 + 7 * len(name)
    return lines


def _group(row: Row, bars: Sequence[Bar], others: Sequence[str], y: int, unit: float) -> list[str]:
    """The bars of a row, in the frame of its limit; ``unit``: pixels of 100 %."""
    left, height = MARGIN + LABELS, BAR * len(bars)
    middle = y + height / 2 + 4
    label = html.escape(f"{row.title}, {row.precision}")
    lines = [
        f'  <text class="small" x="{left - 8}" y="{middle:g}" text-anchor="end">{label}</text>',
        f'  <rect class="limit" x="{left}" y="{y}" width="{unit:.1f}" height="{height}"/>',
    ]
    for place, bar in enumerate(bars):
        shade = "ours" if bar.server == OURS else shade_of(bar.server, others)
        top, length = y + place * BAR + 2, bar.part * unit
        lines.append(f'  <rect class="{shade}" x="{left}" y="{top}" width="{length:.1f}" height="{BAR - 4}"/>')
        figure = html.escape(f"{bar.figure}, {100 * bar.part:.0f} %")
        behind = left + max(length, unit) + 6
        lines.append(f'  <text class="small" x="{behind:.1f}" y="{top + 9}">{figure}</text>')
    return lines


def shade_of(server: str, others: Sequence[str]) -> str:
    """The class of another server's bars."""
    return SHADES[others.index(server) % len(SHADES)]


def main() -> None:
    """Draw from files that ``--json`` wrote."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench.chart", description=__doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="results of `python -m benchmarks.bench --json FILE`"
    )
    parser.add_argument("--charts", type=Path, default=Path("docs/img"), help="folder of the SVGs (default: docs/img)")
    options = parser.parse_args()
    for file in draw(read(options.files), options.charts):
        print(file)


if __name__ == "__main__":
    main()
