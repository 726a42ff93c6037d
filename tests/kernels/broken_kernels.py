"""Stands in for ``python -m dragoman.kernels.self_test_checks``, with kernels that are wrong or end their process.

broken_kernels.py KIND[,KIND...] LEVEL
"""

import os
import signal
import sys

import numpy as np

from dragoman.kernels import _native, self_test_checks

linear = _native.linear


def is_portable() -> bool:
    return _native.instruction_set() == "portable"


def wrong(x, w, out):
    """int8 loses a product of its last group."""
    if w.precision == "int8":
        out[-1, -1] += 0.01 * np.abs(out).max()


def depends_on_company(x, w, out):
    if len(x) > 5 and w.precision == "bfloat16":
        out[2] = np.nextafter(out[2], np.float32(1e9))


def not_a_number(x, w, out):
    if w.precision == "float32":
        out[0, 0] = np.nan


def without_instruction(x, w, out):
    os.kill(os.getpid(), signal.SIGILL)


def raising(x, w, out):
    raise ValueError("there is no such kernel")


if __name__ == "__main__":
    kinds = [globals()[kind] for kind in sys.argv.pop(1).split(",")]

    def broken(x, w, bias, out, accumulate):
        linear(x, w, bias, out, accumulate)
        for kind in kinds if not is_portable() else ():
            kind(x, w, out)

    _native.linear = broken
    sys.exit(self_test_checks.main())
