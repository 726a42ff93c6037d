"""``dragoman generate`` with the embedded model: the text on standard output and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_engine import SharedEngine, shared_engine
from typer.testing import Result


@pytest.fixture(scope="module")
def engine() -> Iterator[SharedEngine]:
    with shared_engine() as started:
        yield started


def generate(*arguments: str, text: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "generate", *arguments],
        env={**os.environ, "DRAGOMAN_CONFIG": os.devnull},
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done


def done(result: Result, code: int = 0) -> str:
    """Return what a command on the shared engine wrote to standard output."""
    assert result.exit_code == code, result.output
    return result.stdout


def test_same_seed_same_text_from_argument_and_standard_input(engine: SharedEngine) -> None:
    options = ("--max-new-tokens", "16", "--seed", "7")
    first = generate("Once upon a time", *options).stdout
    assert len(first) > 10
    assert generate("-", *options, text="Once upon a time").stdout == first
    assert done(engine.run("generate", "-", *options, text="Once upon a time")) == first
    assert done(engine.run("generate", "Once upon a time", "--max-new-tokens", "16", "--seed", "8")) != first


def test_prompt_beyond_the_context_is_one_clear_line() -> None:
    done = generate("-", "--max-context", "64", text="word " * 500, code=1)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_what_is_wrong_with_a_pattern_is_told_of_its_option(engine: SharedEngine) -> None:
    refused = engine.run("generate", "a", "--regex", "(")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: Invalid '--regex': the pattern '(' cannot be read")


def test_reader_that_leaves_is_no_error() -> None:
    command = (
        f"{sys.executable} -m dragoman generate 'The cat' --max-new-tokens 200 | head -c 5; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_takes_the_form_that_is_asked_for(engine: SharedEngine, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}', encoding="utf-8")
    grammar = tmp_path / "grammar.lark"
    grammar.write_text('start: "<" /[a-z]{2}/ ">"', encoding="utf-8")
    hello = ("generate", "Hello")
    assert set(json.loads(done(engine.run(*hello, "--seed", "1", "--json-schema", str(schema))))) <= {"a", "b"}
    assert done(engine.run(*hello, "--choice", "yes", "--choice", "no")) in ("yes\n", "no\n")
    assert re.fullmatch("<[a-z]{2}>\n", done(engine.run(*hello, "--grammar", str(grammar))))


def test_the_best_of_a_beam_search_is_shown(engine: SharedEngine) -> None:
    options = ("generate", "Once upon a time", "--max-new-tokens", "12", "--num-beams", "4")
    best = done(engine.run(*options))
    assert best == done(engine.run(*options, "--seed", "3"))
    drawn = ("--beam-search-type", "stochastic", "--seed", "2")
    assert done(engine.run(*options, *drawn)) not in ("\n", best)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--regex", "(?=a)"), "look-around"),
        (("--json-schema", "missing.json"), "missing.json cannot be read"),
        (("--regex", "a", "--choice", "b"), "exclude each other"),
        (("--num-beams", "4", "--temperature", "0.5"), "'--temperature' and a deterministic beam search exclude"),
        (("--length-penalty", "2"), "needs --num-beams"),
    ],
)
def test_form_that_cannot_be_is_one_clear_line(engine: SharedEngine, options: tuple[str, ...], words: str) -> None:
    refused = engine.run("generate", "Hello", *options)
    assert (refused.exit_code, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert words in refused.stderr
