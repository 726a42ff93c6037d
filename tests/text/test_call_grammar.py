"""The grammars of tool calls allow what the parsers read as valid calls, and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from written_calls import written

from dragoman.core.errors import UnsupportedFeature
from dragoman.core.serving import ToolCalls
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.lark import grammar_of
from dragoman.grammar.matching import Matcher, Matching
from dragoman.text import Tokenizer
from dragoman.text.call_grammar import CallableTool, call_grammar
from dragoman.text.call_parser import CallArguments, CallStart, Content
from dragoman.text.tool_calls import CALL_FORMATS

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "builtin")
END = TOKENIZER.eos_ids[0]
SPECIAL = 5  # a special token of the embedded model that stands for a mark
FORMATS = [name for name, format in CALL_FORMATS.items() if not format.is_framed]

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "city": {"$ref": "#/$defs/City"},
        "unit": {"enum": ["celsius", "kelvin"]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"}},
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (CallableTool(name="weather", arguments=WEATHER), CallableTool(name="get_time", arguments=NOTHING))
SCHEMAS = {"weather": WEATHER, "get_time": NOTHING}


@pytest.fixture(scope="module")
def matching() -> Matching:
    tokens = tuple(TOKENIZER.token_bytes(i) for i in range(TOKENIZER.vocab_size))
    special = tuple(sorted(TOKENIZER.special_ids))
    return Matching(Vocabulary(tokens=tokens, special_ids=special, end_ids=TOKENIZER.eos_ids))


def matcher(matching: Matching, format: str, special: bool = False, tools: Any = TOOLS, **how: Any) -> Matcher:
    """At the beginning of a text with calls; the first mark of the format is a ``special`` token, or text."""
    marks = CALL_FORMATS[format].marks
    calls = ToolCalls(format=format, special_ids={marks[0]: SPECIAL} if special else {})
    constraint = call_grammar(calls, tools, **{"required": True, "parallel": True} | how)
    made = matching.matcher(grammar_of(constraint))
    assert not made.error
    return made


def accepts(matcher: Matcher, text: str | tuple[int, ...]) -> bool:
    """Whether this is a whole text of the grammar."""
    ids = TOKENIZER.encode(text, add_special_tokens=False) if isinstance(text, str) else text
    complete = False
    for token in ids:
        if complete or not matcher.mask()[token]:
            return False
        complete = matcher.push(token)
    return complete or bool(matcher.mask()[END])


def generated(matcher: Matcher, rng: random.Random) -> str:
    """A text of random tokens among the allowed ones."""
    ids: list[int] = []
    complete = False
    while not complete and END not in (allowed := matcher.allowed()):
        # Short words, or a random text would seldom be complete.
        token = min(rng.choices(list(allowed), k=6), key=lambda i: len(TOKENIZER.token_bytes(i)))
        complete = matcher.push(int(token))
        ids.append(int(token))
        assert len(ids) < 4000
    return b"".join(map(TOKENIZER.token_bytes, ids)).decode("utf-8", "replace")


WRITTEN = {
    "gemma": '<|tool_call>call:weather{city:<|"|>paris<|"|>}<tool_call|>',
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "paris"}}\n</tool_call>',
    "qwen": "<tool_call>\n<function=weather>\n<parameter=city>\nparis\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>paris</arg_value>\n</tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">paris</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "deepseek_tagged": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    "</｜DSML｜function_calls>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_bare": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "paris"}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "llama": '{"name": "weather", "parameters": {"city": "paris"}}',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "paris"}}]',
    "nemotron": '<TOOLCALL>[{"name": "weather", "arguments": {"city": "paris"}}]</TOOLCALL>',
    "minimax_lines": '<tool_calls>\n{"name": "weather", "arguments": {"city": "paris"}}\n</tool_calls>',
    "mistral_named": '[TOOL_CALLS]weather[ARGS]{"city": "paris"}',
    "pythonic": '[weather(city="paris", days=3), get_time()]',
    "lfm2": '<|tool_call_start|>[weather(city="paris", days=3), get_time()]<|tool_call_end|>',
}


@pytest.mark.parametrize("format", FORMATS)
def test_a_required_call_is_all_there_is(matching: Matching, format: str) -> None:
    call = WRITTEN[format]
    assert accepts(matcher(matching, format), call)
    for wrong in (call + " ", "a" + call, call.replace("paris", "PARIS"), call.replace("weather", "wind"), ""):
        assert not accepts(matcher(matching, format), wrong)
    assert accepts(matcher(matching, format, parallel=False), call) == (format not in ("pythonic", "lfm2"))


@pytest.mark.parametrize("format", FORMATS)
def test_free_text_becomes_a_call_when_one_is_opened(matching: Matching, format: str) -> None:
    call = WRITTEN[format]
    for text in ("", "Hello {x} [y].", call):
        assert accepts(matcher(matching, format, required=False), text)
    wrong = [call.replace("paris", "PARIS"), call + "\n!"]
    if format not in ("llama", "pythonic"):
        assert accepts(matcher(matching, format, required=False), "Let me see.\n" + call)
        wrong.append("Let me see. " + call.replace("weather", "wind"))
    for text in wrong:
        assert not accepts(matcher(matching, format, required=False), text)


@pytest.mark.parametrize("required", [True, False])
def test_a_mark_that_is_a_special_token_stands_by_its_id(matching: Matching, required: bool) -> None:
    arguments = TOKENIZER.encode('weather[ARGS]{"city": "paris"}', add_special_tokens=False)

    def fresh() -> Matcher:
        return matcher(matching, "mistral_named", special=True, required=required)

    assert accepts(fresh(), (SPECIAL, *arguments))
    assert accepts(fresh(), (SPECIAL, *arguments, SPECIAL, *arguments))
    assert accepts(fresh(), arguments) == (not required)
    assert not accepts(fresh(), (SPECIAL, *arguments[1:]))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_random_texts_are_valid_calls(matching: Matching, format: str, seed: int) -> None:
    text = generated(matcher(matching, format), random.Random(seed))
    parser = CALL_FORMATS[format].start(("weather", "get_time"), SCHEMAS)
    parts = parser.push(text) + parser.flush()
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = [part.text for part in parts if isinstance(part, CallArguments)]
    assert not any(isinstance(part, Content) for part in parts)
    assert names
    for name, given in zip(names, arguments, strict=True):
        jsonschema.validate(json.loads(given), SCHEMAS[name])


@pytest.mark.parametrize("format", [name for name in FORMATS if '{"city"' in WRITTEN[name]])
def test_a_reference_finds_the_root_of_its_own_schema(matching: Matching, format: str) -> None:
    tree = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "next": {"$ref": "#"}},
        "additionalProperties": False,
    }
    tools = (CallableTool(name="get_time"), CallableTool(name="weather", arguments=tree))
    call = WRITTEN[format].replace('{"city": "paris"}', '{"city": "a", "next": {"next": {"city": "b"}}}')
    assert accepts(matcher(matching, format, tools=tools), call)
    assert not accepts(matcher(matching, format, tools=tools), call.replace('{"city": "b"}', '{"town": "b"}'))


def test_what_only_looks_like_a_reference_is_left_alone(matching: Matching) -> None:
    value = {"$ref": "#/x"}
    schema = {
        "type": "object",
        "properties": {"$ref": {"const": value}, "const": {"$ref": "#/$defs/Digit"}},
        "required": ["$ref", "const"],
        "additionalProperties": False,
        "$defs": {"Digit": {"enum": [1, 2]}},
    }
    tools = (CallableTool(name="f", arguments=schema),)
    call = '{"name": "f", "parameters": {"$ref": {"$ref": "#/x"}, "const": 2}}'
    assert accepts(matcher(matching, "llama", tools=tools), call)
    assert not accepts(matcher(matching, "llama", tools=tools), call.replace("2}}", "3}}"))


def test_arguments_without_a_schema_are_any_object(matching: Matching) -> None:
    for format, call in WRITTEN.items():
        free = (CallableTool(name="weather"), CallableTool(name="get_time"))
        assert accepts(matcher(matching, format, tools=free), call.replace("paris", "PARIS"))


@pytest.mark.parametrize(
    ("call", "valid"),
    [
        ('[weather(city="a")]', True),
        ('[weather(city="a", unit="kelvin")]', True),
        ('[weather(city="a", days=2, unit="kelvin")]', True),
        ("[weather()]", False),
        ("[weather(days=2)]", False),
        ('[weather(city="a", days=10)]', False),
        ("[get_time(a=1)]", False),
    ],
)
def test_python_arguments_follow_the_schema(matching: Matching, call: str, valid: bool) -> None:
    assert accepts(matcher(matching, "pythonic"), call) == valid


def test_python_arguments_may_all_be_optional(matching: Matching) -> None:
    schema = {"type": "object", "properties": {key: {"type": "boolean"} for key in "abc"}}
    tools = (CallableTool(name="f", arguments=schema),)
    for call in ("[f()]", "[f(b=true)]", "[f(a=true, c=false)]"):
        assert accepts(matcher(matching, "pythonic", tools=tools), call)
    for call in ("[f(c=true, a=true)]", "[f(a=1)]", "[f(d=true)]"):
        assert not accepts(matcher(matching, "pythonic", tools=tools), call)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a-b": {}}},
        {"anyOf": [{}]},
        {"required": ["x"]},
        {"properties": {"next": {"$ref": "#"}}},
    ],
)
def test_what_a_format_cannot_state_is_refused(schema: dict[str, Any]) -> None:
    calls = ToolCalls(format="pythonic")
    with pytest.raises(UnsupportedFeature, match="'f'"):
        call_grammar(calls, (CallableTool(name="f", arguments=schema),), required=True, parallel=True)


@pytest.mark.parametrize("format", FORMATS)
def test_free_text_does_not_begin_with_the_mark_of_a_block(matching: Matching, format: str) -> None:
    def free() -> Matcher:
        return matcher(matching, format, required=False, not_opening="<think>")

    for text in ("", "<thin", "Hm <think>", WRITTEN[format]):
        assert accepts(free(), text)
    for text in ("<think>", "\n<think>hm", "<think>hm</think>" + WRITTEN[format]):
        assert not accepts(free(), text)


VALUES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 2, "pattern": "^[a-c<]+$"},
        "count": {"$ref": "#/$defs/Count"},
        "chosen": {"enum": ["x y", 2, None]},
        "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]},
        "list": {"type": "array", "items": {"type": "boolean"}},
        "any": {},
    },
    "required": ["text"],
    "$defs": {"Count": {"type": "integer", "minimum": 5}},
}


@pytest.mark.parametrize("format", ["qwen", "glm", "minimax"])
def test_values_between_tags_follow_the_schema(matching: Matching, format: str) -> None:
    def holds(**given: str) -> bool:
        tools = (CallableTool(name="f", arguments=VALUES),)
        return accepts(matcher(matching, format, tools=tools, parallel=False), written(format, [("f", {**given})]))

    assert holds(text="abc<")
    assert holds(text="ab", count="12", chosen="2", maybe="1234", list="[true]", any="x\n<y>")
    assert holds(text="ab", chosen="x y", maybe="abc")
    wrong = [
        {"count": "5"},
        {"text": "a"},
        {"text": "xyz"},
        {"text": "ab", "count": "4"},
        {"text": "ab", "chosen": "3"},
    ]
    wrong += [{"text": "ab", "maybe": "abcd"}, {"text": "ab", "list": "[1]"}, {"text": "ab", "other": "1"}]
    for given in wrong:
        assert not holds(**given), given


def test_values_between_tags_that_state_their_type_follow_the_schema(matching: Matching) -> None:
    def holds(**given: Any) -> bool:
        tools = (CallableTool(name="f", arguments=VALUES),)
        text = written("deepseek_tagged", [("f", given)])
        return accepts(matcher(matching, "deepseek_tagged", tools=tools, parallel=False), text)

    assert holds(text="ab", count=12, maybe=1234, list=[True], any="x\n<y>")
    assert holds(text="ab", maybe="abc", any={"a": [None]})
    for given in ({"count": 5}, {"text": "a"}, {"text": "ab", "count": "12"}, {"text": "ab", "maybe": "abcd"}):
        assert not holds(**given), given


def test_free_text_of_qwen_has_no_call_that_is_not_opened(matching: Matching) -> None:
    text = "<function=weather>\n<parameter=city>\nrome\n</parameter>\n</function>"
    assert not accepts(matcher(matching, "qwen", required=False), text)
    assert accepts(matcher(matching, "qwen", required=False), text.replace("function", "Function"))


@pytest.mark.parametrize(
    "schema",
    [
        {"a<b": {}},
        {"a": {"type": "string", "format": "date"}},
        {"a": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}},
        {"a": {"allOf": [{"type": "string"}, {"minLength": 2}]}},
        {"a": {"enum": ["</parameter>"]}},
        {"a": False},
    ],
)
def test_what_no_tag_can_state_is_refused(schema: dict[str, Any]) -> None:
    tools = (CallableTool(name="f", arguments={"type": "object", "properties": schema}),)
    with pytest.raises(UnsupportedFeature, match="cannot enforce the schema of tool 'f'"):
        call_grammar(ToolCalls(format="qwen"), tools, required=True, parallel=False)


def test_tags_that_are_special_tokens_stand_by_their_ids(matching: Matching) -> None:
    ids = {"</arg_value>": 6, "<tool_call>": SPECIAL}
    tools = (CallableTool(name="f", arguments={"type": "object", "properties": {"a": {"type": "string"}}}),)
    grammar = call_grammar(ToolCalls(format="glm", special_ids=ids), tools, required=True, parallel=False)

    def fresh() -> Matcher:
        return matching.matcher(grammar_of(grammar))

    head, tail = (
        TOKENIZER.encode(text, add_special_tokens=False)
        for text in ("f<arg_key>a</arg_key><arg_value>x", "</tool_call>")
    )
    assert accepts(fresh(), (SPECIAL, *head, 6, *tail))
    assert not accepts(fresh(), (SPECIAL, *head, *tail))


def gemma(arguments: str) -> str:
    return "<|tool_call>call:f{" + arguments.replace("'", '<|"|>') + "}<tool_call|>"


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            {"a": {"$ref": "#"}, "b": {"type": "integer"}},
            ["a:{a:{b:1},b:2}", "b:3", ""],
            ["a:{c:1}", "b:x", "b:1,a:{}"],
        ),
        (
            {"a": {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}},
            ["a:[null,null]"],
            ["a:[]"],
        ),
        ({"a": {"enum": ["x y", 2, None]}}, ["a:'x y'", "a:2", "a:null"], ["a:'x'", "a:3"]),
        ({"a": {"type": ["string", "boolean"], "minLength": 2}}, [], []),
        ({"a": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "boolean"}]}}, ["a:'ab'", "a:true"], ["a:'b'"]),
        ({"a": {}}, ["a:{x:['p<|q',1.5,{}]}", "a:''"], ["a:", "a:p"]),
        (
            {
                "z": {"$ref": "#/properties/b"},
                "b": {"type": "object", "properties": {"c": {"$ref": "#/properties/d"}}, "required": ["c"]},
                "d": {"type": "boolean"},
            },
            ["b:{c:false},d:true,z:{c:true}"],
            ["z:true", "z:{c:{c:true}}", "z:{}"],
        ),
        ({"a": {"type": "string", "minLength": "1}/ | /x{1"}}, [], []),
        ({"a": {"type": "array", "maxItems": -1}}, [], []),
        ({"a": {"type": "object", "properties": {"b": {}}, "required": [["b"]]}}, [], []),
        ({"a": {"type": "object", "properties": {"b": {}}, "required": 1}}, [], []),
    ],
)
def test_gemma_values_follow_the_schema(
    matching: Matching, schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    arguments = {"type": "object", "properties": schema, "additionalProperties": False}
    tools = (CallableTool(name="f", arguments=arguments),)
    if not valid:
        with pytest.raises(UnsupportedFeature, match="cannot enforce the schema of tool 'f'"):
            call_grammar(ToolCalls(format="gemma"), tools, required=True, parallel=False)
        return
    for text in valid:
        assert accepts(matcher(matching, "gemma", tools=tools), gemma(text)), text
    for text in invalid:
        assert not accepts(matcher(matching, "gemma", tools=tools), gemma(text)), text
