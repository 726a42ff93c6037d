"""Reasoning, content and calls of one text, taken apart together."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.text.call_parser import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from dragoman.text.chat_parser import MessageReader
from dragoman.text.reasoning import KNOWN_MARKS, ReasoningParser
from dragoman.text.tool_calls import CALL_FORMATS

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
CALLED: list[Part] = [CallStart(0, "id", "f"), CallArguments(0, '{"a": 1}'), CallEnd(0)]


def parse(pieces: list[str], *, separate: bool, begun: bool = False) -> list[Part]:
    """All parts, text of the same kind joined."""
    calls = CALL_FORMATS["hermes"].parser(["f"], lambda: "id")
    reader = MessageReader(calls, ReasoningParser(KNOWN_MARKS[0], begun=begun), separate=separate)
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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"<think>\nhm\n</think>\n\nSo:\n{CALL}", [Reasoning("hm"), Content("So:"), *CALLED]),
        (f"<think>{CALL}</think>{CALL}", [Reasoning(CALL), *CALLED]),
        (f"<think>{CALL}", [Reasoning(CALL)]),
        (CALL, CALLED),
        ("Yes.", [Content("Yes.")]),
    ],
)
def test_calls_are_looked_for_behind_the_reasoning(text: str, parts: list[Part]) -> None:
    assert parse([text], separate=True) == parts


def test_reasoning_that_is_not_separate_is_content_as_it_was_written() -> None:
    thought = f"<think>\n{CALL}\n</think>\n\n"
    assert parse([thought + CALL], separate=False) == [Content(thought), *CALLED]
    assert parse([thought[7:] + CALL], separate=False, begun=True) == [Content(thought[7:]), *CALLED]


def test_without_formats_all_text_is_content() -> None:
    reader = MessageReader()
    assert reader.push(CALL) == [Content(CALL)]
    assert reader.push("") == reader.flush() == []


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", CALL, "<tool_call>", "{", " ", "\n", "a", "<"]), max_size=8),
    data=st.data(),
    separate=st.booleans(),
    begun=st.booleans(),
)
def test_a_stream_is_the_whole_text_however_it_is_cut(
    text: list[str], data: st.DataObject, separate: bool, begun: bool
) -> None:
    whole = "".join(text)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    pieces = [whole[a:b] for a, b in itertools.pairwise([0, *places, len(whole)])]
    parts = parse([whole], separate=separate, begun=begun)
    assert parse(pieces, separate=separate, begun=begun) == parts
    assert parse(list(whole), separate=separate, begun=begun) == parts
    if not separate and not any(isinstance(part, CallStart) for part in parts):
        assert parts == ([Content(whole)] if whole else [])
