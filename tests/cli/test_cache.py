"""``dragoman cache list | verify | clear``: what they say of a folder, and what they leave of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from forked_command import run_forked

from dragoman.engine.prefix_store.folder import CacheFolder
from dragoman.engine.prefix_store.segment import HEAD_BYTES, STATES, Record, SegmentWriter, checksum_of, key_of
from dragoman.kernels import checksum

SMALL, LARGE = (b"s" * 32).hex(), (b"l" * 32).hex()
BYTES = 1000
STRIDE = 64 + 1024


def begun(path: Path, model: str, label: str, names: range, *, groups: int = 1, state: bool = False) -> SegmentWriter:
    """A segment in the folder, with a block of each group for each name, still open for writing."""
    folder = CacheFolder(path)
    writer = folder.new_segment(model, label)
    for name in names:
        for group in (*range(groups), *([STATES] if state else [])):
            data = memoryview(np.random.default_rng(name).bytes(BYTES))
            key = key_of(group, name.to_bytes(16, "little"))
            writer.append(Record(key, BYTES, 0.5, 32, checksum_of(data, checksum)), data)
    folder.close()
    return writer


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    begun(tmp_path / "c", SMALL, "small/model", range(5)).close()
    begun(tmp_path / "c", SMALL, "small/model", range(4, 7)).close()
    begun(tmp_path / "c", LARGE, "large/model", range(2), groups=2, state=True).close()
    return tmp_path / "c"


def files(path: Path, model: str) -> list[Path]:
    return sorted(path.glob(f"{model}/*.blocks"))


def asked(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    done = run_forked("cache", *command, "--prefix-cache-folder", str(path))
    assert "Traceback" not in done.stderr
    return done


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The fields of each line below the headings, without the time of the last use."""
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["MODEL", "DIGEST", "TOKENS", "RECORDS", "SIZE", "USED"]
    return [line[:6] for line in lines[1:]]


def test_list_counts_the_tokens_of_names_once(cache: Path) -> None:
    """A block that two segments have, or two groups of layers, stands for the same 32 tokens; a state for none."""
    assert rows(asked(cache, "list")) == [
        ["large/model", LARGE[:12], str(2 * 32), "6", "6.59", "kB"],
        ["small/model", SMALL[:12], str(7 * 32), "8", "8.83", "kB"],
    ]


def test_a_name_that_no_model_has_is_said(cache: Path) -> None:
    done = asked(cache, "list", "--cached-model", "medium")
    assert (done.stdout, done.stderr) == ("", "No model with 'medium' in its name has cached prompts\n")


@pytest.mark.parametrize("wanted", ["large", LARGE[:8]])
def test_a_model_is_chosen_by_its_name_or_digest(cache: Path, wanted: str) -> None:
    chosen = ("--cached-model", wanted)
    assert [row[0] for row in rows(asked(cache, "list", *chosen))] == ["large/model"]
    assert "6 records are whole, 0 damaged" in asked(cache, "verify", *chosen).stdout
    asked(cache, "clear", *chosen)
    assert not (cache / LARGE).exists()
    assert len(files(cache, SMALL)) == 2


@pytest.mark.parametrize("command", ["list", "verify", "clear"])
def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, command: str) -> None:
    done = asked(tmp_path / "none", command)
    assert done.returncode == 0
    assert not (tmp_path / "none").exists()
    if command == "list":
        assert (done.stdout, done.stderr) == (
            "",
            "No prompts are cached on disk yet: a server writes them as it runs\n",
        )


@pytest.mark.parametrize("command", ["list", "verify", "clear"])
def test_a_folder_that_others_can_write_is_not_read(cache: Path, command: str) -> None:
    cache.chmod(0o777)
    done = asked(cache, command)
    assert done.returncode == 1
    assert "can be written by other users" in done.stderr
    assert len(files(cache, SMALL)) == 2


def test_verify_says_which_record_is_damaged(cache: Path) -> None:
    done = asked(cache, "verify")
    assert (done.returncode, done.stdout) == (0, "14 records are whole, 0 damaged\n")
    file = files(cache, SMALL)[0]
    data = bytearray(file.read_bytes())
    second = HEAD_BYTES + STRIDE
    data[second + 64 + 500] ^= 1
    file.write_bytes(data)
    done = asked(cache, "verify")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{SMALL[:12]}/{file.name}: the record at {second}: the checksum of a record is wrong",
        "13 records are whole, 1 damaged",
    ]


@pytest.mark.parametrize("left", [1, 40, 64, 600])
def test_verify_says_where_a_file_is_torn(cache: Path, left: int) -> None:
    file = min(files(cache, SMALL), key=lambda each: each.stat().st_size)
    end = HEAD_BYTES + 2 * STRIDE
    os.truncate(file, end + left)
    done = asked(cache, "verify")
    assert done.returncode == 1
    assert f"{file.name}: {left} bytes after {end} are no record" in done.stdout
    assert "13 records are whole, 1 damaged" in done.stdout


def test_verify_says_what_is_no_segment_of_its_model(cache: Path) -> None:
    strange, moved = files(cache, SMALL)
    strange.write_bytes(b"no segment" * 100)
    moved.rename(cache / LARGE / moved.name)
    done = asked(cache, "verify")
    assert done.returncode == 1
    assert f"{strange.name}: it is not a segment of a prefix cache" in done.stdout
    assert f"{moved.name}: it is of another model" in done.stdout
    assert "6 records are whole, 2 damaged" in done.stdout


def test_what_a_server_writes_stays_and_its_last_record_is_no_damage(cache: Path) -> None:
    writer = begun(cache, SMALL, "small/model", range(10, 12))
    half = os.pwrite(writer.file, b"half a record" * 20, writer.size)
    done = asked(cache, "verify")
    assert (done.returncode, done.stdout) == (0, "16 records are whole, 0 damaged\n")
    done = asked(cache, "clear")
    assert done.returncode == 0
    assert "Removed 3 files" in done.stderr
    assert "1 files are being written by servers, and stay" in done.stderr
    assert [file.name for file in files(cache, SMALL)] == [writer.name]
    assert [row[:4] for row in rows(asked(cache, "list"))] == [["small/model", SMALL[:12], str(2 * 32), "2"]]
    writer.close()
    assert f"{half} bytes after" in asked(cache, "verify").stdout, "now nobody writes it"
    asked(cache, "clear")
    assert not any(cache.iterdir())


def test_links_are_left_alone(cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.blocks"
    files(cache, LARGE)[0].rename(elsewhere)
    link = cache / LARGE / "000000000000-00000000.blocks"
    link.symlink_to(elsewhere)
    assert [row[0] for row in rows(asked(cache, "list"))] == ["small/model"]
    asked(cache, "clear")
    assert elsewhere.exists()
    assert link.is_symlink()
