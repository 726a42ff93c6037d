"""The log: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pty
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import console
from dragoman.cli.log_writer import LogWriter
from dragoman.cli.logs import Logs, LogSettings, configure_logs
from dragoman.core.errors import DragomanError
from dragoman.core.third_party import LOGGERS
from dragoman.engine import process_log
from dragoman.engine_client import connection as process
from dragoman.server.request_line import request_line


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = before, level
    logging.captureWarnings(False)
    for name in ("dragoman.access", "dragoman.server", *LOGGERS):
        logging.getLogger(name).setLevel(logging.NOTSET)


@contextlib.contextmanager
def configured(file: Path, **settings: Any) -> Iterator[Logs]:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    logs = configure_logs(LogSettings(**settings), descriptor)
    try:
        yield logs
    finally:
        logs.close()
        os.close(descriptor)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log"


def said(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_a_line_is_one_flat_object(file: Path) -> None:
    with configured(file, json_output=True):
        fields = {"status": 200, "path": '/a"b\n'}
        extra = {"title": "request", "fields": fields}
        logging.getLogger("dragoman.access").info("status=%(status)d", fields, extra=extra)
        try:
            raise ValueError("over\nlines")
        except ValueError:
            logging.getLogger("dragoman.server").exception("it failed")
    request, failure = map(json.loads, said(file))
    assert list(request) == ["timestamp", "level", "target", "message", "status", "path"]
    assert request["message"] == "request"
    assert (request["status"], request["path"]) == (200, '/a"b\n')
    assert (failure["level"], failure["target"], failure["message"]) == ("ERROR", "dragoman.server", "it failed")
    assert "ValueError: over\nlines" in failure["exception"]


def test_people_get_lines(file: Path) -> None:
    with configured(file):
        logging.getLogger("dragoman.server").info("all is well", extra={"fields": {"a": 1}})
    [line] = said(file)
    assert line.endswith("INFO dragoman.server: all is well")


FORGED = "no\n2026-11-29 12:00:00,000 INFO dragoman.access: forged\r\x1b[2J\x85\u2028\u202eend"
VISIBLE = r"\r\x1b[2J\x85\u2028\u202eend"


def test_whatever_is_in_a_message_no_line_is_forged_and_no_terminal_commanded(file: Path) -> None:
    log = logging.getLogger("dragoman.server")
    with configured(file):
        log.error("%s", FORGED)
        try:
            raise ValueError(FORGED)
        except ValueError:
            log.exception("it failed")
    lines = file.read_text().split("\n")
    assert lines[0].endswith(" ERROR dragoman.server: no")
    assert lines[1] == f"    2026-11-29 12:00:00,000 INFO dragoman.access: forged{VISIBLE}"
    assert lines[2].endswith(" ERROR dragoman.server: it failed")
    assert all(line.startswith("    ") for line in lines[3:-1])
    assert lines[-2] == lines[1]
    with on_terminal(log_level="error") as shown:
        log.error("%s", FORGED)
    assert len(shown) == 2
    assert shown[1] == lines[1]


REQUEST = {
    "client": "127.0.0.1:40112",
    "method": "POST",
    "path": "/v1/chat/completions",
    "status": 200,
    "seconds": 0.031,
    "id": "req-4d0ced90feef10e05dbe96bf",
    "prompt_tokens": 15,
    "generated_tokens": 8,
    "tokens_per_second": 290.1,
}


@contextlib.contextmanager
def on_terminal(**settings: Any) -> Iterator[list[str]]:
    """Log to a terminal; afterwards the list has what it shows."""
    ours, theirs = pty.openpty()
    shown: list[str] = []
    logs = configure_logs(LogSettings(**settings), theirs)
    try:
        yield shown
    finally:
        logs.close()
        os.close(theirs)
        data = b""
        with contextlib.suppress(OSError):  # its other end is closed
            while part := os.read(ours, 1 << 16):
                data += part
        os.close(ours)
        shown += data.decode().splitlines()


def log_request(**fields: Any) -> None:
    fields = {**REQUEST, **fields}
    logging.getLogger("dragoman.access").info("%s", request_line(fields), extra={"title": "request", "fields": fields})


def test_a_terminal_gets_short_lines_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with on_terminal() as shown:
        log_request()
        log_request(status=404)
        log_request(status=500)
        logging.getLogger("dragoman.server").warning("careful")
    plain = [re.sub(r"\033\[\d+m", "", line) for line in shown]
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d POST /v1/chat/completions 200 0\.03 s 15\+8 tokens 290 tok/s req-4d0ced90", plain[0]
    )
    assert len(plain[0]) <= 80
    assert [
        " \033[32m200\033[0m " in shown[0],
        " \033[33m404\033[0m " in shown[1],
        " \033[31m500\033[0m " in shown[2],
    ] == [True] * 3
    assert plain[3].endswith(" warning: careful")


def test_a_terminal_without_colours_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with on_terminal() as shown:
        log_request(status=500)
    assert "\033" not in shown[0]


def test_a_file_has_the_whole_id_and_the_client(file: Path) -> None:
    with configured(file):
        log_request(key="ann", seconds=0.00042, generated_tokens=0, tokens_per_second=None)
    [line] = said(file)
    assert line.endswith(
        " INFO dragoman.access: POST /v1/chat/completions 200 0.0004 s 15+0 tokens req-4d0ced90feef10e05dbe96bf "
        "client=127.0.0.1:40112 key=ann"
    )


def test_libraries_are_quiet_unless_they_are_named(file: Path) -> None:
    with configured(file, verbose=True):
        for name in (*LOGGERS, "dragoman.models"):
            logging.getLogger(name).info("from %s", name)
    assert [line.rpartition(" ")[2] for line in said(file)] == ["dragoman.models"]
    with configured(file, log_level="warning,httpx2=info"):
        for name in LOGGERS:
            logging.getLogger(name).info("from %s", name)
    assert [line.rpartition(" ")[2] for line in said(file)][1:] == ["httpx2"]


def test_parts_may_have_levels_of_their_own(file: Path) -> None:
    with configured(file, log_level="warn,dragoman.access=info"):
        for name in ("dragoman.server", "dragoman.access"):
            logging.getLogger(name).info("from %s", name)
    assert [line.rpartition(" ")[2] for line in said(file)] == ["dragoman.access"]


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(DragomanError, match="--log-level loud: there is only"):
        configure_logs(LogSettings(log_level="info,loud"))


# JSON throughout -----------------------------------------------------------------------------------------------------


def test_whatever_is_said_is_json(file: Path) -> None:
    before = sys.stderr
    with configured(file, json_output=True):
        print("a note of a library", file=sys.stderr)
        sys.stderr.write("a bar 10 %\ra bar 100 %\n")
        warnings.warn("old\nuse", stacklevel=1)
        console.error("it cannot be: [0]")
        console.remarks(["an option has no effect"])
        sys.excepthook(KeyError, KeyError("lost"), None)
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        logging.getLogger("dragoman.server").info("%s", "\udcff no UTF-8", extra={"fields": {"path": Path("/x")}})
        assert not sys.stderr.isatty()
    assert sys.stderr is before
    lines = [json.loads(line) for line in said(file)]
    messages = [line["message"] for line in lines]
    assert messages[:2] == ["a note of a library", "a bar 100 %"]
    assert "old\nuse" in messages[2]
    assert (lines[3]["level"], messages[3]) == ("ERROR", "it cannot be: [0]")
    assert (lines[4]["level"], messages[4]) == ("INFO", "an option has no effect")
    assert "KeyError" in lines[5]["exception"]
    assert "ZeroDivisionError" in lines[6]["exception"]
    assert lines[7]["path"] == "/x"


@pytest.mark.parametrize("is_json", [True, False])
def test_last_words_without_a_lines_end_are_written_at_the_end(file: Path, is_json: bool) -> None:
    with configured(file, json_output=is_json):
        print("going down", end="", file=sys.stderr, flush=True)
    [line] = said(file)
    assert (json.loads(line)["message"] if is_json else line) == "going down"


def test_lines_of_the_engine_are_lines_of_the_log(file: Path) -> None:
    formatter = process_log.LineFormatter()
    try:
        raise ValueError("in the engine")
    except ValueError:
        record = logging.LogRecord("dragoman.engine", logging.ERROR, "", 0, "it %s", ("fails",), sys.exc_info())
    sent = formatter.format(record).encode()
    with configured(file, json_output=True):
        reader = process.LineReader()
        reader.data_received(sent[:20])
        reader.data_received(sent[20:] + b"\n\nterminate called: \xff\n" + b"x" * 70_000)
        reader.data_received(b'\n{"type": "log"}\nlast')
        reader.connection_lost(None)
    first, *others = map(json.loads, said(file))
    assert (first["level"], first["target"], first["message"]) == ("ERROR", "dragoman.engine", "it fails")
    assert "ValueError: in the engine" in first["exception"]
    assert others[0]["message"].startswith("terminate called")
    assert {line["target"] for line in others} == {"dragoman.engine_client.connection"}
    assert [line["message"] for line in others][-2:] == ['{"type": "log"}', "last"]


# Nobody waits --------------------------------------------------------------------------------------------------------


def note(count: int) -> str:
    return f"{count} lost\n"


def filled(writer: LogWriter, lines: int) -> float:
    """Write so many lines of 100 bytes. Returns the seconds that took."""
    began = time.monotonic()
    for i in range(lines):
        writer.write(f"{i:099}\n")
    return time.monotonic() - began


def test_a_full_pipe_keeps_nobody_waiting_and_what_is_lost_is_said() -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing, note, max_bytes=100_000)
    assert filled(writer, 5000) < 60
    assert writer.dropped > 2000
    assert not writer.flush(0.05)
    taken: list[bytes] = []
    reader = threading.Thread(target=lambda: taken.extend(iter(lambda: os.read(reading, 65536), b"")))
    reader.start()
    assert writer.flush(60)
    writer.write("again\n")
    assert writer.flush(60)
    os.close(writing)
    reader.join()
    os.close(reading)
    *lines, again = b"".join(taken).decode().splitlines()
    number = lost = 0
    for line in lines:
        if line.endswith(" lost"):
            lost += int(line.removesuffix(" lost"))
            number += int(line.removesuffix(" lost"))
        else:
            assert int(line) == number, "a line is missing where no note says so"
            number += 1
    assert number == 5000
    assert writer.dropped == lost
    assert again == "again"


def test_a_closed_pipe_and_a_full_disk_are_counted() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb", buffering=0) as full:
        for descriptor in (writing, full.fileno()):
            writer = LogWriter(descriptor, note)
            filled(writer, 50)
            assert writer.flush(60)
            assert writer.dropped == 50
            writer.close(1)
    os.close(writing)


def test_a_descriptor_that_does_not_wait_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    writer = LogWriter(writing, note)
    filled(writer, 2000)
    taken = b""
    while len(taken) < 200_000:
        taken += os.read(reading, 65536)
    assert writer.dropped == 0
    os.close(reading)
    os.close(writing)


def test_the_end_waits_for_nobody_for_long() -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing, note)
    filled(writer, 2000)
    began = time.monotonic()
    writer.close(0.1)
    assert time.monotonic() - began < 60
    writer.write("too late\n")
    assert writer.dropped == 1
    os.close(reading)


def test_what_is_written_without_a_thread_is_seen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit of processes or of memory: the error that tells of it is often the only text."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reading, writing = os.pipe()
    writer = LogWriter(writing, note)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        writer.write("one\n")
        assert os.read(reading, 100) == b"one\n"
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writing, bytes(4096))
        writer.write("two\n")  # the reader does not take it: it waits
        assert not writer.flush(0.01)
        assert os.read(reading, 4096) == bytes(4096)
        assert writer.flush(1)
        assert os.read(reading, 100) == b"two\n"
    writer.write("three\n")
    assert writer.flush()
    assert os.read(reading, 100) == b"three\n"
    writer.close()
    os.close(reading)
    os.close(writing)
