"""The limit of open files: what a server needs, and how many connections it allows."""

from __future__ import annotations

import logging
import resource

from dragoman.core.errors import DragomanError

log = logging.getLogger("dragoman.server")

LEAST_FILES = 40
"""Files that a server has open at its busiest moment without clients, and some connections."""


OTHER_DESCRIPTORS = 160
"""Descriptors for everything but clients: model files, the pipes of the engine and its successor, databases, helper
processes."""

MIN_CONNECTIONS = 16
"""Connections that are allowed however low the limit of open files is."""


def check_open_files() -> None:
    """Raise DragomanError where a server without clients could not open its files."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        raise DragomanError(
            f"{most} files may be open here, and a server needs {LEAST_FILES} at least: raise the limit (ulimit -Hn, "
            "LimitNOFILE= of a systemd unit)"
        )


def allow_connections(wanted: int, reserve: int) -> int:
    """Raise the soft limit of open files to what so many connections need; return how many connections it allows."""
    needed = wanted + reserve + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if reachable > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    if soft >= needed:
        return wanted
    possible = max(MIN_CONNECTIONS, soft - reserve - OTHER_DESCRIPTORS)
    log.warning(
        "%d open files are allowed: enough for %d connections, not for the %d of --max-connections; "
        "raise the hard limit (ulimit -Hn, LimitNOFILE= of a systemd unit) to %d",
        soft,
        possible,
        wanted,
        needed,
    )
    return possible
