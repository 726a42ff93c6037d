"""``dragoman adapters``: list, load and unload the adapters of a running server."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from dragoman.cli import console
from dragoman.cli.address import Address, address_of
from dragoman.cli.server_calls import ask_json, ask_text, entries
from dragoman.core.regular_file import FileName

LOAD_TIMEOUT_S = 600.0
"""Includes the time for downloading an adapter."""

_GIVEN = {"positional": True, "configurable": False}


class ServerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The server to ask.

    Attributes:
        url: address of the running server; by default that of one on this machine, at port 8000.
        api_key: the key that this server asks for; loading and unloading take one with the scope admin.
    """

    PANEL: ClassVar[str] = "Server"

    url: str | None = None
    api_key: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ServerChoice(url={self.url!r}, api_key=<{len(self.api_key)}>)"

    @property
    def address(self) -> Address:
        return address_of(self.url, self.api_key)


class LoadedAdapterChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter's name."""

    PANEL: ClassVar[str] = "Options"

    adapter: Annotated[str, msgspec.Meta(description="What requests call it.", extra=_GIVEN)]


class AdapterChoice(LoadedAdapterChoice, frozen=True, kw_only=True):
    """The adapter's name and source."""

    adapter_source: Annotated[
        FileName | None,
        msgspec.Meta(
            description="A folder in the server's --adapters-folder, or a hub id where the server has "
            "--offer-downloads; by default what the server offers under the name.",
            extra={"configurable": False},
        ),
    ] = None


def list_adapters(server: ServerChoice) -> None:
    """List the adapters of a running server: those that are loaded, and those that can be."""
    path = "/v1/lora_adapters"
    found = entries(ask_json(server.address, path), server.address, path)
    if not found:
        console.notes().print("The server has no adapters yet: load one with dragoman adapters load", markup=False)
        return
    table = console.table(("ADAPTER", "STATE", "RANK", "MEMORY"), no_wrap=False)
    for entry in found:
        table.add_row(*_row(entry))
    console.output().print(table)


def load(choice: AdapterChoice, server: ServerChoice) -> None:
    """Load an adapter into a running server, so that requests may name it."""
    body = {"lora_name": choice.adapter} | ({"lora_path": choice.adapter_source} if choice.adapter_source else {})
    _tell(server.address, "/v1/load_lora_adapter", body)


def unload(choice: LoadedAdapterChoice, server: ServerChoice) -> None:
    """Let no new request of a running server name an adapter; those that run with it are finished."""
    _tell(server.address, "/v1/unload_lora_adapter", {"lora_name": choice.adapter})


def _tell(address: Address, path: str, body: dict[str, Any]) -> None:
    console.output().print(ask_text(address, path, body, timeout_s=LOAD_TIMEOUT_S), markup=False)


def _row(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    if not entry["loaded"]:
        return entry["id"], "can be loaded", "", ""
    return entry["id"], "loaded", str(entry["rank"]), console.size(entry["size_bytes"])
