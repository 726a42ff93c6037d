"""The start of a command: signals, standard files, and the process of an engine for a command that serves."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dragoman.child_process import open_standard_files
from dragoman.cli.console import COMPLETE
from dragoman.cli.plain_text import use_what_terminals_have
from dragoman.core.third_party import quiet_hub, tokenize_without_threads
from dragoman.core.user_folders import ensure_home_variable

if TYPE_CHECKING:
    from dragoman.engine_client.prespawn import PrespawnedWorker

SERVING = ("serve", "start")
UNHEEDED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that other servers open their logs again at, or restart: their default is to end the process."""


def run() -> None:
    """Run the command of ``sys.argv``. Raises SystemExit, and KeyboardInterrupt while modules are still imported."""
    handle_signals(sys.argv[1:])
    _open_standard_files()
    try:
        try:
            _run_command()
        finally:
            sys.stdout.flush()
    except OSError as error:  # of the help, and of what waited for the end: those of commands are told by then
        sys.exit(_unwritten(error))


def _run_command() -> None:
    prespawned = None
    ensure_home_variable()
    quiet_hub()
    tokenize_without_threads()
    use_what_terminals_have()
    _forget_empty_sizes()
    try:
        prespawned = prespawn(sys.argv[1:], os.environ)
        if prespawned is not None:
            # Objects made during the start stay alive: collecting garbage takes a tenth of it. The server collects when
            # it has settled.
            gc.disable()
        from dragoman.cli.app import answer_shell, cli

        if COMPLETE in os.environ:
            return answer_shell(cli, sys.argv[1:])
        cli.typer(prog_name="dragoman", obj=prespawned)
    finally:
        if prespawned is not None:
            prespawned.close()


def _forget_empty_sizes() -> None:
    """Unset the variables that give a terminal no columns or lines, as pipes of some programs do: nothing would be
    shown, errors neither."""
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "").strip("0"):
            os.environ.pop(name, None)


def _unwritten(error: OSError) -> int:
    """Say that the output could not be written, unless its reader has left, or that is said already. Return the exit
    code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # where the interpreter writes, at its end, what it still has
    ended = error.__context__
    is_told = isinstance(ended, SystemExit) and ended.code not in (None, 0)
    try:
        if not is_told and not isinstance(error, BrokenPipeError):
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(nowhere, 2)
    return 1


def handle_signals(arguments: Sequence[str]) -> None:
    """Have a command that serves survive SIGHUP and ``UNHEEDED`` from its first moment on, and any command end at
    SIGTERM.

    The kernel drops signals to the first process of a container that it has no handler for: `docker stop` during a
    download would wait in vain.
    """
    if arguments and arguments[0] in SERVING and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: None)  # there is nothing to read again yet
    if arguments and arguments[0] in SERVING:
        for number in UNHEEDED:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _say_unheeded)
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))


def _say_unheeded(number: int, frame: object) -> None:
    logging.getLogger("dragoman.server").warning("%s has no meaning here: nothing is done", signal.Signals(number).name)


def _open_standard_files() -> None:
    """Have all three standard files, also where the interpreter found some closed."""
    open_standard_files()
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # the interpreter found it closed
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def prespawn(arguments: Sequence[str], variables: Mapping[str, str]) -> PrespawnedWorker | None:
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
