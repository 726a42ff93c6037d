"""`make build`: a line for each file that is compiled or fetched, and for a failure what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def install(script: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    return script("install")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "  [12/45] Building CXX object CMakeFiles/_native.dir/csrc/gemm/linear.cpp.o\n",
            "[12/45] csrc/gemm/linear.cpp",
        ),
        (
            "[3/45] Building CXX object CMakeFiles/nanobind-static.dir/tmp/x/nanobind/src/nb_enum.cpp.o",
            "[3/45] nb_enum.cpp",
        ),
        ("  [45/45] Linking CXX shared module _native.abi3.so", "[45/45] _native.abi3.so"),
        ("  Downloading numpy-2.4.6-cp311-cp311-linux.whl (17.1 MB)", "fetched numpy-2.4.6 (17.1 MB)"),
        ("  *** Configuring CMake...", "configuring the native module"),
        ("Collecting numpy>=1.26", None),
    ],
)
def test_what_a_line_says(install: ModuleType, line: str, said: str | None) -> None:
    assert install.progress(line) == said


def run(install: ModuleType, monkeypatch: pytest.MonkeyPatch, code: str) -> int:
    """The installation, where its one step is this code."""
    monkeypatch.setattr(install, "steps", lambda *parts: [[sys.executable, "-c", code]])
    return int(install.main())


def test_it_installs_what_the_build_needs_first(install: ModuleType, tmp_path: Path) -> None:
    """So that files are not compiled again because nanobind is in another folder."""
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["a>=1", "b"]\n[project]\ndependencies = ["c"]\n'
    )
    install.LOG.parent.mkdir()
    install.LOG.write_text("Looking\nneeds:\n  needs: cmake>=3.20\n  needs: ninja>=1.5\n")
    packages = [["--no-compile", "a>=1", "b", "c"], ["cmake>=3.20", "ninja>=1.5"]]
    module = [["--no-deps", "--no-build-isolation", "--editable", "."]]

    def installed(*parts: bool) -> list[list[str]]:
        commands = [command for command in install.steps(*parts) if "pip" in command]
        return [command[command.index("off") + 1 :] for command in commands]

    assert installed() == packages + module
    assert installed(True, False) == packages
    assert installed(False, True) == module
    install.LOG.write_text("needs:\n")
    assert installed() == packages[:1] + module


@pytest.mark.parametrize(
    ("arguments", "parts"), [([], (True, True)), (["packages"], (True, False)), (["module"], (False, True))]
)
def test_an_argument_names_a_part(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: tuple[bool, bool]
) -> None:
    asked: list[tuple[bool, ...]] = []
    monkeypatch.setattr(install, "steps", lambda *parts: asked.append(parts) or [])
    assert install.main(arguments) == 0
    assert asked == [parts]


def test_a_machine_that_cannot_compile_gets_one_line(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "dragoman: a C++20 compiler (GCC 12, Clang 15 or newer) is needed to build from source; run: apk add g++"
    assert run(install, monkeypatch, f"print('a lot'); print('      {message}'); raise SystemExit(1)") == 1
    assert capsys.readouterr().err == message + "\n"


def test_other_failures_show_the_end_of_the_log(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(install, monkeypatch, "[print(f'line {n}') for n in range(100)]; raise SystemExit(2)") == 2
    said = capsys.readouterr().err
    assert "line 99" in said
    assert "line 59\n" not in said
    assert install.LOG.read_text().startswith("line 0\n")
    assert str(install.LOG) in said


def test_a_success_says_how_long_it_took(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(install, monkeypatch, "print('  [1/2] Building CXX object a/csrc/a.cpp.o')") == 0
    out = capsys.readouterr().out
    assert "  [1/2] csrc/a.cpp\n" in out
    assert "Installed in 0 s." in out
