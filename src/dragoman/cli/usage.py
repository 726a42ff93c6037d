"""``dragoman usage``: the use of each holder, from a server's ledger."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import FileName
from dragoman.serving.settings import ContinueSettings

if TYPE_CHECKING:
    from dragoman.server.ledger import Usage

HERE = {"configurable": False}


class UsageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the ledger to show.

    Attributes:
        holder: only what this holder of a key used; by default everybody.
        since: first day that counts, a day of UTC as 2027-01-31, or 7d for the last seven days; by default 30d.
        daily: each day apart.
        json: write one JSON object a line, each for one holder, model and day.
        state_dir: folder where the server keeps its ledger.
    """

    PANEL = "Ledger"

    holder: Annotated[str, Meta(extra=HERE)] = ""
    since: Annotated[str, Meta(extra=HERE)] = "30d"
    daily: Annotated[bool, Meta(extra=HERE)] = False
    json: Annotated[bool, Meta(extra=HERE)] = False
    state_dir: FileName | None = None


def usage(asked: UsageSettings) -> None:
    """Show who used how much: requests, tokens and seconds by the holders of keys and by models.

    Reads the ledger of a server that runs, or ran, with the same --state-dir. Days are those of UTC.
    """
    from dragoman.server.ledger import LEDGER_FILE, Usage, read_ledger

    file = ContinueSettings(state_dir=asked.state_dir).folder / LEDGER_FILE
    today = datetime.now(UTC).date()
    rows = read_ledger(file, since=first_day(asked.since, today), holder=asked.holder or None)
    if asked.json:
        for row in rows:
            used = msgspec.to_builtins(row.usage)
            print(json.dumps({"day": row.day, "holder": row.holder, "model": row.model} | used))
        return
    sums: dict[tuple[str, ...], Usage] = {}
    for row in rows:
        key = (*((row.day,) if asked.daily else ()), row.holder or "(no key)", row.model or "(none)")
        sums.setdefault(key, Usage()).add(row.usage)
    headings = (*(("day",) if asked.daily else ()), "holder", "model", *COLUMNS)
    table = console.table(headings, right=COLUMNS, no_wrap=False)
    for key, used in sorted(sums.items(), key=lambda item: item[0]):
        table.add_row(*map(console.escape, key), *_cells(used))
    console.output().print(table)


COLUMNS = ("requests", "refused", "prompt tokens", "cached", "generated", "seconds")


def first_day(text: str, today: date) -> str:
    """Return the first day that counts. Raises DragomanError for what is neither a day nor a number of days."""
    try:
        if text.endswith("d"):
            days = int(text[:-1])
            if days < 1:
                raise ValueError
            return (today - timedelta(days=days - 1)).isoformat()
        return date.fromisoformat(text).isoformat()
    except (ValueError, OverflowError):
        raise DragomanError(f"--since {text[:40]}: expected a day as 2027-01-31, or a number of days as 30d") from None


def _cells(used: Usage) -> list[str]:
    return [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in msgspec.structs.astuple(used)]
