"""The rules of imports on small trees: each tree breaks one, and the check says where."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_graph import ImportGraph, Unresolved, rooms_of, wrong_dialects, wrong_rooms

TABLE = """
| room | holds | may import |
|---|---|---|
| `core/` | a | – |
| `text/` | b | core |
| `dialects/` | c | text |
| `cli/` | d | all above |
"""
ROOMS = rooms_of(TABLE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "dragoman"


def graph_of(root: Path, **files: str) -> ImportGraph:
    """The graph of these files, whose names have ``__`` for the slash: ``core__errors`` is ``core/errors.py``.

    Every folder is a package, and empty unless its ``__init__`` is among the files (``core__``).
    """
    for name, text in files.items():
        *folders, stem = name.split("__") if name != "__main__" else [name]
        path = root.joinpath(*folders, f"{stem or '__init__'}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        (folder / "__init__.py").touch()
    return ImportGraph(root)


TGI = {"dialects__tgi__fields": "", "dialects__tgi__settings": "", "dialects__tgi__dialect": ""}


def test_a_tree_that_keeps_the_rules(root: Path) -> None:
    graph = graph_of(
        root,
        core__errors="import json",
        text__stop="from dragoman.core import errors\nfrom ..core.errors import Error",
        dialects__="import importlib\nfrom dragoman.dialects.tgi import settings\n"
        "def make(name): return importlib.import_module(f'{__name__}.{name}.dialect')",
        dialects__field="from dragoman.text.stop import x",
        dialects__tgi__chat="from dragoman.dialects import field\nfrom dragoman.dialects.tgi import fields",
        dialects__tgi__parts__deep="from dragoman.dialects.tgi import chat",
        cli__app="import dragoman.core.errors\nfrom dragoman.dialects.tgi.settings import TgiSettings",
        __main__="from dragoman.cli import app",
        **TGI,
    )
    assert graph.imports["dragoman.text.stop"] == {"dragoman.core.errors"}
    assert graph.imports["dragoman.dialects"] == {"dragoman.dialects.tgi.settings", "dragoman.dialects.tgi.dialect"}
    assert graph.imports["dragoman.cli.app"] == {"dragoman.core.errors", "dragoman.dialects.tgi.settings"}
    assert graph.foreign["dragoman.core.errors"] == {"json"}
    assert wrong_rooms(graph, ROOMS) == wrong_dialects(graph) == set()
    assert graph.circles() == graph.unresolved == []


@pytest.mark.parametrize(
    "text",
    [
        "from dragoman.dialects import tgi",
        "from dragoman.dialects import tgi as other",
        "from .. import tgi",
        "from ..tgi import fields",
        "import dragoman.dialects.tgi.fields as fields",
        "from dragoman import dialects\nx = dialects.tgi.fields",
        "import dragoman\nx = dragoman.dialects.tgi",
        "def late():\n    from dragoman.dialects import tgi",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dragoman.dialects.tgi import fields",
    ],
)
def test_a_dialect_may_not_import_another_under_any_name(root: Path, text: str) -> None:
    graph = graph_of(root, dialects__openai__chat=text, **TGI)
    assert {module for module, _ in wrong_dialects(graph)} == {"dragoman.dialects.openai.chat"}


@pytest.mark.parametrize("text", ["from dragoman.dialects.tgi.fields import x", "from .... import tgi"])
def test_a_nested_folder_belongs_to_its_dialect(root: Path, text: str) -> None:
    graph = graph_of(root, dialects__openai__chats__deep__stream=text, **TGI)
    assert {module for module, _ in wrong_dialects(graph)} == {"dragoman.dialects.openai.chats.deep.stream"}
    nested = graph_of(
        root,
        dialects__tgi__parts__deep="",
        dialects__openai__chats__deep__stream="",
        dialects__openai__a="from dragoman.dialects.tgi.parts import deep",
    )
    assert wrong_dialects(nested) == {("dragoman.dialects.openai.a", "dragoman.dialects.tgi.parts.deep")}


@pytest.mark.parametrize("importer", ["dialects__field", "core__errors", "text__stop", "dialects__"])
def test_shared_code_may_not_import_a_dialect(root: Path, importer: str) -> None:
    graph = graph_of(root, **{importer: "from dragoman.dialects.tgi import fields"}, **TGI)
    module = "dragoman." + importer.strip("_").replace("__", ".")
    assert wrong_dialects(graph) == {(module, "dragoman.dialects.tgi.fields")}


def test_the_command_line_may_import_settings_of_a_dialect_alone(root: Path) -> None:
    graph = graph_of(root, cli__app="from dragoman.dialects.tgi import fields, settings", **TGI)
    assert wrong_dialects(graph) == {("dragoman.cli.app", "dragoman.dialects.tgi.fields")}


def test_a_room_may_not_import_what_only_its_rooms_may(root: Path) -> None:
    assert ROOMS["dialects"] == {"dialects", "text"}
    graph = graph_of(root, core__errors="", text__stop="", dialects__field="from dragoman.core import errors")
    assert wrong_rooms(graph, ROOMS) == {("dragoman.dialects.field", "dragoman.core.errors")}


def test_modules_beside_the_rooms_import_none(root: Path) -> None:
    graph = graph_of(
        root, core__errors="", child="import dragoman.core.errors", text__stop="from dragoman import child"
    )
    assert wrong_rooms(graph, ROOMS) == {("dragoman.child", "dragoman.core.errors")}


def test_a_table_names_rooms_above(root: Path) -> None:
    with pytest.raises(AssertionError, match="has not introduced above it"):
        rooms_of("| `a/` | x | b |\n| `b/` | x | – |\n")


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module('dragoman.dialects.tgi.fields')",
        "import importlib as i\ni.import_module('dragoman.dialects.tgi.fields')",
        "import importlib.util\nimportlib.import_module('dragoman.dialects.tgi.fields')",
        "from importlib import import_module as load\nload('dragoman.dialects.tgi.fields')",
        "__import__('dragoman.dialects.tgi.fields')",
        "from pkgutil import resolve_name\nresolve_name('dragoman.dialects.tgi.fields')",
        "import importlib\nfor name in ('json', 'dragoman.dialects.tgi.fields'): importlib.import_module(name)",
        "import importlib\nfor name in ('dragoman.dialects.tgi.fields',): importlib.import_module(name)\n"
        "for name in ('dragoman.core',): print(name)",
        "import importlib\ndef late(which): importlib.import_module(f'dragoman.dialects.{which}.fields')",
    ],
)
def test_imports_by_name_are_imports(root: Path, text: str) -> None:
    graph = graph_of(root, text__stop=text, **TGI)
    wrong = {("dragoman.text.stop", "dragoman.dialects.tgi.fields")}
    assert wrong_dialects(graph) == wrong_rooms(graph, ROOMS) == wrong
    assert graph.unresolved == []


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module(name)",
        "import importlib\nimportlib.import_module('.fields', package)",
        "import importlib\nfor name in names: importlib.import_module(name)",
        "import importlib\nimportlib.import_module(f'{name}.fields')",
        "import importlib\nimportlib.import_module(name='dragoman.core')",
        "import importlib\nload = importlib.import_module",
        "from importlib import import_module\nmap(import_module, names)",
        "import runpy\nrunpy.run_module(name)",
    ],
)
def test_imports_by_name_that_do_not_tell_it_are_found(root: Path, text: str) -> None:
    graph = graph_of(root, text__stop=text)
    assert graph.unresolved == [Unresolved("dragoman.text.stop", 2)]


@pytest.mark.parametrize(
    "back",
    [
        "from dragoman.core import a",
        "def late():\n    import dragoman.core.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dragoman.core.a import A",
        "import importlib\nimportlib.import_module('dragoman.core.a')",
    ],
)
def test_circles_are_found_wherever_the_import_stands(root: Path, back: str) -> None:
    graph = graph_of(
        root,
        core__a="from dragoman.core.b import B",
        core__b="from dragoman.core import c",
        core__c=back,
        core__d="from dragoman.core import a, e",
        core__e="",
    )
    assert graph.circles() == [("dragoman.core.a", "dragoman.core.b", "dragoman.core.c")]


def test_circles_through_a_package_are_found(root: Path) -> None:
    graph = graph_of(root, core__="from dragoman.core.a import A", core__a="from dragoman.core import VERSION")
    assert graph.circles() == [("dragoman.core", "dragoman.core.a")]


def test_compiled_modules_are_no_names_of_their_package(root: Path) -> None:
    graph_of(root, core__="from dragoman.core.a import A", core__a="from dragoman.core import _native")
    graph = ImportGraph(root, compiled=("dragoman.core._native",))
    assert graph.circles() == []
    assert graph.imports["dragoman.core.a"] == {"dragoman.core._native"}
