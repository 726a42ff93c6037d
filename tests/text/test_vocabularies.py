"""Folders without ``tokenizer.json``: SentencePiece, tiktoken, tekken, and the older forms of two files.

``sentencepiece_models/expected.json`` has what the sentencepiece library (0.2.3) says of the models beside it, which it
has trained on ``conftest.LINES``: texts, their ids, and the text of these ids.
"""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Pipeline
from tokenizers import models
from transformers import BertTokenizer, GPTNeoXTokenizer, Qwen2Tokenizer, RobertaTokenizer

from dragoman.core.errors import ModelError
from dragoman.core.merges import merges_of
from dragoman.text import Tokenizer
from tests.text.conftest import GPT2_FOLDER, LINES
from tests.text.sentencepiece_writer import CONTROL, NORMAL, USER_DEFINED, model
from tests.text.vocabulary_cases import SMALL, plain, streamed, tekken, token

MODELS = Path(__file__).parent / "sentencepiece_models"
EXPECTED = json.loads((MODELS / "expected.json").read_text("utf-8"))
Load = Callable[..., Tokenizer]


# SentencePiece


@pytest.mark.parametrize("name", ["merges", "plain"])
def test_merges_by_score_give_the_ids_of_sentencepiece(load_file: Load, name: str) -> None:
    tokenizer = load_file("tokenizer.model", (MODELS / f"{name}.model").read_bytes())
    for text, ids, decoded in EXPECTED[name]:
        assert plain(tokenizer, text) == ids, text
        assert tokenizer.decode(ids) == streamed(tokenizer, ids) == decoded
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.encode("")) == (1, 2, (1,))


def test_unigram_models_give_the_ids_of_sentencepiece(load_file: Load) -> None:
    tokenizer = load_file("spiece.model", (MODELS / "unigram.model").read_bytes(), tokenizer_class="T5Tokenizer")
    for options in ({"model_type": "t5"}, {"tokenizer_class": "T5Tokenizer", "legacy": False}):
        other = load_file("spiece.model", (MODELS / "unigram.model").read_bytes(), **options)
        assert spelled(other, "  a<extra_id_1> a") == spelled(tokenizer, "  a<extra_id_1> a")
    compared = 0
    for text, ids, decoded in EXPECTED["unigram"]:
        if "</s>" in text:  # a cut in its text makes two unknown pieces of one, which is no token of control
            assert 1 not in plain(tokenizer, text)
            continue
        assert plain(tokenizer, text) == ids, text
        if "⁇" not in decoded and not text.startswith("▁"):
            assert tokenizer.decode(ids) == streamed(tokenizer, ids) == decoded
            compared += 1
    assert compared > 5
    assert (tokenizer.bos_id, tokenizer.encode("a")[-1]) == (None, 1)
    size = len(tokenizer.token_table)
    assert (tokenizer.token(size - 1), tokenizer.token(size - 100)) == ("<extra_id_0>", "<extra_id_99>")


def test_xlm_roberta_counts_its_pieces_from_four_special_tokens_on(load_file: Load) -> None:
    data = (MODELS / "shifted.model").read_bytes()
    tokenizer = load_file("sentencepiece.bpe.model", data, tokenizer_class="XLMRobertaTokenizerFast")
    for text, ids, _ in EXPECTED["shifted"]:
        if "</s>" not in text:
            assert plain(tokenizer, text) == [3 if i == 0 else i + 1 for i in ids], text
    assert [tokenizer.token(i) for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.token(tokenizer.vocab_size - 1) == "<mask>"
    body, other = plain(tokenizer, "a"), plain(tokenizer, "market")
    assert list(tokenizer.encode("a")) == [0, *body, 2]
    assert tokenizer.encode_pair("a", "market") == ((0, *body, 2, 2, *other, 2), 0)


def by_definition(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's merges: of all neighbours the best score, the leftmost of equal ones."""
    parts = list(text)
    while True:
        found = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not found:
            return parts
        place = min(found)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.text("ab▁", min_size=2, max_size=5), unique=True, max_size=25),
    text=st.text("ab ", max_size=24),
    seed=st.randoms(use_true_random=False),
)
def test_any_scores_give_the_merges_of_sentencepiece(words: list[str], text: str, seed: Any) -> None:
    """Also of pieces in no order, that overlap, and that no merges lead to."""
    pieces = ["a", "b", "▁", *words]
    scores = list(range(len(pieces)))
    seed.shuffle(scores)
    ranked = {each: float(score) for each, score in zip(pieces, scores, strict=True)}
    pipeline = Pipeline(
        models.BPE({each: i for i, each in enumerate(pieces)}, merges_of({k: -v for k, v in ranked.items()}))
    )
    assert pipeline.encode(text.replace(" ", "▁")).tokens == by_definition(text.replace(" ", "▁"), ranked)


needs_gpt2 = pytest.mark.skipif(not GPT2_FOLDER.is_dir(), reason="GPT-2's vocabulary is not at hand")


@needs_gpt2
def test_merges_that_were_published_come_out_of_ranks_alone() -> None:
    ranks = json.loads((GPT2_FOLDER / "vocab.json").read_text("utf-8"))
    published = (GPT2_FOLDER / "merges.txt").read_text("utf-8").split("\n")
    del ranks["<|endoftext|>"]
    assert merges_of(ranks) == [tuple(line.split(" ")) for line in published if line]


def spelled(tokenizer: Tokenizer, text: str, **options: bool) -> list[str | None]:
    return [tokenizer.token(i) for i in tokenizer.encode(text, **options)]


def test_a_space_comes_before_each_text_between_special_tokens_as_legacy_says(load_file: Load) -> None:
    data = model(SMALL)
    assert spelled(load_file("tokenizer.model", data), "a</s>a") == ["<s>", "▁a", "</s>", "▁a"]
    llama = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
    assert spelled(load_file("tokenizer.model", data, legacy=False, **llama), "a</s>a") == ["▁a", "</s>", "a"]
    assert spelled(load_file("tokenizer.model", data, add_prefix_space=False, **llama), "a</s>a") == ["a", "</s>", "a"]
    assert spelled(load_file("tokenizer.model", model(SMALL, normalizer={3: 0}), **llama), "a a") == ["a", "▁a"]


def test_settings_say_which_special_tokens_are_around_a_text(load_file: Load) -> None:
    both = load_file("tokenizer.model", model(SMALL), add_bos_token=True, add_eos_token=True)
    assert spelled(both, "a") == ["<s>", "▁a", "</s>"]
    assert both.encode_pair("a", "he")[0] == (1, 259, 2, 1, 261, 2)
    none = load_file("tokenizer.model", model(SMALL), add_bos_token=False)
    assert spelled(none, "a") == ["▁a"]
    without = load_file("tokenizer.model", model(SMALL, {41: -1, 42: -1}))
    assert (without.bos_id, without.eos_id, spelled(without, "a")) == (None, None, ["▁a"])
    other = load_file("tokenizer.model", model(SMALL), bos_token="</s>", eos_token=None)
    assert (other.bos_id, other.eos_id, spelled(other, "a")) == (2, None, ["</s>", "▁a"])


def test_added_tokens_take_the_place_of_reserved_pieces_and_follow_the_others(load_file: Load) -> None:
    reserved = [*SMALL, ("[UNUSED_1]", 0.0, USER_DEFINED), ("[UNUSED_2]", 0.0, CONTROL)]
    added = {str(len(SMALL)): token("<|im_start|>"), str(len(reserved)): token("<|im_end|>", rstrip=True)}
    tokenizer = load_file("tokenizer.model", model(reserved), added_tokens_decoder=added, eos_token="<|im_end|>")
    assert spelled(tokenizer, "<|im_start|>a<|im_end|>  a") == ["<s>", "<|im_start|>", "▁a", "<|im_end|>", "▁a"]
    assert tokenizer.eos_ids == (len(reserved),)
    assert tokenizer.is_special(len(SMALL))
    assert not {"[UNUSED_1]", "<|im_start|>"} & set(spelled(tokenizer, "[UNUSED_1]<|im_start|>", parse_special=False))


@pytest.mark.parametrize("name", ["merges", "plain", "unigram"])
def test_added_tokens_are_found_in_the_text_as_it_is_written(load_file: Load, tmp_path: Path, name: str) -> None:
    data = (MODELS / f"{name}.model").read_bytes()
    count = load_file("tokenizer.model", data).vocab_size
    added = {str(count): token("<tool>", normalized=True, special=False)}
    tokenizer = load_file("tokenizer.model", data, added_tokens_decoder=added)
    assert spelled(tokenizer, "a<tool>a").count("<tool>") == 1
    assert not tokenizer.is_special(count)
    (tmp_path / "tokenizer_config.json").unlink()  # as older folders have it
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<tool>": count}))
    assert Tokenizer.load(tmp_path).encode("a<tool>a") == tokenizer.encode("a<tool>a")


def test_symbols_of_users_are_found_where_spaces_are_marks(load_file: Load) -> None:
    pieces = [*SMALL, ("▁▁", 0.0, USER_DEFINED), ("bc", 0.0, USER_DEFINED)]
    assert spelled(load_file("tokenizer.model", model(pieces)), "a   abca") == ["<s>", "▁a", "▁▁", "▁a", "bc", "a"]
    bare = load_file("tokenizer.model", model(pieces, normalizer={3: 0}), add_bos_token=False)
    assert spelled(bare, "   abc") == ["▁▁", "▁a", "bc"]


# All strings of two letters up to 16 long: of the same score each could be joined in as many ways as it has letters.
SAME = [("".join(each), 0.0, NORMAL) for size in range(2, 17) for each in itertools.product("yz", repeat=size)]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "it has no pieces"),
        (model(SMALL)[:-7], "cut off"),
        (model(SMALL)[:100], "cut off"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "reaches beyond its message"),
        (b"\x0a" + b"\xff" * 12, "more than ten bytes"),
        (b"\x0b", "unknown wire type 3"),
        (b"\x08\x01", "pieces is a number"),
        (model([*SMALL, ("a", 0.0, NORMAL)]), "has the piece 'a' twice"),
        (model([*SMALL, ("", 0.0, NORMAL)]), "is empty"),
        (model([*SMALL, ("x", float("nan"), NORMAL)]), "score of piece"),
        (model([*SMALL, ("x", 0.0, 9)]), "unknown type 9"),
        (model([("a", 0.0, NORMAL)]), "neither a token for each byte nor an unknown one"),
        (model(SMALL, {3: 3}), "model_type 3 is not supported"),
        (model(SMALL, {24: 1}), "treat_whitespace_as_suffix"),
        (model(SMALL, normalizer={5: 0}), "escape_whitespaces"),
        (model(SMALL, normalizer={2: b"\x10\0\0\0"}), "map of characters says"),
        (
            model(SMALL, normalizer={2: struct.pack("<I256I", 1024, 1 << 31 | 300 << 10, *[0] * 255)}),
            "leads out of its",
        ),
        (model([("x" * 40_000, 0.0, NORMAL), *SMALL]), "too long"),
        (model([*SMALL, ("y", 0.0, NORMAL), ("z", 0.0, NORMAL), *SAME]), "more than 1,048,576 ways"),
        (model([*SMALL, *((f"<{i}>", 0.0, CONTROL) for i in range(1 << 14))]), "16,386 special and added tokens"),
        (model([*SMALL, *((f"<{i}>", 0.0, USER_DEFINED) for i in range(1 << 14))]), "16,386 special and added tokens"),
        (model(SMALL).replace(b"<s>", b"<\xff>"), "piece 1 is not UTF-8"),
    ],
)
def test_a_damaged_sentencepiece_model_is_named(load_file: Load, tmp_path: Path, data: bytes, complaint: str) -> None:
    with pytest.raises(ModelError) as refused:
        load_file("tokenizer.model", data)
    assert str(tmp_path / "tokenizer.model") in refused.value.message
    assert complaint in refused.value.message


def test_pieces_that_are_long_and_many_are_refused(load_file: Load) -> None:
    """The sum of their squared lengths is what finding their parts may take."""
    pieces = [(f"{i:x}".rjust(1000, "a"), 0.0, NORMAL) for i in range(70)]
    with pytest.raises(ModelError, match="too long"):
        load_file("tokenizer.model", model([*SMALL, *pieces]))


def test_two_files_with_too_much_in_them_are_refused(load_file: Load, tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("a b\n" * ((1 << 20) + 1))
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    with pytest.raises(ModelError, match=r"merges.txt: it has more than 1,048,576 merges"):
        Tokenizer.load(tmp_path)
    (tmp_path / "merges.txt").write_text("a b\n")
    assert list(Tokenizer.load(tmp_path).encode("ab")) == [2]
    (tmp_path / "vocab.json").write_text('{"a": 0,' * ((1 << 20) + 1))
    with pytest.raises(ModelError, match=r"vocab.json: it has more than 1,048,576 tokens"):
        Tokenizer.load(tmp_path)


def test_a_huge_file_is_not_read(load_file: Load, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="at most 64 MiB"):
        load_file("tokenizer.model", bytes((64 << 20) + 1))


# Two files, and vocab.txt

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdehlmnorst.,", "the", "camels", "##s", "##t", "##e", "é"]


@needs_gpt2
@pytest.mark.parametrize("class_", [Qwen2Tokenizer, GPTNeoXTokenizer, RobertaTokenizer, BertTokenizer])
def test_older_files_give_the_ids_of_transformers(tmp_path: Path, class_: Any) -> None:
    named = {"tokenizer_class": class_.__name__}
    if class_ is BertTokenizer:
        (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    else:
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(GPT2_FOLDER / name, tmp_path)
    if class_ is RobertaTokenizer:
        names = ("bos", "eos", "sep", "cls", "unk", "pad", "mask")
        named |= dict.fromkeys((f"{name}_token" for name in names), "<|endoftext|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    reference, tokenizer = class_.from_pretrained(str(tmp_path)), Tokenizer.load(tmp_path)
    for text in [*LINES, "cafe\u0301 the Camels", " \n\t1234"]:
        assert list(tokenizer.encode(text)) == reference(text).input_ids, text
        pair = reference(text, "the camels")
        ids, second = tokenizer.encode_pair(text, "the camels")
        types = pair.get("token_type_ids") or [0]
        assert (list(ids), second) == (pair.input_ids, types.index(1) if 1 in types else 0)
        assert tokenizer.decode(ids, False) == reference.decode(ids, clean_up_tokenization_spaces=False)


def test_vocab_and_merges_of_another_class_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert Tokenizer.load(tmp_path).encode("a") == (0,)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "WhisperTokenizer"}')
    with pytest.raises(ModelError, match="WhisperTokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')  # no class is named: that of the model's type
    with pytest.raises(ModelError, match=r"how a tokenizer of whisper splits text; convert it"):
        Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "opt"}')
    assert Tokenizer.load(tmp_path).encode("a") == (0,)


@pytest.mark.parametrize("content", [b"\n" * (1 << 22), b"a\nb\n", b"[UNK]\na\na\n", b"[UNK]\n\xff\n"])
def test_a_damaged_vocab_txt_is_named(load_file: Load, content: bytes) -> None:
    with pytest.raises(ModelError, match=r"vocab\.txt: "):
        load_file("vocab.txt", content, tokenizer_class="BertTokenizer")


# Which file is read


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tokenizer.model", "NllbTokenizer"),
        ("spiece.model", "PegasusTokenizer"),
        ("tiktoken.model", "OtherTokenizer"),
        ("vocab.txt", "RoCBertTokenizer"),
        ("other.model", "LlamaTokenizer"),
        ("other.tiktoken", "QWenTokenizer"),
    ],
)
def test_unknown_classes_and_files_are_refused_with_the_command_that_converts_them(
    load_file: Load, tmp_path: Path, name: str, kind: str
) -> None:
    with pytest.raises(ModelError) as refused:
        load_file(name, model(SMALL), tokenizer_class=kind)
    assert name in refused.value.message
    assert f"AutoTokenizer.from_pretrained('{tmp_path}').save_pretrained('{tmp_path}')" in refused.value.message


def test_a_tokenizer_json_is_read_before_all_others(load_file: Load, tmp_path: Path) -> None:
    load_file("tokenizer.model", model(SMALL))
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    assert Tokenizer.load(tmp_path).vocab_size == 280
    shutil.copy(MODELS / "merges.model", tmp_path / "tekken.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_file_that_stands_for_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid")
    with pytest.raises(ModelError, match="Git LFS pointer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    (tmp_path / "tokenizer.model").symlink_to("nowhere")
    with pytest.raises(ModelError, match="is a link to nowhere"):
        Tokenizer.load(tmp_path)


def test_settings_of_another_type_are_named(load_file: Load) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: add_bos_token must be true or false"):
        load_file("tokenizer.model", model(SMALL), add_bos_token="yes")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: extra_ids must be"):
        load_file("spiece.model", (MODELS / "unigram.model").read_bytes(), tokenizer_class="T5Tokenizer", extra_ids=-1)
    taken = {"300": token("a"), "301": token("a")}
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: "):
        load_file("tokenizer.model", model(SMALL), added_tokens_decoder=taken)
