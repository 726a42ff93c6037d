"""The packed cache: a second start reads what the first one packed, and nothing wrong with it stops a start."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import VARIANTS, checkpoint_of, make_folder, prompt, run_rows

from dragoman import kernels, models
from dragoman.core import user_folders
from dragoman.core.errors import ModelError
from dragoman.engine.settings import DiskCacheSettings
from dragoman.engine.worker_settings import disk_cache
from dragoman.models import loading, packed_cache
from dragoman.models.layout import plan_layout
from dragoman.models.packed_cache import PackedCache, cache_key
from dragoman.models.packing import PackedBytes, pack_checkpoint, split_bytes
from dragoman.models.settings import default_cache_folder


@pytest.fixture(autouse=True)
def _cache_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_SMALLEST_CACHED_BYTES", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", VARIANTS["qwen2"], "BF16")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def settings(cache: Path, **changes: object) -> models.ModelSettings:
    return models.ModelSettings(precision="int8", cache_folder=str(cache), max_logit_rows=64, **changes)  # type: ignore[arg-type]


def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that weights are packed from now on."""
    seen: list[int] = []

    def pack(*arguments: Any) -> PackedBytes:
        seen.append(1)
        return pack_checkpoint(*arguments)

    monkeypatch.setattr(loading, "pack_checkpoint", pack)
    return seen


@pytest.mark.parametrize("weights_memory", ["auto", "copy", "map"])
def test_second_start_reads_the_cache_and_computes_the_same_bits(
    weights_memory: str, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = packings(monkeypatch)
    first = models.load(folder, settings(cache, weights_memory=weights_memory))
    second = models.load(folder, settings(cache, weights_memory=weights_memory))
    assert len(packed) == 1
    assert first.card.fingerprint == second.card.fingerprint
    ids = prompt(131)
    assert (run_rows(first, ids) == run_rows(second, ids)).all()


def test_auto_moves_a_file_into_huge_pages_while_the_model_serves(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[kernels.FileMemory] = []

    class Spy(kernels.FileMemory):
        def settle(self, delay_s: float = 0.0, mappings: str = "") -> None:
            seen.append(self)
            super().settle()  # at once

    monkeypatch.setattr(packed_cache.kernels, "FileMemory", Spy)
    first, second = (models.load(folder, settings(cache, weights_memory="auto")) for _ in range(2))
    while_moving = run_rows(second, prompt(131))
    assert [memory.settled() for memory in seen] == [True]
    assert (run_rows(first, prompt(131)) == while_moving).all()
    assert (run_rows(second, prompt(131)) == while_moving).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_tables_of_which_single_rows_are_read_stay_in_the_file(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[kernels.FileMemory] = []

    class Spy(kernels.FileMemory):
        def settle(self, delay_s: float = 0.0, mappings: str = "") -> None:
            seen.append(self)

    monkeypatch.setattr(packed_cache.kernels, "FileMemory", Spy)
    folder = make_folder(tmp_path / "model", VARIANTS["gemma4-shared"], "BF16")
    first, second = (models.load(folder, settings(cache)) for _ in range(2))
    (file,) = cache.glob("*.packed")
    table = second.weights.matrix("layer_embedding")
    assert seen[0].data.nbytes == file.stat().st_size - table.data.nbytes
    mapped = [line.split("-")[:2] for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line]
    spans = [range(int(begin, 16), int(rest.split()[0], 16)) for begin, rest in mapped]
    for model in (first, second):
        address = model.weights.matrix("layer_embedding").data.ctypes.data
        assert any(address in span for span in spans)
    assert (run_rows(first, prompt(131)) == run_rows(second, prompt(131))).all()


def test_every_other_content_precision_and_file_has_its_own_entry(folder: Path, cache: Path, tmp_path: Path) -> None:
    fingerprints = [models.load(folder, settings(cache)).card.fingerprint]
    int4 = models.ModelSettings(precision="int4", cache_folder=str(cache))
    fingerprints.append(models.load(folder, int4).card.fingerprint)
    other = make_folder(tmp_path / "other", VARIANTS["qwen2"], "BF16", seed=2)
    fingerprints.append(models.load(other, settings(cache)).card.fingerprint)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert models.load(folder, settings(cache)).card.fingerprint == fingerprints[2]
    assert len(set(fingerprints)) == 3
    assert len(list(cache.glob("*.packed"))) == 4


@pytest.mark.parametrize("damage", ["first", "header", "data", "last", "truncated", "empty", "longer"])
@pytest.mark.parametrize("weights_memory", ["copy", "map"])
def test_damaged_file_is_removed_and_packed_again(
    damage: str,
    weights_memory: str,
    folder: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = models.load(folder, settings(cache)).card.fingerprint
    (file,) = cache.glob("*.packed")
    content = bytearray(file.read_bytes())
    where = {"first": 0, "header": 100, "data": len(content) // 2, "last": -1}.get(damage)
    if where is not None:
        content[where] ^= 1
    damaged: dict[str, bytes] = {"truncated": bytes(content[:-4096]), "empty": b"", "longer": bytes(content + b"x")}
    file.write_bytes(damaged.get(damage, content))
    packed = packings(monkeypatch)
    assert models.load(folder, settings(cache, weights_memory=weights_memory)).card.fingerprint == expected
    assert len(packed) == 1
    assert "packing again" in caplog.text
    assert models.load(folder, settings(cache)).card.fingerprint == expected
    assert len(packed) == 1


def test_cache_that_cannot_be_written_costs_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("where the folder should be")
    with caplog.at_level(logging.WARNING):
        models.load(folder, settings(blocked / "cache"))
    assert "could not be kept" in caplog.text


def test_full_disk_costs_a_warning(
    folder: Path, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(free=0))
    models.load(folder, settings(cache))
    assert "no room" in caplog.text
    assert list(cache.iterdir()) == []


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_interrupted_write_leaves_nothing_behind(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk went away")

    monkeypatch.setattr(Path, "rename", fail)
    models.load(folder, settings(cache))
    assert list(cache.iterdir()) == []


def test_cache_is_bounded_and_the_longest_unused_goes_first(folder: Path, cache: Path) -> None:
    checkpoint = checkpoint_of(folder)
    layout = plan_layout(checkpoint.spec, "int8")
    packed = split_bytes(layout, np.zeros(layout.nbytes, np.uint8))
    checksums = [0] * len(layout.entries)
    bounded = PackedCache(cache, 3 * (layout.nbytes + 16384))
    for number, key in enumerate("abc"):
        bounded.write(key, layout, packed, checksums)
        os.utime(cache / f"{key}.packed", (number, number))
    os.utime(cache / "a.packed")  # used just now
    (cache / ".d.1.tmp").write_text("an hour and a half ago a writer died")
    os.utime(cache / ".d.1.tmp", (time.time() - 5400,) * 2)
    bounded.write("e", layout, packed, checksums)
    assert sorted(path.name for path in cache.iterdir()) == ["a.packed", "c.packed", "e.packed"]
    PackedCache(cache, layout.nbytes - 1).write("f", layout, packed, checksums)
    assert not (cache / "f.packed").exists()


def test_cache_can_be_turned_off(folder: Path, cache: Path) -> None:
    models.load(folder, settings(cache, cache_bytes=0))
    assert not cache.exists()


def test_starts_at_the_same_time_do_not_disturb_each_other(folder: Path, cache: Path) -> None:
    code = (
        "import sys; from dragoman import models; from dragoman.models import loading;"
        "loading._SMALLEST_CACHED_BYTES = 0;"
        "s = models.ModelSettings(precision='int8', cache_folder=sys.argv[2]);"
        "print(*{models.load(sys.argv[1], s).card.fingerprint for _ in range(20)})"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(folder), str(cache)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    fingerprints = {process.communicate(timeout=60)[0].strip() for process in running}
    assert fingerprints == {models.load(folder, settings(cache)).card.fingerprint}
    assert [path.suffix for path in cache.iterdir()] == [".packed"]


def test_key_follows_time_size_and_content(folder: Path) -> None:
    layout = plan_layout(checkpoint_of(folder).spec, "int8")

    def key() -> str:
        return cache_key(checkpoint_of(folder), layout)

    keys = [key(), key()]
    assert keys[0] == keys[1]
    file = folder / "model.safetensors"
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=times)
    keys.append(key())
    os.utime(file)
    keys.append(key())
    assert len(set(keys)) == 3


def test_key_follows_how_the_kernels_pack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, pack = checkpoint_of(folder), kernels.pack
    layout = plan_layout(checkpoint.spec, "int4")
    before = cache_key(checkpoint, layout)
    monkeypatch.setattr(kernels, "pack", lambda weight, *form, **options: pack(weight[::-1], *form, **options))
    assert cache_key(checkpoint, layout) != before


def test_read_only_cache_is_read(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.load(folder, settings(cache))

    def forbid(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "utime", forbid)
    packed = packings(monkeypatch)
    models.load(folder, settings(cache))
    assert packed == []


def test_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    assert default_cache_folder() == tmp_path / "packed"
    monkeypatch.delenv("DRAGOMAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / "dragoman" / "packed"


def test_nothing_is_kept_in_a_default_folder_that_is_in_memory(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Packed weights would take a container's memory a second time. A folder that was named is the user's choice."""
    device = os.stat(tmp_path).st_dev
    lines = [f"9 1 {os.major(device)}:{os.minor(device)} / /tmp rw,nosuid shared:3 - tmpfs none rw", "8 1 0:1 / / rw"]
    monkeypatch.setattr(user_folders, "MOUNTS", tmp_path / "mounts")
    (tmp_path / "mounts").write_text("\n".join(lines))
    monkeypatch.delenv("DRAGOMAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    models.load(folder, models.ModelSettings())
    assert not list((tmp_path / "home").rglob("*.packed"))
    with pytest.raises(ModelError, match=r"cache/dragoman/packed is in memory: name a folder on a disk"):
        loading.pack(folder, models.ModelSettings())
    assert disk_cache(DiskCacheSettings()) is None
    assert disk_cache(DiskCacheSettings(prefix_cache_bytes=1000)) is not None
    assert disk_cache(DiskCacheSettings(prefix_cache_folder=str(tmp_path / "named"))) is not None
    models.load(folder, settings(cache))
    assert len(list(cache.glob("*.packed"))) == 1
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "named"))
    models.load(folder, models.ModelSettings())
    assert len(list((tmp_path / "named" / "packed").glob("*.packed"))) == 1
    assert disk_cache(DiskCacheSettings()) is not None
    (tmp_path / "mounts").write_text("\n".join(lines).replace("tmpfs", "ext4"))
    monkeypatch.delenv("DRAGOMAN_CACHE")
    models.load(folder, models.ModelSettings())
    assert len(list((tmp_path / "home").rglob("*.packed"))) == 1


def test_a_file_that_was_found_right_is_not_checked_again_until_somebody_writes_to_it(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = models.load(folder, settings(cache))
    assert first.card.packed_file is None  # packed, and not mapped
    second = models.load(folder, settings(cache))
    checked = second.card.packed_file
    assert checked is not None
    with monkeypatch.context() as patch:
        patch.setattr(packed_cache, "entry_checksums", lambda _: pytest.fail("it was checked again"))
        third = models.load(folder, settings(cache), checked=checked)
        assert third.card.fingerprint == second.card.fingerprint
        assert models.load(folder, settings(cache), checked=third.card.packed_file).card.packed_file is not None
    (path,) = cache.glob("*.packed")
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"damage")
    packed = packings(monkeypatch)
    fourth = models.load(folder, settings(cache), checked=third.card.packed_file)
    assert packed
    assert fourth.card.fingerprint == first.card.fingerprint


def test_the_cache_is_for_its_owner_alone(folder: Path, cache: Path) -> None:
    models.load(folder, settings(cache))
    (file,) = cache.glob("*.packed")
    assert cache.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_to_is_not_taken(
    mode: int, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    models.load(folder, settings(cache))
    (file,) = cache.glob("*.packed")
    file.chmod(mode)
    packed = packings(monkeypatch)
    models.load(folder, settings(cache))
    assert len(packed) == 1
    assert "other users can write to it" in caplog.text
