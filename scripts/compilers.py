"""The native module by every compiler there is, with each warning an error: ``make compilers ARGS=--short``.

Compilers are the newest ``g++`` and ``clang++`` on the path: the second with both C++ libraries where it has libc++,
the first once more without what only Linux has, as other systems build it. Each module is tested by ``tests/kernels``
(in short: by its threads and its packed matrices). The exit code is 1 where a build or a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SHORT = ("tests/kernels/test_packing.py", "tests/kernels/test_threads.py")
FULL = ("tests/kernels",)


class Build(NamedTuple):
    """One way to build: its name, the compiler, what CMake is told besides, and pytest."""

    name: str
    compiler: str
    options: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


def newest(name: str) -> str | None:
    """The command of the newest release of a compiler (``g++-14`` before ``g++``), None without any."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    numbered = [
        (int(found[1]), path.name)
        for folder in folders
        for path in Path(folder or ".").glob(f"{name}-*")
        if (found := pattern.fullmatch(path.name))
    ]
    return max(numbered)[1] if numbered else name if shutil.which(name) else None


def has_libcxx(compiler: str) -> bool:
    """Whether the compiler finds libc++ and links with it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.cpp")
        source.write_text("#include <vector>\nint main() { return static_cast<int>(std::vector<int>().size()); }\n")
        command = (compiler, "-stdlib=libc++", source, "-o", Path(folder, "try"))
        return subprocess.run(command, capture_output=True).returncode == 0


def builds() -> Iterator[Build]:
    """All ways to build on this machine."""
    if gcc := newest("g++"):
        yield Build("gcc", gcc)
        # Only Linux moves a file's pages.
        yield Build("gcc-no-linux", gcc, ("-DDRAGOMAN_NO_LINUX=ON",), ("-k", "not test_a_file"))
    if clang := newest("clang++"):
        yield Build("clang", clang)
        if has_libcxx(clang):
            yield Build("clang-libc++", clang, ("-DCMAKE_CXX_FLAGS=-stdlib=libc++",))


def compile_and_test(build: Build, short: bool) -> bool:
    """Whether one build has no warning and passes."""
    folder = ROOT / "build" / "compilers" / build.name
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path}
    if shutil.which("ninja", path=path) and not (folder / "CMakeCache.txt").is_file():
        environment["CMAKE_GENERATOR"] = "Ninja"
    configure = (
        "cmake", "-S", str(ROOT), "-B", str(folder), f"-DCMAKE_CXX_COMPILER={build.compiler}",
        "-DDRAGOMAN_WARNINGS_ARE_ERRORS=ON", f"-DPython_EXECUTABLE={sys.executable}", *build.options,
    )  # fmt: skip
    commands = (configure, ("cmake", "--build", str(folder), "--parallel", str(min(4, os.cpu_count() or 1))))
    for command in commands:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            print((done.stdout + done.stderr)[-6000:])
            return False
    module = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "tests.fuzz.sanitized_module", "-p", "no:cacheprovider",
             "-p", "no:xdist", *(SHORT if short else FULL), *build.tests)  # fmt: skip
    return subprocess.run(tests, cwd=ROOT, env={**os.environ, "DRAGOMAN_SANITIZED_MODULE": str(module)}).returncode == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few tests of each module")
    parser.add_argument("--only", action="append", metavar="NAME", help="this build only: " + ", ".join(_names()))
    options = parser.parse_args()
    chosen = [build for build in builds() if not options.only or build.name in options.only]
    if not chosen:
        print("no such build here", file=sys.stderr)
        return 2
    results = {build: compile_and_test(build, options.short) for build in chosen}
    for build, passed in results.items():
        print(f"{build.name} ({build.compiler}): {'passed' if passed else 'FAILED'}")
    return int(not all(results.values()))


def _names() -> list[str]:
    return [build.name for build in builds()]


if __name__ == "__main__":
    sys.exit(main())
