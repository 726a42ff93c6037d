"""The limit of open files: what a server needs, and how many connections it allows."""

from __future__ import annotations

import logging
import resource

from dragoman.core.errors import DragomanError

log = logging.getLogger("dragoman.server")

LEAST_FILES = 64
"""Files with which a server can start. Without clients it has 39 open; the start of a helper process takes some more
for a moment, and some are for connections."""

OWN_LEAST = 48
OTHER_DESCRIPTORS = 160
"""Descriptors for everything but clients: model files, the pipes of the engine and its successor, databases, helper
processes. Where there are few, half of them, but never less than ``OWN_LEAST``."""


def check_open_files() -> None:
    """Raise DragomanError where a server without clients could not open its files."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        raise DragomanError(
            f"{most} files may be open here, and a server needs {LEAST_FILES} at least: raise the limit (ulimit -Hn, "
            "LimitNOFILE= of a systemd unit)"
        )


def allow_connections(wanted: int, reserve: int, *, descriptors: int = 1) -> tuple[int, int]:
    """Raise the soft limit of open files to what so many connections, and those in reserve, need; return how many of
    both it allows. ``descriptors``: of each connection, with that to another server which answers it."""
    needed = descriptors * wanted + reserve + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted, reserve
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if reachable > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    if soft >= needed:
        return wanted, reserve
    # Connections that took the last descriptors would have uploads, grammars and the engine's next start fail.
    clients = max(2, soft - min(OTHER_DESCRIPTORS, max(OWN_LEAST, soft // 2)))
    reserve = min(reserve, max(1, clients // 4))
    possible = min(wanted, max(1, (clients - reserve) // descriptors))
    if possible < wanted:
        log.warning(
            "%d open files are allowed: enough for %d connections, not for the %d of --max-connections; "
            "raise the hard limit (ulimit -Hn, LimitNOFILE= of a systemd unit) to %d",
            soft,
            possible,
            wanted,
            needed,
        )
    return possible, reserve
