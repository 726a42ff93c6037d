"""Answers of Cohere's models and of Muse Glimmer, whose texts are between marks, too: taken apart, whole and streamed
alike; the grammars that make them, and the stop strings in them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.constraint import AfterReasoning, Constraint, JsonSchema
from dragoman.core.serving import ReasoningBlocks, ToolCalls
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.lark import grammar_of
from dragoman.grammar.matching import Matching
from dragoman.text import StopMatcher, Tokenizer
from dragoman.text.call_grammar import CallableTool, call_grammar, final_lead
from dragoman.text.call_parser import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from dragoman.text.chat_parser import MessageReader
from dragoman.text.reasoning import KNOWN_MARKS, TO_SELF, FrameParser, ReasoningMarks, ReasoningParser
from dragoman.text.stop import AnswerStopMatcher
from dragoman.text.template_names import template_names
from dragoman.text.tool_calls import CALL_FORMATS, find_call_format, find_reasoning_marks

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
COHERE = next(marks for marks in KNOWN_MARKS if "THINKING" in marks.opening)
MARKS: dict[str, ReasoningMarks] = {"cohere": COHERE, "cohere_response": COHERE, "muse": TO_SELF}


def parse(format: str, pieces: list[str], *, separate: bool = True, begun: bool = False) -> list[Part]:
    """All parts, text of the same kind joined."""
    numbers = itertools.count()
    calls = CALL_FORMATS[format].parser(("weather", "web.find"), lambda: f"id{next(numbers)}", {"weather": SCHEMA})
    reader = MessageReader(calls, ReasoningParser(MARKS[format], begun=begun), separate=separate, framed=True)
    parts: list[Part] = []
    for part in [part for piece in pieces for part in reader.push(piece)] + reader.flush():
        match parts[-1:], part:
            case [Content(before)], Content(text):
                parts[-1] = Content(before + text)
            case [Reasoning(before)], Reasoning(text):
                parts[-1] = Reasoning(before + text)
            case [CallArguments(index, before)], CallArguments(_, text):
                parts[-1] = CallArguments(index, before + text)
            case _:
                parts.append(part)
    return parts


def called(*calls: tuple[str, str]) -> list[Part]:
    return [
        part
        for i, (name, arguments) in enumerate(calls)
        for part in (CallStart(i, f"id{i}", name), CallArguments(i, arguments), CallEnd(i))
    ]


WEATHER = ("weather", '{"city": "Köln", "days": 2}')
FIND = ("web.find", "{}")

# Cohere ---------------------------------------------------------------------------------------------------------------

THOUGHT = "<|START_THINKING|>Hm, <2?<|END_THINKING|>"
ACTION = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Köln", "days": 2}},\n'
    '    {"tool_call_id": "1", "tool_name": "web.find", "parameters": {}}\n]<|END_ACTION|>'
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{THOUGHT}<|START_TEXT|> It is.\n<|END_TEXT|>", [Reasoning("Hm, <2?"), Content(" It is.\n")]),
        (f"{THOUGHT}<|START_RESPONSE|>It is.<|END_RESPONSE|>", [Reasoning("Hm, <2?"), Content("It is.")]),
        ("<|START_RESPONSE|>It is.", [Content("It is.")]),
        ("It is.", [Content("It is.")]),
        ("It is.<|END_TEXT|>", [Content("It is.")]),
        (f"{THOUGHT}{ACTION}", [Reasoning("Hm, <2?"), *called(WEATHER, FIND)]),
        (ACTION, called(WEATHER, FIND)),
        (
            f"<|START_TEXT|>I look.<|END_TEXT|>{THOUGHT}{ACTION}",
            [Content("I look."), Reasoning("Hm, <2?"), *called(WEATHER, FIND)],
        ),
        ('<|START_ACTION|>[{"tool_name": "weather", "parameters": {"city": "K', called(("weather", '{"city": "K'))),
        ("<|START_TEXT|>a <|END_TE", [Content("a <|END_TE")]),
        ("a <co>b</co: 0:[1]> <|START_X", [Content("a <co>b</co: 0:[1]> <|START_X")]),
    ],
)
def test_cohere_answers_are_taken_apart(text: str, parts: list[Part]) -> None:
    for format in ("cohere", "cohere_response"):
        assert parse(format, [text]) == parts
        assert parse(format, list(text)) == parts


def test_a_block_that_the_prompt_has_begun_ends_at_its_mark() -> None:
    text = "Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>"
    assert parse("cohere", [text], begun=True) == [Reasoning("Hm."), Content("Yes.")]
    assert parse("cohere", [text], begun=True, separate=False) == [Content("Yes.")]


@pytest.mark.parametrize(
    "text",
    [
        "<|START_ACTION|>[]<|END_ACTION|>.",
        '<|START_ACTION|>[{"tool_name": "unknown", "parameters": {}}]<|END_ACTION|>.',
        '<|START_ACTION|>[{"name": "weather", "arguments": {}}]<|END_ACTION|>.',
        '<|START_ACTION|>{"tool_name": "weather", "parameters": {}}<|END_ACTION|>.',
        '<|START_ACTION|>[{"tool_name": "weather", "parameters": "Köln"}]<|END_ACTION|>.',
    ],
)
def test_what_only_looks_like_a_cohere_call_is_content(text: str) -> None:
    shown = text.replace("<|END_ACTION|>", "")
    assert parse("cohere", ["\n" + text]) == [Content("\n" + shown)]


# Muse Glimmer ---------------------------------------------------------------------------------------------------------

TO_USER = "<|start|>assistant to=user<|message|>"
SELF = " to=self<|message|>Hm, <2?<|eom|>"
CALL = (
    ' to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n'
    '<atem:parameter name="city">Köln</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
FIND_CALL = (
    ' to=web.find<|message|><atem:function_calls>\n<atem:invoke name="web.find">\n</atem:invoke>\n'
    "</atem:function_calls>"
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{SELF}{TO_USER}It is.\n<|eot|>", [Reasoning("Hm, <2?"), Content("It is.\n")]),
        (f"{SELF}<|start|>assistant<|message|>It is.", [Reasoning("Hm, <2?"), Content("It is.")]),
        (" to=user<|message|>It is.<|eot|>", [Content("It is.")]),
        ("<|message|>It is.<|eot|>", [Content("It is.")]),
        ("It is.", [Content("It is.")]),
        (SELF[:-4], [Reasoning("Hm, <2?<|e")]),
        (SELF + TO_USER[:-4], [Reasoning("Hm, <2?")]),
        (" to=self<|mess", []),
        (" to", [Content(" to")]),
        (f"{SELF}<|start|>assistant{CALL}<|eot|>", [Reasoning("Hm, <2?"), *called(WEATHER)]),
        (f"{CALL}<|eom|><|start|>assistant{FIND_CALL}<|eot|>", called(WEATHER, FIND)),
        (f"{CALL}<|start|>assistant{FIND_CALL}", called(WEATHER, FIND)),
        (
            f" to=user<|message|>I look.<|eom|><|start|>assistant{SELF}<|start|>assistant{CALL}<|eot|>",
            [Content("I look."), Reasoning("Hm, <2?"), *called(WEATHER)],
        ),
        (
            f" to=user<|message|>First.{TO_USER}Last.",
            [Content("First.\n\nLast.")],
        ),
        (f"{TO_USER}a <|eo <|start b", [Content("a <|eo <|start b")]),
        (CALL[: CALL.index("ln</")], called(("weather", '{"city": "Kö'))),
    ],
)
def test_muse_messages_are_taken_apart(text: str, parts: list[Part]) -> None:
    assert parse("muse", [text]) == parts
    assert parse("muse", list(text)) == parts
    kept = "".join(part.text for part in parts if isinstance(part, Content))
    shown = parse("muse", [text], separate=False)
    assert "".join(part.text for part in shown if isinstance(part, Content)) == kept
    assert not any(isinstance(part, Reasoning) for part in shown)


@pytest.mark.parametrize(
    "text",
    [
        "to=unknown<|message|>text",
        '<|start|>assistant to=unknown<|message|><atem:function_calls><atem:invoke name="unknown"></atem:invoke>',
        "<|start|>assistant to=weather<|message|>Köln",
        "<|start|>user<|message",
        "to = two",
        "to=" + "x" * 5000,
        "<|start|>" + "x" * 5000,
    ],
)
def test_what_only_looks_like_a_muse_message_is_content(text: str) -> None:
    for whole in (text + ".", "\n" + text + ".\n"):
        assert parse("muse", [whole]) == [Content(whole)]


# All ------------------------------------------------------------------------------------------------------------------

fragments = st.sampled_from(
    [
        *CALL_FORMATS["muse"].marks,
        *CALL_FORMATS["cohere"].marks,
        *COHERE,
        *TO_SELF,
        *("assistant", " to=user", " to=weather", "weather", '">', SELF, TO_USER, CALL, ACTION, THOUGHT),
        *('[{"tool_name": "weather", "parameters": ', '{"a": "<|eom|>"}', "}]", "{", "ß", " ", "\n"),
    ]
)


@pytest.mark.parametrize("format", ["cohere", "muse"])
@settings(max_examples=100, deadline=None)
@given(text=st.lists(fragments, max_size=9).map("".join), data=st.data(), separate=st.booleans())
def test_a_stream_is_the_whole_text_however_it_is_cut(
    format: str, text: str, data: st.DataObject, separate: bool
) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]
    parts = parse(format, [text], separate=separate)
    assert parse(format, pieces, separate=separate) == parse(format, list(text), separate=separate) == parts


COHERE_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}<|START_ACTION|>["
    '{"tool_call_id": "{{ 0 }}", "tool_name": "{{ f }}"}]{{ messages }}<|START_THINKING|><|END_THINKING|>'
)
MUSE_TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}{{ '<|start|>assistant to=self<|message|>' + messages + '<|eom|>' }}"
    "{{- '<atem:invoke name=\"' + name + '\">' }}<|start|>assistant"
)


@pytest.mark.parametrize(
    ("template", "format"),
    [
        (COHERE_TEMPLATE + "<|START_TEXT|>", "cohere"),
        (COHERE_TEMPLATE + "<|START_RESPONSE|>", "cohere_response"),
        (MUSE_TEMPLATE, "muse"),
    ],
)
def test_the_format_is_known_by_its_template(template: str, format: str) -> None:
    assert find_call_format(template, template_names(template)) is CALL_FORMATS[format]
    assert find_reasoning_marks(template, lambda token: False) == MARKS[format]


@pytest.mark.parametrize(
    ("format", "text", "shown", "begun"),
    [
        ("cohere", "a>b<|END_THINKING|><|START_TEXT|>c>d", "a>b<|END_THINKING|><|START_TEXT|>c", True),
        ("cohere", f"{THOUGHT}<|START_RESPONSE|>c>d", f"{THOUGHT}<|START_RESPONSE|>c", False),
        ("cohere", "<|START_TEXT|>c>d", "<|START_TEXT|>c", False),
        ("cohere", "c>d", "c", False),
        ("cohere", f"{THOUGHT}{ACTION}", f"{THOUGHT}{ACTION}", False),
        ("muse", f"{SELF}{TO_USER}c>d", f"{SELF}{TO_USER}c", False),
        ("muse", f"{SELF}<|start|>assistant<|message|>c>d", f"{SELF}<|start|>assistant<|message|>c", False),
        ("muse", " to=user<|message|>c>d", " to=user<|message|>c", False),
        ("muse", CALL, CALL, False),
        ("muse", CALL.replace("weather", "user"), CALL.replace("weather", "user").partition(">\n")[0], False),
        ("muse", CALL.replace("weather", "the_user"), CALL.replace("weather", "the_user"), False),
    ],
)
def test_stop_strings_are_those_of_the_text(format: str, text: str, shown: str, begun: bool) -> None:
    frame = CALL_FORMATS[format].frame
    assert frame is not None
    for pieces in ([text], list(text)):
        matcher = AnswerStopMatcher(StopMatcher([">"]), FrameParser(frame, begun=begun))
        released, matched = "", None
        for piece in pieces:
            more, matched = matcher.push(piece)
            released += more
            if matched:
                break
        else:
            released += matcher.flush()
        assert (released, matched) == (shown, ">" if shown != text else None)


# Grammars ------------------------------------------------------------------------------------------------------------

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "builtin")
SPECIAL = sorted(TOKENIZER.special_ids - {*TOKENIZER.eos_ids})
IDS = {
    "cohere": dict(zip([COHERE.closing, "<|START_TEXT|>", "<|START_ACTION|>", "<|END_TEXT|>"], SPECIAL, strict=True)),
    "muse": dict(zip(["<|start|>", "<|message|>", "<|eom|>"], SPECIAL, strict=False)),
}
"""Special tokens of the embedded model that stand for marks; the other marks are text."""
TOOLS = (
    CallableTool(name="weather", arguments=SCHEMA | {"properties": {"city": {"enum": ["Köln"]}}}),
    CallableTool(name="web.find"),
)
LIST = '{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Köln"}}'
COHERE_CALL = f"<|START_ACTION|>[\n    {LIST}\n]<|END_ACTION|>"
MUSE_CALL = CALL.replace('<atem:parameter name="days">2</atem:parameter>\n', "")


@pytest.fixture(scope="module")
def matching() -> Matching:
    tokens = tuple(TOKENIZER.token_bytes(i) for i in range(TOKENIZER.vocab_size))
    special = tuple(sorted(TOKENIZER.special_ids))
    return Matching(Vocabulary(tokens=tokens, special_ids=special, end_ids=TOKENIZER.eos_ids))


def accepts(matching: Matching, format: str, constraint: Constraint | AfterReasoning, text: str) -> bool:
    """Whether this is a whole text of the grammar, its marks as special tokens."""
    made = matching.matcher(grammar_of(constraint))
    assert not made.error
    for mark in IDS[format]:
        text = text.replace(mark, f"\0{mark}\0")
    ids = [
        token
        for part in filter(None, text.split("\0"))
        for token in ([IDS[format][part]] if part in IDS[format] else TOKENIZER.encode(part, add_special_tokens=False))
    ]
    complete = False
    for token in ids:
        if complete or not made.mask()[token]:
            return False
        complete = made.push(token)
    return complete or bool(made.mask()[TOKENIZER.eos_ids[0]])


def after_reasoning(
    format: str, answer: Constraint, lead: tuple[str | int, ...] = (), begun: bool = False
) -> AfterReasoning:
    marks, frame = MARKS[format], CALL_FORMATS[format].frame
    assert frame is not None
    blocks = ReasoningBlocks(opening=marks.opening, closing=marks.closing, special_ids=IDS[format])
    return AfterReasoning(
        answer=answer,
        opening=blocks.opening,
        closing=blocks.closing,
        opening_parts=blocks.opening_parts,
        closing_id=IDS[format].get(marks.closing),
        lead=lead,
        lead_alone=lead[frame.written :],
        begun=begun,
    )


@pytest.mark.parametrize(
    ("format", "text", "required", "free"),
    [
        ("cohere", COHERE_CALL, True, True),
        ("cohere", f"<|START_ACTION|>[{LIST},\n{LIST}]<|END_ACTION|>", True, True),
        ("cohere", f"{THOUGHT}{COHERE_CALL}", True, True),
        ("cohere", COHERE_CALL.replace("Köln", "Bonn"), False, False),
        ("cohere", COHERE_CALL.replace("weather", "wind"), False, False),
        ("cohere", COHERE_CALL.replace("<|END_ACTION|>", ""), False, False),
        ("cohere", f"{THOUGHT}<|START_TEXT|>Yes <b>.\n<|END_TEXT|>", False, True),
        ("cohere", "<|START_TEXT|>Yes.", False, True),
        ("cohere", "Yes.", False, False),
        ("muse", MUSE_CALL, True, True),
        ("muse", f"{MUSE_CALL}<|eom|><|start|>assistant{FIND_CALL}", True, True),
        ("muse", f"{SELF}<|start|>assistant{MUSE_CALL}", True, True),
        ("muse", MUSE_CALL.replace("Köln", "Bonn"), False, False),
        ("muse", MUSE_CALL.replace("to=weather", "to=web.find"), False, False),
        ("muse", f"{SELF}{TO_USER}Yes <b>.\n", False, True),
        ("muse", " to=user<|message|>Yes.", False, True),
        ("muse", "Yes.", False, False),
    ],
)
def test_calls_follow_the_schema(matching: Matching, format: str, text: str, required: bool, free: bool) -> None:
    calls = ToolCalls(format=format, special_ids=IDS[format])
    for needed, valid in ((True, required), (False, free)):
        grammar = after_reasoning(format, call_grammar(calls, TOOLS, required=needed, parallel=True))
        assert accepts(matching, format, grammar, text) == valid, needed
    one = after_reasoning(format, call_grammar(calls, TOOLS, required=True, parallel=False))
    assert accepts(matching, format, one, text) == (required and text.count("tool_call_id") < 2 and "find" not in text)


def test_a_text_of_a_format_whose_marks_are_text_ends_with_one(matching: Matching) -> None:
    """As of a vocabulary that has no tokens for them."""
    grammar = call_grammar(ToolCalls(format="cohere_response"), TOOLS, required=False, parallel=True)
    for text, valid in [
        ("<|START_RESPONSE|>a <|END<|END_RESPONSE|>", True),
        ("<|START_RESPONSE|>a <|END", True),
        ("<|START_RESPONSE|>a<|END_RESPONSE|>b", False),
        ("a", False),
    ]:
        made = matching.matcher(grammar_of(grammar))
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        state = [False]
        followed = all(not state[-1] and made.mask()[token] and not state.append(made.push(token)) for token in ids)
        assert bool(followed and (state[-1] or made.mask()[TOKENIZER.eos_ids[0]])) == valid, text


@pytest.mark.parametrize(
    ("format", "text", "valid"),
    [
        ("cohere", f"{THOUGHT}<|START_TEXT|>42", True),
        ("cohere", "<|START_TEXT|>42", True),
        ("cohere", f"{THOUGHT}42", False),
        ("cohere", f"{THOUGHT}<|START_TEXT|>x", False),
        ("muse", f"{SELF}{TO_USER}42", True),
        ("muse", " to=user<|message|>42", True),
        ("muse", f"{SELF}42", False),
        ("muse", f"{SELF}{TO_USER}x", False),
    ],
)
def test_a_form_is_that_of_the_text(matching: Matching, format: str, text: str, valid: bool) -> None:
    calls = ToolCalls(format=format, special_ids=IDS[format])
    form = after_reasoning(format, JsonSchema('{"type": "integer"}'), final_lead(calls))
    assert accepts(matching, format, form, text) == valid
