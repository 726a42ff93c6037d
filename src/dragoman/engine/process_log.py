"""Log of the engine's process: one JSON line per record on its standard error, which the server reads.

So its records appear in the form of the server's log, and the engine never waits for a log that is not read.
"""

from __future__ import annotations

import logging

import msgspec

from dragoman.core.third_party import quiet_hub, quiet_loggers

raw = logging.getLogger("dragoman.engine_client.connection")
"""Logger for lines that are not records: last messages of libraries and of the interpreter."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log", forbid_unknown_fields=True):
    """One record. ``exception``: the traceback."""

    level: int
    target: str
    message: str
    exception: str = ""


class LineFormatter(logging.Formatter):
    """Formats records as ``LogLine``."""

    def format(self, record: logging.LogRecord) -> str:
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        line = LogLine(level=record.levelno, target=record.name, message=record.getMessage(), exception=exception)
        return msgspec.json.encode(line).decode()


def log_to_server() -> None:
    """Configure the engine process's log: records go to standard error as lines for ``log_line``."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    quiet_loggers()
    quiet_hub()


def log_line(line: bytes) -> None:
    """Log a line of the process: a record of its log, or raw text."""
    if not line.strip():
        return
    try:
        entry = msgspec.json.decode(line, type=LogLine)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raw.warning("%s", line.decode("utf-8", "replace").rstrip())
        return
    logger = logging.getLogger(entry.target)
    if logger.isEnabledFor(entry.level):
        record = logger.makeRecord(entry.target, entry.level, "", 0, entry.message, (), None)
        record.exc_text = entry.exception or None
        logger.handle(record)
