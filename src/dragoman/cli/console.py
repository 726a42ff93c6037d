"""The terminal: answers go to standard output, everything said about them to standard error."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def output() -> Console:
    """Standard output, for what was asked for."""
    return _console(stderr=False)


@cache
def notes() -> Console:
    """Standard error, for progress, plans and errors: an answer that is piped on stays clean."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console  # here, not above: tens of milliseconds that `generate` in a pipe need not wait

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def error(message: str) -> None:
    from rich.markup import escape

    notes().print(f"[bold red]error:[/] {escape(message)}")


def size(count: float) -> str:
    """Bytes in the unit that reads best: ``1.53 GB`` (decimal, as disks and bandwidths are given)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def number(count: float) -> str:
    return f"{count:,.0f}"
