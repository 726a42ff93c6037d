"""The pieces that a connection's input is cut into, on plain values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.framing import BODY_PIECE_BYTES, HEAD_END, PIECE_BYTES, Framing, with_path

HEADS = st.lists(st.binary(max_size=40), min_size=1)


def pieces_of(framing: Framing, inputs: list[bytes]) -> list[bytes]:
    """What the parser gets of all input, which has no bodies."""
    pieces = []
    for data in inputs:
        at = 0
        while at < len(data):
            end = framing.piece_end(data, at)
            assert at < end <= at + PIECE_BYTES
            pieces.append(data[at:end])
            at = end
        framing.end_input(data)
    return pieces


@given(HEADS, st.lists(st.integers(1, 60)))
def test_no_piece_goes_on_after_the_end_of_a_head(heads: list[bytes], sizes: list[int]) -> None:
    """However the input is cut on its way, the end of a head too."""
    data = b"".join(b"x" + head + HEAD_END for head in heads)
    inputs, at = [], 0
    for size in [*sizes, len(data)]:
        inputs.append(data[at : at + size])
        at += size
    framing = Framing()
    framing.begin_head()
    pieces = pieces_of(framing, [each for each in inputs if each])
    assert b"".join(pieces) == data
    ends = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]
    places = [i + len(HEAD_END) for i in range(len(data)) if data.startswith(HEAD_END, i)]
    assert set(places) <= set(ends)


def test_a_body_of_known_length_ends_a_piece() -> None:
    framing = Framing()
    framing.begin_head()
    framing.begin_body(BODY_PIECE_BYTES + 5, is_chunked=False)
    data = HEAD_END * BODY_PIECE_BYTES
    assert framing.piece_end(data, 2) == 2 + BODY_PIECE_BYTES
    framing.begin_piece(BODY_PIECE_BYTES)
    assert framing.piece_end(data, 2 + BODY_PIECE_BYTES) == 2 + BODY_PIECE_BYTES + 5


def test_small_chunks_are_mostly_framing_and_parsed_in_small_pieces() -> None:
    framing = Framing()
    framing.begin_body(0, is_chunked=True)
    data = b"a" * 10 * PIECE_BYTES
    before = framing.begin_piece(1000)
    framing.add_content(900)
    framing.end_piece(1000, before)
    assert framing.piece_end(data, 0) > PIECE_BYTES
    assert not framing.is_mostly_framing(0)
    before = framing.begin_piece(1000)
    framing.add_content(10)
    framing.end_piece(1000, before)
    assert framing.piece_end(data, 0) == PIECE_BYTES
    assert framing.is_mostly_framing(179)
    assert not framing.is_mostly_framing(180)
    framing.end_request()
    assert not framing.is_mostly_framing(0)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"http://a", b"http://a/"),
        (b"http://a:80?b=/c", b"http://a:80/?b=/c"),
        (b"http://a/", b"http://a/"),
        (b"http://a/b?c=d://e", b"http://a/b?c=d://e"),
        (b"http://", b"http://"),
        (b"http:///a", b"http:///a"),
        (b"/?a=http://b", b"/?a=http://b"),
        (b"*", b"*"),
        (b"a:80", b"a:80"),
    ],
)
def test_only_an_address_without_a_path_gets_one(target: bytes, expected: bytes) -> None:
    assert with_path(target) == expected
