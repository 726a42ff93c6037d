"""Vocabularies of T5 and XLM-RoBERTa in GGUF files: best sums of scores, and maps of characters that lead nowhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dragoman.core.errors import ModelError
from dragoman.models.gguf.file import read_gguf
from dragoman.models.gguf.vocabulary import tokenizer_files

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
MARKS = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = {
    "▁": -2.0, "▁the": -3.0, "▁t": -4.0, "h": -5.0, "e": -4.5, "the": -6.0, "▁c": -5.0, "a": -4.0, "t": -4.25,
    "cat": -7.0, "at": -5.5, "▁cat": -8.5, "s": -5.0, "ts": -7.5, "fi": -6.5, "f": -8.0, "i": -8.25, "x▁": -3.5,
    "c": -6.0,
}  # fmt: skip
FAST = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
Fill = Callable[[gguf.GGUFWriter], None]


def compiled(changes: Mapping[str, str]) -> bytes:
    """A map of characters as SentencePiece stores it, each node with 256 places for its children."""
    texts = b"".join(value.encode() + b"\0" for value in changes.values())
    places, at = {}, 0
    for key, value in changes.items():
        places[key.encode()] = at
        at += len(value.encode()) + 1
    prefixes = sorted({key[:cut] for key in places for cut in range(len(key) + 1)}, key=lambda each: (len(each), each))
    base = {prefix: 256 * (number + 1) for number, prefix in enumerate(prefixes)}
    units = np.zeros(256 * (len(prefixes) + 1), np.uint32)
    position = {b"": 0} | {prefix: base[prefix[:-1]] ^ prefix[-1] for prefix in prefixes if prefix}
    for prefix in prefixes:
        offset = position[prefix] ^ base[prefix]
        units[position[prefix]] = offset << 10 | (prefix in places) << 8 | (prefix[-1] if prefix else 0)
        if prefix in places:
            units[base[prefix]] = places[prefix] | 1 << 31
    return struct.pack("<I", units.nbytes) + units.tobytes() + texts


CHANGES = {"ﬁ": "fi", "\t": " ", "\u3000": " ", "Ä": "a", "Ça": "ca"}


def vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = [*MARKS, *PIECES, "~~", "[PAD0]"]
    writer.add_tokenizer_model("t5")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 4 + list(PIECES.values()) + [0.0, -10_000.0])
    writer.add_token_types([CONTROL] * 3 + [UNKNOWN] + [NORMAL] * len(PIECES) + [USER_DEFINED, UNUSED])
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_remove_extra_whitespaces(True)
    writer.add_add_space_prefix(True)
    writer.add_precompiled_charsmap(compiled(CHANGES))


def written(folder: Path, arch: str, *fills: Fill) -> Path:
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    for fill in fills:
        fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def opened(folder: Path, arch: str, *fills: Fill) -> Tokenizer:
    files = tokenizer_files(read_gguf(written(folder, arch, vocabulary, *fills)))
    return Tokenizer.from_str(json.dumps(files["tokenizer.json"]))


def best(text: str) -> float:
    """The best sum of scores of a text, by llama.cpp's rules."""
    for key, value in CHANGES.items():
        text = text.replace(key, value)
    text = "▁" + "▁".join(text.split(" ")) if (text := " ".join(filter(None, text.split(" ")))) else ""
    sums: list[float] = [0.0] + [-np.inf] * len(text)
    worst = min(PIECES.values()) - 10
    for start in range(len(text)):
        if text[start] not in PIECES:
            sums[start + 1] = max(sums[start + 1], sums[start] + worst)
        for piece, score in PIECES.items():
            if text.startswith(piece, start):
                stop = start + len(piece)
                sums[stop] = max(sums[stop], sums[start] + score)
    return float(sums[-1])


def score(ours: Tokenizer, text: str) -> float:
    """That of the pieces found: an unknown one stands for all characters in a row that are."""
    encoding = ours.encode(text, add_special_tokens=False)
    total = 0.0
    for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        unknown = token_id == 3
        total += (min(PIECES.values()) - 10) * (stop - start) if unknown else list(PIECES.values())[token_id - 4]
    return total


@FAST
@given(st.text(st.sampled_from("thecasfi x ▁"), max_size=40))
def test_pieces_have_the_best_sum_of_scores(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    ours = opened(tmp_path_factory.mktemp("v"), "t5")
    assert score(ours, text) == pytest.approx(best(text))


def test_characters_are_rewritten_and_spaces_joined(tmp_path: Path) -> None:
    ours = opened(tmp_path, "t5")
    assert ours.encode("  the\t \u3000cÄt ").tokens == ours.encode("the cat").tokens
    assert ours.encode("ﬁ").tokens == ["▁", "fi", "</s>"]
    assert ours.encode("").tokens == ["</s>"]
    assert ours.encode("the~~cats").tokens == ["▁the", "~~", "▁cat", "s", "</s>"]
    assert ours.decode(ours.encode("the cats").ids) == "the cats"


def test_special_pieces_are_no_part_of_ordinary_text(tmp_path: Path) -> None:
    ours = opened(tmp_path, "t5")
    ours.encode_special_tokens = True
    ids = ours.encode("the</s>cat<s>", add_special_tokens=False).ids
    assert not {0, 1, 2} & set(ids)
    assert ids.count(3) == 5  # <, /, s>, <, >: at most one for what is between a cut and a known piece


def test_a_file_may_keep_spaces_and_add_none(tmp_path: Path) -> None:
    def keep(writer: gguf.GGUFWriter) -> None:
        writer.add_remove_extra_whitespaces(False)
        writer.add_add_space_prefix(False)

    ours = opened(tmp_path, "t5", keep)
    assert ours.encode(" the  ", add_special_tokens=False).tokens == ["▁the", "▁", "▁"]
    assert ours.encode("the", add_special_tokens=False).tokens == ["the"]


def test_an_encoder_has_marks_around_a_text_and_two_between_a_pair(tmp_path: Path) -> None:
    ours = opened(tmp_path, "bert", lambda writer: writer.add_add_sep_token(True))
    assert ours.encode("the").tokens == ["<s>", "▁the", "</s>"]
    pair = ours.encode("the", "cat")
    assert pair.tokens == ["<s>", "▁the", "</s>", "</s>", "▁cat", "</s>"]
    assert set(pair.type_ids) == {0}


def charsmap(value: bytes) -> Fill:
    return lambda writer: writer.add_precompiled_charsmap(value)


_WHOLE = compiled(CHANGES)
_AWAY = bytearray(_WHOLE)
_AWAY[4:8] = struct.pack("<I", 1 << 30)
_BEYOND = _WHOLE[:-12]
_BETWEEN = compiled({"a": "é"})
_BETWEEN = _BETWEEN.replace(struct.pack("<I", 1 << 31), struct.pack("<I", 1 | 1 << 31))
WRONG: dict[str, tuple[Fill, str]] = {
    "no scores": (lambda writer: writer.kv_data[0].pop("tokenizer.ggml.scores"), r"scores is missing"),
    "a map of texts": (
        lambda writer: writer.add_array("tokenizer.ggml.precompiled_charsmap", ["a"]),
        r"precompiled_charsmap must be an array of bytes",
    ),
    "a map of three bytes": (charsmap(b"abc"), r"precompiled_charsmap says that its trie has"),
    "a trie of a size that it has not": (
        charsmap(struct.pack("<I", 1 << 30) + bytes(8)),
        r"trie has 1073741824 of its 12",
    ),
    "a trie that leads out of itself": (charsmap(bytes(_AWAY)), r"leads out of its trie"),
    "texts that end too early": (charsmap(_BEYOND), r"leads out of its texts"),
    "a place within a character": (charsmap(_BETWEEN), r"leads out of its texts"),
    "texts of other bytes": (charsmap(_WHOLE + b"\xff"), r"has texts that are not UTF-8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_vocabulary_is_told_by_its_key(name: str, tmp_path: Path) -> None:
    spoil, message = WRONG[name]
    path = written(tmp_path, "t5", vocabulary, spoil)
    with pytest.raises(ModelError, match=message):
        tokenizer_files(read_gguf(path))


@FAST
@given(st.data())
def test_no_map_of_characters_makes_the_library_fail(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """One that is accepted is followed without an error, whatever its bytes."""
    spoiled = bytearray(_WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    try:
        ours = opened(tmp_path_factory.mktemp("v"), "t5", charsmap(bytes(spoiled)))
    except ModelError:
        return
    for text in ("the ﬁ cÄt\t", "Ça va \u3000", "\x00\x01"):
        ours.encode(text)
