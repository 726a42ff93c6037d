"""``dragoman explain``: what it reads, and what it prints."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dragoman.cli.explain import parsed, parsed_file, shown
from dragoman.cli.settings import ExplainOptions
from dragoman.core.errors import DragomanError

BODY = {"prompt": "Once", "max_tokens": 3}
HTTP = (
    "POST /v1/completions HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer secret\r\nX-API-Key: secret\r\n"
    f"User-Agent: octoai-0.1\r\n\r\n{json.dumps(BODY)}"
)


def test_a_request_as_text_has_its_path_and_headers_without_its_keys() -> None:
    assert parsed(HTTP) == {
        "body": BODY,
        "path": "/v1/completions",
        "headers": {"host": "here", "user-agent": "octoai-0.1"},
    }
    assert parsed(f"POST /generate\n\n{json.dumps(BODY)}") == {"body": BODY, "path": "/generate", "headers": {}}


def test_a_body_stands_for_itself() -> None:
    assert parsed(json.dumps(BODY)) == {"body": BODY}
    assert parsed(json.dumps({"body": BODY, "path": "/generate"})) == {"body": BODY, "path": "/generate"}
    assert parsed(json.dumps({"body": BODY, "prompt": "a"})) == {"body": {"body": BODY, "prompt": "a"}}


@pytest.mark.parametrize("text", ["", "GET /v1/models HTTP/1.1\n\n", "POST /v1/completions\n\nno", "{"])
def test_what_is_no_request_is_an_error(text: str) -> None:
    with pytest.raises(DragomanError, match="not JSON"):
        parsed(text)


def test_options_come_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "request"
    file.write_text(HTTP)
    asked = parsed_file(ExplainOptions(file=str(file), dialect="tgi", path="/generate"))
    assert (asked["path"], asked["dialect"]) == ("/generate", "tgi")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(BODY)))
    assert parsed_file(ExplainOptions(file="-")) == {"body": BODY}
    with pytest.raises(DragomanError, match=r"missing cannot be read: No such file or directory$"):
        parsed_file(ExplainOptions(file=str(tmp_path / "missing")))


def test_a_refused_request_is_shown_with_its_error() -> None:
    answer = {
        "dialect": "tgi",
        "method": "POST",
        "path": "/generate",
        "summary": "Continue a text.",
        "why": ["Only tgi has it."],
        "accepted": False,
        "error": {"status": 422, "body": {}, "message": "no", "field": "inputs"},
        "fields": [
            {"name": "inputs", "fate": "invalid", "value": 7, "reason": "no text"},
            {"name": "seed", "fate": "default"},
        ],
        "count": 0,
        "requests": [],
        "others": [],
    }
    lines = list(shown(answer))
    assert lines[0] == "tgi  POST /generate  Continue a text."
    assert "\nrefused with 422, for inputs: no" in lines
    assert "  invalid   inputs = 7  no text" in lines
    assert "  default   1 others" in lines
