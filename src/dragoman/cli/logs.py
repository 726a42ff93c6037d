"""The log: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

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


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to standard error.

    Attributes:
        log_level: the least important lines that are written: debug, info, warning or error; for a part of the program
            after its name, as in info,dragoman.access=warning. Nobody's text is in any of them.
        json_output: one flat JSON object a line.
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
        return msgspec.json.encode(line).decode()


def configure_logs(settings: LogSettings) -> None:
    """Once, at the start of the process. Raises DragomanError for a level that is none."""
    levels = dict(map(_level, settings.log_level.split(",")))
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.json_output else logging.Formatter(FORMAT))
    logging.basicConfig(level=levels.pop("", logging.INFO), handlers=[handler], force=True)
    # Other packages' words about every connection and file are no help in finding our faults.
    for name in ("asyncio", "httpcore", "httpx", "urllib3", "filelock", "grpc"):
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _level(text: str) -> tuple[str, int]:
    """``info`` or ``dragoman.access=info``."""
    name, _, level = text.strip().rpartition("=")
    if level.lower() not in LEVELS:
        raise DragomanError(f"--log-level {text.strip()[:64]}: there is only {', '.join(LEVELS)}")
    return name, LEVELS[level.lower()]
