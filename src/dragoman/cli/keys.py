"""``dragoman keys``: make an API key, and the line of ``--api-key-file`` that knows it again."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.core.errors import DragomanError

HERE = {"configurable": False}
"""About one key, and therefore only on the command line."""


class NewKeySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whose key, and what it is good for.

    Attributes:
        holder: name by which the file tells keys apart.
        admin: let it also load and unload models, not only generate with them.
        given: take the key from standard input instead of making one.
    """

    PANEL = "Key"

    holder: Annotated[str, Meta(pattern=r"^[^\s#]{1,64}$", extra=HERE)] = "key"
    admin: Annotated[bool, Meta(extra=HERE)] = False
    given: Annotated[bool, Meta(extra=HERE)] = False


def keys(new: NewKeySettings) -> None:
    """Make an API key.

    Its line for --api-key-file goes to standard output (dragoman keys >> keys.txt), the key itself, this once, to
    standard error.
    """
    from dragoman.server.keys import MIN_CHARS, SCOPES, hashed, new_key

    key = sys.stdin.readline().strip() if new.given else new_key()
    if len(key) < MIN_CHARS:
        raise DragomanError(f"a key has at least {MIN_CHARS} characters")
    print(hashed(key, new.holder, SCOPES if new.admin else SCOPES[:1]).line)
    if not new.given:
        console.notes().print(key, markup=False)
