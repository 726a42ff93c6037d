"""What the engine's process has to say to people: a line each in JSON on its standard error, which the server reads.

So its lines come in the form of the server's log, and a log that nobody reads never makes the engine wait.
"""

from __future__ import annotations

import logging

import msgspec

raw = logging.getLogger("dragoman.engine_client.connection")
"""Of lines that are not ours: last words of libraries, and of the interpreter."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log", forbid_unknown_fields=True):
    """One record. ``exception``: the traceback."""

    level: int
    target: str
    message: str
    exception: str = ""


class LineFormatter(logging.Formatter):
    """Writes records as ``LogLine``."""

    def format(self, record: logging.LogRecord) -> str:
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        line = LogLine(level=record.levelno, target=record.name, message=record.getMessage(), exception=exception)
        return msgspec.json.encode(line).decode()


def log_to_server() -> None:
    """In the engine's process: records go to standard error as lines for ``log_line``."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_line(line: bytes) -> None:
    """Log a line of the process: a record of its log, or whatever it is."""
    if not line.strip():
        return
    try:
        said = msgspec.json.decode(line, type=LogLine)
    except msgspec.MsgspecError:
        raw.warning("%s", line.decode("utf-8", "replace").rstrip())
        return
    logger = logging.getLogger(said.target)
    if logger.isEnabledFor(said.level):
        record = logger.makeRecord(said.target, said.level, "", 0, said.message, (), None)
        record.exc_text = said.exception or None
        logger.handle(record)
