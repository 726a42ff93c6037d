"""Numbers as the original writes them, and texts put together from their tokens."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_cards import card_of
from stub_runtime import QUICK, STUB, TOKENIZER, local_model

from dragoman.core.events import FinishReason, Token, TokenEvent
from dragoman.core.sampling import EndingParams
from dragoman.core.serving import ReasoningBlocks, ToolCalls
from dragoman.dialects.tgi.chat_render import AnswerReader
from dragoman.dialects.tgi.generation import Piece, SequenceOutput
from dragoman.dialects.tgi.render import float32
from dragoman.serving.output_processor import make_output_processors
from dragoman.text import ChatTemplate

MODEL = local_model(QUICK, STUB, ChatTemplate({}))
BYTES = [i for i in range(TOKENIZER.vocab_size) if len(TOKENIZER.token_bytes(i)) == 1]
IDS = st.lists(st.sampled_from(BYTES) | st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=24)


@settings(max_examples=500, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(float(np.finfo(np.float32).tiny) / 4)
def test_a_number_is_the_shortest_decimal_of_its_float32(value: float) -> None:
    shown = float32(value)
    assert shown is not None
    assert shown == float(str(np.float32(value)))
    assert np.float32(shown) == np.float32(value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-1.2345678806304932, "-1.2345679"),
        (-11.375, "-11.375"),
        (-0.25, "-0.25"),
        (0.0, "0.0"),
        (-0.00001, "-0.00001"),
        (None, "null"),
        (math.nan, "null"),
        (-math.inf, "null"),
        (1e300, "null"),
    ],
)
def test_numbers_on_the_wire(value: float | None, written: str) -> None:
    assert msgspec.json.encode(float32(value)).decode() == written


@settings(max_examples=300, deadline=None)
@given(ids=IDS, stop=st.text(st.sampled_from("ab \ufffdeo"), max_size=3))
def test_the_pieces_of_a_sequence_are_its_text(ids: list[int], stop: str) -> None:
    """Token by token, whatever was held back before it: a piece for each, and together what the answer shows."""
    ending = EndingParams(stop=(stop,) * bool(stop), include_stop=True, skip_special_tokens=False)
    (output_processor,) = make_output_processors(MODEL, 1, (), ending)
    sequence, pieces = SequenceOutput(seed=0), []
    for i, token_id in enumerate(ids):
        finish = FinishReason.LENGTH if i == len(ids) - 1 else None
        new = sequence.push(output_processor.push(TokenEvent("r", 0, i, token_id, finish)))
        assert len(new) == 1
        pieces += new
        if output_processor.finish is not None:
            break
    assert [piece.token.token_id for piece in pieces] == ids[: len(pieces)]
    text = "".join(piece.shown for piece in pieces)
    assert text == sequence.text or text.rstrip("\ufffd") == sequence.text
    whole = TOKENIZER.decode(ids, skip_special_tokens=True)
    if not stop and not any(TOKENIZER.is_special(token_id) for token_id in ids):
        assert sequence.text == whole.rstrip("\ufffd")


def test_marks_that_are_special_tokens_are_read_and_other_special_tokens_are_not() -> None:
    marks = {"<|channel|>": 5, "<|message|>": 6, "<|end|>": 7, "<|start|>": 8}
    card = card_of(
        tool_calls=ToolCalls(format="harmony", special_ids=marks),
        reasoning=ReasoningBlocks(opening="<|channel|>analysis<|message|>", closing="<|end|>", special_ids=marks),
    )
    names = {id: mark for mark, id in marks.items()} | {1: "</s>", 9: "analysis", 10: "Hm.", 11: "assistant"}
    names |= {12: "final", 13: "Yes."}
    for ids, content in (
        ((5, 9, 6, 10, 7, 8, 11, 5, 12, 6, 13, 1), "Yes."),
        ((5, 9, 6, 10), ""),
        ((5, 12, 6, 13), "Yes."),
    ):
        sequence = SequenceOutput(0)
        sequence.pieces = [Piece(Token(i, names[i], b"", special=i < 9), names[i]) for i in ids]
        assert AnswerReader(card).whole(sequence) == content
    plain = msgspec.structs.replace(card, tool_calls=None, reasoning=None)
    assert AnswerReader(plain).whole(sequence) == "finalYes."
