"""docs/python.md and the README are true: their examples run, and the tables name everything."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import LLM, CompletionOutput, RequestOutput, SamplingParams, StructuredOutputsParams
from dragoman.engine.settings import SchedulerSettings
from dragoman.llm.prompts import ChatOptions
from dragoman.llm.running import NOT_OPTIONS
from dragoman.models.settings import ModelSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


def named(page: str) -> set[str]:
    """Names in backticks, methods also behind their object."""
    return set(re.findall(r"`(?:await\s)?(?:LLM\.|llm\.)?(\w+)[`=(]", page))


def test_the_examples_of_the_manual_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    try:
        for example in examples(PAGE):
            exec(example, names)
            assert capsys.readouterr().out.strip(), example
    finally:
        names["llm"].close()


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [each for each in examples(README) if "from dragoman import" in each]
    exec(example, {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("struct", [SamplingParams, StructuredOutputsParams, RequestOutput, CompletionOutput])
def test_every_field_is_named(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) <= named(PAGE)


def test_every_option_is_named() -> None:
    options = {*ModelSettings.__struct_fields__, *SchedulerSettings.__struct_fields__} - NOT_OPTIONS
    arguments = set(inspect.signature(LLM.__init__).parameters) - {"self", "options"}
    table = PAGE[PAGE.index("| argument | means |") : PAGE.index("All but the first four")]
    assert named(table) == options | arguments


def test_every_method_is_named() -> None:
    methods = {name for name, _ in inspect.getmembers(LLM, inspect.isfunction) if not name.startswith("_")}
    assert methods | {"aopen"} <= named(PAGE)
    assert set(ChatOptions.__annotations__) <= named(PAGE)
