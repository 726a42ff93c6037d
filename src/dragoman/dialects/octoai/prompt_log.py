"""Prompts whose senders allow it, in a file, where the operator wants one."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import msgspec

from dragoman.dialects.api import Exchange

log = logging.getLogger("dragoman.dialects.octoai")


class PromptLog:
    """Adds lines of JSON to a file that only its owner may read, until it has ``max_bytes``.

    ``path`` None: nothing is ever written. A file that cannot be written to costs a warning, not the request.
    """

    def __init__(self, path: str | None, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._turn = asyncio.Lock()
        self._warned = False

    async def add(self, exchange: Exchange, request_id: str, operation: str, values: dict[str, Any]) -> None:
        """Store the prompt of a checked body, if its sender said ``log_prompt`` and there is a file."""
        path = self._path
        if path is None or not values["log_prompt"]:
            return
        prompt = {name: values[name] for name in ("prompt", "suffix", "messages") if values.get(name) is not None}
        entry = {"time": time.time(), "request_id": request_id, "operation": operation, "model": values["model"]}
        user = {} if values["user"] is None else {"user": values["user"]}
        line = msgspec.json.encode(entry | user | prompt) + b"\n"
        async with self._turn:
            try:
                await exchange.run_blocking(lambda: self._append(path, line), "disk")
            except OSError as error:
                self._warn(f"cannot be written to: {error.strerror}")

    def _append(self, path: str, line: bytes) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size + len(line) > self._max_bytes:
                self._warn("is full")
            else:
                os.write(file, line)
        finally:
            os.close(file)

    def _warn(self, what: str) -> None:
        if not self._warned:
            log.warning("the log of prompts %s %s: nothing more is stored", self._path, what)
        self._warned = True
