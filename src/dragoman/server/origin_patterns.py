"""Patterns of hosts and of origins, as operators write them; apart from their use, which the command line need not
load."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from dragoman.core.errors import DragomanError
from dragoman.server.settings import BrowserSettings

DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""The ports that browsers leave out of an origin."""

_HOST_PATTERN = re.compile(r"\*|(?:\*\.)?[\w-]+(?:\.[\w-]+)*", re.ASCII)
_ORIGIN_PATTERN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:]+\]|[^\s/?#@:\[\]]+)(?P<port>:(?:\d+|\*))?"
)


def check_settings(settings: BrowserSettings) -> None:
    """Raise DragomanError for an invalid pattern."""
    for text in settings.allow_host:
        host_pattern(text)
    for text in settings.cors_origin:
        origin_pattern(text)


@lru_cache(1024)
def origin_pattern(text: str, option: str = "--cors-origin") -> re.Pattern[str]:
    """Return a regular expression for the origins of a pattern such as ``https://*.example.org`` or
    ``http://localhost:*``.

    Raises DragomanError for an invalid pattern, which names the ``option``.
    """
    if text in ("*", "null"):
        return re.compile(".*" if text == "*" else "null")
    match = _ORIGIN_PATTERN.fullmatch(text.lower())
    if match is None:
        raise DragomanError(
            f"{option} {text!r}: an origin is a scheme and a host, and a port where it is not the scheme's own, "
            "with nothing behind them: https://example.org, https://*.example.org, http://localhost:*, app://*, or *"
        )
    port = match["port"] or ""
    if port == DEFAULT_PORTS.get(match["scheme"]):
        port = ""  # browsers leave it out
    host = re.escape(match["host"]).replace(r"\*", r"[^/:@]*")
    return re.compile(f"{re.escape(match['scheme'])}://{host}" + (r"(?::\d+)?" if port == ":*" else re.escape(port)))


def host_pattern(text: str) -> Callable[[str], bool]:
    """Return a predicate for the names that match a pattern such as ``*.example.org``.

    Raises DragomanError for an invalid pattern.
    """
    pattern = text.lower().removesuffix(".")
    if not _HOST_PATTERN.fullmatch(pattern):
        raise DragomanError(
            f"--allow-host {text}: a host is a name without scheme and port: llm.example.org, *.example.org, or *"
        )
    if pattern == "*":
        return lambda name: True
    if pattern.startswith("*."):
        return lambda name: name.endswith(pattern[1:])
    return lambda name: name == pattern
