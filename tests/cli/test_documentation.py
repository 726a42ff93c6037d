"""What the manual says about options is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from dragoman.cli.app import cli
from dragoman.cli.docgen_options import page
from dragoman.cli.other_servers import SERVERS
from dragoman.cli.settings import OMITTED

ROOT = Path(__file__).parents[2]


def test_page_of_options_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == page(), "run `make docs`"


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_option_is_described(command: str) -> None:
    for option in cli.commands[command]:
        assert len(option.help.split()) >= 2, option.name


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_names_every_option(command: str) -> None:
    said = CliRunner().invoke(cli.typer, [*command.split(), "--help"], env={"COLUMNS": "200"}).output
    if "--help-all" in said:
        said = CliRunner().invoke(cli.typer, [*command.split(), "--help-all"], env={"COLUMNS": "200"}).output
    for option in cli.commands[command]:
        assert option.flag[:16] in said


OTHERS = {
    "architecture.md": {"--fast"},
    "disk-cache.md": {"--parts"},
    "fields.md": {"--max-logprobs"},
    "locallab.md": {"--stream", "--simple", "--chat", "--batch"},
    "operating.md": {"--user", "--cap-add"},
    "performance.md": {"--against"},
    "verification.md": {"--count", "--short"},
    "vllm.md": {"--tokens-only", "--enable-scale-out", "--max-logprobs", "--scheduling-policy", "--logprobs-mode"},
}
"""Options of other programs, by the page that names them without the program."""


@pytest.mark.parametrize("page", sorted(each.name for each in (ROOT / "docs").glob("*.md")))
def test_options_that_the_manual_names_exist(page: str) -> None:
    options = [option for options in cli.commands.values() for option in options]
    known = {flag for option in options for flag in (option.flag, option.flag.replace("--", "--no-", 1), *option.also)}
    known |= {"--model", "--config", "--debug", "--help", "--help-all", "--install", "--version"}
    known |= OTHERS.get(page, set())
    if page == "coming-from.md":
        known |= {flag for rows in SERVERS.values() for row in rows for flag in row.flags}
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert set(re.findall(r"`(--[a-z][a-z0-9-]+)", text)) <= known


@pytest.mark.parametrize("page", sorted(each.name for each in (ROOT / "docs").glob("*.md")))
def test_keys_in_examples_can_be_sent(page: str) -> None:
    """A header takes no ellipsis: who copied the lines got an error of the client."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert all(key.isascii() for key in re.findall(r'api_key="([^"]*)"', text))


def test_one_name_has_one_type_in_all_commands() -> None:
    kinds: dict[str, object] = {}
    for options in cli.commands.values():
        for option in options:
            assert kinds.setdefault(option.name, option.annotation) == option.annotation, option.name


def test_what_is_omitted_exists() -> None:
    for struct, names in OMITTED.items():
        assert names.keys() <= {field.name for field in msgspec.structs.fields(struct)}
