"""Vocabularies that are no ``tokenizer.json``, small ones, and what tests do with their tokenizers."""

from __future__ import annotations

import base64
from typing import Any

from dragoman.text import Detokenizer, Tokenizer
from tests.text.sentencepiece_writer import BYTES, NORMAL, SPECIALS

LETTERS = [(letter, -10.0 - i, NORMAL) for i, letter in enumerate("▁abchelo")]
SMALL = [*SPECIALS, *BYTES, ("▁a", -1.0, NORMAL), ("he", -2.0, NORMAL), ("▁he", -3.0, NORMAL), *LETTERS]
TOKENS = [bytes((byte,)) for byte in range(256)]
TOKENS += [text.encode() for text in (" t", "he", " the", " a", "😀", "é", "12", "123", "\n\n", "通訳", "ll", " do")]
ODD_TOKENS = [*TOKENS, b"aaa", b"aa", b"baa", b"xyz", b"camels", b"lo"]
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_SPECIALS = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]


def tekken(**changed: Any) -> dict[str, Any]:
    entries = [{"rank": i, "token_bytes": base64.b64encode(each).decode()} for i, each in enumerate(TOKENS)]
    config = {"pattern": TEKKEN_PATTERN, "default_vocab_size": 280, "default_num_special_tokens": 20}
    specials = [{"rank": i, "token_str": each} for i, each in enumerate(TEKKEN_SPECIALS)]
    return {"config": config, "vocab": entries, "special_tokens": specials} | changed


def lines_of(tokens: list[bytes]) -> bytes:
    return b"".join(base64.b64encode(each) + f" {rank}\n".encode() for rank, each in enumerate(tokens))


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False, parse_special=False))


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = Detokenizer(tokenizer, skip_special_tokens=False)
    return "".join(map(stream.push, ids)) + stream.flush()


def token(content: str, **options: bool) -> dict[str, Any]:
    spaces = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, "special": True, **spaces, **options}
