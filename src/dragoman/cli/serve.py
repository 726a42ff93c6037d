"""``dragoman serve``: look at what was asked for, tell the engine's process what to load, and go on in ``running``."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import typer

from dragoman.cli import console
from dragoman.cli.logs import configure_logs
from dragoman.cli.serve_settings import ServeSettings
from dragoman.cli.tunnel import Tunnel
from dragoman.dialects import check_settings
from dragoman.engine.launch import Launched
from dragoman.server.keys import Keyring, KeySettings, first_key, keyring_of, reaches_others
from dragoman.server.tracing import tracing_of


def serve(settings: ServeSettings, launched: Launched | None = None) -> None:
    """Raises ModelError or DragomanError before the port opens; afterwards typer.Exit with the server's exit code.

    ``launched``: a process that waits already to be the engine's.
    """
    started = time.monotonic()
    configure_logs(settings.logs)
    check_settings(settings.dialects)
    tracing = tracing_of(settings.traces)
    keyring = open_keyring(settings.keys, settings.server.host, settings.continuing.folder)
    tunnel = Tunnel(settings.tunnel, has_keys=bool(keyring)) if settings.tunnel.public else None
    with closing(launched or Launched()) as launched:
        # The process imports its half of the program while this one imports the other: half of a start are imports.
        # What to load comes first, so that the process need not wait for the server.
        from dragoman.cli.engine import worker_settings

        worker, described = worker_settings(
            settings.choice.model, settings.model, settings.scheduling, settings.machine
        )
        launched.tell(worker)
        from dragoman.cli.running import run

        exit_code = run(
            settings,
            worker,
            described,
            keyring=keyring,
            tunnel=tunnel,
            tracing=tracing,
            launched=launched,
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
