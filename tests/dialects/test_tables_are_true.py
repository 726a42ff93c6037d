"""Random requests to every operation that generates: what its table says of a field is what happens.

Whatever is sent, the answer is one of success, or the dialect's error about a field of the request. A dialect is here
as soon as it is registered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from stub_runtime import QUICK, LocalServer, local_server

from dragoman.core.errors import DragomanError, NotFound, UnsupportedFeature
from dragoman.dialects import made_dialects
from dragoman.dialects.api import Dialect, ErrorResponse, Operation
from dragoman.dialects.field import Field, Outline, Table, Treatment
from dragoman.dialects.field_types import (
    Anything,
    Boolean,
    FieldError,
    FieldType,
    Floats,
    Integer,
    ListOf,
    MapOf,
    Number,
    OneOf,
    String,
    Wrapped,
)
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.engine.integrity import check_integrity
from dragoman.server.app import create_app
from dragoman.text import ChatTemplate

SERVED: dict[str, Any] = {
    "model": "stub",
    "model_id": "stub",
    "messages": [{"role": "user", "content": "Hi"}],
    "contents": [{"parts": [{"text": "Hi"}]}],
    "content": {"parts": [{"text": "Hi"}]},
    "stop": ["\N{SNOWMAN}"],
}
"""Values that a name needs to mean something here, or to leave texts uncut. Used where the field's type takes them."""

ENOUGH_TIME = (60_000_000, 60.0)
"""One minute, in microseconds and in seconds: the value of every field that limits the time of a generation, however
it is spelled. A generation that gets less is cut, and a dialect may answer that with an error of the server."""

PROMPTS = ("prompt", "prompts", "input", "inputs", "texts", "messages", "contents", "text_1", "text_2")
"""Fields without which some dialects serve nothing, though no single one of them is required."""

UNWORDED = ("alexandria",)
"""Dialects whose contract has one sentence for all bad input."""

REQUESTS = count()
"""Where requests have ids of the client's, one that has been used goes on with what it began."""

LONGEST = 6
"""Of lists, strings and lengths: what is asked for many times is small."""

SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2**70, 1.5, -1e300, "", "x", "stub", "1")
POOL: tuple[Any, ...] = (*SCALARS, [], {}, [[]], [None], ["a", 1], [{}], {"a": 1}, {"1": "b"}, "x" * 5000, [1] * 5000)


DIALECTS = made_dialects(
    {"locallab": LocalLabSettings(locallab_burst=0, locallab_rate_limit=0, locallab_folder="/nonexistent")}
)
HIDING = ("/vertex", "/v2/models/{model}/versions/{version}/infer")
"""Paths whose contract hides what was wrong with one of several requests inside of one."""


def operations() -> list[Any]:
    """One for each set of fields of each dialect, if they become something in the core."""
    found: dict[tuple[str, ...], Any] = {}
    for dialect in DIALECTS:
        for operation in dialect.operations:
            table = operation.table
            if (
                table is not None
                and operation.scope == "infer"
                and operation.path not in HIDING
                and any(field.becomes for field in fields_within(table))
            ):
                case = pytest.param(dialect, operation, id=f"{dialect.name}-{operation.path.strip('/')}")
                found.setdefault((dialect.name, *(field.name for field in table.fields)), case)
    return list(found.values())


def fields_within(kind: FieldType) -> list[Field]:
    match kind:
        case Table(fields=fields):
            return [*fields, *(inner for field in fields for inner in fields_within(field.kind))]
        case ListOf(item=item):
            return fields_within(item)
        case OneOf(alternatives=alternatives):
            return [field for kind in alternatives for field in fields_within(kind)]
        case Wrapped(inner=inner):
            return fields_within(inner)
    return []


# Values --------------------------------------------------------------------------------------------------------------


def allowed(kind: FieldType) -> SearchStrategy[Any]:
    """Values that the kind takes."""
    match kind:
        case Integer():
            low = -LONGEST if kind.minimum is None else kind.minimum
            high = max(low, LONGEST) if kind.maximum is None else min(kind.maximum, max(low, LONGEST))
            return st.integers(low, high)
        case Number():
            least = kind.minimum if kind.above is None else kind.above
            low = -10.0 if least is None else float(least)
            high = low + 10.0 if kind.maximum is None else float(kind.maximum)
            return st.floats(low, high, exclude_min=kind.above is not None)
        case Boolean():
            return st.booleans()
        case String():
            if kind.choices:
                return st.sampled_from(kind.choices)
            if kind.pattern is not None:
                return st.from_regex(kind.pattern, fullmatch=True)
            longest = max(kind.minimum, LONGEST) if kind.maximum is None else min(kind.maximum, LONGEST)
            return st.text(min_size=kind.minimum, max_size=max(kind.minimum, longest))
        case ListOf():
            return st.lists(allowed(kind.item), min_size=kind.minimum, max_size=max(kind.minimum, 3))
        case Floats():
            return st.lists(st.floats(-10, 10, width=32), min_size=kind.minimum, max_size=16)
        case MapOf():
            return st.dictionaries(st.integers(0, 500).map(str), allowed(kind.value), max_size=3)
        case OneOf():
            return st.one_of(*map(allowed, kind.alternatives))
        case Table():
            return bodies(kind)
        case Wrapped():
            return allowed(kind.inner)
        case Outline():
            return bodies(kind.table)
        case Anything():
            return st.just({}) if kind.object_only else st.sampled_from([value for value in POOL if value is not None])
    return among(kind, is_allowed=True)


def forbidden(kind: FieldType) -> SearchStrategy[Any]:
    """Values that the kind refuses."""
    return among(kind, is_allowed=False)


def among(kind: FieldType, *, is_allowed: bool) -> SearchStrategy[Any]:
    """Those of the pool that the kind itself takes, or refuses."""
    found = [value for value in POOL if value is not None and takes(kind, value) is is_allowed]
    return st.sampled_from(found) if found else st.nothing()


def takes(kind: FieldType, value: Any) -> bool:
    try:
        kind.check(value, ())
    except FieldError:
        return False
    except DragomanError:
        return True  # refused for something else than its form
    return True


def bodies(table: Table) -> SearchStrategy[dict[str, Any]]:
    """The required fields, lengths, and some of the others, none of which ask for what is refused."""
    values = {field.name: named(field) for field in table.fields}
    always = {f.name: values[f.name] for f in table.fields if f.required or f.name in PROMPTS or f in lengths(table)}
    optional = {
        f.name: values[f.name] if f.treatment is not Treatment.REFUSED else st.sampled_from([None, *f.neutral])
        for f in table.fields
        if f.name not in always
    }
    few = st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True) if optional else st.just([])
    return few.flatmap(lambda names: st.fixed_dictionaries(always | {name: optional[name] for name in names}))


def named(field: Field) -> SearchStrategy[Any]:
    value = pinned(field)
    return allowed(field.kind) if value is None else st.just(value)


def pinned(field: Field) -> Any:
    """The one value that is sent in this field; None: any that its type takes."""
    values = ENOUGH_TIME if field.becomes == "timeout_s" else (SERVED.get(field.name),)
    return next((value for value in values if value is not None and takes(field.kind, value)), None)


def lengths(table: Table) -> list[Field]:
    """The first field that says how much to generate, or the object that it is in: without it, it is much."""
    for field in table.fields:
        if any(each.becomes == "ending.max_tokens" for each in (field, *fields_within(field.kind))):
            return [field]
    return []


def least(kind: FieldType) -> Any:
    """The smallest value that is served: the required fields, and little to generate."""
    match kind:
        case Integer():
            return max(1, kind.minimum or 0)
        case String():
            return kind.choices[0] if kind.choices else "x" * max(1, kind.minimum)
        case ListOf():
            return [least(kind.item)]
        case OneOf():
            return least(kind.alternatives[0])
        case Table():
            chosen = [
                f
                for f in kind.fields
                if f.required or (f.name in PROMPTS and f.treatment is not Treatment.REFUSED) or f in lengths(kind)
            ]
            served = SERVED | {"request_id": f"request-{next(REQUESTS)}"}
            return {f.name: served[f.name] if f.name in served else least(f.kind) for f in chosen}
        case Wrapped():
            return least(kind.inner)
    return next(value for value in POOL if value is not None and takes(kind, value))


# The server ----------------------------------------------------------------------------------------------------------


class Witness:
    """A client of the application, and the errors that its dialects were asked to word."""

    def __init__(self, runner: asyncio.Runner, runtime: LocalServer) -> None:
        self.runner, self.runtime = runner, runtime
        self.errors: list[DragomanError] = []
        app = create_app(runtime.serving, QUICK, dialects=[self._seen(dialect) for dialect in DIALECTS])
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60)

    def _seen(self, dialect: Dialect) -> Dialect:
        def render_error(error: DragomanError) -> ErrorResponse:
            self.errors.append(error)
            return dialect.render_error(error)

        return msgspec.structs.replace(dialect, render_error=render_error)

    def ask(self, dialect: Dialect, operation: Operation, body: dict[str, Any]) -> httpx.Response:
        self.errors.clear()
        path = re.sub(r"{\w+(:\w+)?}", "stub", operation.path)
        asking = self.client.request(operation.method, f"/{dialect.name}{path}", json=body)
        answer = self.runner.run(asyncio.wait_for(asking, 60))
        check_integrity(self.runtime.engine.engine.scheduler)
        assert not self.runtime.engine.streams, "a request is left behind"
        return answer


@pytest.fixture(scope="module")
def witness(template: ChatTemplate) -> Iterator[Witness]:
    with asyncio.Runner() as runner:
        runtime = local_server(template)
        witness = Witness(runner, runner.run(runtime.__aenter__()))
        yield witness
        runner.run(witness.client.aclose())
        runner.run(runtime.__aexit__(None, None, None))


PROPERTY = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


def the_error(witness: Witness, answer: httpx.Response) -> DragomanError:
    """What was wrong with the request: one thing, of the client's."""
    assert 400 <= answer.status_code < 500, answer.text
    (error,) = witness.errors
    assert len(answer.content) < 5000
    return error


def is_about(dialect: Dialect, error: DragomanError, names: Iterable[str]) -> bool:
    """Whether the error names one of the fields: as its place, or in the words that the dialect's clients know."""
    said = {re.split(r"[.\[]", error.param or "")[0], *re.findall(r"\w+", error.message)}
    return dialect.name in UNWORDED or not said.isdisjoint(names)


@pytest.mark.parametrize(("dialect", "operation"), operations())
@given(data=st.data())
@PROPERTY
def test_what_the_table_takes_is_served_or_refused_by_its_name(
    witness: Witness, dialect: Dialect, operation: Operation, data: st.DataObject
) -> None:
    """Values of the right form may still be impossible together, or here; then the error is about one of them."""
    table = operation.table
    assert table is not None
    body = data.draw(bodies(table))
    answer = witness.ask(dialect, operation, body)
    if answer.status_code < 300:
        warned = re.split(r"[^\w]+", answer.headers.get("x-dragoman-warnings", ""))
        for field in table.fields:
            if field.treatment is Treatment.REPORTED and field.name in table_names(table):
                assert (field.name in warned) is field.asks(body.get(field.name)), field.name
        return
    error = the_error(witness, answer)
    names = {f.name for each in dialect.operations if each.table for f in fields_within(each.table)}
    assert len(table.fields) == 1 or isinstance(error, NotFound) or is_about(dialect, error, names), (
        error,
        error.param,
    )


def table_names(table: Table) -> set[str]:
    """Names that only the table itself has: those of objects within may be the same."""
    inner = {field.name for field in fields_within(table)[len(table.fields) :]}
    return {field.name for field in table.fields} - inner


@pytest.mark.parametrize(("dialect", "operation"), operations())
@given(data=st.data())
@PROPERTY
def test_what_the_table_does_not_take_is_refused_by_its_name(
    witness: Witness, dialect: Dialect, operation: Operation, data: st.DataObject
) -> None:
    table = operation.table
    assert table is not None
    wrong = {
        field.name: forbidden(field.kind)
        for field in table.fields
        if field.treatment is Treatment.HONOURED and not forbidden(field.kind).is_empty
    }
    names = data.draw(st.lists(st.sampled_from(sorted(wrong)), min_size=1, max_size=3, unique=True))
    body = least(table) | {name: data.draw(wrong[name]) for name in names}
    answer = witness.ask(dialect, operation, body)
    assert is_about(dialect, the_error(witness, answer), names)


@pytest.mark.parametrize(("dialect", "operation"), operations())
@given(data=st.data())
@PROPERTY
def test_what_the_table_refuses_is_refused_by_its_name(
    witness: Witness, dialect: Dialect, operation: Operation, data: st.DataObject
) -> None:
    table = operation.table
    assert table is not None
    refused = [field for field in table.fields if field.treatment is Treatment.REFUSED]
    if not refused:
        return
    field = data.draw(st.sampled_from(refused))
    value = data.draw(st.sampled_from([value for value in POOL if field.asks(value)]))
    answer = witness.ask(dialect, operation, least(table) | {field.name: value})
    error = the_error(witness, answer)
    assert isinstance(error, UnsupportedFeature)
    assert is_about(dialect, error, [field.name])


@pytest.mark.parametrize(("dialect", "operation"), operations())
@given(name=st.from_regex(r"[a-z]{3,8}_zzz", fullmatch=True), value=st.sampled_from(POOL))
@PROPERTY
def test_what_no_table_knows_is_reported(
    witness: Witness, dialect: Dialect, operation: Operation, name: str, value: Any
) -> None:
    assert operation.table is not None
    plain = witness.ask(dialect, operation, least(operation.table))
    answer = witness.ask(dialect, operation, {name: value, **least(operation.table)})
    assert plain.status_code == answer.status_code < 300, plain.text
    assert answer.headers["x-dragoman-warnings"].split("; ")[0] == f"unknown: {name}"


def test_a_drawn_time_limit_is_long_enough_under_every_name() -> None:
    """A request whose generation is cut says nothing about its fields."""
    fields = [field for case in operations() for field in fields_within(case.values[1].table)]
    limits = {field.name: pinned(field) for field in fields if field.becomes == "timeout_s"}
    assert limits == {"timeout_microseconds": 60_000_000, "max_time": 60.0, "maxTime": 60.0}


def test_every_dialect_is_here() -> None:
    here = {case.values[0].name for case in operations()}
    assert here == {dialect.name for dialect in DIALECTS if any(operation.table for operation in dialect.operations)}
