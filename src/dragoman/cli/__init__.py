"""The command line: ``serve``, ``chat``, ``generate``, ``models``, ``plan``, ``bench``."""

import sys


def main() -> None:
    """Run the ``dragoman`` command. All that it needs is imported in here, where Ctrl-C during an import ends it as
    typer does later, without a traceback."""
    try:
        from dragoman.cli.start import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
