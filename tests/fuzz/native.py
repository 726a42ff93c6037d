"""The native module under the address and undefined behaviour sanitizers: built beside the real one, and tested."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitized"
SHORT = ("tests/kernels/test_gguf.py", "tests/kernels/test_packing.py", "tests/fuzz/test_fuzz.py")
FULL = (
    "tests/kernels",
    "tests/models/test_gguf_file.py",
    "tests/models/test_gguf_source.py",
    "tests/fuzz/test_fuzz.py",
)
# Timings, and processes that import the package's own module, which has no place under the preloaded library.
NOT_HERE = "not subprocess and not own_process"


def build() -> Path:
    """The module with sanitizers, built again where ``csrc`` has changed."""
    configure = ("cmake", "-S", ROOT, "-B", BUILD, "-DDRAGOMAN_SANITIZE=ON", f"-DPython_EXECUTABLE={sys.executable}")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "CMAKE_GENERATOR": os.environ.get("CMAKE_GENERATOR", "Ninja")}
    if (BUILD / "CMakeCache.txt").is_file():
        del environment["CMAKE_GENERATOR"]  # that of the first time stays
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(
        ("cmake", "--build", BUILD, "--parallel", str(min(4, os.cpu_count() or 1))), check=True, env=environment
    )
    return BUILD / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def run_sanitized(short: bool) -> int:
    """Run the tests of the kernels against the sanitized module; the status of pytest, or of the process that ended."""
    module = build()
    # The first libraries of the process: the sanitizer's, and C++'s, whose exceptions it has to see.
    libraries = [_library(name) for name in ("libasan.so", "libstdc++.so.6")]
    environment = {
        **os.environ,
        "DRAGOMAN_SANITIZED_MODULE": str(module),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",  # so that NumPy's and Python's blocks have guarded ends too
    }
    command = (sys.executable, "-m", "pytest", "-q", "-p", "tests.fuzz.sanitized_module", "-p", "no:cacheprovider",
               "-p", "no:xdist", "-s", *(SHORT if short else FULL))  # fmt: skip
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def _library(name: str) -> str:
    compiler = os.environ.get("CXX", "g++")
    return subprocess.run(
        (compiler, f"-print-file-name={name}"), check=True, capture_output=True, text=True
    ).stdout.strip()
