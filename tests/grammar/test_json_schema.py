"""A schema is enforced, or refused by name before anything is generated; never neither."""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import json
import re
import urllib.parse
import uuid
from typing import Any

import jsonschema
import jsonschema.validators
import pytest
from schemas import ENFORCED, REFUSED, Schema
from walks import MATCHING, accepts, walk

from dragoman.core.constraint import JsonObject, JsonSchema, Lark, opened
from dragoman.core.errors import BadRequest
from dragoman.grammar.lark import grammar_of

WALKS = 5

decimal.getcontext().prec = 500  # numbers may be as long as a text
formats = jsonschema.FormatChecker(formats=())


@formats.checks("date", raises=ValueError)
def is_date(text: Any) -> bool:
    return not isinstance(text, str) or bool(datetime.date.fromisoformat(text))


@formats.checks("time", raises=ValueError)
def is_time(text: Any) -> bool:
    return not isinstance(text, str) or datetime.time.fromisoformat(text).tzinfo is not None


@formats.checks("date-time", raises=ValueError)
def is_date_time(text: Any) -> bool:
    return not isinstance(text, str) or datetime.datetime.fromisoformat(text).tzinfo is not None


@formats.checks("duration")
def is_duration(text: Any) -> bool:
    years = r"(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?"
    return not isinstance(text, str) or re.fullmatch(rf"P(?=\d|T)({years}|\d+W)", text) is not None


@formats.checks("email")
def is_email(text: Any) -> bool:
    if not isinstance(text, str):
        return True
    local, _, domain = text.partition("@")
    return 0 < len(local) <= 64 and ".." not in local and local.strip(".") == local and is_hostname(domain)


@formats.checks("hostname")
def is_hostname(text: Any) -> bool:
    if not isinstance(text, str):
        return True
    labels = text.split(".")
    return len(text) <= 253 and all(re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)", label) for label in labels)


@formats.checks("ipv4", raises=ValueError)
def is_ipv4(text: Any) -> bool:
    return not isinstance(text, str) or bool(ipaddress.IPv4Address(text)) or True


@formats.checks("ipv6", raises=ValueError)
def is_ipv6(text: Any) -> bool:
    return not isinstance(text, str) or bool(ipaddress.IPv6Address(text)) or True


@formats.checks("uuid", raises=ValueError)
def is_uuid(text: Any) -> bool:
    return not isinstance(text, str) or str(uuid.UUID(text)) == text.lower()


@formats.checks("uri", raises=ValueError)
def is_uri(text: Any) -> bool:
    return not isinstance(text, str) or (
        bool(urllib.parse.urlsplit(text).scheme) and not re.search(r'[\s<>"{}|\\^`]', text)
    )


@formats.checks("json-pointer")
def is_json_pointer(text: Any) -> bool:
    return not isinstance(text, str) or re.fullmatch(r"(/([^~/]|~[01])*)*", text, re.DOTALL) is not None


def number(text: str) -> decimal.Decimal | float:
    """Exactly; a number beyond all exponents as the infinity that it is to most readers."""
    return decimal.Decimal(text) if abs(int(text.lower().partition("e")[2] or 0)) < 10_000 else float(text)


def check(text: str, schema: Schema) -> None:
    """The text is JSON, and valid by somebody else's opinion. Numbers are exact."""
    exact = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
    kind = jsonschema.validators.validator_for(exact, default=jsonschema.Draft202012Validator)
    kind(exact, format_checker=formats).validate(json.loads(text, parse_float=number))


CASES = [
    pytest.param(schema, id=f"{keyword} {number}")
    for keyword, schemas in ENFORCED.items()
    for number, schema in enumerate(schemas)
]


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("schema", CASES)
def test_every_text_is_valid(schema: Schema, is_open: bool) -> None:
    constraint = JsonSchema(json.dumps(schema), is_open=is_open)
    walks = [walk(constraint, seed) for seed in range(WALKS)]
    finished = [each.text.decode() for each in walks if each.complete]
    for text in finished:
        check(text, schema)
    assert finished


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=lambda value: value if isinstance(value, str) else None)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, reason: str) -> None:
    try:
        problem = MATCHING.problem(grammar_of(JsonSchema(json.dumps(schema))))
    except BadRequest as error:
        problem = error.message
    assert reason in problem


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 150
    assert len(REFUSED) >= 60


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"type": "integer"}}}, '{"\\u0061":"x"}'),
        ({"properties": {"a": {"type": "integer"}}}, '{"a":"x"}'),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, '{"a":1,"a":2}'),
        ({"type": "integer"}, "01"),
        ({"type": "integer"}, "1.5"),
        ({"type": "number"}, "NaN"),
        ({"type": "string"}, '"\\ud800"'),
        ({"type": "string", "maxLength": 1}, '"ab"'),
        ({"type": "string", "pattern": "^\\d$"}, '"٣"'),
        ({"type": "string", "format": "date"}, '"2023-02-29"'),
        ({"type": "string", "format": "date"}, '"1900-02-29"'),
        ({"type": "object"}, "{}" + " "),
        ({"type": "object"}, "\n{}"),
        ({"type": "array"}, "[1,  2]"),
        ({"const": "a"}, '"b"'),
    ],
)
def test_texts_that_would_not_be_valid_are_impossible(schema: Schema, text: str) -> None:
    assert not accepts(JsonSchema(json.dumps(schema)), text)


@pytest.mark.parametrize(
    "text",
    [
        '{"b":[1,2],"a":{"c":null}}',
        '{"b": [1, 2], "a": {"c": null}}',
        '{\n  "b": [\n    1,\n    2\n  ],\n  "a": {\n    "c": null\n  }\n}',
        '{\n\t"b": [],\n\t"a": {}\n}',
        '{"b": [1e5, -0.25], "a": {"\\"": "\\n\\t\\\\"}}',
    ],
)
def test_the_usual_ways_to_write_json_are_possible(text: str) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "array"}, "a": {"type": "object"}}}
    assert accepts(JsonSchema(json.dumps(schema)), text)
    assert accepts(JsonObject(), text)


GOOD_FORMATS = {
    "date": ["2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"],
    "time": ["23:59:59Z", "08:00:00.123456789+02:00"],
    "email": [
        "ada@example.org",
        "first.second.third@example.org",
        "a.b.c.d.e.f.g@example.co.uk",
        "notifications+unsubscribe-1234567890@reply.example.com",
        f"{'a' * 64}@{'b' * 63}.example",
    ],
    "hostname": ["localhost", "a--b.example", "a" * 63, f"{'a' * 31}-{'b' * 31}.example.org", "3.example"],
    "ipv6": ["::", "::1", "2001:db8::8a2e:370:7334", "::ffff:192.0.2.128", "1:2:3:4:5:6:7.8.9.0"],
    "uri": [
        "https://user:secret@example.org:65535/a/b?c=d&e=%20#f",
        "http://127.0.0.1:11434/v1",
        "http://[::1]:8080/",
        "http://my_service:8000/path",
        "file:///etc/hosts",
        "urn:isbn:0451450523",
        "mailto:ada@example.org",
        "redis://:secret@cache:6379/0",
        "data:text/plain;base64,SGVsbG8=",
        "file:/etc/hosts",
    ],
}
BAD_FORMATS = {
    "time": ["24:00:00Z", "08:00:00", "08:00:00.Z"],
    "email": ["ada", "@example.org", ".ada@example.org", "ada..b@example.org", "ada.@example.org", f"{'a' * 65}@b.c"],
    "hostname": ["", "-a", "a-", "a" * 64, "a..b", "ab--c", "a_b", "a."],
    "ipv6": [":", ":::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "::1::", "1:2:3:4:5:6:7:1.2.3.4", "::256.0.0.1"],
    "uri": [
        "example.org",
        "http://",
        "http://a:65536/",
        "http://a b/",
        "http://[::1",
        "http://a/%zz",
        "//a/b",
        "file://",
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in GOOD_FORMATS.items() for text in texts])
def test_texts_of_a_format_are_possible(name: str, text: str) -> None:
    schema = {"type": "string", "format": name}
    check(json.dumps(text), schema)
    assert accepts(JsonSchema(json.dumps(schema)), json.dumps(text))


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD_FORMATS.items() for text in texts])
def test_other_texts_of_a_format_are_impossible(name: str, text: str) -> None:
    assert not accepts(JsonSchema(json.dumps({"type": "string", "format": name})), json.dumps(text))


@pytest.mark.parametrize("text", ["[1, 2]", "[1,2]", "[ 1 , 2 ]", "[]"])
def test_json_may_be_held_to_one_line(text: str) -> None:
    numbers = JsonSchema('{"type": "array", "items": {"type": "integer"}}', one_line=True)
    assert accepts(numbers, text)
    assert accepts(Lark('start: "<" numbers ">"\nnumbers: %json {"type": "array"}', one_line=True), f"<{text}>")
    broken = text.replace("[", "[\n")
    assert not accepts(numbers, broken)
    assert not accepts(Lark('start: "<" numbers ">"\nnumbers: %json {"type": "array"}', one_line=True), f"<{broken}>")
    assert accepts(JsonSchema('{"type": "array"}'), broken)
    for seed in range(WALKS):
        assert b"\n" not in walk(JsonObject(one_line=True), seed).text


NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "closes"),
    [
        (NAMED, True),
        ({"properties": {"a": {}}, "required": ["a"]}, True),
        ({"type": "array", "items": NAMED}, True),
        ({"properties": {"b": NAMED}}, True),
        ({"anyOf": [NAMED, {"type": "null"}]}, True),
        ({"$ref": "#/$defs/x", "$defs": {"x": NAMED}}, True),
        ({"type": "object"}, False),
        (NAMED | {"additionalProperties": True}, False),
        (NAMED | {"patternProperties": {"^z": {}}}, False),
        (NAMED | {"required": ["z"]}, False),
        (NAMED | {"minProperties": 2, "required": ["a"]}, False),
    ],
)
def test_objects_are_closed_where_their_schema_names_properties(schema: Any, closes: bool) -> None:
    closed, opened = (grammar_of(JsonSchema(json.dumps(schema), is_open=is_open)) for is_open in (False, True))
    assert (closed != opened) is closes
    within = schema == {"type": "array", "items": NAMED}, schema.get("properties", {}).get("b") == NAMED
    for is_open in (False, True):
        given: Any = {"a": 1, "z": 2}
        given = [given] if within[0] else {"b": given} if within[1] else given
        text = json.dumps(given)
        assert accepts(JsonSchema(json.dumps(schema), is_open=is_open), text) is (is_open or not closes)
        assert accepts(JsonSchema(json.dumps(schema), is_open=is_open), text.replace(', "z": 2', "")) is (
            "z" not in schema.get("required", ()) and schema.get("minProperties", 0) < 2
        )


OTHER = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}


@pytest.mark.parametrize(
    "schema",
    [
        NAMED | {"allOf": [OTHER]},
        {"allOf": [NAMED, OTHER]},
        NAMED | {"anyOf": [OTHER]},
        NAMED | {"$ref": "#/$defs/x", "$defs": {"x": OTHER}},
        {"allOf": [{"$ref": "#/$defs/x"}, NAMED], "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"anyOf": [OTHER]}}},
    ],
)
def test_objects_that_others_add_to_stay_open(schema: Any) -> None:
    made = JsonSchema(json.dumps(schema))
    assert accepts(made, '{"a":1,"b":2}') or accepts(made, '{"b":2,"a":1}')


def test_embedded_schemas_are_closed_too() -> None:
    grammar = "start: %json " + json.dumps(NAMED)
    assert not accepts(Lark(grammar), '{"a":1,"z":2}')
    assert accepts(Lark(grammar, is_open=True), '{"a":1,"z":2}')
    assert opened(Lark(grammar)) == Lark(grammar, is_open=True)
    assert opened(JsonObject()) == JsonObject()


def test_an_object_of_any_kind_is_an_object() -> None:
    for seed in range(WALKS):
        done = walk(JsonObject(), seed, most=2000, wander=8)
        if done.complete:
            assert isinstance(json.loads(done.text), dict)


def test_a_text_that_is_no_json_is_no_schema() -> None:
    for text in ("{", "nonsense", "", '{"a": NaN}', "[" * 100_000, '{"items":' * 3000 + "true" + "}" * 3000):
        with pytest.raises(BadRequest):
            grammar_of(JsonSchema(text))
