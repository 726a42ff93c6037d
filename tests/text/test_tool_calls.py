"""Tool calls in generated text: found in every format, whole and streamed alike, and nothing lost that is none."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_calls import written

from dragoman.text.call_parser import CallArguments, CallEnd, CallStart, Content, Part
from dragoman.text.template_names import template_names
from dragoman.text.tool_calls import CALL_FORMATS, CallFormat, find_call_format, find_reasoning_marks

TEMPLATES = {path.stem: path.read_text("utf-8") for path in (Path(__file__).parent / "chat_templates").glob("*.jinja")}
BUILTIN = json.loads((Path(__file__).parents[2] / "builtin" / "tokenizer_config.json").read_text("utf-8"))
NAMES = ("weather", "get_time", "f-1")
FORMATS = [name for name, format in CALL_FORMATS.items() if not format.is_framed]
# Of those that share a parser one is drawn, unless thorough. Calls without types need schemas: test_tagged_calls.py.
SHARED = {"glm", "minimax", "deepseek_bare", "deepseek_tagged"}
DRAWN = [pytest.param(name, marks=pytest.mark.thorough) if name in SHARED else name for name in FORMATS]
TYPED = [each for each, name in zip(DRAWN, FORMATS, strict=True) if CALL_FORMATS[name].is_typed]


_GEMMA4 = "{{ messages }}{% if tools %}<|tool>{% endif %}{{ '<|tool_call>call:' }}{{ '}<tool_call|>' }}<channel|>"


def format_of(template: str) -> CallFormat | None:
    return find_call_format(template, template_names(template))


def parse(name: str, pieces: list[str]) -> list[Part]:
    """All parts, text of the same kind joined, with ids by number."""
    numbers = itertools.count()
    format = CALL_FORMATS[name]
    parser = format.parser(NAMES, lambda: f"id{next(numbers)}")
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


def message(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """The content, and the calls with their arguments."""
    content, calls = "", []
    for part in parse(name, [text]):
        match part:
            case Content(text):
                content += text
            case CallStart(index, id, tool):
                assert (index, id) == (len(calls), f"id{index}")
                calls.append((tool, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case CallEnd(index):
                assert index == len(calls) - 1
    return content, calls


# Written as the models write ----------------------------------------------------------------------------------------

WEATHER = ("weather", '{"city": "Köln", "days": 2}')
TIME = ("get_time", "{}")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (
            "hermes",
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        ),
        (
            "llama",
            '{"name": "weather", "parameters": {"city": "Köln", "days": 2}}; {"name": "get_time", "parameters": {}}',
        ),
        (
            "llama",
            '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Köln", "days": 2}}'
            '{"type": "function", "name": "get_time", "parameters": {}}',
        ),
        (
            "gemma",
            '<|tool_call>call:weather{city:<|"|>Köln<|"|>,days:2}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        ),
        ("pythonic", '[weather(city="Köln", days=2), get_time()]'),
        ("pythonic", "<|python_start|>[weather(city='Köln', days=2,),get_time()]<|python_end|>"),
        ("lfm2", "<|tool_call_start|>[weather(city='Köln', days=2), get_time()]<|tool_call_end|>"),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Köln", "days": 2}, "id": "abcdefghi"}, '
            '{"name": "get_time", "arguments": {}, "id": "abcdefghj"}]',
        ),
        (
            "nemotron",
            '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Köln", "days": 2}}, '
            '{"name": "get_time", "arguments": {}}]</TOOLCALL>',
        ),
        (
            "minimax_lines",
            '<tool_calls>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n'
            '{"name": "get_time", "arguments": {}}\n</tool_calls>',
        ),
        (
            "mistral_named",
            '[TOOL_CALLS]weather[ARGS]{"city": "Köln", "days": 2}[TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}',
        ),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            '{"city": "Köln", "days": 2}\n```<｜tool▁call▁end｜>\n'
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "deepseek_bare",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Köln", "days": 2}'
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ],
)
def test_calls_are_read_as_the_models_write_them(format: str, text: str) -> None:
    assert message(format, text) == ("", [WEATHER, TIME])
    assert message(format, "\n\n" + text + "\n") == ("", [WEATHER, TIME])


@pytest.mark.parametrize(
    ("format", "mark"),
    [
        ("hermes", "<tool_call>"),
        ("mistral", "[TOOL_CALLS]"),
        ("llama", "<|python_tag|>"),
        ("lfm2", "<|tool_call_start|>"),
    ],
)
def test_text_around_calls_is_content(format: str, mark: str) -> None:
    call = '{"name": "get_time", "arguments": {}}'
    if format == "mistral":
        call = f"[{call}]"
    if format == "lfm2":
        call = "[get_time()]"
    text = f"  Let me look.\n{mark}{call}"
    assert message(format, text) == ("  Let me look.", [TIME])
    if format == "hermes":
        assert message(format, text + "</tool_call>\n\nDone. \n") == ("  Let me look.\n\nDone. \n", [TIME])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("text", ["", " \n", "Hello.", "\n a < b [1, 2] {3} \n", "tool_call", '{"answer": 5}', "[1]"])
def test_text_without_calls_is_content(format: str, text: str) -> None:
    assert message(format, text) == (text, [])


def test_values_between_marks_become_json() -> None:
    text = (
        '<|tool_call>call:weather{a:<|"|>"x" <b>\\n<|"|>,b-c:[1,-2.5e3,true,null,[]],<|"|>d e<|"|>:{f:{},g:False}}'
        "<tool_call|> "
    )
    ((name, arguments),) = message("gemma", text)[1]
    assert name == "weather"
    expected = {"a": '"x" <b>\\n', "b-c": [1, -2500.0, True, None, []], "d e": {"f": {}, "g": False}}
    assert json.loads(arguments) == expected


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = CALL_FORMATS["hermes"].start(NAMES)
    head = parser.push('<tool_call>\n{"name": "weather", "arguments": {"ci')
    assert [type(part) for part in head] == [CallStart, CallArguments]
    assert parser.push('ty": "Pa') == [CallArguments(0, 'ty": "Pa')]
    assert parser.push('ris"}') == [CallArguments(0, 'ris"}'), CallEnd(0)]
    assert parser.push("}\n</tool_call>") + parser.flush() == []


def test_content_is_not_held_back_longer_than_it_must() -> None:
    parser = CALL_FORMATS["hermes"].start(NAMES)
    assert parser.push("a <b> <tool") == [Content("a <b>")]
    assert parser.push("box>") == [Content(" <toolbox>")]


# What only looks like a call ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("gemma", "<|tool_call>call:unknown{}<tool_call|>"),
        ("gemma", "<|tool_call>weather{}<tool_call|>"),
        ("gemma", '<|tool_call>call:weather{city:"Paris"}<tool_call|>'),
        ("gemma", '<|tool_call>call:weather{city:<|"|>Paris}<tool_call|>'),
        ("gemma", "<|tool_call>call:weather{a:1,a:2}<tool_call|>"),
        ("gemma", "<|tool_call>call:weather{a:01}<tool_call|>"),
        ("gemma", "<|tool_call>call:weather{a:" + "[" * 40 + "]" * 40 + "}<tool_call|>"),
        ("hermes", '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": weather}\n</tool_call>'),
        ("hermes", '<tool_call> {"name": "weather", "arguments": "{}"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather", "city": "Paris"}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"a": {}}, "name": "w'),
        ("hermes", '<tool_call>\n{"name": "weath'),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_ca"),
        ("hermes", '<tool_call>{"name": "' + "x" * 5000),
        ("hermes", '<tool_call>{"name": "\n"}'),
        ("hermes", "<tool_call>weather</tool_call>"),
        ("llama", '{"name": "unknown", "parameters": {}}'),
        ("llama", '{"result": {"name": "weather", "parameters": {}}}'),
        ("llama", '<|python_tag|>brave_search.call(query="x")'),
        ("llama", 'As JSON: {"name": "weather", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS] []"),
        ("mistral", '[TOOL_CALLS] [{"name": "unknown", "arguments": {}}]'),
        ("mistral", '[TOOL_CALLS]unknown[ARGS]{"a": 1}'),
        ("nemotron", "<TOOLCALL>[]</TOOLCALL>"),
        ("nemotron", '<TOOLCALL>{"name": "weather", "arguments": {}}</TOOLCALL>'),
        ("nemotron", '<TOOLCALL>[{"name": "unknown", "arguments": {}}]</TOOLCALL>'),
        ("minimax_lines", "<tool_calls>\n</tool_calls>"),
        ("minimax_lines", '<tool_calls>[{"name": "weather", "arguments": {}}]</tool_calls>'),
        ("minimax_lines", '<tool_calls>\n{"name": "unknown", "arguments": {}}\n</tool_calls>'),
        ("mistral_named", "[TOOL_CALLS]weather[ARGX]{}"),
        ("mistral_named", "[TOOL_CALLS]weather[CALL_ID]abc"),
        ("pythonic", "[weather(Paris)]"),
        ("pythonic", "[weather(city=Paris)]"),
        ("pythonic", "[weather(city='Paris'"),
        ("pythonic", "[weather(city='a', city='b')]"),
        ("pythonic", "[weather(a=" + "[" * 100 + "]" * 100 + ")]"),
        ("pythonic", "[weather(a=--1)]"),
        ("pythonic", "[weather(a='\\u12')]"),
        ("pythonic", "[unknown()]"),
        ("lfm2", "<|tool_call_start|>[unknown()]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>weather(city='a')<|tool_call_end|>"),
        ("lfm2", "[weather(city='a')]"),
        ("pythonic", "<|python_start|>print(1)<|python_end|>"),
    ],
)
def test_what_only_looks_like_a_call_is_content(format: str, text: str) -> None:
    for whole in (text, " \n" + text + " \n"):
        assert message(format, whole) == (whole, [])


def test_a_call_behind_one_that_broke_is_read() -> None:
    text = '<tool_call>{"name": <tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    assert message("hermes", text) == ('<tool_call>{"name":', [TIME])


@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("hermes", '<tool_call>{"name": "weather", "arguments": '),
        ("llama", '{"name": "weather", "parameters": '),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": '),
        ("mistral_named", "[TOOL_CALLS]weather[ARGS]"),
    ],
)
@pytest.mark.parametrize("arguments", ["{", '{"city": "Par', '{"city": Paris, 5', '{"city": "}', '{"a": {"b": [1, 2}'])
def test_arguments_that_are_cut_or_broken_are_passed_on(format: str, head: str, arguments: str) -> None:
    assert message(format, head + arguments) == ("", [("weather", arguments)])


def test_what_follows_the_arguments_and_is_not_of_the_format_is_content() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {}, "note": 1}</tool_call> and so on'
    assert message("hermes", text) == (', "note": 1}</tool_call> and so on', [("weather", "{}")])
    text = '<tool_call>{"name": "weather", "arguments": {}} and </tool_call>'
    assert message("hermes", text) == (" and </tool_call>", [("weather", "{}")])


def test_members_may_come_in_any_order_and_arguments_may_be_missing() -> None:
    text = '<tool_call>{"id": "x", "arguments": {"a": "}"}, "name": "weather"}</tool_call>'
    assert message("hermes", text) == ("", [("weather", '{"a": "}"}')])
    assert message("hermes", '<tool_call>{"name": "get_time"}') == ("", [TIME])


def test_python_literals_become_json() -> None:
    text = (
        "[weather(a='it\\'s \"x\" \\u00e9\\x41\\n', b=[1, -2.5e3, ], c={'k': None, \"l\": true}, d=False, ë='\\ud800')]"
    )
    ((name, arguments),) = message("pythonic", text)[1]
    assert name == "weather"
    assert json.loads(arguments) == {
        "a": 'it\'s "x" éA\n',
        "b": [1, -2500.0],
        "c": {"k": None, "l": True},
        "d": False,
        "ë": "\ufffd",
    }


# Properties ----------------------------------------------------------------------------------------------------------

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.from_regex("[a-z]{1,4}", fullmatch=True), json_values, max_size=3)
calls = st.tuples(st.sampled_from(NAMES), arguments)
prose = st.text("ßé <>{}[]():;,'\"\\\n=_", max_size=12)
fragments = st.sampled_from(
    [
        *(mark for format in CALL_FORMATS.values() for mark in format.marks),
        '{"name": "weather", "arguments": ',
        '{"name": "weather", "parameters": {"a": "b"}}',
        '"name"',
        '"unknown"',
        "[weather(",
        "get_time",
        "[ARGS]{",
        '{"a": [1, "}"]}',
        "}",
        "]",
        ")",
        "; ",
        "\n",
    ]
)
garbage = st.lists(prose | fragments, max_size=8).map("".join)


@st.composite
def cut(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> tuple[str, list[str]]:
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return text, [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]


@pytest.mark.parametrize("format", DRAWN)
@given(data=st.data())
def test_a_stream_is_the_whole_text_however_it_is_cut(format: str, data: st.DataObject) -> None:
    mixed = st.lists(garbage | st.lists(calls, min_size=1, max_size=2).map(lambda c: written(format, c)), max_size=3)
    text, pieces = data.draw(cut(mixed.map("".join)))
    whole = parse(format, [text])
    assert parse(format, pieces) == whole
    assert parse(format, list(text)) == whole


@pytest.mark.parametrize("format", TYPED)
@given(made=st.lists(calls, min_size=1, max_size=3), before=st.text("abc .\n", max_size=8))
def test_calls_come_back_as_they_were_made(format: str, made: list[tuple[str, dict[str, Any]]], before: str) -> None:
    content, found = message(format, before + written(format, made))
    assert content == before.rstrip()
    assert [(name, json.loads(given)) for name, given in found] == made


@pytest.mark.parametrize("format", DRAWN)
@settings(max_examples=100, deadline=None)
@given(text=garbage)
def test_no_text_is_lost(format: str, text: str) -> None:
    """What is missing from content and arguments are the marks, names and braces of calls that were found."""
    parts = parse(format, [text])
    kept = "".join(part.text for part in parts if isinstance(part, Content | CallArguments))
    if not any(isinstance(part, CallStart) for part in parts):
        assert kept == text
    # Letters that no syntax has, in their order.
    assert re.sub("[^ßé]", "", kept) == re.sub("[^ßé]", "", text)
    missing = Counter(text) - Counter(kept)
    syntax = "".join(mark for mark in CALL_FORMATS[format].marks) + '"name": "arguments": "parameters": [](){};,='
    assert not set(missing) - set(syntax) - set("".join(NAMES)) - set(" \n'\\")


# Which format ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("qwen2_5", "hermes"),
        ("llama3_1", "llama"),
        ("mistral", "mistral"),
        ("command_r", None),
        ("chatml", None),
        ("deepseek", None),
        ("phi3", None),
    ],
)
def test_the_format_is_found_from_the_template(template: str, format: str | None) -> None:
    found = format_of(TEMPLATES[template])
    assert (found and found.name) == format


def test_the_embedded_models_format_is_found() -> None:
    found = format_of(BUILTIN["chat_template"])
    assert found is CALL_FORMATS["hermes"]


@pytest.mark.parametrize(
    ("written", "format"),
    [
        (r"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>", "hermes"),
        ("<tool_call>\\n<function=f>\\n<parameter=a>\\n1\\n</parameter>", "qwen"),
        ("<tool_call>\\n<function=f>{json}</function>", None),
        ("<|start|>assistant to=functions.f<|channel|>commentary json<|message|>", "harmony"),
        ("<tool_call>f\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>", "glm"),
        ("<tool_call>f\\n<arg_key>a</arg_key>", None),
        ('<minimax:tool_call>\\n<invoke name="f">\\n<parameter name="a">1</parameter>', "minimax"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json\\n", "deepseek"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{", "deepseek_bare"),
        (
            '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">',
            "deepseek_tagged",
        ),
        ('Respond in the format {"name": function name, "parameters": dictionary of arguments}.', "llama"),
        ('{"name": f, "parameters": p} <|tool_call|>', None),
        ('<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', "nemotron"),
        (
            r"<tool_calls>\n{\"name\": <tool-name>, \"arguments\": <args-json-object>}\n...\n</tool_calls>",
            "minimax_lines",
        ),
        ('<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>', None),
        ("[TOOL_CALLS][", "mistral"),
        ("[TOOL_CALLS]' + name + '[ARGS]", "mistral_named"),
        ("[func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"),
        ("<|im_start|>system\\nList of tools: <|tool_list_start|>[", "lfm2"),
        ("<|im_start|>system\\nList of tools: [", "lfm2"),
        ("<|im_start|>system\\nList of tools: [ <tool_call>", None),
    ],
)
def test_the_format_is_known_by_how_a_template_describes_it(written: str, format: str | None) -> None:
    found = format_of("{{ tools }} " + written)
    assert (found and found.name) == format
    assert format_of(written) is None, "the tools are not shown"


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{%- if custom is defined %}{%- set tools = custom %}{%- endif %}{{ tools }}", True),
        ("{{ messages[0].content }} tools", False),
        ("{# tools #}{{ messages.tools }}", False),
        ("{% if 'tools' in x %}{% endif %}", False),
    ],
)
def test_a_template_takes_tools_when_it_uses_the_variable(source: str, takes: bool) -> None:
    assert ("tools" in template_names(source).variables) == takes


def test_reasoning_marks_are_found_from_template_or_vocabulary() -> None:
    assert find_reasoning_marks(TEMPLATES["qwen3"], lambda token: False) == ("<think>", "</think>")
    assert find_reasoning_marks("", {"[THINK]", "[/THINK]"}.__contains__) == ("[THINK]", "[/THINK]")
    cohere = ("<|START_THINKING|>", "<|END_THINKING|>")
    assert find_reasoning_marks("{{ '<|START_THINKING|>' + plan + '<|END_THINKING|>' }}", lambda token: False) == cohere
    assert find_reasoning_marks(BUILTIN["chat_template"], lambda token: False) == ("<think>", "</think>")
    assert find_reasoning_marks("{{ messages[-1].content }}", lambda token: False) is None


def test_mistrals_ids_have_nine_characters() -> None:
    def id_of(format: CallFormat) -> str:
        return format.new_id()

    assert re.fullmatch("[A-Za-z0-9]{9}", id_of(CALL_FORMATS["mistral"]))
    assert re.fullmatch("call_[a-f0-9]{24}", id_of(CALL_FORMATS["hermes"]))


def test_gemma_4_is_known_by_its_template() -> None:
    format = format_of(_GEMMA4)
    assert format is not None
    assert format.name == "gemma"
    marks = find_reasoning_marks(_GEMMA4, lambda token: False)
    assert marks == ("<|channel>thought", "<channel|>")
