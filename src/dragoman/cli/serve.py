"""``dragoman serve``: look at what was asked for, begin with the engine's process, and go on in ``running``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import typer

from dragoman.cli import console
from dragoman.cli.logs import LogSettings, configure_logs
from dragoman.cli.settings import MachineSettings, ModelChoice
from dragoman.cli.tunnel import Tunnel, TunnelSettings
from dragoman.dialects import check_settings
from dragoman.engine.launch import Launched
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.settings import ModelSettings
from dragoman.server.keys import Keyring, KeySettings, first_key, keyring_of, reaches_others
from dragoman.server.settings import AdapterSettings, CatalogSettings, ContinueSettings, ServerSettings
from dragoman.server.tracing import TracingSettings, tracing_of


def serve(
    choice: ModelChoice,
    settings: ModelSettings,
    scheduling: SchedulerSettings,
    machine: MachineSettings,
    server: ServerSettings,
    keys: KeySettings,
    catalog: CatalogSettings,
    adapters: AdapterSettings,
    continuing: ContinueSettings,
    logs: LogSettings,
    traces: TracingSettings,
    way_in: TunnelSettings,
    dialects: Mapping[str, msgspec.Struct],
) -> None:
    """Raises ModelError or DragomanError before the port opens; afterwards typer.Exit with the server's exit code."""
    started = time.monotonic()
    configure_logs(logs)
    check_settings(dialects)
    tracing = tracing_of(traces)
    keyring = open_keyring(keys, server.host, continuing.folder)
    tunnel = Tunnel(way_in, has_keys=bool(keyring)) if way_in.public else None
    with closing(Launched()) as launched:
        # The process imports its half of the program while this one imports the other: half of a start are imports.
        from dragoman.cli.running import run

        exit_code = run(
            choice,
            settings,
            scheduling,
            machine,
            server,
            catalog,
            adapters,
            continuing,
            dialects,
            keyring=keyring,
            tunnel=tunnel,
            tracing=tracing,
            launched=launched,
            json_output=logs.json_output,
            started=started,
        )
    raise typer.Exit(exit_code)


def open_keyring(keys: KeySettings, host: str, folder: Path) -> Keyring:
    """The keys that callers must have. A first start that others can reach, and that was given none, makes one and says
    it: at once, for what comes later may fail. ``folder``: where its digest is kept."""
    keyring = keyring_of(keys)
    if keyring or keys.insecure or not reaches_others(host):
        return keyring
    keyring, key = first_key(folder / "api-key")
    if key is not None:
        text = f"API key, shown this once: {key}\n(--api-key sets another one, --insecure does without; see {folder})\n"
        console.notes().print(text, markup=False)
    return keyring
