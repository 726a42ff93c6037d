"""``dragoman generate`` with the embedded model: the text on standard output and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys


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


def test_same_seed_same_text_from_argument_and_standard_input() -> None:
    options = ("--max-new-tokens", "16", "--seed", "7")
    first = generate("Once upon a time", *options)
    second = generate("-", *options, text="Once upon a time")
    assert len(first.stdout) > 10
    assert first.stdout == second.stdout
    assert generate("Once upon a time", "--max-new-tokens", "16", "--seed", "8").stdout != first.stdout


def test_prompt_beyond_the_context_is_one_clear_line() -> None:
    done = generate("-", "--max-context", "64", text="word " * 500, code=1)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_reader_that_leaves_is_no_error() -> None:
    command = (
        f"{sys.executable} -m dragoman generate 'The cat' --max-new-tokens 200 | head -c 5; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
