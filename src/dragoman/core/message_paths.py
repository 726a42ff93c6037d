"""Messages for clients, which are not told where files are on the server's machine."""

from __future__ import annotations

import os
import re

_FOLDERS = re.compile(r"""(?:^|(?<=[\s'"(=,;]))/(?:[^/\s:'"(),;]+/)+""")
"""The folders of an absolute path, as far as it has no spaces."""


def without_paths(message: str, place: str | None = None) -> str:
    """Return a message with files and folders by their names alone.

    ``place``: the file or folder that it is about, whose path may have any characters. The files of a folder keep
    their places in it.
    """
    if place is not None and os.path.isabs(place):
        for path in {place.rstrip("/"), os.path.realpath(place)} - {"", "/"}:
            inside, name = f"{path}/", os.path.basename(path)
            message = message.replace(inside, "").replace(path, name)
    return _FOLDERS.sub("", message)
