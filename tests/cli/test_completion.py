"""The Tab key: what a word may become, and the scripts in real shells, where these are installed."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forked_command import run_forked

from dragoman.cli.app import cli
from dragoman.cli.completion import SCRIPTS, completions, install
from dragoman.cli.console import COMPLETE
from dragoman.cli.start import prespawn
from dragoman.core.errors import DragomanError

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("se", ["serve"]),
        ("mod", ["models"]),
        ("models p", ["pull", "ps", "pin"]),
        ("cluster ", ["serve"]),
        ("nothing ", []),
        ("--v", ["--version"]),
        ("serve --max-waiting-p", ["--max-waiting-per-client"]),
        ("serve --dialect al", ["alexandria"]),
        ("serve --dialect=al", ["--dialect=alexandria"]),
        ("serve --dialect = al", ["alexandria"]),
        ("serve --precision =", ["float32", "bfloat16", "int8", "int4", "auto"]),
        ("serve --port ", []),
        ("chat --sta", ["--stats", "--state-bytes"]),
        ("chat --no-st", ["--no-stats"]),
        ("top --once --json", ["--json-output"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("completion bash --ins", ["--install"]),
        ("bench --html ", []),
        ("serve some-", []),
    ],
)
def test_what_a_word_may_become(line: str, expected: list[str]) -> None:
    assert [value for value, _ in completions(cli, line.split(" "))] == expected


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_option_of_every_command(command: str) -> None:
    found = dict(completions(cli, [*command.split(), "--"]))
    for option in cli.commands[command]:
        if not option.positional:
            assert option.flag in found
    assert "--help" in found
    assert not [help for help in found.values() if "\n" in help or "\t" in help]


def test_every_command_has_its_help() -> None:
    found = dict(completions(cli, [""]))
    assert found.keys() == {command.split()[0] for command in cli.commands}
    assert all(found.values())


def test_no_engine_is_started_for_a_completion() -> None:
    assert prespawn(["serve", "--"], {COMPLETE: "1"}) is None
    done = run_forked("serve", "--dialect", "t", environment={**os.environ, COMPLETE: "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "tgi\t\n", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_installed_where_the_shell_looks(shell: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": f"/usr/bin/{shell}"}
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR", "BASH_COMPLETION_USER_DIR"):
        environment.pop(name, None)
    (tmp_path / ".zshrc").write_text("setopt autocd")
    for _ in range(2):
        done = run_forked("completion", "--install", environment=environment)
        assert done.returncode == 0, done.stderr
    assert "new shells" in done.stderr or "~/.bashrc" in done.stderr
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()} - {".zshrc"}
    assert written == {
        {
            "bash": ".local/share/bash-completion/completions/dragoman",
            "zsh": ".zfunc/_dragoman",
            "fish": ".config/fish/completions/dragoman.fish",
        }[shell]
    }
    assert (tmp_path / written.pop()).read_text() == run_forked("completion", shell).stdout
    zshrc = (tmp_path / ".zshrc").read_text()
    assert zshrc.startswith("setopt autocd")
    assert zshrc.count("fpath=") == (shell == "zsh")


def test_a_full_disk_leaves_the_lines_of_zshrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ZDOTDIR", raising=False)
    before = "setopt autocd\n" * 2000
    (tmp_path / ".zshrc").write_text(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(DragomanError, match="cannot be written: File too large"):
            install("zsh")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / ".zshrc").read_text() == before


def test_a_shell_that_is_not_known(tmp_path: Path) -> None:
    done = run_forked("completion", environment={**os.environ, "SHELL": "/bin/tcsh"})
    assert done.returncode == 1
    assert "bash, zsh, fish" in done.stderr


def lines(command: list[str], folder: Path) -> list[str]:
    environment = {**os.environ, "PATH": PATH, "HOME": str(folder)}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_in_bash(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPTS["bash"])
    words = 'COMP_WORDS=(dragoman serve --dialect ""); COMP_CWORD=3'
    ask = f'source ./script; {words}; _dragoman dragoman; echo "${{COMPREPLY[@]}}"'
    assert lines(["bash", "-c", ask], tmp_path)[:3] == ["auto", "openai", "tgi"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_in_fish(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPTS["fish"])
    (tmp_path / "model.gguf").touch()
    assert lines(["fish", "-c", "source ./script; complete -C 'dragoman serve --dialect al'"], tmp_path) == [
        "alexandria"
    ]
    assert lines(["fish", "-c", "source ./script; complete -C 'dragoman serve mod'"], tmp_path) == ["model.gguf"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_in_zsh(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPTS["zsh"])
    # In place of zsh's own functions, which take seconds to load, what they are called with.
    stubs = 'compdef() {}; _files() { echo files }; _describe() { print -l -- "${(@P)4}" }; source ./script'
    for words, expected in (("serve --dialect al", ["alexandria:"]), ("serve mod", ["files"])):
        ask = f"{stubs}; words=(dragoman {words}); CURRENT=$#words; _dragoman"
        assert lines(["zsh", "-f", "-c", ask], tmp_path) == expected
