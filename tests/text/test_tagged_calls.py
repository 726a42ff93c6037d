"""Calls whose values are bare texts: their types are those of the tools' schemas, whole and streamed alike."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_calls import written

from dragoman.text.call_parser import CallArguments, CallEnd, CallStart, Content, Part
from dragoman.text.tagged_calls import DSML
from dragoman.text.tool_calls import CALL_FORMATS

STATED = ["deepseek_tagged"]
"""Formats whose tags say whether a value is a string."""
FORMATS = [
    name for name, format in CALL_FORMATS.items() if not format.is_typed and not format.is_framed and name not in STATED
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {}},
        "map": {"$ref": "#/$defs/Map"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "chosen": {"enum": ["1", "two", 3, None]},
        "all": {"allOf": [{"minLength": 1}, {"type": "string"}]},
        "any": {},
    },
    "$defs": {"Map": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}},
}


def parse(format: str, pieces: list[str], schema: dict[str, Any] = SCHEMA) -> list[Part]:
    """All parts, text of the same kind joined, with the same id for all calls."""
    parser = CALL_FORMATS[format].parser(("f", "g"), lambda: "id", {"f": schema})
    parts: list[Part] = []
    for part in [part for piece in pieces for part in parser.push(piece)] + parser.flush():
        match parts[-1:], part:
            case [Content(before)], Content(text):
                parts[-1] = Content(before + text)
            case [CallArguments(index, before)], CallArguments(_, text):
                parts[-1] = CallArguments(index, before + text)
            case _:
                parts.append(part)
    return parts


def arguments(format: str, text: str, schema: dict[str, Any] = SCHEMA) -> str:
    start, given, end = parse(format, [text], schema)
    assert start == CallStart(0, "id", "f")
    assert isinstance(given, CallArguments)
    assert end == CallEnd(0)
    return given.text


def value(key: str, text: str, schema: dict[str, Any] = SCHEMA) -> Any:
    """What an argument of this bare text is, the same in all formats."""
    found = [json.loads(arguments(format, written(format, [("f", {key: text})]), schema))[key] for format in FORMATS]
    assert all(each == found[0] and type(each) is type(found[0]) for each in found)
    return found[0]


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("text", "5", "5"),
        ("text", "null", "null"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", ' "a"\n\n', ' "a"\n\n'),
        ("text", "", ""),
        ("count", " 5 ", 5),
        ("count", "5.0", 5.0),
        ("count", "five", "five"),
        ("count", "5.5", "5.5"),
        ("ratio", "5", 5),
        ("ratio", "-1e3", -1000.0),
        ("ratio", "NaN", "NaN"),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", "yes", "yes"),
        ("list", "[1, [2]]", [1, [2]]),
        ("list", "['a', None]", ["a", None]),
        ("list", "[1] [2]", "[1] [2]"),
        ("map", '{"a": {"b": null}}', {"a": {"b": None}}),
        ("map", "{'a': True}", {"a": True}),
        ("map", "{a}", "{a}"),
        ("maybe", "null", None),
        ("maybe", "5", "5"),
        ("either", "5", 5),
        ("either", "05", "05"),
        ("chosen", "1", "1"),
        ("chosen", "two", "two"),
        ("chosen", "3", 3),
        ("chosen", "None", None),
        ("all", "5", "5"),
        ("any", "5", 5),
        ("any", "[1", "[1"),
        ("unnamed", "true", True),
        ("unnamed", "word", "word"),
    ],
)
def test_a_text_is_of_the_type_that_the_schema_states(key: str, text: str, expected: Any) -> None:
    found = value(key, text)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": {"$ref": "#/$defs/Loop"}}, "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"properties": {"a": {"$ref": "#anchor"}}, "type": "string"},
        {"properties": {"a": True}},
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 40}}},
        {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}] * 40}}},
    ],
)
def test_schemas_that_say_nothing_or_go_round_in_circles(schema: dict[str, Any]) -> None:
    assert value("a", '{"b": 1}', schema) == {"b": 1}


@pytest.mark.parametrize(
    "text", ["[" * 20_000, "1" * 20_000, "{" + '"a":{' * 5000, "['" * 5000, "[1" + "0" * 9999 + "]"]
)
def test_hostile_values_end(text: str) -> None:
    for format in FORMATS:
        found = arguments(format, written(format, [("f", {"list": text})]))
        assert found in (f'{{"list": {text}}}', '{"list": ' + json.dumps(text) + "}")


def test_strings_are_passed_on_as_they_come() -> None:
    parser = CALL_FORMATS["qwen"].start(("f",), {"f": SCHEMA})
    head = parser.push("<tool_call>\n<function=f>\n<parameter=text>\nLine 1\n")
    assert head[1:] == [CallArguments(0, '{"text": "Line 1')]
    assert parser.push('"2"\n</par') == [CallArguments(0, '\\n\\"2\\"')]
    assert parser.push("ameter>\n<parameter=count>\n1") == [CallArguments(0, '", "count": ')]
    assert parser.push("2\n</parameter>\n</function>") == [CallArguments(0, "12}"), CallEnd(0)]
    assert parser.push("\n</tool_call>") + parser.flush() == []


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("key", ["text", "count"])
def test_calls_that_are_cut_keep_what_they_have(format: str, key: str) -> None:
    whole = written(format, [("f", {"flag": True, key: "12"})])
    quote = '"' if key == "text" else ""
    text = whole[: whole.index("12") + 1]
    assert arguments(format, text) == f'{{"flag": true, "{key}": {quote}1'
    begun = whole[: whole.index("flag") - 4]
    assert parse(format, [begun]) == [Content(begun)]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("qwen", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
        ("qwen", "<tool_call>\n<function=f"),
        ("qwen", "<tool_call>\n<function=f>\n</tool_call>"),
        ("qwen", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ("qwen", "<function=unknown>\n</function>"),
        ("qwen", "<function=f>\n</tool_call>"),
        ("deepseek_tagged", f'<{DSML}function_calls>\n<{DSML}invoke name="unknown">'),
        ("deepseek_tagged", f'<{DSML}invoke name="f">\n</{DSML}invoke>'),
        ("qwen", "<tool_call>\n<function=" + "f" * 5000 + ">\n</function>"),
        ("glm", "<tool_call>unknown</tool_call>"),
        ("glm", "<tool_call>f g</tool_call>"),
        ("glm", "<tool_call>f\n<arg_value>1</arg_value></tool_call>"),
        ("minimax", "<minimax:tool_call>\n</minimax:tool_call>"),
        ("minimax", "<minimax:tool_call><invoke name=f></invoke></minimax:tool_call>"),
        ("minimax", '<minimax:tool_call><invoke name="f"/></minimax:tool_call>'),
    ],
)
def test_what_only_looks_like_a_call_is_content(format: str, text: str) -> None:
    for whole in (text, " \n" + text + " \n"):
        assert parse(format, [whole]) == [Content(whole)]


def test_what_is_not_of_the_format_behind_an_argument_is_content() -> None:
    text = "<tool_call>f<arg_key>count</arg_key><arg_value>1</arg_value> and <arg_key>a</arg_key></tool_call>"
    call = [CallStart(0, "id", "f"), CallArguments(0, '{"count": 1'), CallEnd(0)]
    assert parse("glm", [text]) == [*call, Content(" and <arg_key>a</arg_key></tool_call>")]
    twice = "<tool_call>f" + "<arg_key>count</arg_key><arg_value>1</arg_value>" * 2
    assert parse("glm", [twice]) == [*call, Content("<arg_key>count</arg_key><arg_value>1</arg_value>")]
    broken = "<tool_call>\n<function=<tool_call>\n<function=g>\n</function>\n</tool_call>"
    assert parse("qwen", [broken])[:2] == [Content("<tool_call>\n<function="), CallStart(0, "id", "g")]


@pytest.mark.parametrize("end", ["\n</tool_call>", "", "\n", " Then.", "\n<function=g>\n</function>\n</tool_call>"])
def test_a_call_of_qwen_may_lack_the_tag_that_opens_it(end: str) -> None:
    call = "<function=f>\n<parameter=text>\nLine <1>\n</parameter>\n</function>"
    whole = parse("qwen", ["Let me see.\n\n" + call + end])
    found = [CallStart(0, "id", "f"), CallArguments(0, '{"text": "Line <1>"}'), CallEnd(0)]
    assert whole[:4] == [Content("Let me see."), *found]
    assert whole[4:5] in ([], [Content(" Then.")], [CallStart(1, "id", "g")])
    assert parse("qwen", list("Let me see.\n\n" + call + end)) == whole


@pytest.mark.parametrize(
    ("format", "text"),
    [
        pytest.param(
            "glm",
            "<tool_call>f<arg_key>text</arg_key><arg_value>  a\n  </arg_value><arg_key>count</arg_key>"
            "<arg_value>420</arg_value></tool_call>\n<tool_call>g</tool_call>",
            id="Laguna",
        ),
        pytest.param(
            "qwen",
            "<tool_call>\n<function=f>\n<parameter=text>  a\n  </parameter>\n<parameter=count>420</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
            id="MiMo-V2-Flash",
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_tags_may_follow_each_other_without_line_breaks(format: str, text: str, size: int) -> None:
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    first, given, _, second, none, _ = parse(format, pieces)
    assert (first, second) == (CallStart(0, "id", "f"), CallStart(1, "id", "g"))
    assert isinstance(given, CallArguments)
    assert isinstance(none, CallArguments)
    assert json.loads(given.text) == {"text": "  a\n  ", "count": 420}
    assert none.text == "{}"


def test_tags_of_deepseek_say_which_values_are_strings() -> None:
    given = {"text": "5", "count": 5, "list": [1, {"a": None}], "unnamed": "true", "any": True}
    text = "I look.\n\n" + written("deepseek_tagged", [("f", given), ("g", {})])
    for pieces in ([text], list(text)):
        found = parse("deepseek_tagged", pieces)
        assert found[0] == Content("I look.")
        assert [part.name for part in found if isinstance(part, CallStart)] == ["f", "g"]
        made = [json.loads(part.text) for part in found if isinstance(part, CallArguments)]
        assert made == [given, {}]
    unstated = text.replace('string="false"', 'string="maybe"')
    assert any(isinstance(part, Content) and "maybe" in part.text for part in parse("deepseek_tagged", [unstated]))


texts = st.text("aß <>/\n\"'\\{}[]1", max_size=12)
anything = st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3))
given_arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "list": st.lists(anything, max_size=3),
        "map": st.dictionaries(texts, anything, max_size=3),
        "maybe": st.none(),
    },
)


@pytest.mark.parametrize("format", FORMATS)
@given(made=st.lists(given_arguments, min_size=1, max_size=2), data=st.data())
def test_calls_come_back_as_they_were_made_however_they_are_cut(
    format: str, made: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = written(format, [("f", given) for given in made])
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    parts = parse(format, [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])])
    assert parts == parse(format, list(text))
    assert [json.loads(part.text) for part in parts if isinstance(part, CallArguments)] == made
    assert not any(isinstance(part, Content) for part in parts)
