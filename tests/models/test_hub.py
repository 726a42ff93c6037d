"""Downloads of weights: one after an interruption goes on where that ended."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub, fake_hub

from dragoman.core.errors import ModelError
from dragoman.models import embedded_path
from dragoman.models import hub as our_hub

FETCH = """
import hashlib, os, sys
from dragoman.core.errors import ModelError
from dragoman.models import hub

class Told(hub.DownloadWatcher):
    def started(self, repository, total, kept): print("started", total, kept, flush=True)
    def advanced(self, done): self.done = done; print("at", done, flush=True)
    def retrying(self, name, reason): print("retrying", name, flush=True)
    def waiting(self, name): print("waiting", name, flush=True)
    def finished(self, name, nbytes): print("finished", name, nbytes, flush=True)
    def ended(self): print("ended", flush=True)

folder = hub.download_small("owner/model", None, None, ["config.json"])
try:
    hub.download_large("owner/model", folder, None, sys.argv[1:], Told())
    print("digests", *(hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sys.argv[1:]))
except ModelError as error:
    print("ModelError:", error)
"""

BYTES = 1_000_000
WEIGHTS = "model.safetensors"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(random.Random(1).randbytes(BYTES))
    (folder / "other.safetensors").write_bytes(random.Random(2).randbytes(1000))
    return folder


def start(hub: FakeHub, home: Path, *names: str, program: str = FETCH) -> subprocess.Popen[str]:
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("HF_TOKEN", None)
    command = [sys.executable, "-c", program, *(names or (WEIGHTS,))]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fetch(hub: FakeHub, home: Path, *names: str) -> list[str]:
    process = start(hub, home, *names)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def digests(repository: Path, *names: str) -> str:
    return " ".join(["digests", *(hashlib.sha256((repository / name).read_bytes()).hexdigest() for name in names)])


def interrupt(hub: FakeHub, home: Path) -> int:
    """Begin a download and end the process in the middle; the bytes that are here then."""
    hub.bytes_per_second = 100_000.0
    process = start(hub, home)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("at "):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hub.bytes_per_second = None
    [part] = home.glob("hub/models--owner--model/blobs/*.incomplete")
    return part.stat().st_size


def test_files_come_whole_and_are_found_by_the_hubs_library(repository: Path, tmp_path: Path) -> None:
    names = (WEIGHTS, "other.safetensors")
    with fake_hub(repository) as hub:
        told = fetch(hub, tmp_path / "home", *names)
        assert told[0] == f"started {BYTES + 1000} 0"
        assert f"at {BYTES + 1000}" in told
        assert {line for line in told if line.startswith("finished")} == {
            f"finished {WEIGHTS} {BYTES}",
            "finished other.safetensors 1000",
        }
        assert told[-2:] == ["ended", digests(repository, *names)]
        assert fetch(hub, tmp_path / "home", *names) == [digests(repository, *names)]  # nothing is fetched
    [blob] = [path for path in tmp_path.glob("home/hub/*/blobs/*") if path.stat().st_size == BYTES]
    assert blob.name == hashlib.sha256((repository / WEIGHTS).read_bytes()).hexdigest()


def test_an_interrupted_download_goes_on_where_it_ended(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        kept = interrupt(hub, tmp_path)
        assert 0 < kept < BYTES
        told = fetch(hub, tmp_path)
        assert told[0] == f"started {BYTES} {kept}"
        assert told[-1] == digests(repository, WEIGHTS)
        assert f"from {kept}" in hub.requests


@pytest.mark.parametrize("threads", [0, 1])
def test_a_system_that_starts_few_threads(repository: Path, tmp_path: Path, threads: int) -> None:
    few = f"""
import threading
start, left = threading.Thread.start, [None] * {threads}
def few(thread):
    if thread.name.startswith("download-"):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
    start(thread)
threading.Thread.start = few
"""
    names = (WEIGHTS, "other.safetensors")
    with fake_hub(repository) as hub:
        process = start(hub, tmp_path, *names, program=few + FETCH)
        out, err = process.communicate(timeout=120)
        if threads:
            assert out.splitlines()[-2:] == ["ended", digests(repository, *names)]
        else:
            assert (out.splitlines()[-2], err) == ("ended", "")
            assert "could not be downloaded: RuntimeError: can't start new thread" in out.splitlines()[-1]


def test_a_connection_that_breaks_is_made_again(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        hub.cut_after = 3 * our_hub.CHUNK_BYTES
        told = fetch(hub, tmp_path)
    assert f"retrying {WEIGHTS}" in told
    assert f"at {3 * our_hub.CHUNK_BYTES}" in told
    assert f"from {3 * our_hub.CHUNK_BYTES}" in hub.requests
    assert told[-1] == digests(repository, WEIGHTS)


def test_a_hub_that_knows_no_ranges_sends_the_file_again(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        kept = interrupt(hub, tmp_path)
        hub.knows_ranges = False
        told = fetch(hub, tmp_path)
    assert told[:2] == [f"started {BYTES} {kept}", "at 0"]
    assert told[-2:] == ["ended", digests(repository, WEIGHTS)]
    assert f"at {BYTES}" in told
    assert all(int(line.split()[1]) <= BYTES for line in told if line.startswith("at "))


def test_what_does_not_fit_together_is_thrown_away(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        interrupt(hub, tmp_path)
        hub.damaged = True
        told = fetch(hub, tmp_path)
        assert told[-1] == f"ModelError: owner/model: {WEIGHTS} came damaged; the same command fetches it again"
        hub.damaged = False
        told = fetch(hub, tmp_path)
    assert told[0] == f"started {BYTES} 0"
    assert told[-1] == digests(repository, WEIGHTS)


def test_a_file_that_is_joined_in_one_call_is_looked_at_too(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        hub.cut_after, hub.damaged_after_cut = 3 * our_hub.CHUNK_BYTES, True
        told = fetch(hub, tmp_path)
    assert told[-1] == f"ModelError: owner/model: {WEIGHTS} came damaged; the same command fetches it again"


@pytest.mark.parametrize("etag", ["../../../escaped", ".hidden", "a/b", "x" * 200])
def test_a_hub_does_not_choose_where_files_are_written(repository: Path, tmp_path: Path, etag: str) -> None:
    with fake_hub(repository) as hub:
        hub.etag = etag
        told = fetch(hub, tmp_path)
    assert told == [f"ModelError: owner/model: the hub sends an ETag of {WEIGHTS} that cannot be the name of a file"]
    assert not list(tmp_path.rglob("escaped*"))


def test_a_file_that_another_process_downloads_is_waited_for(repository: Path, tmp_path: Path) -> None:
    with fake_hub(repository) as hub:
        hub.bytes_per_second = 200_000.0
        first = start(hub, tmp_path)
        assert first.stdout is not None
        while not first.stdout.readline().startswith("at "):
            assert first.poll() is None
        told = fetch(hub, tmp_path)
        first.communicate(timeout=60)
        assert first.returncode == 0
        assert len([each for each in hub.requests if each.startswith("GET") and each.endswith(WEIGHTS)]) == 1
    assert f"waiting {WEIGHTS}" in told
    assert told[-1] == digests(repository, WEIGHTS)


def test_a_download_that_does_not_fit_the_disk_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 3_000_000_000}))
    download = our_hub._Download("owner/model", None, our_hub.UNWATCHED)
    monkeypatch.setattr(download, "_blobs", tmp_path / "blobs")
    monkeypatch.setattr(download, "_locks", tmp_path / "locks")
    with pytest.raises(ModelError, match=r"5\.0 GB are to be downloaded and .*/blobs has room for 2\.7 GB; .*HF_HOME"):
        download.run([our_hub.HubFile(WEIGHTS, "", "0" * 64, 5_000_000_000)], 0)


def test_sessions_of_requests_are_read_too(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's library has them in its versions before 1.0."""
    requests = pytest.importorskip("requests")
    monkeypatch.setattr("huggingface_hub.utils.get_session", requests.Session)
    monkeypatch.setattr("huggingface_hub.utils.hf_raise_for_status", lambda answer: answer.raise_for_status())
    with fake_hub(repository) as hub:
        url = f"{hub.url}/owner/model/resolve/{COMMIT}/{WEIGHTS}"
        with our_hub._opened(url, {"Range": "bytes=10-"}) as (status, chunks):
            assert (status, b"".join(chunks)) == (206, (repository / WEIGHTS).read_bytes()[10:])


def test_errors_of_the_hub_have_no_queries_of_addresses() -> None:
    error = our_hub.hub_error("owner/model", None, ValueError("403 for https://cdn.example/x?Signature=abc today"))
    assert error.message == "owner/model could not be downloaded: ValueError: 403 for https://cdn.example/x today"


# As commands ---------------------------------------------------------------------------------------------------------


def command(hub: FakeHub, home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"DRAGOMAN_CONFIG": os.devnull}
    environment.pop("HF_TOKEN", None)
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def embedded() -> Path:
    return embedded_path()


def test_pull_without_a_terminal_is_quiet(embedded: Path, tmp_path: Path) -> None:
    with fake_hub(embedded) as hub:
        pulled = command(hub, tmp_path, "models", "pull", "owner/model")
        out, err = pulled.communicate(timeout=120)
    assert (pulled.returncode, out) == (0, "")
    lines = err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["note", "owner/model", "Talk with it"]
    assert lines[0].startswith("note: owner/model: 10.4 MB are downloaded")
    assert "\r" not in err


def test_serve_downloads_and_says_nothing_but_json(embedded: Path, tmp_path: Path) -> None:
    with fake_hub(embedded) as hub:
        served = command(hub, tmp_path, "serve", "owner/model", "--port", "0", "--json-output")
        assert served.stderr is not None
        said = []
        for line in served.stderr:
            said.append(json.loads(line))
            if said[-1]["message"] == "ready":
                break
        served.send_signal(signal.SIGINT)
        _, rest = served.communicate(timeout=60)
        said += map(json.loads, rest.splitlines())
    assert said[0]["message"] == "owner/model: 10.4 MB are downloaded"
    assert not [line for line in said if line["target"].partition(".")[0] != "dragoman"]
    assert hub.url not in json.dumps(said)


FOUND = """
from dragoman.models.source import find_source
print(*sorted(path.name for path in find_source("owner/model").folder.iterdir()))
"""


@pytest.mark.parametrize(
    "name", [None, "tekken.json", "tiktoken.model", "hy.tiktoken", "spiece.model", "tokenizer.model"]
)
def test_vocabularies_in_other_forms_are_downloaded_where_no_tokenizer_json_is(
    tmp_path: Path, name: str | None
) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    for each in ("config.json", "model.safetensors", name or "tekken.json"):
        (folder / each).write_bytes(b"{}")
    if name is None:
        (folder / "tokenizer.json").write_bytes(b"{}")
    with fake_hub(folder) as hub:
        environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
        found = subprocess.run(
            [sys.executable, "-c", FOUND], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
    assert found.stdout.split() == ["config.json", name or "tokenizer.json"]


def test_an_interrupted_command_says_what_is_kept(embedded: Path, tmp_path: Path) -> None:
    with fake_hub(embedded) as hub:
        hub.bytes_per_second = 1_000_000.0
        pulled = command(hub, tmp_path, "models", "pull", "owner/model")

        # The small files before the weights have parts of their own, and nothing is kept of those.
        assert pulled.stderr is not None
        assert pulled.stderr.readline() == "note: owner/model: 10.4 MB are downloaded\n"
        deadline = time.monotonic() + 60
        while not any(part.stat().st_size for part in tmp_path.glob("hub/models--owner--model/blobs/*.incomplete")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pulled.send_signal(signal.SIGINT)
        _, err = pulled.communicate(timeout=60)
        assert pulled.returncode == 130
        assert " of 10.4 MB are here and stay, the same command goes on from there" in err
        hub.bytes_per_second = None
        again = command(hub, tmp_path, "models", "pull", "owner/model", "-v")
        _, err = again.communicate(timeout=60)
    assert again.returncode == 0
    assert " of 10.4 MB are here already, the download goes on from there" in err
    assert "note: model.safetensors: 10.4 MB" in err
    assert not list(tmp_path.glob("hub/models--owner--model/blobs/*.incomplete"))
