"""``dragoman ps`` and ``dragoman stop``: the models that a running server has in memory."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.cli.address import Address
from dragoman.cli.machine_info import StatusSettings
from dragoman.cli.server_calls import ask_json
from dragoman.core.errors import DragomanError, NotFound
from dragoman.core.regular_file import FileName


class StopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The model to unload.

    Attributes:
        model: name of the one that is loaded; by default whichever is.
    """

    PANEL = "Model"

    model: Annotated[FileName | None, Meta(extra={"positional": True, "configurable": False, "twin": "--model"})] = None


def ps(asked: StatusSettings) -> None:
    """List the models that a running server has in memory."""
    address = asked.address
    loaded = _loaded(address)
    if not loaded:
        console.notes().print("No model is loaded")
        return
    current = ask_json(address, "/models/current")
    table = console.table(("MODEL", "PARAMETERS", "MEMORY", "CONTEXT"), right=("PARAMETERS", "MEMORY", "CONTEXT"))
    for entry in loaded:
        known = current if isinstance(current, dict) and current.get("id") == entry["id"] else {}
        memory, context = known.get("memory_used"), known.get("max_length")
        table.add_row(
            str(entry["id"]),
            str(known.get("parameters") or "-"),
            console.size(memory) if isinstance(memory, int | float) else "-",
            f"{context:,} tokens" if isinstance(context, int) else "-",
        )
    console.output().print(table)


def stop(choice: StopSettings, asked: StatusSettings) -> None:
    """Unload the model of a running server, once its running answers are finished. The server goes on without one."""
    address = asked.address
    names = [str(entry["id"]) for entry in _loaded(address)]
    if not names:
        console.notes().print("No model is loaded")
        return
    if choice.model is not None and choice.model not in names:
        raise NotFound(f"{choice.model} is not loaded at {address}; loaded: {', '.join(names)}")
    name = choice.model or _current(address) or names[0]
    ask_json(address, "/resident-models/unload", {"model": name}, timeout_s=300)
    console.notes().print(f"Unloaded {name}", markup=False)


def _current(address: Address) -> str | None:
    current = ask_json(address, "/models/available").get("current_model")
    return current if isinstance(current, str) else None


def _loaded(address: Address) -> list[dict[str, Any]]:
    """Return the entries of the models in memory. Raises DragomanError for a server of another kind."""
    answer = ask_json(address, "/models/available")
    try:
        return [entry for entry in answer["models"] if entry["is_loaded"]]
    except (TypeError, KeyError):
        raise DragomanError(f"{address} does not tell which models it has in memory: it is no dragoman") from None
