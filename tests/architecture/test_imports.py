"""Who may import whom: the table of rooms in docs/architecture.md, held against the sources."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "dragoman"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# References for the tests and tools of the training: gigabytes that a server must never ask for.
NEVER_AT_RUNTIME = {"torch", "transformers"}
WITNESS = PACKAGE / "cli" / "witness.py"
"""Asks them, where a user has them, in a process of its own; nothing imports it."""
ADDED = {"opentelemetry", "grpc", "pyngrok"}
"""Of the extras in `pyproject.toml`: imported when they are asked for."""


def rooms_of(page: str) -> dict[str, set[str]]:
    """The table ``| room | holds | may import |``: each room with itself and every room it may reach."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", page, flags=re.MULTILINE)
    allowed: dict[str, set[str]] = {}
    for room, cell in rows:
        named = set(allowed) if cell == "all above" else {name.strip() for name in cell.split(",")} - {"–"}
        assert named <= set(allowed), f"{room} may import {named}, which the table has not introduced above it"
        allowed[room] = {room}.union(*(allowed[other] for other in named))
    return allowed


ROOMS = rooms_of((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def imported_modules(path: Path) -> Iterator[str]:
    """The absolute name of every module that the file imports, anywhere in it."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*parent, *([node.module] if node.module else [])])
            # `from dragoman import models` names the room in the alias, not in the module.
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "dragoman" else (module,)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_table_of_rooms_is_the_tree() -> None:
    present = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert present == set(ROOMS)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_rooms_import_only_what_the_table_allows(path: Path) -> None:
    parts = path.relative_to(PACKAGE).parts
    # Beside the rooms: `__init__.py`, which needs none, and `__main__.py`, the way into the command line.
    allowed = ROOMS[parts[0]] if len(parts) > 1 else {"cli"} if path.stem == "__main__" else set()
    ours = {module.split(".")[1] for module in imported_modules(path) if module.startswith("dragoman.")}
    assert {room for room in ours if room in ROOMS} <= allowed


def test_nothing_imports_the_witness() -> None:
    assert not [path for path in SOURCES if "dragoman.cli.witness" in imported_modules(path)]


def test_no_dialect_imports_another() -> None:
    for path in (PACKAGE / "dialects").glob("*/*.py"):
        others = {m.split(".")[2] for m in imported_modules(path) if m.startswith("dragoman.dialects.")}
        folders = {other.name for other in (PACKAGE / "dialects").iterdir() if other.is_dir()}
        assert others & folders <= {path.parent.name}, name(path)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_runtime_imports_only_declared_dependencies(
    path: Path, declared: set[str], distributions: Mapping[str, list[str]]
) -> None:
    foreign = {m.split(".")[0] for m in imported_modules(path)} - set(sys.stdlib_module_names) - {"dragoman"}
    if path == WITNESS:
        foreign -= NEVER_AT_RUNTIME
    assert not foreign & NEVER_AT_RUNTIME
    for module in foreign:
        assert declared & {normalized(d) for d in distributions.get(module, [module])}, f"{module} is not declared"


@pytest.fixture(scope="module")
def declared() -> set[str]:
    """The names of the runtime's dependencies, and of what a user may add to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    added = [line for extra, lines in extras if extra not in ("test", "browser", "dev") for line in lines]
    lines = project["dependencies"] + added
    return {normalized(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines}


@pytest.fixture(scope="module")
def distributions() -> Mapping[str, list[str]]:
    """Which distributions an importable name comes from."""
    return importlib.metadata.packages_distributions()


def normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after the statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_pulls_in_nothing_of_others() -> None:
    before = modules_after("pass")
    assert modules_after("import dragoman") - before - set(sys.stdlib_module_names) == {"dragoman"}


def test_every_module_imports_without_torch_transformers_and_what_a_user_may_add() -> None:
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in SOURCES]
    wanted = [m.removesuffix(".__init__") for m in modules if not m.endswith("__main__")]
    assert not modules_after("import " + ", ".join(wanted)) & (NEVER_AT_RUNTIME | ADDED)
