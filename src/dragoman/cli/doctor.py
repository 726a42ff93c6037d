"""``dragoman doctor``: the model that would be loaded, faults of its files, and a comparison with transformers; or the
kernels of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from dragoman.cli import console
from dragoman.cli.kernel_report import report_kernels
from dragoman.cli.settings import ModelChoice
from dragoman.models.settings import ModelSettings

if TYPE_CHECKING:
    from dragoman.cli.checkpoint_lint import Examination
    from dragoman.cli.comparison import Comparison


class DoctorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the findings, and the comparison."""

    PANEL = "Options"

    format: Annotated[
        Literal["table", "json"],
        msgspec.Meta(description="Chapters to read, or JSON to process.", extra={"configurable": False}),
    ] = "table"
    compare: Annotated[
        bool,
        msgspec.Meta(
            description="Hold token ids, rendered chats and logits against transformers, where that is installed.",
            extra={"configurable": False},
        ),
    ] = True
    kernels: Annotated[
        bool,
        msgspec.Meta(
            description="Test the kernels of this machine, or those that DRAGOMAN_KERNELS names, beside the portable "
            "ones, and look at no model.",
            extra={"configurable": False},
        ),
    ] = False


def doctor(choice: ModelChoice, asked: DoctorSettings, settings: ModelSettings) -> None:
    """Check a model: what would be loaded, where its files contradict each other, how it compares with transformers.

    Ends with code 1 where the model cannot be served, or computes something else than transformers does; or where a
    kernel computes something else than the portable one, which is all that --kernels looks at.
    """
    if asked.kernels:
        raise typer.Exit(0 if report_kernels(asked.format) else 1)
    from dragoman.cli.checkpoint_lint import examine
    from dragoman.cli.comparison import compare, has_witness

    found = examine(choice.model, settings)
    comparison = compare(found) if asked.compare and found.can_be_served and has_witness() else None
    if asked.format == "json":
        print(_json(found, comparison))
    else:
        _print(found, comparison, without_witness=asked.compare and not has_witness())
    if not found.can_be_served or (comparison is not None and comparison.differs):
        raise typer.Exit(1)


def _print(found: Examination, comparison: Comparison | None, *, without_witness: bool) -> None:
    out = console.output()
    chapters = dict(found.chapters)
    if comparison is not None:
        chapters["beside transformers"] = comparison.rows
    for title, rows in chapters.items():
        out.print(f"[bold]{title}[/]")
        for name, text in rows.items():
            out.print(f"  {name:>18}  {console.escape(text)}")
    if without_witness:
        out.print("[bold]beside transformers[/]\n  transformers is not installed here: nothing was compared")
    marks = {"error": "[bold red]✗[/]", "warning": "[bold yellow]![/]"}
    out.print()
    for problem in found.problems:
        out.print(f"{marks[problem.severity]} {console.escape(problem.text)}")
    if not found.problems:
        out.print("[bold green]✓[/] nothing is missing or contradictory")


def _json(found: Examination, comparison: Comparison | None) -> str:
    value = {
        "chapters": found.chapters,
        "problems": [{"severity": p.severity, "text": p.text} for p in found.problems],
        "can_be_served": found.can_be_served,
        "comparison": None if comparison is None else {"rows": comparison.rows, "differs": comparison.differs},
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
