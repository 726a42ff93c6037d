"""Memory that the C library keeps after it was freed, given back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import threading

DELAY_S = 1.0
"""Time from the end of the last large body to that, in which its last pieces are freed."""


def return_large_blocks(nbytes: int) -> None:
    """Have blocks of so many bytes and more return to the system as soon as they are free: by itself the C library
    raises that size to the largest that was freed."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(-3, nbytes)  # M_MMAP_THRESHOLD


def return_freed_memory() -> None:
    """Return the pages between blocks in use. Takes 0.04 s for 100 MB; other threads run meanwhile."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def return_freed_memory_soon() -> None:
    """Do that in a moment, in a thread that ends with it."""
    timer = threading.Timer(DELAY_S, return_freed_memory)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no more threads can be started: it is returned another time
        timer.start()
