"""``dragoman serve``: check the options, send the engine's process its settings, and continue in ``running``."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import typer

from dragoman.cli import console
from dragoman.cli.download_bar import DownloadBar
from dragoman.cli.idle_options import idle_options
from dragoman.cli.logs import configure_logs
from dragoman.cli.serve_settings import ServeSettings
from dragoman.cli.tunnel import Tunnel
from dragoman.core.caller import NO_LIMITS, CallerLimits
from dragoman.core.errors import DragomanError
from dragoman.core.third_party import import_numpy_within_limits
from dragoman.dialects import check_settings
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.server.address import check_free
from dragoman.server.keys import Keyring, KeySettings, first_key, keyring_of, reaches_others
from dragoman.server.open_files import check_open_files
from dragoman.server.origin_patterns import check_settings as check_browsers
from dragoman.server.proxies import TrustedProxies
from dragoman.server.tracing import tracing_of


def serve(settings: ServeSettings, prespawned: PrespawnedWorker | None = None, notes: Iterable[str] = ()) -> None:
    """Serve until a signal. Raises ModelError or DragomanError before the port opens; afterwards typer.Exit with the
    server's exit code.

    ``prespawned``: a process that waits to be the engine's. ``notes``: notes for the user on the options.
    """
    started = time.monotonic()
    logs = configure_logs(settings.logs)
    check_open_files()
    import_numpy_within_limits()
    console.remarks((*notes, *processor_limit(), *idle_options(settings)))
    check_settings(settings.dialects)
    check_browsers(settings.browsers)
    TrustedProxies(settings.network.trusted_proxy)
    tracing = tracing_of(settings.traces)
    # The permissions of a Unix socket decide who may connect.
    host = "localhost" if settings.network.uds is not None else settings.server.host
    defaults = settings.limits.applied_to(NO_LIMITS)
    if settings.network.uds is None:  # before a first key is made, and before a download, which may take an hour
        check_free(settings.server.host, settings.server.port)
    keyring = open_keyring(settings.keys, host, settings.continuing.folder, defaults)
    if settings.tunnel.public and (settings.network.uds is not None or settings.network.tls_cert is not None):
        raise DragomanError("--public needs a port without TLS: the tunnel has TLS of its own")
    tunnel = Tunnel(settings.tunnel, has_keys=bool(keyring)) if settings.tunnel.public else None
    with contextlib.closing(prespawned or PrespawnedWorker()) as prespawned:
        # The process imports its half of the program while this one imports the other: half of a start are imports. The
        # engine's settings come first, so that the process need not wait for the server.
        from dragoman.engine.worker_settings import within_budget, worker_settings

        if settings.remote.engine:
            from dragoman.cli.running import run_remote

            prespawned.close()
            raise typer.Exit(
                run_remote(settings, logs=logs, keyring=keyring, tunnel=tunnel, tracing=tracing, started=started)
            )
        placement = settings.machine.placement()
        with DownloadBar() as bar:
            worker, described = worker_settings(
                settings.choice.model,
                settings.model,
                settings.scheduling,
                placement,
                settings.recovery,
                watcher=bar,
                disk=settings.disk_cache,
            )
        worker = msgspec.structs.replace(worker, report_blocks=settings.kv_events.kv_events)
        prespawned.send_settings(within_budget(worker, described, settings.catalog.memory_bytes))
        from dragoman.cli.running import run

        exit_code = run(
            settings,
            worker,
            described,
            placement,
            logs=logs,
            keyring=keyring,
            tunnel=tunnel,
            tracing=tracing,
            prespawned=prespawned,
            started=started,
        )
    raise typer.Exit(exit_code)


def processor_limit() -> tuple[str, ...]:
    """Return a sentence about the limit of processor time, where this process was started with one."""
    seconds = resource.getrlimit(resource.RLIMIT_CPU)[0]
    if seconds == resource.RLIM_INFINITY:
        return ()
    return (
        f"each process may use {seconds} s of the processor here (ulimit -t), then it is ended: the engine is started "
        "again every time, and the server ends for good",
    )


def open_keyring(keys: KeySettings, host: str, folder: Path, defaults: CallerLimits = NO_LIMITS) -> Keyring:
    """Return the keyring of callers. A first start that others can reach, without any key, makes one and prints it: at
    once, for later steps may fail. ``folder``: where its digest is stored. ``defaults``: every caller's limits.

    The key is printed to a terminal only: service managers and container engines store what they read.
    """
    keyring = keyring_of(keys, defaults)
    if keyring or keys.insecure or not reaches_others(host):
        return keyring
    keyring, key = first_key(folder / "api-key", protect_all=keys.protect_all, defaults=defaults)
    if key is None:
        return keyring
    file = folder / "first-api-key"
    if not sys.stderr.isatty() and is_written(file, key):
        text = f"an API key was made; {file} has it, for its owner alone: take it from there and remove the file"
        console.remarks([text, f"--api-key sets another one, --insecure does without; see {folder}"])
    else:
        text = f"API key, shown this once: {key}\n(--api-key sets another one, --insecure does without; see {folder})\n"
        console.notes().print(text, markup=False)
    return keyring


def is_written(file: Path, secret: str) -> bool:
    """Write a file that only its owner can read. Return whether that succeeded."""
    try:
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
            opened.write(secret + "\n")
    except OSError:
        with contextlib.suppress(OSError):
            file.unlink()  # it is empty, on a full disk
        return False
    return True
