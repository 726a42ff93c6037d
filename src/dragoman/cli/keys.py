"""``dragoman keys``: make an API key, and its line of ``--api-key-file``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.core.errors import DragomanError
from dragoman.server.key_file import OPTIONS, SCOPES, hashed, new_key, read_end, read_limit
from dragoman.server.keys import MIN_CHARS

HERE = {"configurable": False}
"""Options about one key, and therefore only on the command line."""


class NewKeySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The key's holder, scopes and limits.

    Attributes:
        holder: name by which the file tells keys apart.
        admin: let it also load and unload models, not only generate with them.
        given: take the key from standard input instead of making one.
        expires: last day that the key is good, in UTC, as 2027-01-31, or a moment, as 2027-01-31T12:00Z.
        weight: share of service beside that of other holders; theirs is 1 where the file says nothing.
        priority: highest priority that a request of the holder may have.
        running: sequences of the holder that are computed at one time. This and the following may be unlimited, which
            lifts the server's limit.
        waiting: sequences of the holder that wait for their first token.
        requests_min: requests of the holder within any minute.
        requests_day: requests of the holder on a day of UTC.
        tokens_min: tokens of prompts and answers within any minute.
        tokens_day: tokens of prompts and answers on a day of UTC.
    """

    PANEL = "Key"

    holder: Annotated[str, Meta(pattern=r"^[^\s#]{1,64}$", extra=HERE)] = "key"
    admin: Annotated[bool, Meta(extra=HERE)] = False
    given: Annotated[bool, Meta(extra=HERE)] = False
    expires: Annotated[str | None, Meta(extra=HERE)] = None
    weight: Annotated[str | None, Meta(extra=HERE)] = None
    priority: Annotated[str | None, Meta(extra=HERE)] = None
    running: Annotated[str | None, Meta(extra=HERE)] = None
    waiting: Annotated[str | None, Meta(extra=HERE)] = None
    requests_min: Annotated[str | None, Meta(extra=HERE)] = None
    requests_day: Annotated[str | None, Meta(extra=HERE)] = None
    tokens_min: Annotated[str | None, Meta(extra=HERE)] = None
    tokens_day: Annotated[str | None, Meta(extra=HERE)] = None


def keys(new: NewKeySettings) -> None:
    """Make an API key.

    Its line for --api-key-file goes to standard output (dragoman keys >> keys.txt), the key itself, this once, to
    standard error.
    """
    if not new.holder.isprintable():  # nor are bytes that are no UTF-8, with which no server could read the file
        raise DragomanError("--holder has characters that are not printable")
    given = {field: getattr(new, option.name.replace("/", "_")) for field, option in OPTIONS.items()}
    try:
        limits = {field: read_limit(field, text) for field, text in given.items() if text is not None}
        expires = None if new.expires is None else read_end(new.expires)
    except ValueError as error:
        raise DragomanError(str(error)) from None
    if expires is not None and expires <= datetime.now(UTC):
        raise DragomanError(f"--expires {new.expires} is over: no server would take this key")
    key = sys.stdin.readline().strip() if new.given else new_key()
    if len(key) < MIN_CHARS:
        raise DragomanError(f"a key has at least {MIN_CHARS} characters")
    print(hashed(key, new.holder, SCOPES if new.admin else SCOPES[:1], limits, expires).line, flush=True)
    if not new.given:
        # A program that reads the key gets nothing else.
        told = [key] if not sys.stderr.isatty() else [f"API key of {new.holder}, shown this once: {key}"]
        if sys.stdout.isatty() and sys.stderr.isatty():
            told.insert(0, "^ for --api-key-file; the line holds no secret")
        for line in told:
            console.notes().print(line, markup=False)
