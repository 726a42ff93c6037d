"""Incremental detokenization equals the whole decode, for every tokenizer, every sequence and every place to begin."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import ModelError
from dragoman.text import Detokenizer, Tokenizer
from dragoman.text.decoder import DecoderSpec
from dragoman.text.decoder import byte_fallback as byte_of

Load = Callable[[str], Tokenizer]

STRIP_TWO_AT_THE_END = {"type": "Strip", "content": " ", "start": 0, "stop": 2}

TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(alphabet=" \n\tabcehlotdr'.,!éñ£ßжשש你好한😀\u200d👩🇫🇷\u0301", max_size=30),
    st.sampled_from(["the camels laughed", "  two  spaces ", "do not, don't!", "Καλημέρα κόσμε 通訳 🐫"]),
)


@st.composite
def sequences(draw: st.DrawFn, tokenizer: Tokenizer) -> list[int]:
    """What a model may generate: text, any ids at all, special tokens, and ids beyond the vocabulary."""
    special = st.sampled_from(sorted(tokenizer.special_ids))
    anything = st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=12)
    # Low ids are bytes and letters, where invalid and unfinished characters come from.
    letters = st.lists(st.integers(0, min(300, tokenizer.vocab_size)), max_size=12)
    encoded = TEXTS.map(lambda text: list(tokenizer.encode(text, add_special_tokens=False)))
    parts = draw(st.lists(st.one_of(encoded, anything, letters, special.map(lambda i: [i])), max_size=5))
    return [token_id for part in parts for token_id in part]


def pieces(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    return [detokenizer.push(token_id) for token_id in token_ids]


@given(data=st.data(), skip=st.booleans())
def test_concatenation_equals_the_whole_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    token_ids = data.draw(sequences(tokenizer))
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    text = "".join(pieces(detokenizer, token_ids)) + detokenizer.flush()
    assert text == tokenizer.decode(token_ids, skip_special_tokens=skip)


def invalid_run(tokenizer: Tokenizer, token_ids: list[int], border: int, skip: bool) -> bool:
    """Whether the byte tokens on both sides of a border are no text together."""
    hidden = tokenizer.special_ids if skip else frozenset()
    run = b""
    for side, order in ((token_ids[:border], -1), (token_ids[border:], 1)):
        spelled = (tokenizer.token(i) for i in side[::order] if i not in hidden)
        found = list(itertools.takewhile(lambda byte: byte is not None, map(byte_of, filter(None, spelled))))
        run = bytes(found[::-1]) if order < 0 else run + bytes(found)
    try:
        run.decode()
    except UnicodeDecodeError:
        return True
    return False


@given(data=st.data(), skip=st.booleans())
def test_text_after_a_prompt_continues_the_decode_of_both(
    tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    token_ids = data.draw(sequences(tokenizer))
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip)
    for border in data.draw(st.sets(st.integers(0, len(token_ids)), min_size=1, max_size=4)):
        prompt = Detokenizer(tokenizer, skip_special_tokens=skip)
        certain = "".join(pieces(prompt, token_ids[:border])) + prompt._decoder.settle()
        if invalid_run(tokenizer, token_ids, border, skip):  # its part in the prompt is not rewritten by what follows
            continue
        generation = Detokenizer(tokenizer, token_ids[:border], skip_special_tokens=skip)
        text = "".join(pieces(generation, token_ids[border:])) + generation.flush()
        assert certain + text == whole


@given(data=st.data())
def test_a_long_prompt_gives_the_same_text_as_all_its_tokens(tokenizer: Tokenizer, data: st.DataObject) -> None:
    prompt = [token_id for _ in range(8) for token_id in data.draw(sequences(tokenizer))]
    generated = data.draw(sequences(tokenizer))
    fed = Detokenizer(tokenizer)
    pieces(fed, prompt)
    fed._decoder.settle()
    begun = Detokenizer(tokenizer, prompt)
    assert pieces(begun, generated) == pieces(fed, generated)
    assert begun.flush() == fed.flush()


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40).filter(lambda text: "é" not in text and "<" not in text))  # in added tokens here
@pytest.mark.parametrize("kind", ["byte_level_bpe", "gpt2"])
def test_every_complete_character_is_released_at_once(load: Load, kind: str, text: str) -> None:
    tokenizer = load(kind)
    detokenizer = Detokenizer(tokenizer)
    released, raw = "", b""
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        released += detokenizer.push(token_id)
        raw += tokenizer.token_bytes(token_id)
        assert released == raw.decode("utf-8", "ignore")  # valid text: what is ignored is an unfinished character


def test_a_character_is_never_split(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    detokenizer = Detokenizer(tokenizer)
    token_ids = [tokenizer.token_id(token) or -1 for token in ("ð", "Ł", "Ĳ", "«")]  # F0 9F 90 AB
    assert pieces(detokenizer, token_ids) == ["", "", "", "🐫"]
    assert detokenizer.flush() == ""


def test_an_unfinished_character_is_one_replacement_at_the_end(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    detokenizer = Detokenizer(tokenizer)
    token_ids = [tokenizer.token_id(token) or -1 for token in ("a", "ð", "Ł")]
    assert pieces(detokenizer, token_ids) == ["a", "", ""]
    assert detokenizer.flush() == "\ufffd"


def test_a_run_of_byte_tokens_is_held_to_its_end(load: Load) -> None:
    tokenizer = load("llama_bpe")
    a, tab, invalid = (tokenizer.token_id(token) or -1 for token in ("a", "<0x09>", "<0xFF>"))
    assert pieces(Detokenizer(tokenizer), [a, tab, tab, a]) == ["a", "", "", "\t\ta"]
    assert pieces(Detokenizer(tokenizer), [a, tab, invalid, a]) == ["a", "", "", "\ufffd\ufffda"]


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("metaspace_bpe", "▁▁ ▁▁ a"),  # every space of the first token is stripped, not just one
        ("llama_bpe", "▁▁ ▁▁ a"),
        ("llama_bpe", "<0x20> <0x20> a"),
        # Held spaces and bytes, far behind the beginning of a text whose first two spaces are stripped.
        ("rewriting_decoder", "a ▁▁ ▁ <0xC2> <0x80> <0xC2> <0x80> <0xE0> <0xA0> <0x80> a"),
        ("rewriting_decoder", "a h a ▁ ▁ ▁ h a"),
        ("word_piece", "the . do not ##' s the"),
    ],
)
def test_what_chance_seldom_finds(load: Load, kind: str, tokens: str) -> None:
    tokenizer = load(kind)
    token_ids = [token_id for token in tokens.split() if (token_id := tokenizer.token_id(token)) is not None]
    assert len(token_ids) > 2
    for border in range(len(token_ids) + 1):
        prompt, generation = Detokenizer(tokenizer), Detokenizer(tokenizer, token_ids[:border])
        certain = [*pieces(prompt, token_ids[:border]), prompt._decoder.settle()]
        text = [*pieces(generation, token_ids[border:]), generation.flush()]
        assert "".join((*certain, *text)) == tokenizer.decode(token_ids)


def test_byte_tokens_at_the_end_of_a_prompt_are_not_repeated(load: Load) -> None:
    """A line break is one in Llama 2's vocabulary; characters that have no token are several."""
    tokenizer = load("llama_bpe")
    tab, a, *eur = (tokenizer.token_id(token) or -1 for token in ("<0x09>", "a", "<0xE2>", "<0x82>", "<0xAC>"))
    invalid = tokenizer.token_id("<0xFF>") or -1
    after = Detokenizer(tokenizer, [a, tab])
    assert pieces(after, [a, tab]) == ["a", ""]
    assert after.flush() == "\t"
    assert pieces(Detokenizer(tokenizer, [a, tab, *eur[:2]]), [eur[2], a]) == ["", "€a"]
    assert pieces(Detokenizer(tokenizer, [a, *eur]), [invalid, a]) == ["", "\ufffda"]
    assert pieces(Detokenizer(tokenizer, [a, tab, invalid]), [a]) == ["a"]


@pytest.mark.parametrize("kind", ["llama_bpe", "metaspace_bpe", "unigram"])
def test_the_first_generated_word_keeps_its_space_behind_a_prompt(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    prompt = tokenizer.encode("he said", add_special_tokens=False)
    (word,) = (i for i in tokenizer.encode("the", add_special_tokens=False)[:1])
    own = tokenizer.token_text(word)
    assert own.startswith(" ")
    assert Detokenizer(tokenizer, prompt).push(word) == own
    assert Detokenizer(tokenizer).push(word) == own[1:]


def test_what_may_be_stripped_from_the_end_is_held() -> None:
    spec = DecoderSpec({"type": "Sequence", "decoders": [{"type": "Fuse"}, STRIP_TWO_AT_THE_END]})
    decoder = spec.start()
    assert [decoder.push(part) for part in ("a ", " ", " ", "b  ", "")] == ["a", "", " ", "  b", ""]
    assert decoder.flush() == ""


def test_special_tokens_have_text_only_when_asked_for(load: Load) -> None:
    tokenizer = load("byte_level_bpe")
    end = tokenizer.token_id("<|im_end|>") or -1
    assert Detokenizer(tokenizer).push(end) == ""
    assert Detokenizer(tokenizer, skip_special_tokens=False).push(end) == "<|im_end|>"


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [10**12], skip_special_tokens=False)
    assert pieces(detokenizer, [tokenizer.vocab_size, 2**31, 2**40]) == ["", "", ""]
    assert detokenizer.flush() == ""


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {"type": "Strip"},
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused_by_name(decoder: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"CTC|ByteFallback|Strip"):
        DecoderSpec(decoder)
