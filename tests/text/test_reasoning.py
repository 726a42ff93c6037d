"""The reasoning block at the start of a text, apart from the answer behind it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.text.reasoning import KNOWN_MARKS, Piece, PieceKind, ReasoningParser

THINK = KNOWN_MARKS[0]


def parse(pieces: list[str], begun: bool = False) -> list[Piece]:
    """All pieces, those of the same kind joined."""
    parser = ReasoningParser(THINK, begun=begun)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    groups = itertools.groupby(parts, key=lambda part: part[0])
    return [(kind, text) for kind, group in groups if (text := "".join(text for _, text in group))]


def apart(text: str, begun: bool = False) -> tuple[str, str]:
    """Reasoning and answer."""
    pieces = parse([text], begun)
    return tuple(
        "".join(text for kind, text in pieces if kind is wanted) for wanted in (PieceKind.REASONING, PieceKind.ANSWER)
    )  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\nhm, 2 < 3\n</think>\n\nIt is. ", "hm, 2 < 3", "It is. "),
        ("\n<think>a</think>b", "a", "b"),
        ("<think></think>b", "", "b"),
        ("<think>\n\n</think>\n\n", "", ""),
        ("<think>cut", "cut", ""),
        ("<think>cut </thi", "cut </thi", ""),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("no block", "", "no block"),
        ("  no <think>block</think>", "", "  no <think>block</think>"),
        ("<thin", "", "<thin"),
        ("\n</think>\nb</think>", "", "b</think>"),
        ("</think>", "", ""),
        ("</thin", "", "</thin"),
        ("a</think>b", "", "a</think>b"),
        ("<thinker>", "", "<thinker>"),
        ("", "", ""),
    ],
)
def test_the_block_is_taken_apart(text: str, reasoning: str, answer: str) -> None:
    assert apart(text) == (reasoning, answer)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [("a\n</think>\nb", "a", "b"), ("\na", "a", ""), ("</think>b", "", "b"), ("", "", "")],
)
def test_a_block_that_the_prompt_opened_needs_no_mark(text: str, reasoning: str, answer: str) -> None:
    assert apart(text, begun=True) == (reasoning, answer)


def test_reasoning_is_streamed() -> None:
    parser = ReasoningParser(THINK)
    assert parser.push("<think>\nI th") == [
        (PieceKind.LAYOUT, "<think>"),
        (PieceKind.LAYOUT, "\n"),
        (PieceKind.REASONING, "I th"),
    ]
    assert parser.push("ink </") == [(PieceKind.REASONING, "ink")]
    assert parser.push("b>") == [(PieceKind.REASONING, " </b>")]


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<", "/think>", " ", "\n", "a", "bc"]), max_size=10),
    data=st.data(),
    begun=st.booleans(),
)
def test_a_stream_is_the_whole_text_however_it_is_cut(text: list[str], data: st.DataObject, begun: bool) -> None:
    whole = "".join(text)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    pieces = [whole[a:b] for a, b in itertools.pairwise([0, *places, len(whole)])]
    assert parse(pieces, begun) == parse([whole], begun) == parse(list(whole), begun)
    assert "".join(text for _, text in parse(pieces, begun)) == whole
