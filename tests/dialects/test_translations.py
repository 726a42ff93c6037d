"""What every field of every dialect becomes: a request with the field is sent, and what reaches the core is compared.

The tables carry the values (``CoreParams``); the cases say independently of them what has to arrive. Then each row of
each table is given another meaning, and its case has to fail.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from gemini_translation_cases import GEMINI_BODIES, GEMINI_CASES
from local_translation_cases import LOCAL_CASES
from recorded import RecordingServing, recording_client
from translation_cases import BODIES as HOSTED_BODIES
from translation_cases import CASES as HOSTED_CASES
from translation_cases import Case

from dragoman.dialects import made_dialects
from dragoman.dialects.field import Field, Outline, Row, Table
from dragoman.dialects.field_types import FieldType, ListOf, OneOf, Wrapped
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.text import ChatTemplate

BODIES = HOSTED_BODIES | GEMINI_BODIES
CASES = HOSTED_CASES | LOCAL_CASES | GEMINI_CASES

DIALECTS = made_dialects(
    {"locallab": LocalLabSettings(locallab_burst=0, locallab_rate_limit=0, locallab_folder="/nonexistent")}
)
TABLES = {
    f"{d.name} {o.path}": o.table for d in DIALECTS for o in d.operations if o.table is not None and o.scope == "infer"
}


def cases_of(operation: str) -> dict[str, Case]:
    """By the dotted name of the field."""
    rows = {row.name for rows in TABLES[operation].rows.values() for row in rows}
    both = CASES.get(operation.split()[0], {}) | CASES.get(operation, {})
    return {name: case for name, case in both.items() if name in rows}


# The server ----------------------------------------------------------------------------------------------------------


class Recorder:
    """Asks the dialects, and finds what reached the core."""

    def __init__(self, runner: asyncio.Runner, serving: RecordingServing, client: Any) -> None:
        self.runner, self.serving, self.client = runner, serving, client

    def found(self, operation: str, body: dict[str, Any], parameters: Iterable[str]) -> dict[str, Any]:
        """The parameters, each as the last thing that was asked for has it; None: nothing has it."""
        dialect, path = operation.split()
        self.serving.asked.clear()
        path = path.replace("{model:path}", str(body.get("model", "stub")))
        self.runner.run(self.client.post(f"/{dialect}{path}", json=body))
        return {parameter: self._found(parameter) for parameter in parameters}

    def _found(self, parameter: str) -> Any:
        for asked in reversed(self.serving.asked):
            value: Any = asked
            for name in parameter.split("."):
                value = getattr(value, name, None)
            if value is not None:
                return value
        return None

    def shows(self, operation: str, name: str, case: Case) -> bool:
        """Whether the field becomes what its case expects, which is not there without it."""
        without = with_fields(BODIES[operation], case.beside)
        body = with_fields(without, {name: case.value})
        with_it = self.found(operation, body, case.expected)
        return case.fits(with_it) and not case.fits(self.found(operation, without, case.expected))


def with_fields(body: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body with more fields; those inside of objects have dotted names."""
    made = dict(body)
    for name, value in fields.items():
        *places, last = name.split(".")
        inside = made
        for place in places:
            inside[place] = dict(inside.get(place, {}))
            inside = inside[place]
        inside[last] = value
    return made


@pytest.fixture(scope="module")
def recorder(template: ChatTemplate) -> Iterator[Recorder]:
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbits", lambda bits: 7)
        recording = recording_client(template, DIALECTS)
        serving, client = runner.run(recording.__aenter__())
        yield Recorder(runner, serving, client)
        runner.run(recording.__aexit__(None, None, None))


# The cases -----------------------------------------------------------------------------------------------------------


def test_every_row_has_a_case() -> None:
    """In one of the operations that have it: a row is its name in its dialect, and what it becomes."""
    rows = {(op.split()[0], row.name, row.field.becomes) for op, table in TABLES.items() for row in all_rows(table)}
    cased = {
        (op.split()[0], row.name, row.field.becomes)
        for op in BODIES
        for row in all_rows(TABLES[op])
        if row.name in cases_of(op)
    }
    assert rows == cased
    for operation in BODIES:
        assert {row.name for row in all_rows(TABLES[operation])} == cases_of(operation).keys()
    shared = {(key, name) for key, cases in CASES.items() for name in cases}
    used = {(key, name) for op in BODIES for key in (op.split()[0], op) for name in cases_of(op)}
    assert shared <= used, "a case of no row"


def all_rows(table: Table) -> list[Row]:
    return [row for rows in table.rows.values() for row in rows]


@pytest.mark.parametrize("operation", BODIES)
def test_a_field_becomes_what_it_says(recorder: Recorder, operation: str) -> None:
    for name, case in cases_of(operation).items():
        assert recorder.shows(operation, name, case), name


@pytest.mark.parametrize("operation", BODIES)
def test_a_row_that_becomes_something_else_is_noticed(recorder: Recorder, operation: str) -> None:
    cases = cases_of(operation)
    rows = all_rows(TABLES[operation])
    targets = {target for row in rows for target in row.field.targets}
    for row in rows:
        group = row.field.targets[0].rpartition(".")[0]
        others = targets - set(row.field.targets)
        near = sorted(others, key=lambda target: (target.rpartition(".")[0] != group, target))
        for becomes in ("", *near[:1]):
            with another_meaning(row.field, becomes):
                assert not recorder.shows(operation, row.name, cases[row.name]), f"{row.name} as '{becomes}'"


@contextmanager
def another_meaning(field: Field, becomes: str) -> Iterator[None]:
    """The field, wherever it is a row, becomes something else."""
    before = field.becomes
    try:
        become(field, becomes)
        yield
    finally:
        become(field, before)


def become(field: Field, meaning: str) -> None:
    msgspec.structs.force_setattr(field, "becomes", meaning)
    for table in EVERY_TABLE:
        for made in ("rows", "groups"):
            table.__dict__.pop(made, None)


def tables_within(kind: FieldType) -> Iterator[Table]:
    match kind:
        case Table(fields=fields):
            yield kind
            for field in fields:
                yield from tables_within(field.kind)
        case Outline(table=inner) | ListOf(item=inner) | Wrapped(inner=inner):
            yield from tables_within(inner)
        case OneOf(alternatives=alternatives):
            for alternative in alternatives:
                yield from tables_within(alternative)


EVERY_TABLE = {id(table): table for each in TABLES.values() for table in tables_within(each)}.values()
