"""What libraries would do by themselves: logs, progress bars, and threads of their own."""

from __future__ import annotations

import importlib
import logging
import os
import resource

LOGGERS = (
    "asyncio",
    "filelock",
    "grpc",
    "hf_xet",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "urllib3",
    "websockets",
)
"""They tell of every connection and every file, with addresses that hold signatures."""

_HUB_VARIABLES = {
    "HF_HUB_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
}
"""What the hub's library reads when it is imported."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def quiet_hub() -> None:
    """Before the hub's library is imported, here or in a child process: no log, no bars, and no calls but those that
    are asked for. What a user has set in the environment stays."""
    for name, value in _HUB_VARIABLES.items():
        os.environ.setdefault(name, value)


def tokenize_without_threads() -> None:
    """Have the tokenizers library start no threads, one for each processor, at its first text: this program gives it
    one text at a time, in a thread of its own pools. Where the system started no more just then, every later text would
    fail. What a user has set in the environment stays."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def import_numpy() -> None:
    """Import NumPy without threads of OpenBLAS, one for each processor, for a process that multiplies nothing. Where
    the system starts no more just then, OpenBLAS raises SIGINT and may crash."""
    is_set = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        importlib.import_module("numpy")
    finally:
        if not is_set:
            os.environ.pop(_BLAS_THREADS, None)  # not for child processes


def import_numpy_within_limits() -> None:
    """Import NumPy now, where the address space is limited (``ulimit -v``): OpenBLAS ends a process that has no room
    for it, and a server had better end before its port opens."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        import_numpy()


def quiet_loggers() -> None:
    """Libraries log warnings and errors, and nothing below."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
