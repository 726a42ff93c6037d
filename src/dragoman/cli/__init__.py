"""The command line: ``serve``, ``chat``, ``generate``, ``models``, ``plan``, ``bench``."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dragoman.cli.console import COMPLETE
from dragoman.cli.plain_text import use_what_terminals_have
from dragoman.core.third_party import quiet_hub
from dragoman.core.user_folders import ensure_home_variable

if TYPE_CHECKING:
    from dragoman.engine_client.prespawn import PrespawnedWorker

SERVING = ("serve", "start")


def main() -> None:
    """Run the ``dragoman`` command."""
    prespawned = None
    handle_signals(sys.argv[1:])
    _open_standard_files()
    ensure_home_variable()
    quiet_hub()
    use_what_terminals_have()
    try:
        prespawned = begun(sys.argv[1:], os.environ)
        if prespawned is not None:
            # Objects made during the start stay alive: collecting garbage takes a tenth of it. The server collects when
            # it has settled.
            gc.disable()
        from dragoman.cli.app import answer_shell, cli

        if COMPLETE in os.environ:
            return answer_shell(cli, sys.argv[1:])
        cli.typer(prog_name="dragoman", obj=prespawned)
    except KeyboardInterrupt:  # while modules are still being imported; later typer handles it
        sys.exit(130)
    finally:
        if prespawned is not None:
            prespawned.close()


def handle_signals(arguments: Sequence[str]) -> None:
    """Have a command that serves survive SIGHUP from its first moment on, and any command end at SIGTERM.

    The kernel drops signals to the first process of a container that it has no handler for: `docker stop` during a
    download would wait in vain.
    """
    if arguments and arguments[0] in SERVING and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: None)  # there is nothing to read again yet
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))


def _open_standard_files() -> None:
    """Open closed standard files at /dev/null, so that no other file gets their descriptors, and their output."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:  # the interpreter found it closed
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def begun(arguments: Sequence[str], variables: Mapping[str, str]) -> PrespawnedWorker | None:
    """Return an engine's process for a command that will probably need one: a closer look takes 0.2 s, as long as
    the imports of the process. None where the command itself has to decide, or to report an error."""
    if (
        not arguments
        or arguments[0] not in SERVING
        or "--help" in arguments
        or variables.get("DRAGOMAN_KERNELS")
        or COMPLETE in variables
    ):
        return None
    from dragoman.engine_client.prespawn import PrespawnedWorker

    try:
        return PrespawnedWorker()
    except OSError:
        return None
