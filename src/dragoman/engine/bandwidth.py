"""``python -m dragoman.engine.bandwidth <parent>``: measure how fast this machine reads memory.

It takes 256 MiB, and all cores for half a second, in a process of its own.
"""

from __future__ import annotations

import contextlib
import sys

from dragoman import kernels
from dragoman.child_process import die_with_parent
from dragoman.models.memory import MEASURED_BYTES, available_memory

MEASURE_S = 0.5
"""As long as ``dragoman plan`` measures."""


def main() -> int:
    """Print the bytes that all threads read in a second. Returns 1, with the reason printed, where memory is short."""
    die_with_parent(int(sys.argv[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # where memory ends, this process is the one to go
    if available_memory() < MEASURED_BYTES:
        print("there is too little memory for the measurement")
        return 1
    print(kernels.memory_bandwidth(MEASURE_S))
    return 0


if __name__ == "__main__":
    sys.exit(main())
