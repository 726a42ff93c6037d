"""Values of the command line: what is converted here is what typer makes of it, and the rest is left to typer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from dragoman.cli.app import cli
from dragoman.cli.conversion import plain

TEXTS = ["1", "-1", "01", "+1", " 1", "1_000", "1.5", "-0.25", "1e3", "inf", "nan", "", "x", "auto", "int8", "null"]
TEXTS += ["\u0661", "12345678901234567890", ".5", "5.", "true", "/", "/no/such/file", "~"]
KINDS = {"text": str, "number": float, "count": int, "file": Path, "word": Literal["auto", "int8"]}


def made_by_typer(kind: Any, text: str) -> Any:
    """What a command gets. ValueError where typer refuses the text."""
    app, found = typer.Typer(add_completion=False), []

    def run(value: Any) -> None:
        found.append(value)

    run.__annotations__["value"] = Annotated[kind, typer.Option()]
    app.command()(run)
    if CliRunner().invoke(app, [f"--value={text}"]).exit_code:
        raise ValueError(text)
    return found[0]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_converted_is_what_typer_makes_of_it(kind: str, text: str) -> None:
    try:
        value = plain(text, KINDS[kind])
    except ValueError:
        return  # typer decides
    assert (value, type(value)) == ((made := made_by_typer(KINDS[kind], text)), type(made))


def test_plain_values_need_nobody_else() -> None:
    for kind, text in {"text": "x", "number": "0.5", "count": "8410", "file": os.devnull, "word": "int8"}.items():
        assert type(plain(text, KINDS[kind])) in (str, float, int, type(Path()))
    assert plain(("1", "2"), list[int]) == [1, 2]
    with pytest.raises(ValueError, match="x"):
        plain(("1", "x"), list[int])


def test_a_file_that_cannot_be_read_is_left_to_typer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="secret"):
        plain(str(tmp_path / "secret"), Path)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["/no/such/model", "--precision", "int8", "--port", "0", "--api-key", "a", "--no-access-log"],
    ],
)
def test_a_start_waits_for_no_library_of_conversions(arguments: list[str]) -> None:
    code = f"""
        import json, sys
        import dragoman.cli.serve
        from dragoman.cli.app import cli

        dragoman.cli.serve.serve = lambda settings, launched: print(json.dumps([settings.server.port, *sys.modules]))
        cli.typer({["serve", *arguments]!r})
    """
    environment = {**os.environ, "DRAGOMAN_CONFIG": os.devnull}
    command = [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())]
    port, *modules = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert port == (0 if arguments else 8000)
    assert not {"pydantic", "rich"} & set(modules)


def test_a_wrong_value_is_refused_in_typers_words() -> None:
    refused = CliRunner().invoke(cli.typer, ["serve", "--port", "x"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "'--port': Input should be a valid integer" in refused.stderr
