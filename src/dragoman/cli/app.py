"""All commands in one place. What is heavy is imported by the command that needs it, when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

import dragoman
from dragoman.cli import models
from dragoman.cli.options import CommandLine

cli = CommandLine("Text from a language model: a server that speaks OpenAI's dialect, on an engine of its own.")


@cli.typer.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(dragoman.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


_models = cli.group("models", "List, download and delete models.")
_models.command(models.list_models, name="list")
_models.command(models.pull)
_models.command(models.remove)
