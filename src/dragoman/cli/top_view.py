"""The figures of a running server as a page for a terminal of any width, and as plain lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from dragoman.cli import console
from dragoman.cli.live_figures import Figures, Holder, Latency, Model
from dragoman.cli.plain_text import visible

MOST_MODELS = 8

_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_FULL, _EMPTY = ("━", "─")
_BAR = 20
_WIDE = 72
"""From so many columns on, holders have all of their counts."""


class Page:
    """What one look at the server shows. ``trouble``: why there are no newer figures; empty while there are.

    ``history``: tokens per second of the readings so far. ``hint``: the last line, in a live view. ``rows``: how many
    lines there is room for; None: any number.
    """

    def __init__(
        self,
        server: str,
        figures: Figures | None,
        *,
        history: Iterable[float] = (),
        trouble: str = "",
        hint: str = "",
        rows: int | None = None,
    ) -> None:
        self._server, self._figures, self._history = server, figures, history
        self._trouble, self._hint, self._rows = trouble, hint, rows

    def __rich_console__(self, terminal: Console, options: ConsoleOptions) -> RenderResult:
        figures, ascii_only, width = self._figures, options.ascii_only, options.max_width
        parts: list[RenderableType] = [self._title(width)]
        parts += [Text(line, style="bold red") for line in _wrapped(visible(self._trouble), width)]
        if figures is not None:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(no_wrap=True, style="bold", min_width=11)
            grid.add_column(no_wrap=True, overflow="crop", ratio=1)
            for name, text in _rows(figures, self._history, ascii_only=ascii_only):
                grid.add_row(name, Text(text, no_wrap=True, overflow="crop", style="dim" if self._trouble else ""))
            parts.append(grid)
            if figures.holders:
                parts += [Text(""), self._holders(figures.holders, width, taken=len(grid.rows) + len(parts) + 3)]
        if self._hint:
            parts += [Text(""), Text(self._hint, style="dim", no_wrap=True, overflow="crop")]
        yield Group(*parts)

    def _title(self, width: int) -> Text:
        figures = self._figures
        state = (
            "no answer"
            if self._trouble
            else ""
            if figures is None
            else "ready"
            if figures.engine_ready
            else "not ready"
        )
        style = "bold red" if self._trouble else "bold green" if state == "ready" else "bold yellow"
        right = "" if figures is None else figures.time[11:19]
        room = max(1, width - len(state) - len(right) - 4)
        title = Text.assemble((visible(self._server)[:room], "bold"), "  ", (state, style))
        title.append(right.rjust(max(0, width - title.cell_len)), "dim")
        title.no_wrap, title.overflow = True, "crop"
        return title

    def _holders(self, holders: Sequence[Holder], width: int, *, taken: int) -> Table:
        columns = ["HOLDER", "RUN", "WAIT", "TOK/S", "GENERATED", "PROMPTS"]
        columns += ["REQUESTS", "REFUSED"] if width >= _WIDE else []
        table = console.table(columns, right=columns[1:])
        table.columns[0].overflow, table.columns[0].ratio, table.expand = "crop", 1, True
        for column in table.columns[1:]:
            column.overflow = "crop"
        room = len(holders) if self._rows is None else max(1, self._rows - taken - (2 if self._hint else 0))
        shown = holders if len(holders) <= room else holders[: max(1, room - 1)]
        for each in shown:
            counts: list[int | str] = [
                each.running,
                each.waiting,
                _rate(each.tokens_per_s),
                each.generated_tokens,
                each.prompt_tokens,
            ]
            counts += [each.requests, each.refused] if width >= _WIDE else []
            table.add_row(Text(visible(each.name)), *(_count(count) for count in counts))
        if len(shown) < len(holders):
            table.add_row(Text(f"and {len(holders) - len(shown)} others", style="dim"))
        return table


def _rows(figures: Figures, history: Iterable[float], *, ascii_only: bool) -> Iterator[tuple[str, str]]:
    yield "generated", f"{_rate(figures.generated_tokens_per_s):>8} tokens/s   {_sparks(history, ascii_only)}"
    yield "prompts", f"{_rate(figures.prompt_tokens_per_s):>8} tokens/s"
    yield "first token", _latency(figures.time_to_first_token)
    yield "next token", _latency(figures.between_tokens)
    yield "requests", f"{figures.requests_running} running, {figures.requests_waiting} waiting"
    waiting = f"{figures.sequences_waiting} waiting, {figures.preemptions} preempted so far"
    yield "sequences", f"{figures.sequences_running} in the batch, {waiting}"
    used = f"{figures.blocks_used:,} of {figures.blocks:,} used, {figures.blocks_cached:,} kept"
    yield "blocks", f"{_bar(figures.blocks_used, figures.blocks, ascii_only)} {used}"
    yield "cache hits", "-" if figures.cached_share is None else f"{_percent(figures.cached_share)} of prompt tokens"
    yield "drafts", "-" if figures.accepted_share is None else f"{_percent(figures.accepted_share)} accepted"
    busy = "-" if figures.busy_share is None else f"{_percent(figures.busy_share)} busy"
    times = "once" if figures.engine_restarts == 1 else f"{figures.engine_restarts} times"
    yield "engine", f"{busy}, restarted {times if figures.engine_restarts else 'never'}"
    if figures.memory_bytes and figures.memory_used_bytes is not None:
        bar = _bar(figures.memory_used_bytes, figures.memory_bytes, ascii_only)
        yield "memory", f"{bar} {console.size(figures.memory_used_bytes)} of {console.size(figures.memory_bytes)} used"
    else:
        yield "memory", "not told"
    models = figures.models
    yield "models", "not told" if models is None else _model(models[0]) if models else "none is loaded"
    for model in (models or [])[1:MOST_MODELS]:
        yield "", _model(model)
    if models is not None and len(models) > MOST_MODELS:
        yield "", f"and {len(models) - MOST_MODELS} others"


def _model(model: Model) -> str:
    size = "" if model.memory_bytes is None else f", {console.size(model.memory_bytes)}"
    return visible(model.name) + size


def _latency(latency: Latency | None) -> str:
    if latency is None:
        return "-"
    bound = "" if latency.p95_ms is None else f", 95 % within {_ms(latency.p95_ms)}"
    return f"{_ms(latency.mean_ms):>11}{bound}"


def _ms(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"


def _rate(value: float | None) -> str:
    return "-" if value is None else console.rate(value)


def _count(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _bar(value: float, whole: float, ascii_only: bool) -> str:
    full, empty = ("#", "-") if ascii_only else (_FULL, _EMPTY)
    length = round(_BAR * min(1.0, max(0.0, value / whole))) if whole > 0 else 0
    length = max(length, 1) if value > 0 else length
    return full * length + empty * (_BAR - length)


def _sparks(history: Iterable[float], ascii_only: bool) -> str:
    """Return the newest values as a row of bars."""
    newest, levels = list(history)[-_BAR:], _ASCII_LEVELS if ascii_only else _LEVELS
    high = max(newest, default=0.0)
    return "".join(levels[int(value / high * (len(levels) - 1) + 0.5)] if high > 0 else levels[0] for value in newest)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(20, width))
