"""What an operator decides about the server. The command line is generated from these structs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
DialectName = Literal["auto", "openai", "tgi", "friendli", "octoai", "locallab", "alexandria"]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, and the limits of everything that a client can make grow.

    Attributes:
        host: address to listen on; 0.0.0.0 is every IPv4 interface.
        port: port to listen on; 0 takes any free one.
        metrics_port: one more port, for GET /metrics alone; without it the one that the clients of --dialect expect, if
            any. A port that cannot be had is no error.
        name: name of the served model in answers and in GET /v1/models; by default the model's own.
        dialect: which dialect has the bare paths that several claim, such as /v1/completions; each always has those
            under its own prefix. auto: told by what a request looks like where its dialect leaves marks.
        alias: one more name under which the model is served; may be given several times.
        chat_template: file with a chat template, Jinja or a tokenizer_config.json, in place of the model's own.
        max_connections: open connections; more are answered with status 503.
        max_waiting: requests that wait for their first token; more are answered with status 429.
        max_body_bytes: largest body of a request; larger ones are answered with status 413.
        max_message_bytes: largest message on a WebSocket; a larger one closes it.
        max_header_bytes: largest request line and headers together; larger ones are answered with status 431.
        header_timeout_s: seconds for a request's headers to arrive.
        body_timeout_s: seconds for a request's body to arrive; then status 408.
        write_timeout_s: seconds that a client may leave its answer unread before it is dropped.
        linger_s: seconds that the rest of a refused request is read, so that its sender gets to read why.
        keep_alive_s: seconds that an idle connection stays open.
        generation_timeout_s: longest time for one generation in seconds; without it there is none.
        drain_s: seconds that running requests get to finish when the server is told to stop.
        strict: refuse requests with fields that nobody knows, instead of naming these in a header of the answer.
        access_log: write a line for every request.
        text_threads: threads for checking long requests, tokenizing long prompts and rendering chats.
    """

    PANEL = "Server"

    host: str = "127.0.0.1"
    port: Annotated[Port, Meta(extra={"short": "-p"})] = 8000
    metrics_port: Port | None = None
    dialect: DialectName = "openai"
    name: str | None = None
    alias: tuple[str, ...] = ()
    chat_template: str | None = None
    max_connections: Count = 1024
    max_waiting: Count = 256
    max_body_bytes: Count = 16 * 1024 * 1024
    max_message_bytes: Count = 4 * 1024 * 1024
    max_header_bytes: Count = 64 * 1024
    header_timeout_s: Seconds = 20.0
    body_timeout_s: Seconds = 60.0
    write_timeout_s: Seconds = 60.0
    linger_s: Seconds = 5.0
    keep_alive_s: Seconds = 75.0
    generation_timeout_s: Seconds | None = None
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    strict: bool = False
    access_log: bool = True
    text_threads: Count = 2


class CatalogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which models may be loaded while the server runs.

    Attributes:
        offer: another model that may be loaded, as NAME=SOURCE or SOURCE, a folder, a GGUF file or a hub id; may be
            given several times.
        models_folder: each folder in it that holds a model is offered under its own name, and each GGUF file.
        offer_cached: offer the models in the hub's cache on this machine.
        offer_downloads: let clients name any repository of the hub, which is then downloaded.
        fixed_model: always serve the model that the server starts with; nothing else is offered.
    """

    PANEL: ClassVar[str] = "Models"

    offer: tuple[str, ...] = ()
    models_folder: str | None = None
    offer_cached: bool = True
    offer_downloads: bool = False
    fixed_model: bool = False


class AdapterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which low-rank adapters requests may name.

    Attributes:
        lora_adapters: adapters to load at the start, a list with commas: REPOSITORY, REPOSITORY@REVISION, NAME=FOLDER
            or NAME=REPOSITORY@REVISION, in PEFT's format.
        adapters_folder: each folder in it that holds an adapter may be loaded, under its own name, while the server
            runs.
    """

    PANEL: ClassVar[str] = "Models"

    lora_adapters: str | None = None
    adapters_folder: str | None = None


class ContinueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Generations that were cut, and wait to be gone on with.

    Attributes:
        state_dir: folder of what outlives the server; by default $XDG_STATE_HOME/dragoman or ~/.local/state/dragoman.
        continue_store: disk: a file in that folder, so that they outlive the server. memory: nothing is written.
        continue_ttl_s: seconds that each is kept after it was cut; 0: none is kept.
        continue_max_entries: how many are kept; beyond that the least recently used are forgotten.
        continue_max_bytes: bytes that all of them may take; beyond that the least recently used are forgotten.
    """

    PANEL = "Continuing"

    state_dir: str | None = None
    continue_store: Literal["disk", "memory"] = "disk"
    continue_ttl_s: Annotated[float, Meta(ge=0)] = 3600.0
    continue_max_entries: Annotated[int, Meta(ge=1)] = 16384
    continue_max_bytes: Annotated[int, Meta(ge=1)] = 256 * 1024 * 1024

    @property
    def file(self) -> Path | None:
        """The database; None where it is in memory."""
        if self.continue_store == "memory":
            return None
        return self.folder / "continue.sqlite3"

    @property
    def folder(self) -> Path:
        """What outlives the server is kept here."""
        home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        folder = Path(self.state_dir) if self.state_dir else Path(home) / "dragoman"
        return folder.expanduser()
