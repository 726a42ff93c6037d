"""``dragoman chat`` with a server that has LocalLab's paths only, and piped lines."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from dragoman.cli import locallab_session
from dragoman.cli.app import cli
from dragoman.cli.locallab_session import piece_text, whole_text
from dragoman.core.errors import GenerationFailed

SAMPLING = {"max_tokens": 8192, "temperature": 0.7, "top_p": 0.9}


class LocalLab(http.server.BaseHTTPRequestHandler):
    """LocalLab 0.11's answers, which hold the number of messages or prompts; a prompt ``cut`` breaks the stream off."""

    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    current: ClassVar[tuple[int, object]] = (200, {"id": "org/tiny", "name": "Tiny", "is_loaded": True})

    def do_GET(self) -> None:
        known = {"/health": (200, {"status": "healthy"}), "/models/current": self.current}
        self._answer(*known.get(self.path, (404, {"detail": "Not Found"})))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body))
        if self.path == "/chat":
            text = f"{len(body['messages'])} messages"
            self._answer(200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})
        elif "later" in (body.get("prompt"), *body.get("prompts", ())) and len(self.asked) % 2:
            self._answer(429, {"detail": "rate limit exceeded: retry in 0 s"}, ("Retry-After", "0"))
        elif self.path == "/generate/batch":
            self._answer(200, {"responses": [f"to {prompt}" for prompt in body["prompts"]]})
        elif body["prompt"] == "refuse":
            self._answer(400, {"detail": "temperature: must be between 0 and 2"})
        elif not body["stream"]:
            self._answer(200, {"text": "whole", "model": "org/tiny"})
        else:
            self._send(200, b"data: one\n\ndata:  42\n\ndata: \\nline\n\n")
            if body["prompt"] != "cut":
                self.wfile.write(b"data: [DONE]\n\n")

    def _answer(self, status: int, body: object, *headers: tuple[str, str]) -> None:
        self._send(status, json.dumps(body).encode(), *headers)

    def _send(self, status: int, data: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def locallab() -> Iterator[str]:
    LocalLab.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), LocalLab) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def chat(lines: str, *arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
    environment = {"DRAGOMAN_CONFIG": os.devnull, **variables}
    result = CliRunner().invoke(cli.typer, ["chat", *arguments], input=lines, env=environment)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_each_mode_has_its_path(locallab: str) -> None:
    lines = "a\nb --simple\nc --CHAT\nd --batch\ne --batch\n/stats\nf --stream\n"
    said, _ = chat(lines, "-u", locallab, "-g", "stream", "--system", "Be brief.")
    answers, _, rest = said.partition("messages  7 (at")
    assert answers.strip() == "one 42\nline\nwhole\n6 messages\n1. d\nto d\n\n2. e\nto e"
    assert rest.endswith("one 42\nline\n")
    single = {"system_prompt": "Be brief.", **SAMPLING}
    assert [path for path, _ in LocalLab.asked] == ["/generate", "/generate", "/chat", "/generate/batch", "/generate"]
    assert LocalLab.asked[0][1] == {"prompt": "a", "stream": True, "stream_format": "json", **single}
    assert LocalLab.asked[1][1] == {"prompt": "b", "stream": False, **single}
    assert LocalLab.asked[3][1] == {"prompts": ["d", "e"], **single}


def test_options_win_over_variables(locallab: str) -> None:
    variables = {"LOCALLAB_URL": locallab, "LOCALLAB_MAX_TOKENS": "7", "LOCALLAB_TEMPERATURE": "0.1"}
    chat("a\n", "-g", "simple", "-t", "1.0", **variables)
    assert LocalLab.asked[0][1] == {"prompt": "a", "stream": False, "max_tokens": 7, "temperature": 1.0, "top_p": 0.9}


def test_a_server_on_a_usual_port_is_found(locallab: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(locallab.rpartition(":")[2])
    monkeypatch.setattr(locallab_session, "PORTS", (1, port))
    assert f"server  http://localhost:{port}" in chat("/stats\n", "-g", "simple")[0]


def test_without_a_mode_a_server_with_no_other_dialect_is_asked_too(locallab: str) -> None:
    assert chat("a\nb\n", "-u", locallab)[0] == "1 messages\n3 messages\n"


def test_a_failed_line_does_not_stop_the_others_and_is_told_by_the_exit_code(locallab: str) -> None:
    said, errors = chat("cut\na --other\nrefuse\nb --simple\n/history\n", "-u", locallab, "-g", "stream", code=1)
    assert said == "one 42\nline\nwhole\nuser: b\nassistant: whole\n"
    assert "ended in the middle" in errors
    assert "--other is no mode" in errors
    assert "must be between 0 and 2" in errors


def test_a_rate_limit_is_waited_for(locallab: str) -> None:
    said, _ = chat("later\nlater --simple\nlater --batch\n", "-u", locallab, "-g", "stream")
    assert said == "one 42\nline\nwhole\nto later\n"
    assert len(LocalLab.asked) == 6


def test_batch_asks_for_its_prompts(locallab: str) -> None:
    lines = "/batch\none\n/clear\ntwo\nthree\n/list\n\n/batch\nfour\n/cancel\n/batch\n/done\n/batch\nfive\n"
    said, _ = chat(lines, "-u", locallab, "-g", "chat")
    assert said == "1. two\n2. three\n1. two\nto two\n\n2. three\nto three\nto five\n"


def test_a_server_without_a_model_can_be_talked_to(locallab: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLab, "current", (404, {"detail": "No model currently loaded"}))
    assert "no model" in chat("/stats\n", "-u", locallab, "-g", "simple")[0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ('{"choices": [{"delta": {"content": "a\\nb"}}]}', "a\nb"),
        ('{"choices": [{"text": "a"}]}', "a"),
        ('{"token": "a"}', "a"),
        ('{"text": "a"}', "a"),
        ('{"role": "assistant", "content": "a"}', "a"),
        ('{"choices": [{"delta": {}}], "usage": {}}', ""),
        ('"a"', '"a"'),
        ("42", "42"),
        ("a\\nb\\r", "a\nb\r"),
    ],
)
def test_pieces_of_every_kind(data: str, text: str) -> None:
    assert piece_text(data) == text


@pytest.mark.parametrize("data", ["Error: no", "[ERROR] no", '{"error": "no"}'])
def test_errors_in_a_stream(data: str) -> None:
    with pytest.raises(GenerationFailed, match="no"):
        piece_text(data)


def test_answers_of_every_kind() -> None:
    for name in ("response", "text", "content", "generated_text", "output"):
        assert whole_text({name: "a"}) == "a"
    assert whole_text({"choices": [{"message": {"content": "a"}}], "text": "b"}) == "a"
    for wrong in ([], {}, {"text": 3}, {"choices": [None]}):
        with pytest.raises(GenerationFailed):
            whole_text(wrong)
