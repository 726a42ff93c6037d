"""``dragoman models`` shows, and deletes, what is in a hub cache: a small one that these tests lay out themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMITS = {"small": "1" * 40, "other": "2" * 40, "rows": "3" * 40}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache as the hub's library lays it out: blobs, and a snapshot of links to them."""
    folder = tmp_path / "hub"
    for kind, name in (("models", "small"), ("models", "other"), ("datasets", "rows")):
        repository = folder / f"{kind}--someone--{name}"
        snapshot = repository / "snapshots" / COMMITS[name]
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir()
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMITS[name])
        config = json.dumps({"model_type": "llama", "torch_dtype": "bfloat16"})
        for file, text in (("config.json", config), ("model.safetensors", "0" * 123_456)):
            (repository / "blobs" / file).write_text(text)
            (snapshot / file).symlink_to(repository / "blobs" / file)
    return folder


def models(cache: Path, *arguments: str, code: int = 0, answer: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "models", *arguments],
        env={**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "DRAGOMAN_CONFIG": os.devnull},
        input=answer,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_list_shows_the_models_of_the_cache_and_no_data_sets(cache: Path) -> None:
    lines = models(cache, "list").splitlines()
    [small] = [line for line in lines if line.startswith("someone/small")]
    assert {"llama", "bfloat16", "124"} <= set(small.split())
    assert any(line.startswith("someone/other") for line in lines)
    assert not any("rows" in line for line in lines)


def test_list_without_a_cache_is_no_error(tmp_path: Path) -> None:
    assert models(tmp_path / "absent", "list").startswith("MODEL")


def test_remove_deletes_that_model_only(cache: Path) -> None:
    assert "Deleted someone/small" in models(cache, "remove", "someone/small", "--yes")
    assert not (cache / "models--someone--small").exists()
    assert (cache / "models--someone--other" / "snapshots" / COMMITS["other"] / "config.json").exists()


def test_remove_asks_first(cache: Path) -> None:
    assert "Delete someone/small" in models(cache, "remove", "someone/small", answer="n\n", code=1)
    assert (cache / "models--someone--small").exists()
    models(cache, "remove", "someone/small", answer="y\n")
    assert not (cache / "models--someone--small").exists()


def test_remove_of_an_unknown_model_is_one_clear_line(cache: Path) -> None:
    said = models(cache, "remove", "someone/absent", "--yes", code=1)
    assert said.splitlines() == ["error: someone/absent is not in the hub cache; `dragoman models list` shows what is"]


def test_pull_of_a_complete_model_needs_no_network(cache: Path) -> None:
    said = models(cache, "pull", "someone/small")
    assert "123 kB of weights" in said
    assert "dragoman serve someone/small" in said


def test_pull_of_a_missing_model_without_a_network_is_refused(cache: Path) -> None:
    assert "someone/absent is not in the cache" in models(cache, "pull", "someone/absent", code=1)


def test_debug_shows_the_traceback(cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "models", "remove", "someone/absent", "--debug"],
        env={**os.environ, "HF_HUB_CACHE": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
