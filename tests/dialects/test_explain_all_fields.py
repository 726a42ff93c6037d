"""No field of a request is missing from what ``POST /explain`` says of it: by property, over all documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from stub_runtime import QUICK, RunningServer, running_server

from dragoman.dialects import DIALECTS, made_dialects
from dragoman.dialects.explain_fields import MOST_FATES
from dragoman.dialects.explain_translation import generates
from dragoman.dialects.field_types import dotted
from dragoman.dialects.locallab.settings import LocalLabSettings

EXAMPLES = 5
FATES = {"honoured", "default", "reported", "refused", "invalid", "neutral", "lowered", "unknown"}
LIMITS = msgspec.structs.replace(QUICK, access_log=False, header_timeout_s=10.0, body_timeout_s=10.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("state")
    quiet = LocalLabSettings(locallab_rate_limit=0, locallab_folder=str(folder))
    with running_server(LIMITS, dialects=made_dialects({"locallab": quiet})) as server:
        yield server


@pytest.fixture(scope="module")
def documents(server: RunningServer) -> dict[str, dict[str, Any]]:
    """By dialect, its operations by their paths as its document describes them."""
    found = {}
    for dialect in DIALECTS:
        schema = schemathesis.openapi.from_url(f"{server.url}/{dialect.name}/openapi.json")
        operations = [each.ok() for each in schema.get_all_operations()]
        found[dialect.name] = {each.path: each for each in operations if each.method == "post"}
    return found


OPERATIONS = [
    pytest.param(
        f"/{dialect.name}",
        f"/{dialect.name}{operation.path.replace(':path}', '}')}",
        id=f"{dialect.name} {operation.path}",
    )
    for dialect in DIALECTS
    for operation in dialect.operations
    if operation.method == "POST" and generates(operation)
]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[str]:
    """The places of all names inside of a body."""
    if isinstance(value, dict):
        for name, each in value.items():
            if not name:
                continue  # the place of what is in it has no name of its own
            yield dotted((*path, name))
            yield from places(each, (*path, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from places(each, (*path, i))


def is_told(place: str, told: set[str]) -> bool:
    """Whether a field is told by itself, or the one that it is inside of."""
    return any(place == name or place.startswith((f"{name}.", f"{name}[")) for name in told)


def explained(server: RunningServer, path: str, body: Any) -> dict[str, Any]:
    path = path.replace("{deployment}", "stub").replace("{model}", "stub")
    asked = {"path": path, "body": body, "tokens": False, "others": False}
    answer = httpx.post(f"{server.url}/explain", json=asked, timeout=60)
    assert answer.status_code == 200, (answer.text, body)
    found: dict[str, Any] = answer.json()
    return found


def check(server: RunningServer, path: str, body: Any) -> None:
    told = explained(server, path, body)
    names = [each["name"] for each in told["fields"]]
    assert {each["fate"] for each in told["fields"]} <= FATES
    if told["more_fields"]:
        assert len(names) == MOST_FATES
        return
    missing = [place for place in places(body) if not is_told(place, set(names))]
    assert not missing, (missing, told["error"])
    if isinstance(body, dict):
        assert set(map(dotted, ((name,) for name in body if name))) <= set(names), "each field has an entry of its own"
        assert told["accepted"] or told["error"]["message"]


@pytest.mark.parametrize(("dialect", "path"), OPERATIONS)
def test_no_field_is_missing(
    server: RunningServer, documents: dict[str, dict[str, Any]], dialect: str, path: str
) -> None:
    operation = documents[dialect.strip("/")][path]
    bodies = operation.as_strategy(generation_mode=GenerationMode.POSITIVE).map(lambda case: case.body)
    bodies |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE).map(lambda case: case.body)
    names = st.lists(st.text("abcxyz_.[]0 é", min_size=1, max_size=70), max_size=3)
    values = st.sampled_from([None, 0, "x", [], {"inner": 1}, True])

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(body=bodies, more=names, value=values)
    def ask(body: Any, more: list[str], value: Any) -> None:
        try:
            body = msgspec.json.decode(msgspec.json.encode(body))
        except (TypeError, ValueError, msgspec.MsgspecError):
            body = {}  # schemathesis also makes what is no JSON
        check(server, path, body | dict.fromkeys(more, value) if isinstance(body, dict) else body)

    ask()


@pytest.mark.parametrize(("dialect", "path"), OPERATIONS)
def test_every_field_of_the_document_is_told_when_it_is_sent(
    server: RunningServer, documents: dict[str, dict[str, Any]], dialect: str, path: str
) -> None:
    """Once as null, and once with a value that is wrong for most."""
    document = httpx.get(f"{server.url}{dialect}/openapi.json").json()
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in reference:
        reference = document["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
    properties = reference["properties"]
    assert properties
    for value in (None, {"inner": 1}):
        check(server, path, dict.fromkeys(properties, value))


def test_what_is_too_much_to_tell_is_counted(server: RunningServer) -> None:
    body = {"prompt": "a", **{f"name{i}": 1 for i in range(MOST_FATES + 50)}}
    told = explained(server, "/openai/v1/completions", body)
    assert len(told["fields"]) == MOST_FATES
    known = len([each for each in told["fields"] if each["fate"] != "unknown"])
    assert told["more_fields"] == MOST_FATES + 50 - (MOST_FATES - known)
