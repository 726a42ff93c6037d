"""The native module for 64-bit ARM, built and tested on another processor: ``make arm ARGS=--short``.

Needs Debian's or Ubuntu's ``g++-aarch64-linux-gnu`` and ``qemu-user``. Python for ARM comes from the system's archive,
what has C code from PyPI; all of it is unpacked below ``build/arm``, nothing is installed. In the short form each set
of kernels is held against the portable one; the long form runs ``tests/kernels`` too, and generates 64 tokens with the
embedded model at each precision and with each set. Then it builds with clang, where that is installed, and holds the
sets against each other once more. The exit code is 1 where anything failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from compilers import newest

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "arm"
DEBIAN, SITE, SOURCES, PYTHON = (BUILD / name for name in ("debian", "site", "src", "python"))
NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = (
    *(f"{name}:arm64" for name in (f"{NAME}-minimal", f"lib{NAME}-minimal", f"lib{NAME}-stdlib", f"lib{NAME}-dev")),
    *(f"{name}:arm64" for name in ("libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libexpat1", "libssl3", "libffi8")),
    *(f"{name}:arm64" for name in ("libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1", "libcrypt1", "libgomp1")),
)
# The releases of manylinux that wheels for it are built for.
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (34, 31, 28, 27, 26, 24, 17)] + ["manylinux2014_aarch64"]
TARGET, COMPILER, EMULATOR = "aarch64-linux-gnu", "aarch64-linux-gnu-g++", "qemu-aarch64"
LEVELS = ("neon_i8mm", "neon", "armv8", "portable")
# Most by which a log-probability of 64 tokens differs from that of the portable kernels: where numbers are rounded to
# few bits, a last bit moves some of them to their neighbours. (With AVX2: 5e-6, 0.02, 0.07, 0.06.)
BOUNDS = {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.2, "int4": 0.2}
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def missing() -> list[str]:
    """The commands that this needs and the machine lacks."""
    return [
        name for name in (COMPILER, EMULATOR, "apt-get", "dpkg-deb", "cmake") if shutil.which(name, path=PATH) is None
    ]


def unpack_debian() -> None:
    """Unpack Python and its libraries, by an apt with a state of its own: the system's stays as it is."""
    if (DEBIAN / "usr" / "bin" / NAME).is_file():
        return
    archives, lists = BUILD / "archives", BUILD / "lists"
    for folder in (archives, lists / "partial", DEBIAN):
        folder.mkdir(parents=True, exist_ok=True)
    apt = ("apt-get", "-qq", "-o", "APT::Architectures=arm64", "-o", "APT::Architecture=arm64", "-o",
           f"Dir::State::Lists={lists}", "-o", "Dir::State::Status=/dev/null", "-o", f"Dir::Cache={BUILD}/cache",
           "-o", "APT::Sandbox::User=root")  # fmt: skip
    subprocess.run((*apt, "update"), check=True)
    subprocess.run((*apt, "download", *PACKAGES), check=True, cwd=archives)
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(("dpkg-deb", "--extract", archive, DEBIAN), check=True)


def install_packages() -> None:
    """Put the releases of ``constraints.txt``, and hypothesis, into ``SITE`` as wheels for ARM."""
    if (SITE / "hypothesis").is_dir():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(SITE),
           "--only-binary=:all:", "--python-version", sysconfig.get_python_version(), "--implementation", "cp",
           *(f"--platform={platform}" for platform in PLATFORMS)]  # fmt: skip
    subprocess.run([*pip, "--require-hashes", "--requirement", str(ROOT / "constraints.txt")], check=True)
    subprocess.run([*pip, f"hypothesis=={importlib.metadata.version('hypothesis')}"], check=True)


def build(compiler: str, folder: Path, options: Sequence[str] = ()) -> None:
    """Build the module in ``folder`` with every warning an error, and put it beside copies of the package's sources."""
    environment = {**os.environ, "PATH": PATH}
    if shutil.which("ninja", path=PATH) and not (folder / "CMakeCache.txt").is_file():
        environment["CMAKE_GENERATOR"] = "Ninja"
    include = DEBIAN / "usr" / "include"
    configure = (
        "cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DDRAGOMAN_WARNINGS_ARE_ERRORS=ON",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DPython_INCLUDE_DIR={include / NAME}",
        f"-DCMAKE_CXX_FLAGS=-isystem {include}", *options,
    )  # fmt: skip
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(("cmake", "--build", str(folder), "--parallel", str(min(4, os.cpu_count() or 1))), check=True,
                   env=environment)  # fmt: skip
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.copytree(ROOT / "src", SOURCES, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(ROOT / "builtin", SOURCES / "dragoman" / "builtin")
    [module] = folder.glob("_native*.so")
    shutil.copy(module, SOURCES / "dragoman" / "kernels" / "_native.so")


def write_python() -> None:
    """A Python for ARM that also starts itself: ``sys.executable`` is a script that runs the emulator.

    Pure packages that only tests need are this environment's.
    """
    path = os.pathsep.join(map(str, (SOURCES, SITE, ROOT, sysconfig.get_path("purelib"))))
    PYTHON.write_text(
        f"""#!/bin/sh
export PYTHONPATH='{path}' PYTHONHOME='{DEBIAN}/usr' PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
exec {EMULATOR} -L '{DEBIAN}' -0 '{PYTHON}' '{DEBIAN}/usr/bin/{NAME}' "$@"
"""
    )
    PYTHON.chmod(PYTHON.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def beside_portable(environment: dict[str, str]) -> dict[str, bool]:
    """Whether each set of kernels passes the self-test, which holds it against the portable one."""
    results = {}
    for level in LEVELS:
        command = (PYTHON, "-m", "dragoman", "doctor", "--kernels")
        done = subprocess.run(command, env=environment | {"DRAGOMAN_KERNELS": level})
        results[f"{level} beside portable"] = done.returncode == 0
    return results


def compare_tokens(environment: dict[str, str]) -> bool:
    """Whether 64 tokens of the embedded model have the log-probabilities that the portable kernels give them."""
    file = BUILD / "tokens.json"
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    for level in reversed(LEVELS):
        command = (PYTHON, ROOT / "scripts" / "arm_tokens.py", *([file] if results else []))
        done = subprocess.run(command, env=environment | {"DRAGOMAN_KERNELS": level}, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return False
        if not results:
            file.write_text(done.stdout)
        results[level] = json.loads(done.stdout)
    passed = True
    for level, by_precision in results.items():
        for precision, found in by_precision.items():
            pairs = zip(found["logprobs"], results["portable"][precision]["logprobs"], strict=True)
            error = max(abs(ours - theirs) for ours, theirs in pairs)
            print(f"64 tokens, {level}, {precision}: log-probabilities within {error:.1e} of {BOUNDS[precision]}")
            passed &= error <= BOUNDS[precision]
    return passed


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--short", action="store_true", help="hold each set of kernels against the portable one, no more"
    )
    options = parser.parse_args()
    if lacking := missing():
        print(
            f"missing: {', '.join(lacking)}; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user",
            file=sys.stderr,
        )
        return 2
    unpack_debian()
    install_packages()
    build(COMPILER, BUILD / "native")
    write_python()
    environment = {**os.environ, "PYTHONPATH": "", "DRAGOMAN_CONFIG": os.devnull}
    results = beside_portable(environment)
    if not options.short:
        tests = (
            PYTHON,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-o",
            "timeout=3600",
            "--deselect",
            "tests/kernels/test_dispatch.py::test_measurements_are_plausible",
        )
        done = subprocess.run((*tests, "tests/kernels"), cwd=ROOT, env=environment)
        results["tests/kernels"] = done.returncode == 0
        results["64 tokens"] = compare_tokens(environment)
        if clang := newest("clang++"):
            build(clang, BUILD / "native-clang", (f"-DCMAKE_CXX_COMPILER_TARGET={TARGET}",))
            found = beside_portable(environment)
            results |= {f"{clang}: {name}": passed for name, passed in found.items()}
    for name, passed in results.items():
        print(f"{name}: {'passed' if passed else 'FAILED'}")
    return int(not all(results.values()))


if __name__ == "__main__":
    sys.exit(main())
