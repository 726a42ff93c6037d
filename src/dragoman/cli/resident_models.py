"""``dragoman models ps``, ``load``, ``unload`` and ``pin``: the models in the memory of a running server."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.cli.machine_info import StatusSettings
from dragoman.cli.server_calls import ask_json
from dragoman.core.errors import DragomanError

LONGEST_S = 3600.0
"""A load of a large model from a slow disk, and the end of what still runs on another."""
_NAME = {"positional": True, "configurable": False, "twin": "--model"}


class ResidentChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The model.

    Attributes:
        resident: name of a model that the server offers.
    """

    PANEL = "Model"

    resident: Annotated[str, Meta(extra=_NAME)]


class PinChoice(ResidentChoice, frozen=True, kw_only=True):
    """The model, and whether it stays.

    Attributes:
        off: it may be unloaded again.
    """

    off: Annotated[bool, Meta(extra={"configurable": False})] = False


def ps(asked: StatusSettings) -> None:
    """List the models in a running server's memory: what each takes, as planned and as measured, and its requests."""
    _print(ask_json(asked.address, "/resident-models"))


def load(choice: ResidentChoice, asked: StatusSettings) -> None:
    """Load a model into a running server and make it the current one. Idle models make room for it."""
    _print(ask_json(asked.address, "/resident-models/load", {"model": choice.resident}, timeout_s=LONGEST_S))


def unload(choice: ResidentChoice, asked: StatusSettings) -> None:
    """Free a model of a running server, once its running answers are finished."""
    _print(ask_json(asked.address, "/resident-models/unload", {"model": choice.resident}, timeout_s=LONGEST_S))


def pin(choice: PinChoice, asked: StatusSettings) -> None:
    """Keep a model of a running server in memory from when it is loaded, or with --off end that."""
    body = {"model": choice.resident, "pinned": not choice.off}
    _print(ask_json(asked.address, "/resident-models/pin", body))


def _print(answer: Any) -> None:
    try:
        models, budget = answer["models"], answer["memory_bytes"]
    except (TypeError, KeyError):
        raise DragomanError("the server does not tell which models it has in memory: it is no dragoman") from None
    if not models:
        console.notes().print("No model is loaded")
    table = console.table(
        ("MODEL", "STATE", "PLANNED", "MEASURED", "RUNNING", "WAITING", "UNLOADED"),
        right=("PLANNED", "MEASURED", "RUNNING", "WAITING"),
    )
    for each in models:
        table.add_row(
            f"{each['id']} (current)" if each["is_default"] else each["id"],
            each["state"] if each["state"] != "loading" else f"loading, {100 * each['progress']:.0f} %",
            *("-" if each[key] is None else console.size(each[key]) for key in ("planned_bytes", "measured_bytes")),
            str(each["running"]),
            str(each["waiting"]),
            _until(each),
        )
    if models:
        console.output().print(table)
    if budget is not None:
        console.notes().print(f"Budget of the server and its models: {console.size(budget)}", markup=False)


def _until(entry: dict[str, Any]) -> str:
    """Return when a model is unloaded."""
    if entry["is_pinned"]:
        return "never: pinned"
    if entry["idle_limit_s"] is None:
        return "when another needs its memory"
    return f"after {entry['idle_limit_s']:g} s idle"
