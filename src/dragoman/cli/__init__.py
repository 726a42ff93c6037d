"""The command line: ``serve``, ``chat``, ``generate``, ``models``, ``plan``, ``bench``."""

import sys


def main() -> None:
    """The ``dragoman`` command."""
    try:
        from dragoman.cli.app import cli

        cli.typer(prog_name="dragoman")
    except KeyboardInterrupt:  # while modules are still being imported; later typer sees to it
        sys.exit(130)
