"""The README's first screen works as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dragoman.cli.app import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_opens_with_serve_and_test() -> None:
    first = re.search(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make serve", "make test"]


def test_every_make_target_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:^|`)make ([\w-]+)", README, flags=re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_command_it_names_exists() -> None:
    named = {match.split()[0] for match in re.findall(r"(?<!from )dragoman ([a-z][a-z ]*)", README) if match.split()}
    assert named <= {command.split()[0] for command in cli.commands}
    assert {"serve", "chat", "generate", "models", "plan", "bench"} <= named


@pytest.mark.parametrize("page", sorted(set(re.findall(r"\]\(([\w./-]+)\)", README))))
def test_every_link_leads_somewhere(page: str) -> None:
    assert (ROOT / page).exists()


def test_options_it_shows_exist() -> None:
    flags = {option.flag for options in cli.commands.values() for option in options}
    for code in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL):
        for line in code.splitlines():
            if line.startswith(("dragoman", "make serve")):
                words = [
                    word for part in shlex.split(line, comments=True) for word in part.removeprefix("ARGS=").split()
                ]
                assert {word for word in words if word.startswith("--")} <= flags
