"""The imports of the sources, held against the table of rooms in docs/architecture.md and the rules of the dialects."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from import_graph import ImportGraph, rooms_of, wrong_dialects, wrong_rooms

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "dragoman"
ROOMS = rooms_of((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))

# References for the tests and tools of the training: gigabytes that a server must never ask for.
NEVER_AT_RUNTIME = {"torch", "transformers"}
WITNESS = PACKAGE / "cli" / "transformers_reference.py"
"""Asks them, where a user has them, in a process of its own; nothing imports it."""
# Extras for those who work on the package.
DEVELOPMENT = {"test", "browser", "fuzz", "tidy", "dev"}
ADDED = {"opentelemetry", "grpc", "pyngrok", "zmq", "ray", "PIL"}
"""Of the extras in `pyproject.toml`: imported when they are asked for."""
ON_RAY = re.compile(r"dragoman\.cluster\.ray_\w+$")
"""Modules that are nothing without Ray Serve."""


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    found = ImportGraph(PACKAGE, compiled=("dragoman.kernels._native",))
    # What the package shows to users it imports by name, when it is asked for; everything imports the package itself.
    found.imports["dragoman"].clear()
    return found


def test_only_modules_that_are_named_for_it_import_ray(graph: ImportGraph) -> None:
    using = {module for module, imported in graph.foreign.items() if {"ray"} & {n.partition(".")[0] for n in imported}}
    assert using
    assert all(ON_RAY.match(module) for module in using)


def test_table_of_rooms_is_the_tree() -> None:
    present = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert present == set(ROOMS)


def test_rooms_import_directly_what_the_table_allows(graph: ImportGraph) -> None:
    assert wrong_rooms(graph, ROOMS) == set()


def test_a_dialect_is_imported_by_itself_and_the_registry(graph: ImportGraph) -> None:
    assert wrong_dialects(graph) == set()


def test_no_modules_import_one_another(graph: ImportGraph) -> None:
    assert graph.circles() == []


def test_every_import_by_name_tells_the_name(graph: ImportGraph) -> None:
    lazy = "dragoman.core.lazy_imports"  # packages tell it the names, which they import for type checkers too
    assert [found for found in graph.unresolved if found.module != lazy] == []


def test_nothing_imports_the_witness(graph: ImportGraph) -> None:
    assert not [
        module for module, imported in graph.imports.items() if "dragoman.cli.transformers_reference" in imported
    ]


def test_runtime_imports_only_declared_dependencies(
    graph: ImportGraph, declared: set[str], distributions: Mapping[str, list[str]]
) -> None:
    for module, path in graph.modules.items():
        foreign = {name.split(".")[0] for name in graph.foreign[module]} - set(sys.stdlib_module_names)
        if path == WITNESS:
            foreign -= NEVER_AT_RUNTIME
        assert not foreign & NEVER_AT_RUNTIME, module
        for name in foreign:
            assert declared & {normalized(d) for d in distributions.get(name, [name])}, f"{name} of {module}"


@pytest.fixture(scope="module")
def declared() -> set[str]:
    """The names of the runtime's dependencies, and of what a user may add to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    added = [line for extra, lines in extras if extra not in DEVELOPMENT for line in lines]
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


def test_every_module_imports_without_torch_transformers_and_what_a_user_may_add(graph: ImportGraph) -> None:
    wanted = [module for module in graph.modules if not module.endswith("__main__") and not ON_RAY.match(module)]
    assert not modules_after("import " + ", ".join(wanted)) & (NEVER_AT_RUNTIME | ADDED)
