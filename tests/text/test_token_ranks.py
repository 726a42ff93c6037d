"""Vocabularies of bytes by rank: files of tiktoken, and Mistral's ``tekken.json``."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.mistral.tokenizer import MistralConverter

from dragoman.core.errors import ModelError
from dragoman.text import Detokenizer, Tokenizer
from dragoman.text.decoder import byte_level_bytes
from dragoman.text.vocabularies import byte_ranks
from tests.text.conftest import LINES
from tests.text.vocabulary_cases import ODD_TOKENS, TEKKEN_PATTERN, TOKENS, lines_of, plain, streamed, tekken, token

Load = Callable[..., Tokenizer]

# tiktoken

SPLIT = {
    "TikTokenTokenizer": (
        r"[\p{Han}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    **dict.fromkeys(
        ("QWenTokenizer", "HYTokenizer"),
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
    "ChatGLM4Tokenizer": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
FILES = {
    "TikTokenTokenizer": "tiktoken.model",
    "QWenTokenizer": "qwen.tiktoken",
    "HYTokenizer": "hy.tiktoken",
    "ChatGLM4Tokenizer": "tokenizer.model",
}


def tiktoken_ids(text: str, tokens: list[bytes], pattern: str) -> Iterator[int]:
    """The ids by tiktoken's definition: a word that is a token, else of all neighbours the lowest rank."""
    ranks = {each: rank for rank, each in enumerate(tokens)}
    for word in regex.findall("(?V1)" + pattern, text):
        data = word.encode()
        if data in ranks:
            yield ranks[data]
            continue
        parts = [data[i : i + 1] for i in range(len(data))]
        while True:
            pairs = enumerate(itertools.pairwise(parts))
            found = [(ranks[a + b], i) for i, (a, b) in pairs if a + b in ranks]
            if not found:
                break
            place = min(found)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        yield from (ranks[part] for part in parts)


@pytest.mark.parametrize("kind", SPLIT)
def test_files_of_tiktoken_give_the_ids_of_their_classes(load_file: Load, kind: str) -> None:
    tokenizer = load_file(FILES[kind], lines_of(ODD_TOKENS), tokenizer_class=kind)
    normalize = kind in ("QWenTokenizer", "HYTokenizer")
    texts = [*LINES, "aaaaaaa baaaa\r\n\r\n 1234567 DON'T I'LL", "cafe\u0301 😀é", " \n  x\t\t", "xyzcamelslo"]
    for text in texts:
        ids = plain(tokenizer, text)
        expected = unicodedata.normalize("NFC", text) if normalize else text
        assert ids == list(tiktoken_ids(expected, ODD_TOKENS, SPLIT[kind])), text
        assert tokenizer.decode(ids) == streamed(tokenizer, ids) == expected


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("kimi")
    (folder / "tiktoken.model").write_bytes(lines_of(ODD_TOKENS))
    return Tokenizer.load(folder)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_of_kimi(kimi: Tokenizer, text: str) -> None:
    assert plain(kimi, text) == list(tiktoken_ids(text, ODD_TOKENS, SPLIT["TikTokenTokenizer"]))
    assert kimi.decode(plain(kimi, text)) == text


def test_kimi_has_a_fixed_number_of_special_tokens_of_which_settings_name_some(load_file: Load) -> None:
    first = len(TOKENS)
    added = {str(first): token("[BOS]"), str(first + 1): token("[EOS]"), str(first + 5): token("<|im_end|>")}
    named = {"bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer"}
    tokenizer = load_file("tiktoken.model", lines_of(TOKENS), added_tokens_decoder=added, **named)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (first + 258, first, (first + 1,))
    assert tokenizer.encode("[BOS]<|im_end|>") == (first, first + 5)
    reserved = f"<|reserved_token_{first + 2}|>"
    assert tokenizer.encode(reserved) == (first + 2,)
    assert first + 2 not in plain(tokenizer, reserved)
    assert tokenizer.decode([first + 2, ord("a")]) == "a"


def test_a_token_that_the_settings_declare_to_be_text_is_shown(load_file: Load) -> None:
    """As Kimi's marks of tool calls, among ids that its class has for special tokens."""
    first = len(TOKENS)
    added = {str(first): token("[BOS]"), str(first + 7): token("<|tool_call_begin|>", special=False)}
    tokenizer = load_file(
        "tiktoken.model", lines_of(TOKENS), added_tokens_decoder=added, tokenizer_class="TikTokenTokenizer"
    )
    ids = [first, first + 7, ord("a")]
    stream = Detokenizer(tokenizer)
    assert tokenizer.decode(ids) == "".join(map(stream.push, ids)) + stream.flush() == "<|tool_call_begin|>a"


def test_special_tokens_of_classes_follow_the_tokens_of_their_files(load_file: Load) -> None:
    first = len(TOKENS)
    qwen = load_file("qwen.tiktoken", lines_of(TOKENS))
    assert qwen.encode("<|im_start|>a<|im_end|>") == (first + 1, ord("a"), first + 2)
    assert (qwen.eos_ids, qwen.vocab_size) == ((first,), first + 208)
    hunyuan = load_file("hy.tiktoken", lines_of(TOKENS), eos_token="<|eos|>")
    assert hunyuan.encode("<|startoftext|><|extra_0|>") == (first + 1, first + 5)
    repeated = lines_of([*TOKENS[:260], *TOKENS[258:]])  # its class counts the lines without repeated tokens
    again = load_file("hy.tiktoken", repeated)
    assert [again.token_bytes(i) for i in range(first)] == TOKENS
    assert again.encode("<|endoftext|>") == (first,)
    glm = load_file("tokenizer.model", lines_of(TOKENS), tokenizer_class="ChatGLM4Tokenizer")
    assert glm.encode("a") == (first + 2, first + 4, ord("a"))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no token for the byte 0"),
        (lines_of(TOKENS)[:-3], "cut off"),
        (lines_of(TOKENS[:200]), "no token for the byte 200"),
        (lines_of([*TOKENS, b"he"]), "has the token b'he' twice"),
        (lines_of([*TOKENS, b""]), "is empty"),
        (lines_of(TOKENS) + b"YQ== 5000000\n", "no token has the rank"),
        (lines_of(TOKENS) + b"YQ== -1\n", "line 269 is not a token"),
        (lines_of(TOKENS) + b"Y\n", "line 269 is not a token"),
        (lines_of(TOKENS) + b"!!! 268\n", "line 269 is not a token"),
        (lines_of([*TOKENS, b"x" * 40_000]), "too long"),
        (b"\n" * (1 << 23), "more than 2,097,152 lines"),
    ],
)
def test_a_damaged_file_of_tiktoken_is_named(load_file: Load, tmp_path: Path, data: bytes, complaint: str) -> None:
    with pytest.raises(ModelError) as refused:
        load_file("qwen.tiktoken", data)
    assert str(tmp_path / "qwen.tiktoken") in refused.value.message
    assert complaint in refused.value.message


def test_too_many_tokens_are_refused(monkeypatch: pytest.MonkeyPatch, load_file: Load) -> None:
    monkeypatch.setattr(byte_ranks, "MOST_TOKENS", 268)
    assert load_file("qwen.tiktoken", lines_of(TOKENS)).vocab_size == 268 + 208
    with pytest.raises(ModelError, match="more than 268 tokens"):
        load_file("qwen.tiktoken", lines_of([*TOKENS, b"xyz"]))


# tekken


def test_tekken_gives_the_ids_of_transformers(load_file: Load, tmp_path: Path) -> None:
    tokenizer = load_file("tekken.json", json.dumps(tekken()).encode())
    reference = MistralConverter(str(tmp_path / "tekken.json")).converted()
    for text in [*LINES, "[INST]hello[/INST] the</s>", "<SPECIAL_7>123 é\n\n"]:
        ids = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == tuple(ids)
        assert tokenizer.decode(ids, False) == streamed(tokenizer, ids) == reference.decode(ids, False)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 2, 280)
    assert tokenizer.encode("a") == (1, 20 + ord("a"))
    assert plain(tokenizer, "[INST]</s>") == [20 + byte for byte in b"[INST]</s>"]


def test_the_first_files_of_tekken_list_no_special_tokens(load_file: Load) -> None:
    content = tekken(config={"pattern": TEKKEN_PATTERN})
    del content["special_tokens"]
    tokenizer = load_file("tekken.json", json.dumps(content).encode())
    assert tokenizer.encode("[SYSTEM_PROMPT]a", add_special_tokens=False) == (17, 20 + ord("a"))


_CONFIG = {"pattern": TEKKEN_PATTERN}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[", "tekken.json"),
        ("[" * 100_000, "tekken.json"),
        ("{}", "missing required field `config`"),
        (tekken(config={"pattern": "(a"}), "not a tokenizer that can be read"),
        (tekken(config=_CONFIG | {"default_vocab_size": 3}), "less than the 5 special tokens"),
        (tekken(config=_CONFIG | {"default_vocab_size": 9000}), "fewer than the 8995"),
        (
            tekken(config=_CONFIG | {"default_vocab_size": 10**12}),
            "at `$.config.default_vocab_size`",
        ),
        (tekken(config=_CONFIG | {"default_num_special_tokens": 4}), "less than the 5 special_tokens"),
        (tekken(config=_CONFIG | {"default_num_special_tokens": 16_385}), "16,385 special and added tokens"),
        (tekken(special_tokens=[{"rank": 7, "token_str": "<s>"}]), "all ranks from 0 on"),
        (
            tekken(special_tokens=[{"rank": 0, "token_str": 5}]),
            "at `$.special_tokens[0].token_str`",
        ),
        (tekken(config={"pattern": 3}), "at `$.config.pattern`"),
        (tekken(vocab=[{"token_bytes": "!"}], config=_CONFIG), "at `$.vocab[0].token_bytes`"),
        (tekken(special_tokens=[{"rank": i, "token_str": "<s>"} for i in range(2)]), "the same text"),
        (tekken(special_tokens=["<s>"]), "$.special_tokens[0]"),
        (tekken(special_tokens=[{"rank": 0, "token_str": "a"}], config=_CONFIG), "is a special token and"),
        (tekken(vocab={}), "Expected `array`, got `object` - at `$.vocab`"),
        (tekken(vocab=[{"token_bytes": 3}], config=_CONFIG), "at `$.vocab[0].token_bytes`"),
        (tekken(vocab=[{"rank": 4, "token_bytes": "YQ=="}], config=_CONFIG), "has the rank 4"),
        (tekken(vocab=[], config=_CONFIG), "no token for the byte 0"),
    ],
)
def test_a_damaged_tekken_is_named(load_file: Load, tmp_path: Path, content: Any, complaint: str) -> None:
    data = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(ModelError) as refused:
        load_file("tekken.json", data.encode())
    assert str(tmp_path / "tekken.json") in refused.value.message
    assert complaint in refused.value.message


def test_bytes_of_tokens_are_those_of_the_file(load_file: Load) -> None:
    tokenizer = load_file("qwen.tiktoken", lines_of(TOKENS))
    assert [tokenizer.token_bytes(i) for i in range(len(TOKENS))] == TOKENS
    assert byte_level_bytes(tokenizer.token(256) or "") == b" t"
