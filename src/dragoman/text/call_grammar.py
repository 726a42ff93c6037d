"""Grammars that make tool calls valid: a model's call format around the schemas of the tools' arguments.

Free text may come before the calls (``required`` False). It becomes calls as soon as the model opens one, and then
only calls follow. A mark that is a special token is written in the grammar by its id, any other by its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.constraint import Lark
from dragoman.core.errors import UnsupportedFeature
from dragoman.core.serving import ToolCalls
from dragoman.text.cohere_calls import ACTION, ACTION_END, RESPONSE, RESPONSE_END, TEXT, TEXT_END
from dragoman.text.deepseek_calls import BLOCK, BLOCK_END, CALL, CALL_END, FENCE, FENCE_END, SEPARATOR, TYPE
from dragoman.text.gemma_grammar import gemma_calls
from dragoman.text.harmony import CHANNEL, CONSTRAIN, FUNCTIONS, MESSAGE, ROLE, START
from dragoman.text.muse_calls import MORE, MUSE_TAGS, TO
from dragoman.text.tagged_calls import DSML_TAGS, GLM_TAGS, MINIMAX_TAGS, QWEN_TAGS, CallTags
from dragoman.text.tagged_grammar import tagged_call_rules, tagged_calls
from dragoman.text.text_patterns import without
from dragoman.text.tool_calls import CALL_FORMATS


class CallableTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that may be called; ``arguments`` is the JSON Schema of an object, None for any object."""

    name: str
    arguments: Mapping[str, Any] | None = None


Mark = Callable[[str], str]


def call_grammar(
    calls: ToolCalls,
    tools: Sequence[CallableTool],
    *,
    required: bool,
    parallel: bool,
    not_opening: str | None = None,
) -> Lark:
    """Return the grammar of texts that call only these tools.

    ``required``: there is a call. ``parallel``: there may be several. ``not_opening``: a mark that free text may not
    begin with; it opens a reasoning block, which contains no calls. Raises UnsupportedFeature for arguments that the
    format cannot express.
    """
    opener, body, rules, other = _FORMATS[calls.format](_marks(calls.special_ids), tools, parallel)
    lines = [f"calls: {body}", *rules]
    bare = "" if not_opening is None else rf" & ~/\s*{re.escape(not_opening)}(.|\n)*/"
    if required:
        lines.insert(0, f"start: {opener} calls")
    elif opener:
        # A lexeme of text ends at the mark; a special token ends it by itself.
        is_text = opener.startswith('"')
        lines[:0] = ["start: TEXT | head calls", f"head{'[lazy]' * is_text}: TEXT {opener}"]
        lines.append(rf"TEXT: /(.|\n)*/{other}{bare}")
    elif other:
        lines[:0] = ["start: OTHER | calls", f"OTHER: {other}{bare}"]
    else:
        lines.insert(0, "start: final | calls")
    return Lark("\n".join(lines) + "\n")


def _marks(special_ids: Mapping[str, int]) -> Mark:
    return lambda mark: f"<[{special_ids[mark]}]>" if mark in special_ids else json.dumps(mark)


Shape = tuple[str, str, list[str], str]
"""Opening of the calls, the calls after it, their rules, and text without calls for formats without an opening mark;
for those with one, a condition of that text.

Formats that put that text between marks, too, have a rule ``final`` for it in its place."""


def _hermes(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    opener, closer = mark("<tool_call>"), mark("</tool_call>")
    more = rf' ("\n" {opener} call)*' if parallel else ""
    return opener, "call" + more, [rf'call: "\n" object "\n" {closer}', *_objects(tools)], ""


def _llama(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    # As JSON from the brace on: a lexer without backtracking can then tell a call from other JSON as late as needed.
    rules = [f"object_{i}: %json {json.dumps(_call_object(tool))}" for i, tool in enumerate(tools)]
    more = ' ("; " object)*' if parallel else ""
    return "", "object" + more, [_any("object", tools), *rules], r"/\s*([^{\s](.|\n)*)?/"


def _mistral(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    more = ' (", " object)*' if parallel else ""
    return mark("[TOOL_CALLS]"), f'" "? "[" object{more} "]"', _objects(tools), ""


def _nemotron(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    more = ' (", " object)*' if parallel else ""
    return mark("<TOOLCALL>"), f'"[" object{more} "]" {mark("</TOOLCALL>")}', _objects(tools), ""


def _lines(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    more = r' ("\n" object)*' if parallel else ""
    return mark("<tool_calls>"), rf'"\n" object{more} "\n" {mark("</tool_calls>")}', _objects(tools), ""


def _mistral_named(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    opener, separator = mark("[TOOL_CALLS]"), mark("[ARGS]")
    names = [f"call_{i}: {json.dumps(tool.name)} {separator} arguments_{i}" for i, tool in enumerate(tools)]
    return opener, "call" + f" ({opener} call)*" * parallel, [_any("call", tools), *names, *_schemas(tools)], ""


def _pythonic(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    body, rules = _python_calls(tools, parallel)
    return "", body, rules, r"/\s*([^\[\s](.|\n)*)?/"


def _lfm2(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    body, rules = _python_calls(tools, parallel)
    return mark("<|tool_call_start|>"), f"{body} {mark('<|tool_call_end|>')}", rules, ""


def _python_calls(tools: Sequence[CallableTool], parallel: bool) -> tuple[str, list[str]]:
    """Return a list of Python calls, and their rules."""
    more = ' (", " call)*' if parallel else ""
    rules = [rule for i, tool in enumerate(tools) for rule in _python_call(i, tool)]
    rules += [r"KEY: /[a-zA-Z_][a-zA-Z0-9_]*/", "value: %json {}"]
    return f'"[" call{more} "]"', [_any("call", tools), *rules]


def _gemma(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    marks = (mark("<|tool_call>"), mark("<tool_call|>"), mark('<|"|>'))
    body, rules = gemma_calls(marks, [(tool.name, tool.arguments) for tool in tools], parallel)
    return marks[0], body, rules, ""


def _tagged(tags: CallTags) -> Callable[[Mark, Sequence[CallableTool], bool], Shape]:
    def shape(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
        body, rules = tagged_calls(tags, mark, [(tool.name, tool.arguments) for tool in tools], parallel)
        return mark(tags.block), body, rules, without(tags.call) if tags.unopened else ""

    return shape


def _deepseek(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    opened = [json.dumps(f"{tool.name}\n{FENCE}\n") for tool in tools]
    heads = [f'"{TYPE}" {mark(SEPARATOR)} {name}' for name in opened]
    return _deepseek_calls(mark, tools, heads, json.dumps(f"\n{FENCE_END}"), r'"\n"?', parallel)


def _deepseek_bare(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    heads = [f"{json.dumps(tool.name)} {mark(SEPARATOR)}" for tool in tools]
    return _deepseek_calls(mark, tools, heads, "", "", parallel)


def _deepseek_calls(
    mark: Mark, tools: Sequence[CallableTool], heads: Sequence[str], end: str, between: str, parallel: bool
) -> Shape:
    """``heads``: what comes before the arguments of each tool; ``end``: what comes after them."""
    calls = [f"call_{i}: {mark(CALL)} {head} arguments_{i} {end} {mark(CALL_END)}" for i, head in enumerate(heads)]
    body = f"call{f' ({between} call)*' * parallel} {mark(BLOCK_END)}"
    return mark(BLOCK), body, [_any("call", tools), *calls, *_schemas(tools)], ""


def _harmony(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    # One call ends the turn. The prompt has written the beginning of the first message, and not of a later one.
    again = f"({mark(START)} {json.dumps(ROLE)})? {mark(CHANNEL)}"
    kind = f'" " {mark(CONSTRAIN)} "json" {mark(MESSAGE)}'
    names = [json.dumps(f"commentary to={FUNCTIONS}{tool.name}") for tool in tools]
    calls = [f"call_{i}: {again} {name} {kind} arguments_{i}" for i, name in enumerate(names)]
    text = rf"FINAL: /(.|\n)*/{without(START)}{without(CHANNEL)}"
    final = f"final: {_final('harmony', mark)} FINAL"
    return "", "call", [_any("call", tools), *calls, final, text, *_schemas(tools)], ""


def _muse(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
    # Each call is a message to its tool. The prompt has written the beginning of the first one.
    beginning = f"{mark(START)} {json.dumps(ROLE)}"
    made, rules = tagged_call_rules(MUSE_TAGS, mark, [(tool.name, tool.arguments) for tool in tools])
    block, block_end = mark(MUSE_TAGS.block), mark(MUSE_TAGS.block_end)
    calls = [
        rf'call_{i}: {json.dumps(TO + tool.name)} {mark(MESSAGE)} {block} "\n" {call} "\n" {block_end}'
        for i, (tool, call) in enumerate(zip(tools, made, strict=True))
    ]
    more = f" ({mark(MORE)} {beginning} call)*" if parallel else ""
    final = f"final: {_final('muse', mark)} FINAL"
    text = rf"FINAL: /(.|\n)*/{without(START)}"
    return "", f"({beginning})? call{more}", [_any("call", tools), *calls, final, text, *rules], ""


def _cohere(text: str, text_end: str) -> Callable[[Mark, Sequence[CallableTool], bool], Shape]:
    def shape(mark: Mark, tools: Sequence[CallableTool], parallel: bool) -> Shape:
        heads = [json.dumps(f'", "tool_name": {json.dumps(tool.name)}, "parameters": ') for tool in tools]
        number = json.dumps('{"tool_call_id": "')
        calls = [f'call_{i}: {number} NUMBER {head} arguments_{i} "}}"' for i, head in enumerate(heads)]
        more = ' ("," BLANK call)*' if parallel else ""
        body = f'{mark(ACTION)} "[" BLANK call{more} BLANK "]" {mark(ACTION_END)}'
        end = mark(text_end)
        # One lexeme where the mark is text: an answer may end with what begins it.
        closed = "CLOSED" if end.startswith('"') else "closed"
        final = [f"final: {mark(text)} (FINAL | {closed})", f"{closed}: FINAL {end}"]
        terminals = [rf"FINAL: /(.|\n)*/{without(text_end)}", "NUMBER: /[0-9]{1,4}/", r"BLANK: /[ \n]*/"]
        return "", body, [_any("call", tools), *calls, *final, *terminals, *_schemas(tools)], ""

    return shape


def _final(format: str, mark: Mark) -> str:
    """Return the expression for what comes before the text of an answer, first or after reasoning."""
    frame = CALL_FORMATS[format].frame
    assert frame is not None
    lead = [json.dumps(part) if part not in CALL_FORMATS[format].marks else mark(part) for part in frame.lead]
    written = f"({' '.join(lead[: frame.written])})? " if frame.written else ""
    return written + " ".join(lead[frame.written :])


def final_opening(calls: ToolCalls) -> str:
    """Return the expression for what comes before the text of an answer, first or after reasoning."""
    return _final(calls.format, _marks(calls.special_ids))


def final_lead(calls: ToolCalls) -> tuple[str | int, ...]:
    """Return what comes before the text of an answer that follows reasoning: texts, and ids of special tokens."""
    frame = CALL_FORMATS[calls.format].frame
    assert frame is not None
    return tuple(calls.special_ids.get(part, part) for part in frame.lead)


_FORMATS: Mapping[str, Callable[[Mark, Sequence[CallableTool], bool], Shape]] = {
    "gemma": _gemma,
    "qwen": _tagged(QWEN_TAGS),
    "glm": _tagged(GLM_TAGS),
    "minimax": _tagged(MINIMAX_TAGS),
    "deepseek_tagged": _tagged(DSML_TAGS),
    "harmony": _harmony,
    "muse": _muse,
    "cohere": _cohere(TEXT, TEXT_END),
    "cohere_response": _cohere(RESPONSE, RESPONSE_END),
    "deepseek": _deepseek,
    "deepseek_bare": _deepseek_bare,
    "hermes": _hermes,
    "llama": _llama,
    "mistral": _mistral,
    "mistral_named": _mistral_named,
    "minimax_lines": _lines,
    "nemotron": _nemotron,
    "pythonic": _pythonic,
    "lfm2": _lfm2,
}


def _any(rule: str, tools: Sequence[CallableTool]) -> str:
    return f"{rule}: " + " | ".join(f"{rule}_{i}" for i in range(len(tools)))


def _objects(tools: Sequence[CallableTool]) -> list[str]:
    """Return the rules of ``{"name": …, "arguments": …}`` for each tool."""
    rules = [_any("object", tools)]
    for i, tool in enumerate(tools):
        head = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        rules.append(f'object_{i}: {head} arguments_{i} "}}"')
    return rules + _schemas(tools)


_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords of a schema whose value holds schemas by user-defined names."""
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is not a schema, even if it looks like one."""


def _call_object(tool: CallableTool) -> dict[str, Any]:
    """Return the schema of ``{"name": …, "parameters": …}``."""
    arguments = _moved({"type": "object"} | dict(tool.arguments or {}), "#/properties/parameters")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": arguments},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """Return a schema with references to its own root rewritten for its position ``place`` in another schema."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = dict(schema)
    for word, value in schema.items():
        if word == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[word] = place + value[1:]
        elif word in _BY_NAME and isinstance(value, dict):
            moved[word] = {name: _moved(each, place) for name, each in value.items()}
        elif word not in _VALUES:
            moved[word] = _moved(value, place)
    return moved


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _schemas(tools: Sequence[CallableTool]) -> list[str]:
    """Return a rule for each schema, each with its own root for references."""
    schemas = [{"type": "object"} | dict(tool.arguments or {}) for tool in tools]
    return [f"arguments_{i}: %json {json.dumps(schema)}" for i, schema in enumerate(schemas)]


def _python_call(i: int, tool: CallableTool) -> list[str]:
    """Return the rules of ``name(key=value, …)``: required arguments first, each group in the schema's order."""
    schema, name = tool.arguments, json.dumps(tool.name + "(")
    if schema is None:
        return [f'call_{i}: {name} (KEY "=" value (", " KEY "=" value)*)? ")"']
    properties, needed = _python_arguments(tool.name, schema)
    shared = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    rules, first, last = list[str](), list[str](), len(properties)
    for j, (key, value) in enumerate(properties.items()):
        following = f" rest_{i}_{j + 1}" if j + 1 < last else ""
        more = f'", " given_{i}_{j}'
        rules += [
            f"given_{i}_{j}: {json.dumps(key + '=')} value_{i}_{j}",
            f"value_{i}_{j}: %json {json.dumps(value | shared)}",
            f"rest_{i}_{j}: {more if key in needed else f'({more})?'}{following}",
        ]
        first.append(f"given_{i}_{j}{following}")
    inside = first[0] if needed else f"({' | '.join(first)})?" if first else ""
    return [f'call_{i}: {name} {inside} ")"', *rules]


def _python_arguments(name: str, schema: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return the schemas of the arguments, required ones first, and the names of these. Raises UnsupportedFeature."""
    properties, needed = schema.get("properties", {}), set(schema.get("required", []))
    stated = {"type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions"}
    # Each argument's schema is a separate rule, so references can only refer to the shared definitions.
    local = all(reference.startswith(("#/$defs/", "#/definitions/")) for reference in _references(schema))
    plain = local and schema.keys() <= stated and needed <= properties.keys() and False not in properties.values()
    if not plain or not all(key.isidentifier() and key.isascii() for key in properties):
        raise UnsupportedFeature(f"this model's call format cannot enforce the schema of tool '{name}'")
    keys = sorted(properties, key=lambda key: key not in needed)
    return {key: {} if properties[key] is True else properties[key] for key in keys}, needed
