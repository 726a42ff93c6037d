"""Paths below the user's home folder, which there need not be, and need not be one that may be searched."""

from __future__ import annotations

import errno
import os
from pathlib import Path

NO_HOME = "/nonexistent"
"""What users without a home folder have for one, by Debian's convention. There is no such folder."""

MOUNTS = Path("/proc/self/mountinfo")


def expand_user(path: str | Path) -> Path:
    """Return the path with ``~`` replaced by the home folder, or by ``NO_HOME`` where the user has none.

    ``~name`` stays as it is where there is no such user. Never raises, as ``Path.expanduser`` would.
    """
    found = os.path.expanduser(path)
    if found == "~" or found.startswith("~/"):
        found = NO_HOME + found[1:]
    return Path(found)


def ensure_home_variable() -> None:
    """Set HOME where it is not set and the system does not know the user: libraries would write to a folder named
    ``~`` in the working folder."""
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = NO_HOME


def is_file(path: Path) -> bool:
    """Return whether there is a file; False too where its folder may not be searched."""
    return os.path.isfile(path)


def make_private_folder(path: Path) -> None:
    """Make a folder for this user alone, and those above it, where there is none. Raises OSError: NotADirectoryError
    where a file has its name."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:  # "File exists" says nothing to somebody who named a file in place of a folder
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None


def is_in_memory(path: Path) -> bool:
    """Return whether files below a folder, which need not exist yet, take memory in place of a disk, as a container's
    only writable folder often does. False where the system does not say."""
    for place in (path, *path.parents):
        try:
            device = os.stat(place).st_dev
        except OSError:
            continue
        number = f"{os.major(device)}:{os.minor(device)}"
        try:
            lines = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            return False
        mounts = (line.split(" - ", 1) for line in lines if line.split()[2:3] == [number])
        return any(system.split()[:1] in (["tmpfs"], ["ramfs"]) for _, system in mounts)
    return False


def unreadable(path: Path) -> str:
    """Return why the files of a folder cannot be listed; empty where they can."""
    try:
        with os.scandir(path):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def unusable(path: Path) -> str:
    """Return why a folder cannot be made or written to, as far as permissions say; empty where it can."""
    for place in (path, *path.parents):
        try:
            os.stat(place)
        except FileNotFoundError:
            if os.path.islink(place):
                return f"{place} is a link to what is not there"
            continue
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        if not os.path.isdir(place):
            return f"{place} is not a folder"
        return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written to"
    return ""
