"""Words that newcomers type, and models by short names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_server import start_server
from forked_command import run_forked
from huggingface_hub.utils import validate_repo_id
from shared_engine import shared_engine
from typer.testing import CliRunner

from dragoman.cli.app import cli
from dragoman.cli.models import _quantized
from dragoman.cli.suggest import best_of, suggestion_of
from dragoman.core.errors import ModelError
from dragoman.models.short_names import KNOWN_MODELS, repository_of, similar_names
from dragoman.models.source import find_source, is_repository_id

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris.\n"


def dragoman(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments], input=text, capture_output=True, text=True, timeout=240
    )


def test_run_answers_a_prompt_a_pipe_and_both() -> None:
    assert dragoman("run", "--model", "embedded", "--seed", "1", text=QUESTION).stdout == ANSWER
    with shared_engine() as engine:
        assert engine.run("run", "embedded", QUESTION, "--seed", "1").stdout == ANSWER
        both = engine.run("run", "--seed", "1", "embedded", "What is the capital", text="of France?")
        assert both.stdout.strip()
        nothing = engine.run("run")
    assert nothing.exit_code == 1
    assert "there is nothing to answer" in nothing.stderr


def test_a_terminal_without_columns_shows_what_others_show() -> None:
    for arguments, code in ((["list"], 0), (["show", "nosuch/model"], 0), (["plan", "--max-context", "x"], 2)):
        shown = []
        for columns in ("80", "0", ""):
            done = subprocess.run(
                [sys.executable, "-m", "dragoman", *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=os.environ | {"COLUMNS": columns, "LINES": columns},
                timeout=60,
            )
            shown.append((done.returncode, done.stdout, done.stderr))
        assert shown[0][0] == code
        assert shown[0] == shown[1] == shown[2]
        assert "".join(shown[0][1:])


@pytest.mark.parametrize("arguments", [["run"], ["generate", "-"], ["explain", "-"]])
@pytest.mark.parametrize("strict", [True, False])
def test_standard_input_that_is_no_text_is_named(arguments: list[str], strict: bool) -> None:
    variables = {"PYTHONIOENCODING": "utf-8:strict"} if strict else {"LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments],
        input=b"caf\xe9",
        capture_output=True,
        env=os.environ | variables,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        "error: standard input is not text in UTF-8: it has the byte 0xe9; convert it first (iconv)\n"
    )


@pytest.mark.parametrize(
    ("word", "command"),
    [("list", "models list"), ("show", "models info"), ("rm", "models remove"), ("pull", "models pull")],
)
def test_words_of_newcomers_are_commands(word: str, command: str) -> None:
    assert [o.name for o in cli.commands[word]] == [o.name for o in cli.commands[command]]


@pytest.mark.parametrize("command", ["serve", "start", "chat", "run", "bench", "plan", "pack", "doctor"])
def test_the_model_is_an_argument_and_a_flag(command: str) -> None:
    (model,) = [option for option in cli.commands[command] if option.name == "model"]
    assert (model.positional, model.twin) == (True, "--model")


def test_an_argument_and_its_flag_may_not_differ() -> None:
    found = CliRunner().invoke(cli.typer, ["plan", "embedded", "--model", "other"])
    assert found.exit_code == 2
    assert "other, but MODEL is embedded" in " ".join(re.sub(r"[│╭╮╰╯─]", " ", found.output).split())


def test_what_is_needed_may_be_given_by_either() -> None:
    found = CliRunner().invoke(cli.typer, ["rm"])
    assert found.exit_code == 2
    assert "--model" in found.output
    assert CliRunner().invoke(cli.typer, ["show", "--model", "embedded"]).exit_code == 0


@pytest.mark.parametrize("command", ["serve", "start", "chat", "run", "generate", "bench"])
def test_help_shows_what_is_common_and_help_all_the_rest(command: str) -> None:
    short = CliRunner().invoke(cli.typer, [command, "-h"], env={"COLUMNS": "80"})
    whole = CliRunner().invoke(cli.typer, [command, "--help-all"], env={"COLUMNS": "80"})
    assert (short.exit_code, whole.exit_code) == (0, 0)
    assert len(short.output.splitlines()) < 160
    assert len(whole.output.splitlines()) > 1.8 * len(short.output.splitlines())
    assert "--help-all" in short.output
    assert "--cache-bytes" not in short.output
    assert "--cache-bytes" in whole.output


def test_ps_and_stop_ask_a_server() -> None:
    server, address = start_server("--name", "parrot")
    try:
        listed = run_forked("ps", "--url", address).stdout
        assert "parrot" in listed
        assert "10.4 MB" in listed
        assert "2,048 tokens" in listed
        adapters = run_forked("adapters", "list", "--url", address)
        assert (adapters.stdout, "has no adapters yet" in adapters.stderr) == ("", True)
        other = run_forked("stop", "cat", "--url", address)
        assert other.returncode == 1
        assert "cat is not loaded" in other.stderr
        stopped = run_forked("stop", "parrot", "--url", address)
        assert stopped.returncode == 0, stopped.stderr
        for command in ("ps",), ("models", "ps"):
            listed = run_forked(*command, "--url", address)
            assert (listed.stdout, "No model is loaded" in listed.stderr) == ("", True)
    finally:
        server.terminate()
        server.communicate(timeout=60)


# Models by short names -----------------------------------------------------------------------------------------------


def test_short_names_stand_for_hub_ids() -> None:
    names = [model.name for model in KNOWN_MODELS]
    assert len(set(names)) == len(names)
    for model in KNOWN_MODELS:
        validate_repo_id(model.repository)
        assert is_repository_id(model.repository)
        assert not is_repository_id(model.name), "no repository can have this name"
        assert repository_of(model.name.upper()) == model.repository
    assert repository_of("owner/name") == "owner/name"
    assert [m.parameters for m in KNOWN_MODELS] == sorted(m.parameters for m in KNOWN_MODELS)


def test_suggestions_follow_memory_and_speed() -> None:
    (small,) = [model for model in KNOWN_MODELS if model.name == "smollm2:135m"]
    (large,) = [model for model in KNOWN_MODELS if model.name == "qwen3:8b"]
    assert suggestion_of(small, 8e9, 20e9).precision == "bfloat16"
    assert suggestion_of(large, 8e9, 20e9).precision == "int4"
    assert suggestion_of(large, 64e9, 200e9).precision == "bfloat16"
    assert suggestion_of(large, 2e9, 20e9).precision is None
    slow = suggestion_of(large, 64e9, 10e9)
    assert slow.precision == "int4", "where nothing is fluent, what is least slow"
    found = [suggestion_of(model, 8e9, 40e9) for model in KNOWN_MODELS]
    best = best_of(found)
    assert best is not None
    assert best.model.name == "qwen3:8b"
    assert best_of([slow._replace(tokens_per_s=1.0)]) is None


def test_a_name_that_stands_for_nothing_is_answered_with_those_like_it() -> None:
    assert similar_names("qwen3") == "; short names are qwen3:0.6b, qwen3:1.7b, qwen3:4b, qwen3:8b"
    assert similar_names("SmolLM2:7b") == "; short names are smollm2:135m, smollm2:360m, smollm2:1.7b"
    assert similar_names("gpt-4") == "; `dragoman models suggest` lists short names"
    assert similar_names("owner/model") == ""
    with pytest.raises(ModelError, match=r"there is no folder or file qwen3:9b .*; short names are qwen3:0.6b"):
        find_source("qwen3:9b")


def test_a_quantization_is_a_file_or_a_precision() -> None:
    assert _quantized("owner/name", None) == ("owner/name", None)
    assert _quantized("owner/name-GGUF", "Q4_K_M") == ("owner/name-GGUF:Q4_K_M", None)
    assert _quantized("qwen3:0.6b", "int4") == ("Qwen/Qwen3-0.6B", "int4")
    with pytest.raises(ModelError, match="give one of them"):
        _quantized("owner/name:a.gguf", "Q4_K_M")


def test_the_manual_lists_the_short_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "first-models.md").read_text(encoding="utf-8")
    for model in KNOWN_MODELS:
        assert f"| `{model.name}` | [{model.repository}]" in page
