"""The log: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from dragoman.cli.logs import LogSettings, configure_logs
from dragoman.core.errors import DragomanError


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = before, level
    for name in ("dragoman.access", "dragoman.server", "asyncio", "httpcore", "httpx", "urllib3", "filelock", "grpc"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_line_is_one_flat_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(json_output=True))
    fields = {"status": 200, "path": '/a"b\n'}
    logging.getLogger("dragoman.access").info("status=%(status)d", fields, extra={"title": "request", "fields": fields})
    try:
        raise ValueError("over\nlines")
    except ValueError:
        logging.getLogger("dragoman.server").exception("it failed")
    request, failure = map(json.loads, said(capsys))
    assert list(request) == ["timestamp", "level", "target", "message", "status", "path"]
    assert request["message"] == "request"
    assert (request["status"], request["path"]) == (200, '/a"b\n')
    assert (failure["level"], failure["target"], failure["message"]) == ("ERROR", "dragoman.server", "it failed")
    assert "ValueError: over\nlines" in failure["exception"]


def test_people_get_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings())
    logging.getLogger("dragoman.server").info("all is well", extra={"fields": {"a": 1}})
    [line] = said(capsys)
    assert line.endswith("INFO dragoman.server: all is well")


def test_parts_may_have_levels_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(log_level="warn,dragoman.access=info"))
    for name in ("dragoman.server", "dragoman.access"):
        logging.getLogger(name).info("from %s", name)
    assert [line.rpartition(" ")[2] for line in said(capsys)] == ["dragoman.access"]


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(DragomanError, match="--log-level loud: there is only"):
        configure_logs(LogSettings(log_level="info,loud"))
