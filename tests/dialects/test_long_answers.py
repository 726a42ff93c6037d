"""Long answers are the same bytes, made and written in pieces."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.dialects.openai_stream import PIECE_ITEMS, encode, encode_in_pieces


class Choice(msgspec.Struct, omit_defaults=True, rename={"text": "Text"}, frozen=True):
    index: int
    text: str = ""
    logprobs: dict[str, Any] | None = None
    shown: list[int] = []


class Answer(msgspec.Struct):
    choices: list[Choice]
    id: str = "a"


def logprobs(count: int) -> dict[str, Any]:
    return {"content": [{"token": f"ü{i}", "top": [{"b": None, "c": -1.5}] * 3} for i in range(count)]}


@pytest.mark.parametrize("count", [0, 1, PIECE_ITEMS, PIECE_ITEMS + 1, 3 * PIECE_ITEMS, 1000])
def test_an_answer_in_pieces_is_the_same_answer(count: int) -> None:
    answers = [
        Answer([Choice(i, "text", logprobs(count)) for i in range(3)]),
        {"choices": [{"logprobs": logprobs(count)}]},
        list(range(count)),
        [[list(range(count))], "text", None, 1.5, True],
        Answer([Choice(0, shown=list(range(count)))]),
    ]
    for answer in answers:
        assert encode_in_pieces(answer) == encode(answer)
