"""Files that a user named, which need not be files: to open a named pipe waits for ever, and /dev/zero has no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

import msgspec

from dragoman.core.errors import DragomanError

FileName = Annotated[str, msgspec.Meta(extra={"file": True})]
"""The type of a setting that names a file or a folder, or may. On the command line it need not be UTF-8, as other texts
have to be, and may not be empty."""

_OPENED = ("/dev/fd/", "/proc/self/fd/")
"""Where shells name what they have opened: ``<(command)`` is ``/dev/fd/63``."""


def irregular(path: str | Path) -> str:
    """Return what is wrong with a path at which there is no file that can be read to its end; empty for a file, and
    for what is not there or may not be looked at: to open that says why.

    What a shell has opened may be read, a pipe too, and so may ``/dev/null``.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    kind = found.st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind) or found.st_rdev == os.stat(os.devnull).st_rdev != 0:
        return ""
    if stat.S_ISFIFO(kind) and (str(path) == "/dev/stdin" or str(path).startswith(_OPENED)):
        return ""
    return f"{path} is not a regular file"


def require_regular(path: str | Path, error: type[DragomanError] = DragomanError) -> None:
    """Raise the error where ``irregular`` says what is wrong."""
    if problem := irregular(path):
        raise error(problem)
