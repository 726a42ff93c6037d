"""The log: lines for people, or one JSON object a line for programs. Neither blocks the process."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import re
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Any

import msgspec

from dragoman.cli import console
from dragoman.cli.log_writer import LogWriter
from dragoman.cli.plain_text import HANDLER, is_unicode
from dragoman.core.errors import DragomanError
from dragoman.core.third_party import quiet_loggers
from dragoman.server.request_line import request_line

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
ACCESS = "dragoman.access"
SHOWN_ID_CHARS = 12
"""The length of a request's id on a terminal: a line of a chat then fits 80 columns."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LONGEST_LINE = 64 * 1024
"""The longest text that is written to standard error without a line's end."""

log = logging.getLogger("dragoman.server")


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the log on standard error.

    Attributes:
        log_level: the least important lines that are written: debug, info, warning or error; for a part of the program
            after its name, as in info,dragoman.access=warning. Nobody's text is in any of them.
        json_output: one flat JSON object a line, and nothing else.
        verbose: as --log-level debug: with lines about health checks and each downloaded file.
    """

    PANEL = "Logs and traces"

    log_level: str = "info"
    json_output: bool = False
    verbose: Annotated[bool, msgspec.Meta(extra={"short": "-v", "configurable": False})] = False


class JsonFormatter(logging.Formatter):
    """Formats a record as ``timestamp``, ``level``, ``target``, ``message``, and its other fields.

    A record may have ``fields``, and a ``title`` as the message where fields are separate.
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


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
CONTINUED = "\n    "


def plain(text: str) -> str:
    """Return a text whose lines after the first are indented, without control characters: whatever is in a record, what
    begins in the first column is the server's own, and a terminal takes nothing for a command."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text).replace("\n", CONTINUED)


class LineFormatter(logging.Formatter):
    """Formats lines with date, level and logger."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


class TerminalFormatter(logging.Formatter):
    """Formats short lines: the time of day, a level other than the usual one, and the logger if it is not the server.

    ``colors``: times are dim, levels and statuses have the colours of a traffic light.
    """

    DIM, RED, YELLOW, GREEN = "2", "31", "33", "32"

    def __init__(self, *, colors: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        text = self._request(record) if record.name == ACCESS else self._message(record)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        trace = "".join(plain(f"\n{each}") for each in (record.exc_text, record.stack_info) if each)
        return f"{self._colored(self.formatTime(record, self.datefmt), self.DIM)} {text}{trace}"

    def _message(self, record: logging.LogRecord) -> str:
        color = self.RED if record.levelno >= logging.ERROR else self.YELLOW
        level = f"{self._colored(record.levelname.lower(), color)}: " if record.levelno != logging.INFO else ""
        name = "" if record.name.startswith("dragoman") and record.levelno >= logging.INFO else f"{record.name}: "
        return f"{level}{name}{plain(record.getMessage())}"

    def _request(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        status = fields["status"]
        color = self.GREEN if status < 400 else self.YELLOW if status < 500 else self.RED
        shown = str(status)
        line = request_line(fields, id_chars=SHOWN_ID_CHARS)
        return line.replace(f" {shown} ", f" {self._colored(shown, color)} ", 1)

    def _colored(self, text: str, color: str) -> str:
        return f"\033[{color}m{text}\033[0m" if self._colors else text


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
    """Replaces ``sys.stderr``: prints, warnings and progress bars of other code go through the log's writer.

    With ``is_json`` each line becomes one of the log's.
    """

    def __init__(self, writer: LogWriter, descriptor: int, *, is_json: bool) -> None:
        self._writer, self._descriptor, self._is_json = writer, descriptor, is_json
        self._as_it_comes = not is_json and os.isatty(descriptor)
        self._begun = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._writer.encoding

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
                    # Of a bar that has overwritten itself only the last state is kept.
                    log.info("%s", line.rpartition("\r")[2])
        return len(text)

    def end_line(self) -> None:
        """End the unfinished line, if there is one."""
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
        """Write the rest, for a moment at most, and restore everything."""
        self._standard_error.end_line()
        sys.stderr, sys.excepthook, sys.unraisablehook, threading.excepthook = self._before
        console.redirect(None)
        atexit.unregister(self.close)
        self.writer.close()


def configure_logs(settings: LogSettings, descriptor: int = 2) -> Logs:
    """Configure the log, once, at the start of the process. Raises DragomanError for an unknown level."""
    levels = {"": logging.INFO, **dict(map(_level, settings.log_level.split(",")))}
    if settings.verbose:
        levels[""] = logging.DEBUG
    formatter = _formatter(settings, descriptor)

    def note(count: int) -> str:
        text = f"{count} log lines were dropped: they were not read, or could not be written"
        where = ("dragoman.log", logging.WARNING, __file__, 0)
        return formatter.format(logging.LogRecord(*where, text, None, None)) + "\n"

    encoding = _encoding(settings, descriptor)
    errors = "backslashreplace" if is_unicode(encoding) else HANDLER
    writer = LogWriter(descriptor, note, encoding=encoding, errors=errors)
    handler = WriterHandler(writer)
    handler.setFormatter(formatter)
    logging.basicConfig(level=levels.pop(""), handlers=[handler], force=True)
    logging.captureWarnings(True)
    quiet_loggers()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logs = Logs(writer, StandardError(writer, descriptor, is_json=settings.json_output), is_json=settings.json_output)
    atexit.register(logs.close)
    return logs


def _encoding(settings: LogSettings, descriptor: int) -> str:
    """Return the terminal's own encoding; UTF-8 for everything else."""
    if settings.json_output or not os.isatty(descriptor):
        return "utf-8"
    return getattr(sys.stderr, "encoding", None) or "utf-8"


def _formatter(settings: LogSettings, descriptor: int) -> logging.Formatter:
    if settings.json_output:
        return JsonFormatter()
    if os.isatty(descriptor):
        return TerminalFormatter(colors=console.has_colors())
    return LineFormatter()


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None:
        log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _level_of(is_error: bool) -> int:
    return logging.ERROR if is_error else logging.INFO


def _level(text: str) -> tuple[str, int]:
    """Return the logger's name and level of ``info`` or ``dragoman.access=info``."""
    name, _, level = text.strip().rpartition("=")
    if level.lower() not in LEVELS:
        raise DragomanError(f"--log-level {text.strip()[:64]}: there is only {', '.join(LEVELS)}")
    return name, LEVELS[level.lower()]
