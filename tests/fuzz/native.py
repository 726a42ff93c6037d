"""The native module under sanitizers: built beside the real one, and tested.

``make sanitize`` runs all three, ``ARGS="--sanitizer thread"`` one of them, ``ARGS=--short`` a few tests of each.
``make fuzz`` runs the first two in one build.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
SANITIZERS = ("address", "undefined", "thread")
OF_MEMORY = "address,undefined"
SHORT = ("tests/kernels/test_gguf.py", "tests/kernels/test_packing.py", "tests/fuzz/test_fuzz.py")
FULL = (
    "tests/kernels",
    "tests/models/test_gguf_file.py",
    "tests/models/test_gguf_source.py",
    "tests/fuzz/test_fuzz.py",
)
# What threads do together does not depend on the shapes; the machine's other threads are not ours to check.
SHORT_OF_THREADS = ("tests/kernels/test_threads.py", "-k", "not fork and not spawn")
FULL_OF_THREADS = (
    "tests/kernels/test_threads.py",
    "tests/kernels/test_program.py",
    "tests/kernels/test_linear.py",
    "tests/kernels/test_attention.py",
    "tests/kernels/test_attention_batches.py",
    "-k",
    "not fork and not spawn",
)


def build(sanitizers: str) -> Path:
    """The module with sanitizers (``address,undefined``), built again where ``csrc`` has changed."""
    folder = ROOT / "build" / f"sanitized-{sanitizers.replace(',', '-')}"
    configure = (
        "cmake", "-S", ROOT, "-B", folder, f"-DDRAGOMAN_SANITIZE={sanitizers}", f"-DPython_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "CMAKE_GENERATOR": os.environ.get("CMAKE_GENERATOR", "Ninja")}
    if (folder / "CMakeCache.txt").is_file():
        del environment["CMAKE_GENERATOR"]  # that of the first time stays
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(
        ("cmake", "--build", folder, "--parallel", str(min(4, os.cpu_count() or 1))), check=True, env=environment
    )
    return folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def run_sanitized(short: bool, sanitizers: str = OF_MEMORY) -> int:
    """Run the tests of the kernels against the sanitized module; the status of pytest, or of the process that ended."""
    module = build(sanitizers)
    # The first libraries of the process: the sanitizer's, and C++'s, whose exceptions it has to see.
    runtime = {"address": "libasan.so", "thread": "libtsan.so"}.get(sanitizers.split(",")[0], "libubsan.so")
    environment = {
        **os.environ,
        "DRAGOMAN_SANITIZED_MODULE": str(module),
        "LD_PRELOAD": " ".join(_library(name) for name in (runtime, "libstdc++.so.6")),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
        "PYTHONMALLOC": "malloc",  # so that NumPy's and Python's blocks have guarded ends too
        "OPENBLAS_NUM_THREADS": "1",  # whose own threads are not built for a sanitizer
    }
    shorter, fuller = (SHORT_OF_THREADS, FULL_OF_THREADS) if sanitizers == "thread" else (SHORT, FULL)
    tests = shorter if short else fuller
    command = (sys.executable, "-m", "pytest", "-q", "-p", "tests.fuzz.sanitized_module", "-p", "no:cacheprovider",
               "-p", "no:xdist", "-s", *tests)  # fmt: skip
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def _library(name: str) -> str:
    compiler = os.environ.get("CXX", "g++")
    return subprocess.run(
        (compiler, f"-print-file-name={name}"), check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> int:
    """The command line; 1 where any run found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitizer", choices=SANITIZERS, action="append", help="only this one")
    parser.add_argument("--short", action="store_true", help="a few tests of each")
    options = parser.parse_args()
    statuses = {name: run_sanitized(options.short, name) for name in options.sanitizer or SANITIZERS}
    for name, status in statuses.items():
        print(f"{name}: {'nothing found' if status == 0 else f'FOUND (exit status {status})'}")
    return int(any(statuses.values()))


if __name__ == "__main__":
    sys.exit(main())
