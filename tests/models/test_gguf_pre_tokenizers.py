"""Pieces that texts fall into before merges, of the pre-tokenizers of newer models: what each is there for."""

from __future__ import annotations

import pytest
from tokenizers import Regex, pre_tokenizers

from dragoman.models.gguf.pre_tokenizers import PRE_TOKENIZERS


def pieces(kind: str, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[kind].patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("afmoe", "12 345 67890a", ["12", " ", "345", " ", "67", "890", "a"]),
        ("laguna", "a 12\n\n  b'S", ["a", " ", "1", "2", "\n\n", " ", " b", "'S"]),
        ("afmoe", "東京に行く go", ["東京に行く", " go"]),
        ("afmoe", "สวัสดี abc", ["สวัสดี", " abc"]),
        ("afmoe", ".net don't\n\n x", [".net", " don", "'t", "\n\n", " x"]),
        ("jais-2", "a" + " " * 600 + "b", ["a", " " * 512, " " * 64, " " * 16, " " * 4, " " * 2, " ", " b"]),
        ("jais-2", "It's 12345\n\n  x", ["It", "'s", " ", "123", "45", "\n\n", " ", " x"]),
        ("jais-2", "مرحبا بك", ["مرحبا", " بك"]),
        ("youtu", "HelloWorld don'T 123", ["Hello", "World", " don'T", " ", "1", "2", "3"]),
        ("youtu", "한국어와 日本語、ok", ["한국어와", " ", "日本語", "、", "ok"]),
    ],
)
def test_texts_fall_into_the_models_pieces(kind: str, text: str, wanted: list[str]) -> None:
    found = pieces(kind, text)
    assert found == wanted
    assert "".join(found) == text


def test_words_that_are_tokens_stay_whole_where_the_model_does_so() -> None:
    assert PRE_TOKENIZERS["youtu"].whole_words
    assert not PRE_TOKENIZERS["afmoe"].whole_words
    assert not PRE_TOKENIZERS["jais-2"].whole_words
