"""Client packages in environments of their own: several share an import name, and none may decide our versions.

A script of checks runs in such an environment against a server of ours; each of its functions is a test here.
"""

from __future__ import annotations

import ast
import atexit
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import certifi
import pytest

FOLDER = Path(__file__).parents[2] / ".venv-witness"
INSTALL_S = 300
CHECKS_S = 120


def python_with(requirement: str) -> Path:
    """The interpreter of an environment with this package, made now unless it is there. The test fails without it."""
    folder = FOLDER / requirement.partition(",")[0].replace(">=", "-").replace("==", "-")
    python, stamp = folder / "bin" / "python", folder / "requirement.txt"
    wanted = f"{requirement}\npython {sys.version_info[0]}.{sys.version_info[1]}\n"
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    quick = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python), "--quiet", requirement]
    if subprocess.run(quick, capture_output=True, timeout=INSTALL_S).returncode:
        # Where the index is known to pip only.
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]
        _run([*install, "--no-compile", "--quiet", requirement])
    stamp.write_text(wanted)
    return python


def names_of_checks(script: Path) -> list[str]:
    """The checks of a script, in its order."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [function.name for function in functions if function.name.startswith("check_")]


def outcomes_of(script: Path, python: Path, url: str, *, most_s: float = CHECKS_S) -> dict[str, str]:
    """What each check of the script found wrong with the server; empty where nothing."""
    done = subprocess.run(
        [str(python), str(script), url],
        capture_output=True,
        text=True,
        timeout=most_s,
        cwd=script.parent,
        env={
            "PATH": "",
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SSL_CERT_FILE": str(_one_certificate()),
        },
    )
    if done.returncode:
        pytest.fail(f"{script.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    outcomes: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


@functools.cache
def _one_certificate() -> Path:
    """A file with one certificate. Each client that a script makes reads all that it trusts, 33 ms for those of all
    authorities, and none of them speaks to a server outside."""
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    file = Path(tempfile.mkdtemp()) / "one.pem"
    atexit.register(shutil.rmtree, file.parent, ignore_errors=True)
    file.write_text(first + end, encoding="utf-8")
    return file


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
