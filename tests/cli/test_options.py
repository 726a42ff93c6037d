"""A value is the command line's, else its variable's, else the configuration file's, else the default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import pytest
from typer.testing import CliRunner

from dragoman.cli import configuration
from dragoman.cli.app import cli
from dragoman.cli.command_line import CommandLine
from dragoman.cli.options import options_of
from dragoman.core.errors import DragomanError


class Kettle(msgspec.Struct, frozen=True, kw_only=True):
    """How to boil water.

    Attributes:
        litres: how much water,
            in whole litres.
        tea: what to put in.
    """

    PANEL: ClassVar[str] = "Kitchen"

    vessel: Annotated[str | None, msgspec.Meta(description="What to boil in.", extra={"positional": True})] = None
    litres: Annotated[int, msgspec.Meta(ge=1, le=9)] = 2
    tea: Literal["black", "green"] = "black"
    whistle: bool = True
    guests: tuple[str, ...] = ()
    minutes: float | None = None


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CommandLine, list[Kettle]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DRAGOMAN_PREFIX_CACHE_BYTES")  # no option of a kitchen
    line, boiled = CommandLine("A kitchen."), []

    @line.command
    def boil(kettle: Kettle) -> None:
        """Boil water."""
        boiled.append(kettle)

    @line.command
    def pour(kettle: Kettle) -> None:
        """Pour it."""

    return line, boiled


def boil(kitchen: tuple[CommandLine, list[Kettle]], *arguments: str, code: int = 0, **variables: str) -> Kettle | str:
    line, boiled = kitchen
    result = CliRunner().invoke(line.typer, ["boil", *arguments], env=variables)
    assert result.exit_code == code, result.output
    return boiled[-1] if code == 0 else unboxed(result.output)


def unboxed(output: str) -> str:
    """Help and errors come in boxes that break lines."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", output)


def test_without_anything_the_defaults_hold(kitchen) -> None:
    assert boil(kitchen) == Kettle()


def test_command_line_wins_over_variable_over_file_over_default(kitchen) -> None:
    Path("dragoman.toml").write_text("litres = 3\n")
    assert boil(kitchen).litres == 3
    assert boil(kitchen, DRAGOMAN_LITRES="4").litres == 4
    assert boil(kitchen, "--litres", "5", DRAGOMAN_LITRES="4").litres == 5


def test_every_kind_of_value_from_every_source(kitchen) -> None:
    wanted = Kettle(vessel="pot", litres=4, tea="green", whistle=False, guests=("ann", "bob"), minutes=1.5)
    line = "pot --litres 4 --tea green --no-whistle --guests ann --guests bob --minutes 1.5"
    assert boil(kitchen, *line.split()) == wanted
    variables = {"VESSEL": "pot", "LITRES": "4", "TEA": "green", "WHISTLE": "0", "GUESTS": "ann bob", "MINUTES": "1.5"}
    assert boil(kitchen, **{f"DRAGOMAN_{name}": value for name, value in variables.items()}) == wanted
    Path("dragoman.toml").write_text(
        'vessel = "pot"\nlitres = 4\ntea = "green"\nwhistle = false\nguests = ["ann", "bob"]\nminutes = 1.5\n'
    )
    assert boil(kitchen) == wanted


def test_file_is_the_named_one_else_here_else_in_the_home(kitchen, tmp_path: Path) -> None:
    (tmp_path / "config" / "dragoman").mkdir(parents=True)
    (tmp_path / "config" / "dragoman" / "config.toml").write_text("litres = 3\n")
    assert boil(kitchen).litres == 3
    Path("dragoman.toml").write_text("litres = 4\n")
    assert boil(kitchen).litres == 4
    Path("other.toml").write_text("litres = 5\n")
    assert boil(kitchen, "--config", "other.toml").litres == 5
    Path("third.toml").write_text("litres = 6\n")
    assert boil(kitchen, DRAGOMAN_CONFIG="third.toml").litres == 6


def test_file_of_the_folder_sets_no_address_key_or_port(kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.configuration.NOT_FROM_FOLDERS", frozenset({"litres"}))
    Path("dragoman.toml").write_text("litres = 4\n")
    assert "./dragoman.toml sets litres" in boil(kitchen, code=2)
    assert boil(kitchen, "--config", "dragoman.toml").litres == 4
    assert boil(kitchen, DRAGOMAN_CONFIG="dragoman.toml").litres == 4


def test_file_of_the_home_sets_everything(kitchen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.configuration.NOT_FROM_FOLDERS", frozenset({"litres"}))
    (tmp_path / "config" / "dragoman").mkdir(parents=True)
    (tmp_path / "config" / "dragoman" / "config.toml").write_text("litres = 3\n")
    assert boil(kitchen).litres == 3


@pytest.mark.parametrize("dialect", ["tgi", "friendli"])
def test_file_of_the_folder_does_not_choose_the_dialect(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TGI's asks for no key on any address, Friendli's opens a port for its metrics."""
    monkeypatch.chdir(tmp_path)
    Path("dragoman.toml").write_text(f'dialect = "{dialect}"\n')
    with pytest.raises(DragomanError, match=r"\./dragoman\.toml sets dialect"):
        configuration.load(None, cli.configurable())
    assert configuration.load(Path("dragoman.toml"), cli.configurable()).values == {"dialect": dialect}


def test_what_a_folder_may_not_set_are_options() -> None:
    assert cli.configurable().keys() >= configuration.NOT_FROM_FOLDERS


SENSITIVE = re.compile(
    r"(^|_)(addr(ess)?|connect|endpoint|engine|hosts?|keys?|origins?|ports?|proxy|record|secret|token|url)(_|$)"
)
"""Words in the names of options that open something, grant it, or send texts elsewhere."""

HARMLESS = {
    "engine_give_up_s": "when the server ends",
    "engine_model": "of the servers that --engine names",
    "engine_priorities": "of the same",
    "lenient_token_budget": "of an answer's tokens",
    "master_addr": "no effect",
    "master_port": "no effect",
    "record_bytes": "a bound",
    "record_requests": "which of them, where --record names a folder",
}


def test_options_that_grant_access_or_send_texts_elsewhere_are_not_a_folders() -> None:
    found = {name for name in cli.configurable() if SENSITIVE.search(name)}
    assert found - configuration.NOT_FROM_FOLDERS <= HARMLESS.keys()


@pytest.mark.parametrize(
    "line",
    ['engine = ["vllm=http://evil.example"]', 'ollama_origins = ["*"]', "kv_events = true", 'image_hosts = ["*"]'],
)
def test_file_of_the_folder_sends_nothing_elsewhere_and_lets_nobody_in(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dragoman.toml").write_text(f"{line}\n")
    with pytest.raises(DragomanError, match=rf"\./dragoman\.toml sets {line.split()[0]}"):
        configuration.load(None, cli.configurable())


def test_the_file_is_named_where_there_is_one(kitchen, capsys: pytest.CaptureFixture[str]) -> None:
    line, _ = kitchen
    assert "options are read from" not in CliRunner().invoke(line.typer, ["boil"]).output
    Path("dragoman.toml").write_text("litres = 4\n")
    assert f"options are read from {Path('dragoman.toml').resolve()}" in " ".join(
        CliRunner().invoke(line.typer, ["boil"]).output.split()
    )


def test_unknown_key_of_the_file_is_refused_by_name(kitchen) -> None:
    Path("dragoman.toml").write_text("litre = 3\n")
    assert "litre is not an option; is litres meant?" in boil(kitchen, code=2)


def test_a_table_of_the_file_is_refused_with_what_it_has_in_its_place(kitchen) -> None:
    Path("dragoman.toml").write_text("[boil]\nlitres = 3\n")
    assert "[boil]: there are no tables, all options stand at the top" in boil(kitchen, code=2)


def test_a_mark_at_the_beginning_of_the_file_means_nothing(kitchen) -> None:
    """Editors on Windows write it."""
    Path("dragoman.toml").write_bytes(b"\xef\xbb\xbflitres = 3\r\n")
    assert boil(kitchen).litres == 3


@pytest.mark.parametrize("word", ["yes", "On", "true", "1"])
def test_switches_have_the_words_of_service_managers(kitchen, word: str) -> None:
    assert boil(kitchen, DRAGOMAN_WHISTLE="off").whistle is False
    assert boil(kitchen, DRAGOMAN_WHISTLE="No").whistle is False
    Path("dragoman.toml").write_text("whistle = false\n")
    assert boil(kitchen, DRAGOMAN_WHISTLE=word).whistle is True


def test_value_of_another_type_in_the_file_is_refused_by_name(kitchen) -> None:
    Path("dragoman.toml").write_text('litres = "three"\n')
    assert "dragoman.toml: litres: Expected `int`, got `str`" in boil(kitchen, code=2)


@pytest.mark.parametrize("text", ["litres = ", "litres = 3\nlitres = 4\n"])
def test_file_that_is_no_toml_is_refused(kitchen, text: str) -> None:
    Path("dragoman.toml").write_text(text)
    assert "dragoman.toml: " in boil(kitchen, code=2)


def test_a_value_that_is_no_choice_is_refused_in_plain_words(kitchen) -> None:
    said = boil(kitchen, "--tea", "mate", code=2)
    assert "Invalid value for '--tea': 'mate' is not one of 'black', 'green'." in said


def test_missing_named_file_is_refused(kitchen) -> None:
    assert "absent.toml: No such file" in boil(kitchen, "--config", "absent.toml", code=2)


@pytest.mark.parametrize("source", ["line", "variable", "file"])
def test_bounds_hold_for_every_source(kitchen, source: str) -> None:
    if source == "line":
        said = boil(kitchen, "--litres", "10", code=2)
    elif source == "variable":
        said = boil(kitchen, code=2, DRAGOMAN_LITRES="10")
    else:
        Path("dragoman.toml").write_text("litres = 10\n")
        said = boil(kitchen, code=2)
    assert "Invalid value for --litres: Expected `int` <= 9" in said
    places = {"variable": "(from DRAGOMAN_LITRES)", "file": "(from dragoman.toml)"}
    assert [name for name, place in places.items() if place in said] == [name for name in places if name == source]


def test_what_is_wrong_on_the_command_line_is_not_told_of_a_variable(kitchen) -> None:
    assert "(from" not in boil(kitchen, "--litres", "10", code=2, DRAGOMAN_LITRES="8")


@pytest.mark.parametrize("value", ["ten", " ", "1.5", "NaN"])
def test_variable_of_another_type_is_refused_by_name(kitchen, value: str) -> None:
    said = boil(kitchen, code=2, DRAGOMAN_LITRES=value)
    assert f"DRAGOMAN_LITRES: Expected `int`, got {value!r}" in said
    assert "--config" not in said


def test_an_empty_variable_counts_as_none(kitchen) -> None:
    assert boil(kitchen, DRAGOMAN_LITRES="") == Kettle()


def test_help_says_meaning_default_and_how_else_to_say_it(kitchen) -> None:
    line, _ = kitchen
    said = unboxed(CliRunner().invoke(line.typer, ["boil", "--help"]).output)
    for words in ("How much water,", "DRAGOMAN_MAX_CONTEXT", "[default: 2]", "Kitchen", "What to boil in."):
        assert words in said


@pytest.mark.parametrize(("command", "which"), [("keys", ""), ("usage", "Most options"), ("status", "Each option")])
def test_help_promises_variables_to_no_option_that_has_none(command: str, which: str) -> None:
    said = unboxed(CliRunner().invoke(cli.typer, [command, "--help"]).output)
    assert ("may also be given as a variable" in said) == bool(which)
    assert which in said


def test_a_struct_describes_its_options() -> None:
    options = {option.name: option for option in options_of(Kettle)}
    assert list(options) == ["vessel", "litres", "tea", "whistle", "guests", "minutes"]
    assert options["vessel"].positional
    assert options["vessel"].flag == "VESSEL"
    assert options["litres"].annotation is int
    assert options["tea"].help == "what to put in."


def test_a_variable_that_is_none_of_ours_is_told_with_the_one_that_is_meant(kitchen) -> None:
    line, _ = kitchen
    result = CliRunner().invoke(line.typer, ["boil"], env={"DRAGOMAN_LITERS": "3", "DRAGOMAN_TEE": "black"})
    assert result.exit_code == 0
    told = " ".join(result.output.split())
    assert "DRAGOMAN_LITERS is no variable of this program, and has no effect; is DRAGOMAN_LITRES meant?" in told
    assert "DRAGOMAN_TEE is no variable" in told


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_left_alone(kitchen) -> None:
    line, boiled = kitchen
    linked = {
        "DRAGOMAN_SERVICE_HOST": "10.0.0.1",
        "DRAGOMAN_SERVICE_PORT_HTTP": "8000",
        "DRAGOMAN_PORT": "tcp://10.0.0.1:8000",
        "DRAGOMAN_PORT_8000_TCP_ADDR": "10.0.0.1",
        "DRAGOMAN_LITRES": "tcp://10.0.0.1:8000",
    }
    result = CliRunner().invoke(line.typer, ["boil"], env=linked)
    assert (result.exit_code, result.output) == (0, "")
    assert boiled == [Kettle()]


def test_options_that_name_files_are_known_as_such() -> None:
    for command, options in cli.commands.items():
        for option in options:
            is_text = option.annotation in (str, str | None, tuple[str, ...])
            named_so = re.search(r"_(file|folder|dir|path|cert|cache)$", option.name)
            described_so = re.match(r"(a |an |each )?(file|folder|GGUF file)\b", option.help, re.IGNORECASE)
            if is_text and (named_so or described_so):
                assert option.is_file, f"{command}: {option.name} is a FileName"


def test_a_name_is_a_file_in_one_command_and_a_text_in_another() -> None:
    of_chat, of_bench = ({o.name: o for o in cli.commands[name]}["image"] for name in ("chat", "bench"))
    assert (of_chat.is_file, of_bench.is_file) == (True, False)


def test_no_engine_is_killed_before_it_can_say_anything() -> None:
    """With --hang-s 0.001 each one was, and the start failed without a reason."""
    done = CliRunner().invoke(cli.typer, ["serve", "--hang-s", "0.001"])
    assert done.exit_code == 2
    assert "Invalid value for --hang-s: Expected `float` >= 1.0" in done.output


@pytest.mark.parametrize("option", ["--max-header-bytes", "--max-body-bytes", "--max-message-bytes"])
def test_limits_with_which_nothing_would_be_answered_are_refused(option: str) -> None:
    done = CliRunner().invoke(cli.typer, ["serve", option, "1"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert f"Invalid value for {option}: Expected `int` >= 1024" in unboxed(done.output)


@pytest.mark.parametrize("option", ["--header-timeout-s", "--body-timeout-s", "--write-timeout-s"])
def test_times_in_which_no_client_can_answer_are_refused(option: str) -> None:
    done = CliRunner().invoke(cli.typer, ["serve", option, "0.001"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert f"Invalid value for {option}: Expected `float` >= 1.0" in unboxed(done.output)
