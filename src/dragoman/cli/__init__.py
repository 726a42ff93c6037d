"""The command line: ``serve``, ``chat``, ``generate``, ``models``, ``plan``, ``bench``."""


def main() -> None:
    """The ``dragoman`` command."""
    from dragoman.cli.app import cli

    cli.typer(prog_name="dragoman")
