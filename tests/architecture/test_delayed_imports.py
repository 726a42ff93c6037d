"""Imports in functions stand where a start would wait for them otherwise, and nowhere else."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "dragoman"

DELAYED = {
    "child_process.py": {"concurrent.futures", "ctypes", "psutil", "subprocess"},
    "dialects/locallab/generation.py": {"dragoman.core.rate_windows"},
    "engine/sampling/grammar_state.py": {"dragoman.grammar.matching"},
    "engine_client/prespawn.py": {"dragoman.engine.messages"},
    "llm/running.py": {"uvloop"},
    "models/gguf/tensors.py": {"dragoman"},
    "models/quantized/__init__.py": {"dragoman.models.quantized.scheme"},
    "models/hub.py": {"huggingface_hub", "huggingface_hub.utils", "huggingface_hub.utils.tqdm"},
    "server/address.py": {"psutil"},
    "server/keys.py": {"dragoman.core.rate_windows"},
    "server/kv_events.py": {"zmq"},
    "server/quotas.py": {"dragoman.core.rate_windows"},
    "server/tracing.py": {
        "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
        "opentelemetry.sdk.resources",
        "opentelemetry.sdk.trace",
        "opentelemetry.sdk.trace.export",
        "opentelemetry.trace",
        "opentelemetry.trace.propagation.tracecontext",
    },
    "serving/image_prompts.py": {"PIL"},
    "serving/image_worker.py": {"PIL"},
    "serving/model_registry.py": {"huggingface_hub"},
    "text/sandbox_child.py": {"psutil"},
    "text/template_names.py": {"jinja2"},
}
"""By file outside of ``cli/``, the modules that a function imports. The list only gets shorter: what many want late is
in ``core/lazy_imports.py``, what is cheap is imported at the top."""

PER_COMMAND = 25
"""Modules of ours that functions of ``cli/`` import: each command those that it alone needs when it runs."""


def delayed_imports(source: str) -> set[str]:
    """The modules that functions of the source import."""
    found: set[str] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom):
                    found.add(node.module or "")
                elif isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
    return found


@functools.cache
def by_file() -> dict[str, set[str]]:
    found = {
        path.relative_to(PACKAGE).as_posix(): delayed_imports(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {file: modules for file, modules in found.items() if modules}


def test_functions_import_only_what_is_listed() -> None:
    found = {file: modules for file, modules in by_file().items() if not file.startswith("cli/")}
    assert found == DELAYED
    assert by_file()["cli/__init__.py"] == {"dragoman.cli.start"}, "it catches an interrupt of what is imported there"


def test_commands_import_late_only_what_is_slow_or_their_own() -> None:
    commands = (modules for file, modules in by_file().items() if file.startswith("cli/") and file != "cli/__init__.py")
    modules = set().union(*commands)
    ours = {module for module in modules if module.startswith("dragoman")}
    assert len(ours) <= PER_COMMAND
    assert {module.partition(".")[0] for module in modules - ours} <= SLOW


SLOW = {"asyncio", "huggingface_hub", "psutil", "readline", "rich", "torch", "transformers"}
"""What commands that do not need it do not wait for."""


def test_an_import_in_a_function_is_found() -> None:
    assert delayed_imports("import a\ndef f():\n    import b.c\n    def g():\n        from d import e") == {"b.c", "d"}


def test_only_the_helper_makes_names_of_packages_late() -> None:
    late = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if _defines_getattr(path)]
    assert sorted(late) == ["dialects/__init__.py"], "which makes the dialects; the others use lazy_names"


def _defines_getattr(path: Path) -> bool:
    source = path.read_text(encoding="utf-8")
    body = ast.parse(source).body if "def __getattr__" in source else []
    return any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in body)
