"""The imports of a tree of sources, wherever in a file they stand, and the rules that they are held against.

Everything here works on any folder that is a package, so that the rules are tested on small trees of their own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

IMPORTERS = {
    "importlib": {"import_module", "__import__"},
    "runpy": {"run_module"},
    "pkgutil": {"resolve_name"},
    "builtins": {"__import__"},
}
"""Functions of the standard library that import a module by its name, which is their first argument."""


class Unresolved(NamedTuple):
    """An import of a module whose name is only known when it runs."""

    module: str
    line: int


class ImportGraph:
    """All modules of the package in a folder, and what each of them imports.

    Imports count in functions and under ``TYPE_CHECKING`` too, as do those by name, of ``importlib`` and others, and
    modules that are reached as attributes of an imported package. A package on the way to an imported module is not
    imported itself: ``import a.b.c`` is one of ``a.b.c``.

    Attributes:
        root: the package's folder. modules: the file of every module, by name.
        imports: by module, those of the package that it imports. foreign: by module, the others.
        unresolved: imports whose file does not tell the name.
    """

    def __init__(self, root: Path, compiled: Iterable[str] = ()) -> None:
        """``compiled``: modules of the package that have no source in the folder."""
        self.root = root
        self.modules = {self._name_of(path): path for path in sorted(root.rglob("*.py"))}
        self.imports: dict[str, set[str]] = {name: set() for name in compiled}
        self.foreign: dict[str, set[str]] = {}
        self.unresolved: list[Unresolved] = []
        self._known = {*self.modules, *compiled}
        for module, path in self.modules.items():
            names = set(self._names(module, path))
            self.imports[module] = {name for name in names if name in self._known} - {module}
            self.foreign[module] = {name for name in names if name.partition(".")[0] != root.name}

    def _name_of(self, path: Path) -> str:
        parts = path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _names(self, module: str, path: Path) -> Iterator[str]:
        """Every module that the file imports, of the package and others."""
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        bound: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name
                    bound[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                parent = package.split(".")[: 1 - node.level or None] if node.level else []
                base = ".".join([*parent, *([node.module] if node.module else [])])
                for alias in node.names:
                    below = f"{base}.{alias.name}"
                    yield below if below in self._known else base
                    if below in self._known:
                        bound[alias.asname or alias.name] = below
        yield from self._reached(nodes, bound)
        yield from self._imported_by_name(module, nodes)

    def _reached(self, nodes: Sequence[ast.AST], bound: Mapping[str, str]) -> Iterator[str]:
        """Modules that are attributes of imported packages. ``bound``: modules by their names in the file."""
        for node in nodes:
            if isinstance(node, ast.Attribute):
                name, _, rest = _dotted(node).partition(".")
                reached = bound.get(name, "")
                for part in rest.split("."):
                    if f"{reached}.{part}" not in self._known:
                        break
                    reached = f"{reached}.{part}"
                    yield reached

    def _imported_by_name(self, module: str, nodes: Sequence[ast.AST]) -> Iterator[str]:
        functions = _importing_names(nodes)
        loops: dict[ast.AST, dict[str, list[object]]] = {}
        for node in nodes:
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                values = _constants(node.iter)
                for inner in ast.walk(node):
                    loops[inner] = loops.get(inner, {}) | {node.target.id: values}
        calls = [node for node in nodes if isinstance(node, ast.Call) and _dotted(node.func) in functions]
        for node in calls:
            patterns = _patterns(node.args[0], module, loops.get(node, {})) if node.args else []
            if not patterns or any(pattern.startswith((".", "*")) for pattern in patterns):
                self.unresolved.append(Unresolved(module, node.lineno))
                continue
            for pattern in patterns:
                if "*" in pattern:
                    yield from (name for name in self._known if fnmatchcase(name, pattern))
                else:
                    yield pattern
        called = {call.func for call in calls}
        for node in nodes:  # handed on, such a function imports what cannot be seen here
            if isinstance(node, ast.Name | ast.Attribute) and _dotted(node) in functions and node not in called:
                self.unresolved.append(Unresolved(module, node.lineno))

    def circles(self) -> list[tuple[str, ...]]:
        """Return the groups of modules that import one another, directly or through others of the group."""
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        found: list[tuple[str, ...]] = []

        def visit(module: str) -> None:
            index[module] = low[module] = len(index)
            stack.append(module)
            for other in sorted(self.imports[module]):
                if other not in index:
                    visit(other)
                    low[module] = min(low[module], low[other])
                elif other in stack:
                    low[module] = min(low[module], index[other])
            if low[module] == index[module]:
                group = stack[stack.index(module) :]
                del stack[stack.index(module) :]
                if len(group) > 1:
                    found.append(tuple(sorted(group)))

        for module in sorted(self._known):
            if module not in index:
                visit(module)
        return sorted(found)


def rooms_of(page: str) -> dict[str, set[str]]:
    """The table ``| room | holds | may import |``: each room with itself and those that it may import directly."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", page, flags=re.MULTILINE)
    allowed: dict[str, set[str]] = {}
    for room, cell in rows:
        named = set(allowed) if cell == "all above" else {name.strip() for name in cell.split(",")} - {"–"}
        assert named <= set(allowed), f"{room} may import {named}, which the table has not introduced above it"
        allowed[room] = {room, *named}
    return allowed


def wrong_rooms(graph: ImportGraph, rooms: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Imports of a module in a room that the importing module's room may not import, as pairs of modules.

    Modules outside of rooms may be imported from anywhere, and import no room; but ``__main__`` may import ``cli``.
    """
    found = set()
    for module, imported in graph.imports.items():
        room = _part(module, 1)
        allowed = rooms.get(room, {"cli"} if room == "__main__" else set())
        found |= {(module, other) for other in imported if _part(other, 1) in rooms.keys() - allowed}
    return found


def wrong_dialects(graph: ImportGraph, registry: Iterable[str] = ("settings", "dialect")) -> set[tuple[str, str]]:
    """Imports of a module in a dialect's folder from outside of the folder, as pairs of modules.

    Allowed are three: ``registry`` names the modules of each dialect that the package ``dialects`` itself may import;
    ``cli`` may import a dialect's settings, for commands that have options of one dialect; and ``llm`` may import how
    OpenAI's dialect reads messages and tools, because the messages of Python users are in that format.
    """
    package = f"{graph.root.name}.dialects"
    folders = {_part(name, 2) for name in graph.modules if name.startswith(f"{package}.") and _is_below(graph, name)}
    found = set()
    for module, imported in graph.imports.items():
        own = _part(module, 2) if module.startswith(f"{package}.") else ""
        may = set(registry) if module == package else {"settings"} if _part(module, 1) == "cli" else set()
        if _part(module, 1) == "llm":
            imported = imported - {f"{package}.openai.{name}" for name in ("fields", "messages")}
        for other in imported:
            dialect = _part(other, 2) if other.startswith(f"{package}.") else ""
            if dialect in folders and dialect != own and _part(other, 3) not in may:
                found.add((module, other))
    return found


def _is_below(graph: ImportGraph, module: str) -> bool:
    """Whether the module is in a folder of ``dialects``, or is such a folder."""
    return len(graph.modules[module].relative_to(graph.root).parts) > 2


def _part(module: str, index: int) -> str:
    return (*module.split("."), "", "", "")[index]


def _importing_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names in the file of functions that import by name."""
    found = {"__import__"}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                for function in IMPORTERS.get(alias.name, ()):
                    found.add(f"{alias.asname or alias.name}.{function}")
                if alias.asname is None and alias.name.partition(".")[0] in IMPORTERS:  # import importlib.util
                    top = alias.name.partition(".")[0]
                    found |= {f"{top}.{function}" for function in IMPORTERS[top]}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            functions = IMPORTERS.get(node.module or "", set())
            found |= {alias.asname or alias.name for alias in node.names if alias.name in functions}
    return found


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression that is such a name; otherwise nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _constants(values: ast.expr) -> list[object]:
    """What a loop over a list or tuple of constants takes; nothing where it is another loop."""
    if isinstance(values, ast.Tuple | ast.List) and all(isinstance(item, ast.Constant) for item in values.elts):
        return [item.value for item in values.elts if isinstance(item, ast.Constant)]
    return []


def _patterns(argument: ast.expr, module: str, loops: Mapping[str, Sequence[object]]) -> list[str]:
    """The modules that an argument can name, with ``*`` for parts that are only known when it runs."""
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    if isinstance(argument, ast.Name):
        return [module] if argument.id == "__name__" else [str(value) for value in loops.get(argument.id, ())]
    if isinstance(argument, ast.JoinedStr):
        pattern = ""
        for part in argument.values:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            known = _patterns(value, module, {})
            pattern += known[0] if known else "*"
        return [pattern]
    return []
