"""``make bench`` in its short form, on the embedded model: a server is started, asked, and held against the machine."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench.command import OF_SHAPES, arguments, cases_of
from benchmarks.bench.workloads import SHORT, workloads
from benchmarks.make_models import SHAPES
from benchmarks.recurrent_shapes import RECURRENT_SHAPES
from benchmarks.seeing_shapes import SEEING_SHAPES, make_seeing_model, seeing_tensors
from dragoman import models
from dragoman.core.errors import DragomanError
from dragoman.models import embedded_path
from dragoman.models.parameters import parameter_count

ROOT = Path(__file__).parents[2]


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.bench", "--hurry", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_short_form_measures_limits_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file, folder = tmp_path / "results.json", tmp_path / "folder"
    rows = ["one-stream", "memory", "start"]
    done = bench(
        "--short", "--model", str(embedded_path()), "--precision", "int8", "--only", *rows, "--folder", str(folder),
        "--json", str(file),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {each["row"]: each for each in map(json.loads, file.read_text().splitlines())}
    assert found.keys() == set(rows)
    assert all(each["values"] and not each["failure"] for each in found.values())
    assert len(found["one-stream"]["limits"]) == len(found["one-stream"]["values"]) == SHORT.singles
    assert min(found["one-stream"]["fractions"]) > 0
    assert found["memory"]["values"] > found["memory"]["limits"]
    for row in ("one stream, tokens/s", "memory, 8 streams of 1,024 tokens, GB", "start to first token"):
        assert row in done.stdout
    assert list(folder.iterdir()) == []


def test_the_row_of_images_is_asked_of_models_that_see(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    config = copy.deepcopy(SEEING_SHAPES["smolvlm-256m"]) | {"vocab_size": 1024}
    config["text_config"] |= {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 96, "vocab_size": 1024}
    config["text_config"] |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    config["vision_config"] |= {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 88, "image_size": 256}
    config["vision_config"] |= {"num_attention_heads": 3}
    make_seeing_model(tmp_path / "small", config, corpus_bytes=1 << 16)
    tensors = sum(math.prod(shape) for shape in seeing_tensors(config).values())
    spec = models.describe(tmp_path / "small").spec
    assert tensors == parameter_count(spec)
    file = tmp_path / "results.json"
    options = ["--short", "--precision", "int8", "--only", "image", "--folder", str(tmp_path / "folder")]
    done = bench(*options, "--model", str(tmp_path / "small"), str(embedded_path()), "--json", str(file))
    assert done.returncode == 0, done.stderr
    [found] = map(json.loads, file.read_text().splitlines())
    assert (found["model"], found["row"], found["failure"]) == ("small", "image", "")
    assert 0 < found["limits"][0] < found["values"][0]
    assert found["bars"][0] == pytest.approx(found["limits"][0] / 0.7)


def test_what_time_is_too_short_for_is_said_and_is_no_success(tmp_path: Path) -> None:
    done = bench("--minutes", "0.000001", "--model", str(embedded_path()), "--folder", str(tmp_path))
    assert done.returncode == 1
    assert "Time was too short" in done.stdout


def test_a_row_that_does_not_exist_is_named() -> None:
    with pytest.raises(DragomanError, match="no row 'two-streams'"):
        cases_of(arguments().parse_args(["--only", "two-streams"]), SHORT)


def test_rows_have_names_of_their_own_and_shapes_are_made_here() -> None:
    names = [row.name for row in workloads(SHORT)]
    assert len(set(names)) == len(names)
    assert OF_SHAPES.keys() == SHAPES.keys() | RECURRENT_SHAPES.keys() | SEEING_SHAPES.keys()
    assert all(set(rows) <= set(names) for _, rows in OF_SHAPES.values())
