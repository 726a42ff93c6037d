"""The Python face of the native kernels: one thin function per kernel, shapes and dtypes checked."""

from dragoman.kernels._native import force, instruction_set, instruction_sets, set_threads, threads

__all__ = ["force", "instruction_set", "instruction_sets", "set_threads", "threads"]
