"""The terminal: answers go to standard output, everything about them to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


COMPLETE = "_DRAGOMAN_COMPLETE"
"""The variable in which a shell says that it asks what the last word of a command may become."""


@cache
def output() -> Console:
    """Return the console of standard output, for results."""
    return _console(stderr=False)


@cache
def notes() -> Console:
    """Return the console of standard error, for progress, plans and errors: piped answers stay clean."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console  # here, not above: tens of milliseconds that `generate` in a pipe need not wait

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], *, right: Collection[str] = (), no_wrap: bool = True) -> Table:
    """Return an empty table with these headings. ``right``: those of columns of numbers. ``no_wrap``: cells that do not
    fit are cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=no_wrap)
    return table


def escape(text: str) -> str:
    """Return the text in a form that consoles show as it is, whatever looks like markup in it."""
    from rich.markup import escape

    return escape(text)


Redirected = Callable[[str, bool], object]
"""Takes a message, and whether it is an error."""

_redirected: Redirected | None = None


def redirect(to: Redirected | None) -> None:
    """Send errors and remarks to a function instead of the terminal; None: to the terminal again."""
    global _redirected
    _redirected = to


def say(*lines: str) -> None:
    """Write lines to standard error as they are: for a start that should not wait for the import of a terminal
    library."""
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def bold(text: str) -> str:
    """Return the text in bold, for ``say``."""
    return f"\033[1m{text}\033[0m" if sys.stderr.isatty() and has_colors() else text


def has_colors() -> bool:
    """Return whether a terminal should get colors, as far as the environment says."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_move() -> bool:
    """Return whether a terminal lets programs move its cursor, as far as the environment says."""
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def error(message: str) -> None:
    if _redirected is not None:
        _redirected(message, True)
        return
    _say(f"[bold red]error:[/] {escape(message)}", f"error: {message}")


def remarks(sentences: Iterable[str]) -> None:
    """Write notes for the user that need no action."""
    for sentence in sentences:
        if _redirected is not None:
            _redirected(sentence, False)
            continue
        _say(escape(f"note: {sentence}"), f"note: {sentence}")


def _say(markup: str, plain: str) -> None:
    """Write to standard error: between words where a terminal's line ends, and in one line elsewhere.

    ``plain``: where the library for it cannot be loaded: there may be no memory, and no files that may be opened.
    """
    try:
        notes().print(markup, soft_wrap=not notes().is_terminal)
    except (MemoryError, ImportError, OSError):
        say(plain)


def size(count: float) -> str:
    """Return bytes in the unit that reads best: ``1.53 GB`` (decimal, as bandwidths are given)."""
    return f"{_scaled(count, ('', 'k', 'M', 'G', 'T'))}B"


def count(number: float) -> str:
    """Return a count as words: ``1.24 billion``."""
    return _scaled(number, ("", "thousand", "million", "billion")).rstrip()


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
