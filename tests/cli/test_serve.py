"""``dragoman serve`` as its users start it: a process of its own, with the embedded model."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_server import read_until, start_command

READY = re.compile(r"Try it:\n\n(curl .*)\n")


def said_when_ready(server: subprocess.Popen[str]) -> str:
    return read_until(server, READY)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    server = start_command("--threads", "2", "--max-context", "512", "--no-access-log")
    try:
        yield server, said_when_ready(server)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def test_start_says_the_plan(served) -> None:
    _, said = served
    for name, value in {
        "model": "embedded",
        "precision": "bfloat16",
        "memory": "of weights",
        "context": "512 tokens",
        "threads": "2",
        "address": "http://127.0.0.1:",
    }.items():
        assert re.search(rf"^ *{name}  .*{value}", said, flags=re.MULTILINE), name


@pytest.mark.skipif(shutil.which("curl") is None, reason="this machine has no curl")
def test_the_suggested_curl_works(served) -> None:
    _, said = served
    command = READY.search(said)[1]
    done = subprocess.run([*shlex.split(command), "--silent"], capture_output=True, text=True, timeout=60)
    answer = json.loads(done.stdout)
    assert answer["object"] in ("chat.completion", "text_completion")
    assert answer["usage"]["completion_tokens"] > 0


def test_the_suggested_request_says_what_curl_sends(served) -> None:
    """The same without curl, for machines that have none."""
    _, said = served
    _, url, _, header, _, body = shlex.split(READY.search(said)[1])
    request = urllib.request.Request(url, body.encode(), dict([header.split(": ")]))
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["model"] == "embedded"


def from_page(page: str, language: str, containing: str, said: str) -> str:
    """A block of a page that asks port 8000, asking the server under test instead."""
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    [block] = [b for b in re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL) if containing in b]
    address = re.search(r"http://127.0.0.1:\d+", said)
    assert address is not None
    return block.replace("http://127.0.0.1:8000", address[0])


@pytest.mark.skipif(shutil.which("curl") is None, reason="this machine has no curl")
def test_the_readmes_curl_works(served) -> None:
    _, said = served
    done = subprocess.run(
        ["sh", "-c", from_page("README.md", "sh", "curl", said)], capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_the_readmes_python_works(served) -> None:
    _, said = served
    code = from_page("README.md", "python", "OpenAI", said)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 10


def test_the_tool_of_the_page_is_called(served) -> None:
    _, said = served
    code = from_page("docs/tools.md", "python", "get_weather", said)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    name, _, arguments = done.stdout.partition(" ")
    assert name == "get_weather"
    assert len(json.loads(arguments)["city"]) <= 20


def ask(said: str, *arguments: str) -> str:
    """What another command says when it is pointed at the server."""
    url = re.search(r"http://127.0.0.1:\d+/v1", said)
    assert url is not None
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments, "--url", url[0]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generate_asks_a_running_server(served) -> None:
    _, said = served
    options = ("generate", "Once upon a time", "--max-new-tokens", "8", "--seed", "5")
    text = ask(said, *options)
    assert len(text) > 4
    assert ask(said, *options) == text
    search = ("--num-beams", "3", "--early-stopping", "never", "--length-penalty", "0.5")
    assert len(ask(said, *options, *search)) > 4


def test_bench_measures_a_running_server(served) -> None:
    _, said = served
    found = json.loads(ask(said, "bench", "--streams", "2", "--prompt-tokens", "20", "--output-tokens", "5", "--json"))
    assert (found["requests"], found["failed"], found["output_tokens"]) == (4, 0, 20)


def test_interrupt_ends_it_cleanly() -> None:
    server = start_command()
    said_when_ready(server)
    server.send_signal(signal.SIGINT)
    _, rest = server.communicate(timeout=60)
    assert server.returncode == 0
    assert "Traceback" not in rest
    assert "leaked" not in rest, "the engine frees what the native module made"


def test_a_first_start_that_others_can_reach_makes_a_key(tmp_path: Path) -> None:
    options = ("--host", "0.0.0.0", "--max-context", "256", "--no-access-log")
    key = ""
    for attempt in range(2):
        server = start_command(*options, XDG_STATE_HOME=str(tmp_path))
        said = said_when_ready(server)
        url = re.search(r"http://0.0.0.0:\d+", said)
        assert url is not None
        found = re.search(r"(\S*/first-api-key) has it", said)
        assert (found is not None) == (attempt == 0)
        if found:  # nobody keeps what a terminal shows; a journal is kept
            file = Path(found[1])
            assert file.stat().st_mode & 0o777 == 0o600
            key = file.read_text().strip()
            file.unlink()
        assert key not in said
        models = url[0].replace("0.0.0.0", "127.0.0.1") + "/v1/models"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(models, timeout=60)
        request = urllib.request.Request(models, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["data"]
        server.send_signal(signal.SIGINT)
        rest = "".join(server.communicate(timeout=60))
        assert key not in rest
    assert key not in (tmp_path / "dragoman" / "api-key").read_text()


def test_a_start_on_an_address_that_is_not_there_makes_no_key(tmp_path: Path) -> None:
    server = start_command("--host", "192.0.2.1", XDG_STATE_HOME=str(tmp_path))
    _, said = server.communicate(timeout=60)
    assert server.returncode == 1
    assert "192.0.2.1 is no address of this machine" in said
    assert not list(tmp_path.rglob("*api-key*"))


def test_a_log_that_nobody_reads_is_json_throughout_and_keeps_nobody_waiting() -> None:
    reading, writing = os.pipe()
    server = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "serve", "--json-output", "--port", "0", "--threads", "1"],
        env={**os.environ, "DRAGOMAN_CONFIG": os.devnull},
        stderr=writing,
    )
    os.close(writing)
    lines = open(reading, encoding="utf-8")  # noqa: SIM115
    try:
        ready = json.loads(lines.readline())
        port = int(re.search(r":(\d+)", ready["address"])[1])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            for _ in range(4):  # 400 lines are more than a pipe holds
                client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100)
                answers = b""
                while answers.count(b"HTTP/1.1 200") < 100:
                    answers += client.recv(65536)
            client.sendall(b"NONSENSE\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400")
        said = []
        while sum(line["message"] == "request" for line in said) < 401:  # its end waits for a reader for two seconds
            said.append(json.loads(lines.readline()))
        server.send_signal(signal.SIGTERM)
        said += [json.loads(line) for line in lines]
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        lines.close()
    requests = [line for line in said if line["message"] == "request"]
    [refused] = [line for line in requests if line["status"] == 400]
    assert len(requests) == 401
    assert refused["client"].startswith("127.0.0.1:")
    assert refused["id"].startswith("req-")


def test_a_key_is_shown_nowhere() -> None:
    key = "a-key-that-nobody-may-read"
    told = subprocess.run(
        [sys.executable, "-m", "dragoman", "serve", "--help"],
        env={**os.environ, "DRAGOMAN_API_KEY": key, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "--api-key" in told.stdout
    assert key not in told.stdout + told.stderr


def fail(*arguments: str, **variables: str) -> str:
    server = start_command(*arguments, **variables)
    said = "".join(server.communicate(timeout=60))
    assert server.returncode == 1, said
    assert "Traceback" not in said
    return said


def test_missing_model_is_one_clear_line() -> None:
    said = fail("no/such/folder")
    assert said.startswith("error: ")
    assert "no/such/folder" in said
    assert len(said.splitlines()) == 1


def test_unusable_model_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mystery", "architectures": ["MysteryModel"]}')
    said = fail(str(tmp_path))
    assert said.startswith("error: ")
    assert "mystery" in said.lower()
    assert len(said.splitlines()) == 1


def test_model_that_does_not_fit_is_one_clear_line_with_the_numbers() -> None:
    said = fail("--kv-bytes", str(10**15))
    assert said.startswith("error: ")
    assert "GiB" in said
    assert len(said.splitlines()) == 1


def test_taken_port_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = fail("--port", port)
    assert said.startswith("error: ")
    assert port in said


def test_unknown_kernels_are_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_KERNELS", "avx1024")
    server = start_command()
    out, said = server.communicate(timeout=60)
    assert server.returncode == 1
    assert (out + said).count("\n") == 1
    assert "avx1024" in out + said


def test_impossible_option_is_a_usage_error() -> None:
    server = start_command("--precision", "int7")
    said = "".join(server.communicate(timeout=60))
    assert server.returncode == 2
    assert "precision" in said


def test_a_state_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "continue.sqlite3").mkdir()
    said = fail("--state-dir", str(tmp_path))
    assert said.startswith("error: ")
    assert "--state-dir" in said
    assert len(said.splitlines()) == 1


def story(address: str, tokens: int, **headers: str) -> tuple[str, str | None]:
    """So much more of it, and how many tokens the answer says there were before."""
    body = {"prompt": "The sea was", "max_tokens": tokens, "temperature": 0.9, "seed": 77, "ignore_eos": True}
    headers["content-type"] = "application/json"
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"], answer.headers["x-dragoman-continued"]


def test_a_cut_generation_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    texts, before = [], []
    for _ in range(2):
        server = start_command("--max-context", "256", "--state-dir", str(tmp_path))
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", said_when_ready(server))[0]
            text, continued = story(address, 8, **{"x-request-continue": "mine"})
            texts.append(text)
            before.append(continued)
            whole, _ = story(address, 24)
            with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
                assert "dragoman_continue_keys 1.0" in answer.read().decode()
        finally:
            server.kill()
            server.communicate(timeout=60)
    assert before == ["0", "8"]
    assert whole.startswith("".join(texts))
