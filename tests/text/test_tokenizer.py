"""Loading a model folder's tokenizer, encoding, decoding, and what is known about single tokens."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Pipeline
from transformers import PreTrainedTokenizerFast

from dragoman.core.errors import BadRequest, ContextOverflow, ModelError
from dragoman.text import Tokenizer, tokenizer_files
from dragoman.text.fim import FillTokens, find_fill_tokens

Load = Callable[[str], Tokenizer]
FolderOf = Callable[[str], Path]


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))


def copy(source: Path, target: Path) -> Path:
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.fixture(scope="session")
def reference(folder_of: FolderOf) -> Callable[[str], PreTrainedTokenizerFast]:
    """The same folder as ``transformers`` loads it."""
    return functools.cache(lambda kind: PreTrainedTokenizerFast.from_pretrained(str(folder_of(kind))))


def without_ambiguous(text: str) -> str:
    """Without what decoding cannot give back: SentencePiece's sign for a space, and the byte-level kind's added token
    ``é``, which the library takes for the letter of byte E9."""
    return text.replace("▁", "").replace("é", "")


# Encoding


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=60))
@pytest.mark.parametrize("kind", ["byte_level_bpe", "llama_bpe", "gemma_bpe", "gpt2"])
def test_text_survives_encoding_and_decoding(load: Load, kind: str, text: str) -> None:
    tokenizer = load(kind)
    text = without_ambiguous(text)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False, parse_special=False), False) == text


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=40), add_special_tokens=st.booleans())
@pytest.mark.parametrize("kind", ["byte_level_bpe", "llama_bpe", "metaspace_bpe", "unigram", "word_piece"])
def test_ids_and_texts_equal_those_of_transformers(
    load: Load, reference: Callable[[str], PreTrainedTokenizerFast], kind: str, text: str, add_special_tokens: bool
) -> None:
    tokenizer, theirs = load(kind), reference(kind)
    token_ids = list(tokenizer.encode(text + "<|im_end|>", add_special_tokens=add_special_tokens))
    assert token_ids == theirs.encode(text + "<|im_end|>", add_special_tokens=add_special_tokens)
    for skip in (True, False):
        assert tokenizer.decode(token_ids, skip) == theirs.decode(
            token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )
    assert set(theirs.all_special_ids) <= tokenizer.special_ids
    assert dict(tokenizer.special_tokens) == theirs.special_tokens_map


def test_special_tokens_are_added_around_the_text_only_when_asked_for(load: Load) -> None:
    tokenizer = load("llama_bpe")
    plain = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.encode("the dog") == (tokenizer.bos_id, *plain)


def test_special_tokens_in_the_text_are_parsed_or_are_ordinary_text(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    end = tokenizer.token_id("<|im_end|>")
    assert tokenizer.encode("a<|im_end|>b") == (tokenizer.token_id("a"), end, tokenizer.token_id("b"))
    plain = tokenizer.encode("a<|im_end|>b", parse_special=False)
    assert end not in plain
    assert tokenizer.decode(plain) == "a<|im_end|>b"


@pytest.mark.parametrize("text", ["Hé, 東京! naïve", "two  spaces", ""])
@pytest.mark.parametrize("kind", ["byte_level_bpe", "llama_bpe", "gemma_bpe", "unigram", "word_piece", "gpt2"])
def test_tokens_say_which_bytes_of_the_text_they_stand_for(load: Load, kind: str, text: str) -> None:
    tokenizer = load(kind)
    tokens = tokenizer.encode_with_offsets(text)
    assert tuple(token.token_id for token in tokens) == tokenizer.encode(text)
    for token in tokens:
        assert text.encode()[token.start : token.stop].decode() == token.text
    added = len(tokens) - len(tokenizer.encode(text, add_special_tokens=False))
    assert sum(token.start == token.stop == 0 for token in tokens) >= added


def test_too_long_a_text_is_refused_before_any_work(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    most = 10 * max(len(tokenizer.token(i) or "") for i in range(tokenizer.vocab_size))
    for fitting in (10, 11, most):
        assert tokenizer.encode("a" * fitting, max_tokens=10)
    for beyond in (most + 1, 100_000_000):
        with pytest.raises(ContextOverflow, match=f"{beyond} characters; this model takes at most {most}"):
            tokenizer.encode("a" * beyond, max_tokens=10)


@pytest.mark.parametrize("most", [100, 20_000, 100_000])
def test_an_overlong_text_is_counted_by_parts_from_all_over_it(load: Load, most: int) -> None:
    """One number is too high for a count of the beginning, the other for a bound by the longest token."""
    tokenizer = load("byte_level_bpe")
    text = "Once upon a time there was a house. " * 20_000 + "\n\t9" * 300_000
    count = len(tokenizer.encode(text))
    with pytest.raises(ContextOverflow) as raised:
        tokenizer.encode(text, max_tokens=most)
    assert not raised.value.is_exact
    assert raised.value.prompt_tokens == pytest.approx(count, rel=0.6 if most == 100 else 0.2)


def test_the_beginning_of_a_text_has_all_tokens_that_there_is_room_for(load: Load) -> None:
    tokenizer = load("word_piece")
    spaced = "a" + " " * 20 * 4 * tokenizer.max_token_chars + "b c d"
    assert tokenizer.encode_beginning(spaced, 4) == tokenizer.encode("a b c d")[:4]
    assert tokenizer.encode_beginning(spaced, 64) == tokenizer.encode("a b c d")


def test_a_lone_surrogate_is_refused(load: Load) -> None:
    with pytest.raises(BadRequest, match="character 1"):
        load("byte_level_bpe").encode("a\ud800")


def test_encoding_lets_other_threads_run(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    text = "The merchant asked the dragoman. " * 30_000
    turns, done = [0], threading.Event()

    def count() -> None:
        while not done.wait(0.0005):
            turns[0] += 1

    counter = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    counter.start()
    try:
        sys.setswitchinterval(1e-4)
        tokenizer.encode(text)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        counter.join()
    assert turns[0] > 5


def test_many_threads_get_the_same_ids(load: Load) -> None:
    tokenizer = load("llama_bpe")
    texts = [f"camel {i} <s> dog" for i in range(50)]
    expected = [(tokenizer.encode(text), tokenizer.encode(text, parse_special=False)) for text in texts]
    results: list[object] = [None] * 4

    def work(place: int) -> None:
        results[place] = [(tokenizer.encode(text), tokenizer.encode(text, parse_special=False)) for text in texts]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


# Single tokens


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=60))
@pytest.mark.parametrize("kind", ["byte_level_bpe", "gemma_bpe", "gpt2"])
def test_token_bytes_join_to_the_text_itself(load: Load, kind: str, text: str) -> None:
    tokenizer = load(kind)
    text = without_ambiguous(text)
    token_ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert b"".join(map(tokenizer.token_bytes, token_ids)) == text.encode()


@pytest.mark.parametrize(
    ("kind", "token", "raw"),
    [
        ("byte_level_bpe", "Ġ", b" "),
        ("byte_level_bpe", "ð", b"\xf0"),
        ("byte_level_bpe", "tool call", b"tool call"),
        ("llama_bpe", "▁", b" "),
        ("llama_bpe", "<0xE9>", b"\xe9"),
        ("llama_bpe", "<s>", b"<s>"),
        ("metaspace_bpe", "▁", b" "),
        ("word_piece", "the", b" the"),
        ("word_piece", "##e", b"e"),
        ("no_decoder", "the", b" the"),
    ],
)
def test_token_bytes_are_exact(load: Load, kind: str, token: str, raw: bytes) -> None:
    tokenizer = load(kind)
    token_id = tokenizer.token_id(token)
    assert token_id is not None
    assert tokenizer.token_bytes(token_id) == raw
    assert tokenizer.token_text(token_id) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize(
    "kind", ["byte_level_bpe", "llama_bpe", "gemma_bpe", "metaspace_bpe", "unigram", "word_piece", "no_decoder", "gpt2"]
)
def test_token_bytes_are_what_a_token_adds_to_a_text(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    begun = tokenizer.encode("dragoman", add_special_tokens=False)
    assert tokenizer.decode(begun) == "dragoman"
    for token_id in range(min(tokenizer.vocab_size, 1000)):
        raw = tokenizer.token_bytes(token_id)
        added = tokenizer.decode([*begun, token_id], skip_special_tokens=False)[len("dragoman") :]
        assert raw.decode("utf-8", "replace") == added


def test_ids_beyond_the_vocabulary_are_empty(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    for token_id in (-1, tokenizer.vocab_size, 2**40):
        assert tokenizer.token(token_id) is None
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.decode([token_id]) == ""


# What the files say


def test_special_tokens_have_names_and_ids(load: Load) -> None:
    tokenizer = load("llama_bpe")
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (1, 2, (2,))
    assert tokenizer.special_ids == {0, 1, 2, 3, 4}
    assert tokenizer.is_special(3)
    assert not tokenizer.is_special(5)


def test_every_file_may_name_ids_that_end_a_generation(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = copy(folder_of("llama_bpe"), tmp_path)
    write(folder, "config.json", {"eos_token_id": 2})
    write(folder, "generation_config.json", {"eos_token_id": [4, 3]})
    assert Tokenizer.load(folder).eos_ids == (2, 4, 3)


def test_truncation_and_padding_stored_in_the_file_are_off(folder_of: FolderOf, tmp_path: Path) -> None:
    pipeline = Pipeline.from_file(str(folder_of("byte_level_bpe") / "tokenizer.json"))
    whole = pipeline.encode("a b c d e f").ids
    pipeline.enable_truncation(3)
    pipeline.enable_padding(length=50)
    pipeline.save(str(tmp_path / "tokenizer.json"))
    assert list(Tokenizer.load(tmp_path).encode("a b c d e f")) == whole


def test_tokens_only_the_config_declares_are_added_under_their_ids(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = copy(folder_of("byte_level_bpe"), tmp_path)
    size = Tokenizer.load(folder).vocab_size
    declared = {str(size): {"content": "<|new|>", "special": True, "normalized": False}}
    write(folder, "tokenizer_config.json", {"eos_token": {"content": "</s>"}, "added_tokens_decoder": declared})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode("<|new|>") == (size,)
    assert tokenizer.is_special(size)
    assert tokenizer.eos_id == 2
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {str(size + 7): {"content": "<|new|>"}}})
    with pytest.raises(ModelError, match="new"):
        Tokenizer.load(folder)


def test_all_declared_tokens_are_added_at_once(folder_of: FolderOf, tmp_path: Path) -> None:
    """Gemma 3 declares 6,400: one after the other they took ten seconds."""
    pipeline = Pipeline.from_file(str(folder_of("byte_level_bpe") / "tokenizer.json"))
    size = pipeline.get_vocab_size()
    tokens = {str(size + i): {"content": f"<new{i}>"} for i in range(200)}
    calls = Mock(wraps=pipeline)
    tokenizer_files._add_declared_tokens(calls, tokens)
    assert calls.add_tokens.call_count == 1
    assert pipeline.encode("<new0><new199>").ids == [size, size + 199]


def declared(text: str, **flags: bool) -> dict[str, Any]:
    return {"content": text, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False} | flags


OF_SETTINGS: dict[str, dict[str, Any]] = {
    "a name of the model's own": {"extra_special_tokens": {"image_token": "<image>"}},
    "such a name beside the others": {"image_token": "<image>"},
    "a list": {"extra_special_tokens": ["<image>", "<x>"]},
    "spaces before a token": {"added_tokens_decoder": {"3": declared("<|im_start|>", lstrip=True, special=True)}},
    "spaces around a named one": {"added_tokens_decoder": {"2": declared("</s>", lstrip=True, rstrip=True)}},
    "spaces beside a name": {"eos_token": {"__type": "AddedToken", **declared("</s>", lstrip=True)}},
}


@pytest.mark.parametrize("kind", ["byte_level_bpe", "gemma_bpe"])
@pytest.mark.parametrize("given", OF_SETTINGS.values(), ids=OF_SETTINGS)
def test_special_tokens_of_the_settings_are_those_of_transformers(
    folder_of: FolderOf, given: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    folder = copy(folder_of(kind), tmp_path)
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"} | given)
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(folder), Tokenizer.load(folder)
    for text in ("a <image> b <x>", "hello <|im_start|> you", "a </s> b </s>c"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == tuple(ids)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    names = {name: token for name, token in theirs.special_tokens_map.items() if isinstance(token, str)}
    assert names.items() <= ours.special_tokens.items()


def test_tokens_of_older_folders_have_a_file_of_their_own(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = copy(folder_of("byte_level_bpe"), tmp_path)
    size = Tokenizer.load(folder).vocab_size
    write(folder, "added_tokens.json", {"<new>": size, "<s>": Tokenizer.load(folder).token_id("<s>")})
    assert Tokenizer.load(folder).encode("<new>", add_special_tokens=False) == (size,)
    write(folder, "added_tokens.json", {"<new>": size + 7})
    with pytest.raises(ModelError, match="<new>"):
        Tokenizer.load(folder)


def test_a_named_special_token_is_special_even_when_the_file_forgot(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = copy(folder_of("byte_level_bpe"), tmp_path)
    pipeline = Pipeline.from_file(str(folder / "tokenizer.json"))
    pipeline.add_tokens([AddedToken("<|end|>", special=False)])
    pipeline.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").unlink()
    write(folder, "special_tokens_map.json", {"eos_token": {"content": "<|end|>", "lstrip": False}})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.eos_id is not None
    assert tokenizer.is_special(tokenizer.eos_id)


def test_gpt2_loads_from_vocab_and_merges(load: Load) -> None:
    tokenizer = load("gpt2")
    assert tokenizer.encode("Hello world") == (15496, 995)
    assert (tokenizer.eos_ids, tokenizer.vocab_size) == ((50256,), 50257)
    assert tokenizer.encode("<|endoftext|>") == (50256,)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer_config.json", "not json"),
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"9999": 3}}'),
        ("tokenizer_config.json", '{"fill_tokens": ["pre", "suf"]}'),
        ("tokenizer_config.json", '{"fill_tokens": {"pre": "1", "suf": "2"}}'),
        ("special_tokens_map.json", "[]"),
        ("config.json", '{"eos_token_id": "two"}'),
        ("generation_config.json", '{"eos_token_id": [-1]}'),
    ],
)
def test_a_broken_file_is_named(folder_of: FolderOf, tmp_path: Path, name: str, content: str) -> None:
    folder = copy(folder_of("byte_level_bpe"), tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        Tokenizer.load(folder)


def test_marks_of_gaps_that_are_no_tokens_do_not_count(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = copy(folder_of("byte_level_bpe"), tmp_path)
    (folder / "tokenizer_config.json").write_text('{"fill_tokens": {"pre": 100000000, "suf": 2}}')
    assert Tokenizer.load(folder).fill == Tokenizer.load(folder_of("byte_level_bpe")).fill


def test_a_part_that_the_library_does_not_know_may_be_of_a_newer_one(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = copy(folder_of("byte_level_bpe"), tmp_path)
    document = json.loads((folder / "tokenizer.json").read_text())
    write(folder, "tokenizer.json", document | {"pre_tokenizer": {"type": "OfTomorrow"}})
    with pytest.raises(ModelError, match="pip install --upgrade tokenizers"):
        Tokenizer.load(folder)


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json, .*; copy it, and tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["llama_bpe", "metaspace_bpe", "byte_level_bpe"])
def test_text_inside_of_a_text_gets_no_space(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    inside, spaced = tokenizer.encode_inside("dog"), tokenizer.encode_inside(" dog")
    assert b"".join(map(tokenizer.token_bytes, inside)) == b"dog"
    assert b"".join(map(tokenizer.token_bytes, spaced)) == b" dog"


# Fill in the middle


def test_fill_tokens_stand_around_prefix_and_suffix(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    rendered = tokenizer.render_fill("the <|fim_suffix", " dog")
    assert rendered is not None
    assert tokenizer.decode(rendered, False) == "<|fim_prefix|>the <|fim_suffix<|fim_suffix|> dog<|fim_middle|>"


def test_fill_is_none_without_fill_tokens(load: Load) -> None:
    assert load("unigram").render_fill("a", "b") is None


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "<s><fim_prefix> a b<fim_suffix>c d<fim_middle>"),
        (["▁<PRE>", "▁<SUF>", "▁<MID>"], "<s> <PRE> a b <SUF>c d <MID>"),
        (
            ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
            "<s><｜fim begin｜> a b<｜fim hole｜>c d<｜fim end｜>",
        ),
        (["[SUFFIX]", "[PREFIX]"], "<s>[SUFFIX]c d[PREFIX] a b"),
        (
            ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
            "<s><|code_prefix|> a b<|code_suffix|>c d<|code_middle|>",
        ),
        (["<|prefix|>", "<|suffix|>", "<|middle|>"], "<s><|prefix|> a b<|suffix|>c d<|middle|>"),
        (
            ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
            "<s><[fim-suffix]>c d<[fim-prefix]> a b<[fim-middle]>",
        ),
    ],
)
def test_each_family_marks_the_gap_its_own_way(
    folder_of: FolderOf, tmp_path: Path, marks: list[str], expected: str
) -> None:
    folder = copy(folder_of("llama_bpe"), tmp_path)
    pipeline = Pipeline.from_file(str(folder / "tokenizer.json"))
    pipeline.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
    pipeline.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.load(folder)
    rendered = tokenizer.render_fill("a b", "c d")
    assert rendered is not None
    # The prefix begins a text and has SentencePiece's space in front; the suffix does not.
    assert b"".join(map(tokenizer.token_bytes, rendered)).decode() == expected


MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"]


def test_marks_that_a_file_names_go_before_those_found_by_spelling() -> None:
    ids = {mark: i for i, mark in enumerate([*MARKS, "<fim_prefix>", "<fim_suffix>", "<fim_middle>"])}
    spelled = find_fill_tokens(ids.get)
    assert spelled == FillTokens(0, 1, 2, False, 3, 4, ends=(0, 1, 2, 3, 4, 5))
    assert find_fill_tokens(ids.get, {"pre": 0, "suf": 1, "mid": 2}) == spelled
    assert find_fill_tokens(ids.get, {"pre": 6, "suf": 7, "mid": 8, "pad": 9}) == FillTokens(
        6, 7, 8, ends=(6, 7, 8, 9, 5, 3, 4)
    )
    assert find_fill_tokens({}.get, {"pre": 1, "suf": 2}) == FillTokens(1, 2, None, True, ends=(1, 2))
    assert find_fill_tokens({}.get, {"mid": 1}) is None


def test_the_order_of_a_fill_can_be_chosen() -> None:
    tokens = FillTokens(1, 2, 3)
    assert tokens.ordered("family").arrange((8,), (9,)) == (1, 8, 2, 9, 3)
    assert tokens.ordered("suffix").arrange((8,), (9,)) == (2, 9, 1, 8, 3)
    without_middle = FillTokens(1, 2, None, suffix_first=True)
    assert without_middle.ordered("prefix").arrange((8,), (9,)) == (2, 9, 1, 8)


def test_other_files_come_before_a_fill_as_in_llama_cpp() -> None:
    spelled: list[str] = []

    def encode(text: str) -> tuple[int, ...]:
        spelled.append(text)
        return (100 + len(spelled),)

    files = [("a.py", "A"), ("b.py", "B")]
    with_marks = FillTokens(1, 2, 3, repository=4, separator=5).files(files, encode)
    assert with_marks == (4, 101, 5, 102, 103, 5, 104, 105, 5, 106)
    assert spelled == ["myproject\n", "a.py\n", "A", "b.py\n", "B", "filename\n"]
    spelled.clear()
    assert FillTokens(1, 2, 3).files(files, encode) == (101, 102, 103, 104)
    assert spelled == ["\n\n--- snippet ---\n\n", "A", "\n\n--- snippet ---\n\n", "B"]


def test_overlong_fill_is_refused(load: Load) -> None:
    with pytest.raises(ContextOverflow):
        load("byte_level_bpe").render_fill("a" * 600, "b" * 600, max_tokens=10)
