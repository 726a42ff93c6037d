"""The folder of capsules: bounded, for its owner alone, and never in the way of an answer."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from sockets import until

from dragoman.core import capsule as capsules
from dragoman.core.capsule import VERSION, Capsule, Environment, RecordedRequest, RecordedSequence
from dragoman.core.errors import DragomanError
from dragoman.server.metrics import Metrics
from dragoman.serving.recorder import FILE, QUEUED, CapsuleFolder, Recorder, _short, new_name, recorder_of
from dragoman.serving.settings import RecordSettings


def capsule(tokens: int = 4) -> Capsule:
    return Capsule(
        version=VERSION,
        created="2026-11-23T08:25:00+00:00",
        environment=Environment(model="a", fingerprint="f"),
        request=RecordedRequest(prompt=(1, 2), seeds=(1,), max_tokens=tokens),
        outputs=(RecordedSequence(token_ids=(100,) * tokens),),
    )


SIZE = len(capsules.encode(capsule()))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "capsules"
    before = os.umask(0)
    try:
        kept = CapsuleFolder(folder, 1 << 20)
        kept.put("20261123T082500-346f8bec8c22.json", capsule)
        kept.close()
    finally:
        os.umask(before)
    (name,) = names(folder)
    assert (folder.stat().st_mode & 0o777, (folder / name).stat().st_mode & 0o777) == (0o700, 0o600)
    assert capsules.decode((folder / name).read_bytes()) == capsule()


def test_the_oldest_are_removed_beyond_the_bound_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    kept = CapsuleFolder(tmp_path, 3 * SIZE)
    made = [f"20261123T08250{number}-346f8bec8c22.json" for number in range(6)]
    for name in made:
        kept.put(name, capsule)
    kept.close()
    assert names(tmp_path) == [*made[3:], "notes.json"]
    assert (kept.written, kept.removed, kept.dropped) == (6, 3, 0)
    again = CapsuleFolder(tmp_path, 3 * SIZE)
    again.put(new_name(), capsule)
    again.close()
    assert names(tmp_path)[:2] == made[4:], "those of earlier starts count too"


def test_a_capsule_that_is_larger_than_all_room_is_dropped(tmp_path: Path) -> None:
    kept = CapsuleFolder(tmp_path, SIZE)
    kept.put("20261123T082500-346f8bec8c22.json", lambda: capsule(1000))
    kept.put("20261123T082501-346f8bec8c22.json", capsule)
    kept.close()
    assert names(tmp_path) == ["20261123T082501-346f8bec8c22.json"]
    assert (kept.written, kept.removed, kept.dropped) == (1, 0, 1)


def test_writing_never_holds_the_caller_up(tmp_path: Path) -> None:
    blocked = threading.Event()

    def slow() -> Capsule:
        blocked.wait(60)
        return capsule()

    kept = CapsuleFolder(tmp_path, 1 << 20)
    for _ in range(QUEUED + 20):
        kept.put(new_name(), slow)
    assert 18 <= kept.dropped <= 20, "the queue is bounded, and what does not fit is dropped"
    blocked.set()
    kept.close()
    assert kept.written + kept.dropped == QUEUED + 20


def test_a_disk_that_refuses_costs_a_capsule_and_no_answer(tmp_path: Path) -> None:
    kept = CapsuleFolder(tmp_path / "a", 1 << 20)
    (tmp_path / "a").rmdir()
    kept.put(new_name(), capsule)
    kept.put(new_name(), lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    kept.close()
    assert (kept.written, kept.dropped) == (0, 2)


def test_a_full_disk_costs_capsules_which_the_metrics_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = CapsuleFolder(tmp_path, 1 << 20)
    metrics, recorder = Metrics(), Recorder(kept)
    metrics.watch(dict, recorder.counters)
    kept.put(new_name(), capsule)
    until(lambda: kept.written == 1)
    monkeypatch.setattr("dragoman.serving.recorder.os.rename", full)
    for _ in range(3):
        kept.put(new_name(), capsule)
    kept.close()
    page = metrics.render().decode()
    assert "dragoman_capsules_written_total 1.0" in page
    assert "dragoman_capsules_dropped_total 3.0" in page
    assert "dragoman_capsules_removed_total 0.0" in page
    assert len(list(tmp_path.iterdir())) == 1, "nothing unfinished is left"


def test_the_log_tells_of_each_time_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    kept = CapsuleFolder(tmp_path, 1 << 20)
    for times in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr("dragoman.serving.recorder.os.rename", lambda *_: os.stat("/nonexistent"))
            for _ in range(3):
                kept.put(new_name(), capsule)
            until(lambda: kept.dropped == 3 * times)  # noqa: B023
        kept.put(new_name(), capsule)
        until(lambda: kept.written == times)  # noqa: B023
    kept.close()
    assert caplog.text.count("capsules are dropped") == 2
    assert [text for text in caplog.messages if "written again" in text] == [
        f"capsules are written again, in {tmp_path}; {dropped} were dropped" for dropped in (3, 6)
    ]


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "capsules"
    folder.mkdir()
    name = "20261123T082500-346f8bec8c22.json"
    (folder / f".{name}").symlink_to(victim)
    (folder / name).symlink_to(victim)
    kept = CapsuleFolder(folder, SIZE)
    kept.put(name, capsule)
    kept.put("20261123T082501-346f8bec8c22.json", capsule)
    kept.close()
    assert victim.read_text() == "precious"


def test_a_folder_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DragomanError, match="--record"), recorder_of(RecordSettings(record=str(tmp_path / "file"))):
        pass


def test_without_a_folder_nothing_is_recorded() -> None:
    with recorder_of(RecordSettings()) as recorder:
        assert recorder._sink is None


def test_names_sort_by_time_and_are_unlike() -> None:
    made = [new_name() for _ in range(50)]
    assert len(set(made)) == 50
    assert all(map(FILE.fullmatch, made))


@pytest.mark.parametrize("value", [-0.1, -1.0967742204666138, 0.0, -1e-9, -87.33654022216797, float("-inf")])
def test_numbers_are_as_short_as_float32_allows(value: float) -> None:
    import numpy as np

    value = float(np.float32(value))
    if value == float("-inf"):
        assert _short(value) == -1e30
        return
    assert np.float32(_short(value)) == np.float32(value)
    assert len(repr(_short(value))) <= 15
