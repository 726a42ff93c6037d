"""``dragoman version``, ``status`` and ``info``: this program, a running server, and the machine."""

from __future__ import annotations

import os
import platform
from typing import Any

import msgspec
import typer

import dragoman
from dragoman.cli import configuration, console
from dragoman.cli.address import Address, address_of
from dragoman.cli.server_calls import ask_json
from dragoman.core.errors import EngineUnavailable, GenerationFailed
from dragoman.core.user_folders import expand_user, is_file
from dragoman.models import topology
from dragoman.models.cgroups import allowed_processors
from dragoman.models.settings import default_cache_folder


class StatusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server to ask.

    Attributes:
        url: address of a running server; by default port 8000 of this machine.
        api_key: the key that this server asks for.
    """

    PANEL = "Server"

    url: str | None = None
    api_key: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"StatusSettings(url={self.url!r}, api_key=<{len(self.api_key)}>)"

    @property
    def address(self) -> Address:
        return address_of(self.url, self.api_key)


def version() -> None:
    """Show the version."""
    typer.echo(dragoman.__version__)


def status(asked: StatusSettings) -> None:
    """Ask a running server how it is, and which model is current. Exit code 1: it does not answer, or is not well."""
    healthy, rows = _status(asked.address)
    _print(rows)
    if not healthy:
        raise typer.Exit(1)


def info() -> None:
    """Show the machine, this program, and where it keeps what it downloads and makes."""
    _print(machine_rows())


def _status(address: Address) -> tuple[bool, dict[str, str]]:
    """Return whether the server is well, and the rows to show. Raises EngineUnavailable when no server answers."""
    rows = {"server": str(address)}
    try:
        answer = ask_json(address, "/health", timeout_s=10)
        rows["health"] = _member(answer, "status", "answers")
        healthy = True
    except EngineUnavailable:
        raise
    except GenerationFailed as error:
        rows["health"], healthy = error.message, False
    try:
        current = ask_json(address, "/models/current", timeout_s=10)
        rows["model"] = _member(current, "id", "unknown")
        for name in ("parameters", "architecture", "device", "max_length", "quantization", "memory_used"):
            if isinstance(current, dict) and current.get(name) is not None:
                value = current[name]
                is_size = name == "memory_used" and isinstance(value, int | float) and not isinstance(value, bool)
                rows[name.replace("_", " ")] = console.size(value) if is_size else _member(current, name, "")
    except (EngineUnavailable, GenerationFailed) as error:
        rows["model"] = f"not told: {error.message}"
    return healthy, rows


def machine_rows() -> dict[str, str]:
    """Return the rows of ``dragoman info``, by name."""
    import psutil
    from huggingface_hub import constants

    from dragoman import kernels
    from dragoman.models import available_memory

    memory = psutil.virtual_memory()
    used = next((place for place in configuration.usual_places() if is_file(place)), None)
    return {
        "dragoman": dragoman.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        "cores": f"{allowed_processors()} to use, {psutil.cpu_count(logical=False) or 'unknown'} physical, "
        f"{os.cpu_count()} threads",
        "topology": topology.describe(topology.read()),
        "threads": f"by default {topology.place()}",
        "memory": f"{console.size(memory.total)}, {console.size(available_memory())} available",
        "kernels": f"{kernels.instruction_set()} (this machine has {', '.join(kernels.instruction_sets())})",
        "devices": "the processor; GPUs are not used",
        "hub cache": str(constants.HF_HUB_CACHE),
        "packed weights": str(default_cache_folder()),
        "configuration": str(used.resolve()) if used else "none",
        "LocalLab's configuration": _locallab_file(),
    }


def _locallab_file() -> str:
    path = expand_user("~/.locallab/config.json")
    return f"{path} (read by start)" if is_file(path) else "none"


def _member(answer: Any, name: str, otherwise: str) -> str:
    """Return a member of a server's answer, as much as fits a line."""
    value = answer.get(name) if isinstance(answer, dict) else None
    return otherwise if value is None else str(value)[:200]


def _print(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for name, text in rows.items():
        console.output().print(f"[bold]{name:>{width}}[/]  {console.escape(text)}")
