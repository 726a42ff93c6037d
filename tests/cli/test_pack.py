"""``dragoman pack`` leaves in the cache what the next start of the same precision reads."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from small_models import VARIANTS, make_folder, prompt, run_rows

from dragoman.core.errors import ModelError
from dragoman.models import ModelSettings, load, loading, packed_cache


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), VARIANTS["llama"], "BF16")


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of every size are kept."""
    monkeypatch.setattr(loading, "_SMALLEST_CACHED_BYTES", 0)


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_the_next_start_reads_what_was_packed(folder: Path, tmp_path: Path, precision: str) -> None:
    settings = ModelSettings(precision=precision, cache_folder=str(tmp_path))
    packed = loading.pack(folder, settings)
    assert packed.path is not None
    assert not packed.was_there
    assert loading.pack(folder, settings).was_there
    ids = prompt(131)
    fresh = run_rows(load(folder, ModelSettings(precision=precision, cache_bytes=0)), ids)
    os.utime(packed.path, (1, 1))
    np.testing.assert_array_equal(run_rows(load(folder, settings), ids), fresh)
    assert packed.path.stat().st_mtime > 1, "it was read: what was used last is removed last"
    assert [path.suffix for path in tmp_path.iterdir()] == [".packed"]


@pytest.mark.usefixtures("cached")
def test_progress_goes_on_while_the_file_is_written(folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    loading.pack(folder, ModelSettings(cache_folder=str(tmp_path)), lambda *now: told.append(now))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert max(share for stage, share in told if stage == "packing") < 0.95
    assert sum(stage == "writing" for stage, _ in told) > 5
    assert told[-1] == ("writing", 1.0)


def test_the_command_says_what_came_of_it(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "pack", str(folder), "--precision", "int4", "--cache-folder", str(tmp_path)],
        env={**os.environ, "DRAGOMAN_CONFIG": os.devnull},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "LlamaForCausalLM at int4" in done.stdout
    assert "int8" in done.stdout, "the tables between tokens and vectors"
    assert "packed at each start" in done.stdout
    assert not list(tmp_path.iterdir()), "too small to be kept"


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("case", ["read-only", "no room", "too large", "off"])
def test_what_cannot_be_kept_is_an_error_before_the_work(
    case: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelSettings(cache_folder=str(tmp_path / "cache"))
    words = "no room in .*cache for"
    if case == "read-only":
        (tmp_path / "cache").write_text("a file stands there")
        words = "cannot be kept in .*cache: File exists"
    elif case == "no room":
        usage = shutil.disk_usage(tmp_path)._replace(free=1 << 29)
        monkeypatch.setattr(packed_cache.shutil, "disk_usage", lambda _: usage)
    elif case == "too large":
        settings = msgspec.structs.replace(settings, cache_bytes=1000)
        words = "more than the cache may take"
    else:
        settings = msgspec.structs.replace(settings, cache_bytes=0)
        words = "turns the cache off"
    told: list[str] = []
    with pytest.raises(ModelError, match=words):
        loading.pack(folder, settings, lambda stage, share: told.append(stage))
    assert "packing" not in told


@pytest.mark.usefixtures("cached")
def test_a_disk_that_is_full_at_last_is_an_error_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(ModelError, match=r"could not be kept in .*File too large"):
            loading.pack(folder, ModelSettings(cache_folder=str(tmp_path)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
    load(folder, ModelSettings(cache_folder=str(tmp_path)))
