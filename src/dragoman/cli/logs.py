"""The log: lines for people, or one JSON object a line for programs. Neither keeps anybody waiting."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType

import msgspec

from dragoman.cli import console
from dragoman.cli.log_writer import LogWriter
from dragoman.core.errors import DragomanError

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LONGEST_LINE = 64 * 1024
"""Of what is written to standard error without a line's end."""

log = logging.getLogger("dragoman.server")


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to standard error.

    Attributes:
        log_level: the least important lines that are written: debug, info, warning or error; for a part of the program
            after its name, as in info,dragoman.access=warning. Nobody's text is in any of them.
        json_output: one flat JSON object a line, and nothing else.
    """

    PANEL = "Logs and traces"

    log_level: str = "info"
    json_output: bool = False


class JsonFormatter(logging.Formatter):
    """``timestamp``, ``level``, ``target``, ``message``, and what else a line comes with.

    A record may have ``fields``, and a ``title`` for where they stand on their own.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "target": record.name,
            "message": getattr(record, "title", "") or record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # the engine's
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:  # a file name that is no UTF-8
            return json.dumps(line, default=str)


class WriterHandler(logging.Handler):
    """Hands formatted lines to the writer."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class StandardError(io.TextIOBase):
    """What takes the place of ``sys.stderr``: prints, warnings and bars of others go the way of the log.

    With ``is_json`` each line becomes one of the log's.
    """

    def __init__(self, writer: LogWriter, descriptor: int, *, is_json: bool) -> None:
        self._writer, self._descriptor, self._is_json = writer, descriptor, is_json
        self._as_it_comes = not is_json and os.isatty(descriptor)
        self._begun = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._as_it_comes

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._as_it_comes:
            self._writer.write(text)
            return len(text)
        with self._lock:
            whole, end, rest = (self._begun + text).rpartition("\n")
            self._begun = rest[-LONGEST_LINE:]
            if end and not self._is_json:
                self._writer.write(whole + end)
            elif end:
                for line in filter(None, map(str.rstrip, whole.split("\n"))):
                    # What a bar has drawn over itself is what is left to be seen.
                    log.info("%s", line.rpartition("\r")[2])
        return len(text)

    def end_line(self) -> None:
        """Write what has been begun, if anything has."""
        if self._begun:
            self.write("\n")


class Logs:
    """The log of this process, from ``configure_logs`` to ``close``."""

    def __init__(self, writer: LogWriter, standard_error: StandardError, *, is_json: bool) -> None:
        self.writer = writer
        self.is_json = is_json
        self._standard_error = standard_error
        self._before = (sys.stderr, sys.excepthook, sys.unraisablehook, threading.excepthook)
        sys.stderr = standard_error
        if is_json:
            sys.excepthook = _log_uncaught
            sys.unraisablehook = lambda what: _log_uncaught(what.exc_type, what.exc_value, what.exc_traceback)
            threading.excepthook = lambda what: _log_uncaught(what.exc_type, what.exc_value, what.exc_traceback)
            console.redirect(lambda message, is_error: log.log(_level_of(is_error), "%s", message))

    def close(self) -> None:
        """Write what is left, for a moment at most, and put everything back."""
        self._standard_error.end_line()
        sys.stderr, sys.excepthook, sys.unraisablehook, threading.excepthook = self._before
        console.redirect(None)
        atexit.unregister(self.close)
        self.writer.close()


def configure_logs(settings: LogSettings, descriptor: int = 2) -> Logs:
    """Once, at the start of the process. Raises DragomanError for a level that is none."""
    levels = dict(map(_level, settings.log_level.split(",")))
    formatter = JsonFormatter() if settings.json_output else logging.Formatter(FORMAT)

    def note(count: int) -> str:
        text = f"{count} log lines were dropped: they were not read, or could not be written"
        where = ("dragoman.log", logging.WARNING, __file__, 0)
        return formatter.format(logging.LogRecord(*where, text, None, None)) + "\n"

    writer = LogWriter(descriptor, note)
    handler = WriterHandler(writer)
    handler.setFormatter(formatter)
    logging.basicConfig(level=levels.pop("", logging.INFO), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # Other packages' words about every connection and file are no help in finding our faults.
    for name in ("asyncio", "httpcore", "httpx", "urllib3", "filelock", "grpc"):
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logs = Logs(writer, StandardError(writer, descriptor, is_json=settings.json_output), is_json=settings.json_output)
    atexit.register(logs.close)
    return logs


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None:
        log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _level_of(is_error: bool) -> int:
    return logging.ERROR if is_error else logging.INFO


def _level(text: str) -> tuple[str, int]:
    """``info`` or ``dragoman.access=info``."""
    name, _, level = text.strip().rpartition("=")
    if level.lower() not in LEVELS:
        raise DragomanError(f"--log-level {text.strip()[:64]}: there is only {', '.join(LEVELS)}")
    return name, LEVELS[level.lower()]
