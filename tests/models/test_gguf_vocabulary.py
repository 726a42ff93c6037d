"""Tokenizers and templates out of GGUF files: the ids of the tokenizers that went in, and of llama.cpp's own rules."""

from __future__ import annotations

import heapq
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Pipeline

from dragoman.core.errors import ModelError
from dragoman.models.gguf.file import read_gguf
from dragoman.models.gguf.opening import describing_folder, open_gguf
from dragoman.models.gguf.vocabulary import tokenizer_files
from dragoman.models.source import embedded_path
from dragoman.text import Tokenizer
from dragoman.text.chat_template import read_templates

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
Writer = gguf.GGUFWriter

TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from("aeinst THE'sll rèß12.,!?\n\t  中文🙂▁<>|_0x"), max_size=80),
    st.lists(st.sampled_from(["the ", " and", "don't", "<|im_end|>", "</s>", "<tool_call>", "  ", "\n\n", "1234567",
                              "naïve", "▁", "…", "<0x0A>", "I'LL", " é"]), max_size=12).map("".join),
)  # fmt: skip
FAST = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


def write(path: Path, fill: Callable[[Writer], None]) -> Path:
    """A small model of which only the tokenizer matters."""
    writer = Writer(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    fill(writer)
    writer.add_tensor("token_embd.weight", np.zeros((8192, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Writer], None]], Tokenizer]:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))

    def load(fill: Callable[[Writer], None]) -> Tokenizer:
        return Tokenizer.load(describing_folder(open_gguf([write(tmp_path / "m.gguf", fill)])))

    return load


@pytest.fixture(scope="module")
def byte_level() -> dict[str, Any]:
    """The embedded model's tokenizer.json."""
    found: dict[str, Any] = json.loads((embedded_path() / "tokenizer.json").read_text())
    return found


def add_byte_level(writer: Writer, tokenizer: dict[str, Any], pre: str) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"]: CONTROL if token["special"] else USER_DEFINED for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([special.get(token, NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )


def splits(*patterns: str) -> pre_tokenizers.PreTokenizer:
    found = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    rest = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False, use_regex=False)]
    return pre_tokenizers.Sequence([*found, *rest])


def cased_letters() -> str:
    """The letters with cases that Unicode had in the blocks that DeepSeek's first tokenizers know, as a class."""
    later = [range(0x2D00, 0x2D30), range(0xA790, 0xA800), range(0xAB30, 0xAB69), range(0x10570, 0x105BD)]
    later += [range(0x16E40, 0x16E80), range(0x1D400, 0x1DF20)]
    known = (c for c in range(0x20000) if unicodedata.category(chr(c)) in ("Lu", "Ll", "Lt"))
    return "".join(f"\\x{{{c:X}}}" for c in known if not any(c in block for block in later))


# As the models' own tokenizer.json has them.
SPLITS = {
    "qwen35": split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "deepseek-llm": splits(
        "[\r\n]", rf"\s?[{cased_letters()}]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"
    ),
    "deepseek-coder": splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"),
    "deepseek-v3": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
            split(
                r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ]
    ),
    "kimi-k2": split(
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "seed-coder": split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "exaone-moe": split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "bailingmoe": split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
    "starcoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
    "command-r": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
    "qwen2": split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "llama-bpe": split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "tekken": split(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
        r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "bloom": split(r" ?[^(\s|.,!?…。，、।۔،)]+"),
}


_SELDOM = ("kimi-k2", "seed-coder", "exaone-moe", "bailingmoe")


@pytest.mark.parametrize(
    "pre", [pytest.param(pre, marks=[pytest.mark.thorough] if pre in _SELDOM else []) for pre in SPLITS]
)
@FAST
@given(data=st.data())
def test_byte_level_ids_are_those_of_the_tokenizer_that_went_in(
    pre: str, data: st.DataObject, byte_level: dict[str, Any], load_once: Callable[[str], tuple[Tokenizer, Pipeline]]
) -> None:
    ours, theirs = load_once(pre)
    text = data.draw(TEXTS)
    ids = theirs.encode(text).ids
    first = (0,) if pre in ("llama-bpe", "tekken") else ()  # which begin every text where the file does not say
    assert ours.encode(text) == (*first, *ids)
    assert ours.decode(ids, skip_special_tokens=False) == text


@pytest.fixture(scope="module")
def load_once(
    byte_level: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Tokenizer, Pipeline]]:
    found: dict[str, tuple[Tokenizer, Pipeline]] = {}

    def load(pre: str) -> tuple[Tokenizer, Pipeline]:
        if pre not in found:
            folder = tmp_path_factory.mktemp("byte-level")
            file = read_gguf(write(folder / "m.gguf", lambda writer: add_byte_level(writer, byte_level, pre)))
            for name, content in tokenizer_files(file).items():
                (folder / name).write_text(json.dumps(content))
            theirs = json.loads(json.dumps(byte_level))
            theirs["model"]["ignore_merges"] = pre in ("llama-bpe", "tekken")
            pipeline = Pipeline.from_str(json.dumps(theirs))
            pipeline.pre_tokenizer = SPLITS[pre]
            found[pre] = Tokenizer.load(folder), pipeline
        return found[pre]

    return load


class Pieces:
    """llama.cpp's rules for pieces with scores, said again: of all neighbours that are a piece together those of the
    best score are joined, the leftmost first; what is no piece in the end becomes bytes."""

    def __init__(self, tokens: list[str], scores: list[float], types: list[int], prefix: bool = True) -> None:
        self.ids = {token: i for i, token in enumerate(tokens) if types[i] in (NORMAL, USER_DEFINED)}
        self.bytes = {int(token[3:5], 16): i for i, token in enumerate(tokens) if types[i] == BYTE}
        self.scores, self.prefix = scores, prefix

    def encode(self, text: str) -> list[int]:
        if not text:
            return []
        parts: list[str | None] = list(((" " if self.prefix else "") + text).replace(" ", "▁"))
        after = {i: i + 1 for i in range(len(parts) - 1)}
        before = {i + 1: i for i in range(len(parts) - 1)}
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int | None, right: int | None) -> None:
            if left is not None and right is not None and (joined := f"{parts[left]}{parts[right]}") in self.ids:
                heapq.heappush(queue, (-self.scores[self.ids[joined]], left, right, joined))

        for i in range(len(parts) - 1):
            offer(i, i + 1)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if parts[left] is None or parts[right] is None or f"{parts[left]}{parts[right]}" != joined:
                continue
            parts[left], parts[right] = joined, None
            following = after.pop(right, None)
            after.pop(left, None)
            if following is not None:
                after[left], before[following] = following, left
            offer(before.get(left), left)
            offer(left, following)
        found: list[int] = []
        for part in parts:
            if part in self.ids:
                found.append(self.ids[part])
            elif part is not None:
                found += [self.bytes[byte] for byte in part.encode()]
        return found


def pieces(prefix: bool = True) -> tuple[list[str], list[float], list[int]]:
    """A vocabulary as SentencePiece's BPE makes them: scores fall with the order of the merges."""
    trained = Pipeline(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    corpus = ["the cat and the hen then sat on that mat, and there it ate nothing at all. I'll see 1234 hints!"] * 4
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=160, show_progress=False))
    vocabulary = trained.get_vocab()
    learned = sorted(vocabulary, key=lambda token: vocabulary[token])
    joined = [token for token in learned if len(token) > 1] + ["▁▁", "▁▁▁▁", "▁▁▁"]
    single = [token for token in learned if len(token) == 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *joined, *single, "<|user|>", "~~"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(joined) + len(single))] + [-1000.0, -1000.0]
    types = (
        [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(joined) + len(single)) + [CONTROL, USER_DEFINED]
    )
    return tokens, scores, types


def add_pieces(writer: Writer, vocabulary: tuple[list[str], list[float], list[int]]) -> None:
    tokens, scores, types = vocabulary
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)


@pytest.fixture(scope="module")
def loaded_pieces(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Tokenizer, Pieces]]:
    found = {}
    for prefix in (True, False):
        folder = tmp_path_factory.mktemp("pieces")

        def fill(writer: Writer, prefix: bool = prefix) -> None:
            add_pieces(writer, pieces())
            writer.add_add_space_prefix(prefix)

        for name, content in tokenizer_files(read_gguf(write(folder / "m.gguf", fill))).items():
            (folder / name).write_text(json.dumps(content))
        found[prefix] = Tokenizer.load(folder), Pieces(*pieces(), prefix=prefix)
    return found


@pytest.mark.parametrize("prefix", [True, False])
@FAST
@given(data=st.data())
def test_pieces_are_joined_as_llama_cpp_joins_them(
    prefix: bool, data: st.DataObject, loaded_pieces: dict[bool, tuple[Tokenizer, Pieces]]
) -> None:
    ours, theirs = loaded_pieces[prefix]
    alphabet = st.sampled_from("the cat and hen 12345 I'll see? nothing at   all é中🙂\n▁0xA>")
    text = data.draw(st.text(alphabet, max_size=60) | st.text(max_size=30))
    text = text.replace("~~", "").replace("<", "")  # added tokens
    assert list(ours.encode(text, add_special_tokens=False, parse_special=False)) == theirs.encode(text)
    assert ours.encode(text)[0] == 1
    assert ours.decode(ours.encode(text)) == text.replace("▁", " ")


def test_special_tokens_are_found_in_texts_and_the_users_are_text(
    loaded_pieces: dict[bool, tuple[Tokenizer, Pieces]],
) -> None:
    ours, theirs = loaded_pieces[True]
    user, tildes = ours.token_id("<|user|>"), ours.token_id("~~")
    assert user is not None
    assert tildes is not None
    wanted = [1, user, *theirs.encode("the cat"), tildes, *theirs.encode("hen")]
    assert list(ours.encode("<|user|>the cat~~hen")) == wanted
    assert ours.decode(wanted) == "the cat~~ hen"
    assert ours.is_special(user)
    assert not ours.is_special(tildes)
    assert user not in ours.encode("<|user|>", parse_special=False)
    assert 2 not in ours.encode("</s><s>", parse_special=False)


def test_tokens_that_end_a_turn_end_a_generation(load: Any, byte_level: dict[str, Any]) -> None:
    """Files name one end; llama.cpp knows the others by their texts."""

    def fill(writer: Writer) -> None:
        add_byte_level(writer, byte_level, "qwen2")
        writer.add_eos_token_id(0)
        writer.add_eot_token_id(6)

    tokenizer = load(fill)
    assert tokenizer.eos_id == 0
    assert set(tokenizer.eos_ids) == {0, 2, 6}  # <|endoftext|>, <|im_end|> by its text, and the one named


def test_bos_and_eos_are_added_as_the_file_says(load: Any, byte_level: dict[str, Any]) -> None:
    def fill(writer: Writer) -> None:
        add_byte_level(writer, byte_level, "llama-bpe")
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(True)

    ids = load(fill).encode("a")
    assert ids[0] != 0
    assert ids[-1] == 2


@pytest.mark.parametrize("templates", ["{{ messages }}", [{"name": "default", "template": "d"},
                                                          {"name": "tool_use", "template": "t"}]])  # fmt: skip
def test_chat_templates_are_kept(templates: Any, byte_level: dict[str, Any], tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))

    def fill(writer: Writer) -> None:
        add_byte_level(writer, byte_level, "qwen2")
        writer.add_chat_template(templates)

    found = read_templates(describing_folder(open_gguf([write(tmp_path / "m.gguf", fill)])))
    named = {"default": templates} if isinstance(templates, str) else {t["name"]: t["template"] for t in templates}
    assert found == named


def test_phi_3s_marks_take_the_spaces_behind_them(load: Any) -> None:
    def fill(writer: Writer) -> None:
        add_pieces(writer, pieces())
        writer.add_name("Phi-3 Mini")

    tokenizer = load(fill)
    user = tokenizer.token_id("<|user|>")
    assert tokenizer.encode("<|user|>\n the") == tokenizer.encode("<|user|>the")
    assert tokenizer.encode("<|user|>")[-1] == user


def replaced(key: str, value: Any, kind: gguf.GGUFValueType | None = None) -> Callable[[Writer], None]:
    def fill(writer: Writer) -> None:
        add_pieces(writer, pieces())
        writer.kv_data[0].pop(f"tokenizer.ggml.{key}", None)
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{key}", value)
        elif value is not None:
            writer.add_key_value(f"tokenizer.ggml.{key}", value, kind or gguf.GGUFValueType.UINT32)

    return fill


TEXT = gguf.GGUFValueType.STRING
WRONG: dict[str, tuple[Callable[[Writer], None], str]] = {
    "a tokenizer of another kind": (
        replaced("model", "rwkv", TEXT),
        r"tokenizer\.ggml\.model 'rwkv' is not supported; known",
    ),
    "no tokenizer": (replaced("model", None), r"tokenizer\.ggml\.model is missing"),
    "no tokens": (replaced("tokens", None), r"tokenizer\.ggml\.tokens is missing or empty"),
    "tokens that are numbers": (replaced("tokens", [1, 2]), r"tokenizer\.ggml\.tokens must be an array of texts"),
    "a token twice": (replaced("tokens", ["a", "b", "a"]), r"tokenizer\.ggml\.tokens has the token 'a' twice"),
    "too few scores": (replaced("scores", [0.5]), r"tokenizer\.ggml\.scores must be an array of \d+ numbers"),
    "no scores": (replaced("scores", None), r"tokenizer\.ggml\.scores is missing"),
    "scores that are no numbers": (replaced("scores", [float("nan")] * len(pieces()[0])), r"ggml\.scores must be"),
    "too few types": (replaced("token_type", [1]), r"tokenizer\.ggml\.token_type must be an array"),
    "an end beyond the tokens": (replaced("eos_token_id", 10**6), r"eos_token_id must be the id of one of \d+ tokens"),
    "a key of no known use": (replaced("suppress_tokens", [1]), r"tokenizer\.ggml\.suppress_tokens is not known"),
    "a separator that is added": (replaced("add_sep_token", True, gguf.GGUFValueType.BOOL), "add_sep_token = True is"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_vocabulary_is_told_by_its_key(name: str, tmp_path: Path) -> None:
    fill, words = WRONG[name]
    path = write(tmp_path / "m.gguf", fill)
    with pytest.raises(ModelError, match=words) as caught:
        tokenizer_files(read_gguf(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("pre", "chameleon", r"tokenizer\.ggml\.pre 'chameleon' is not supported; known: default"),
        ("merges", ["h e", "no way"], r"merges has 'no way', which does not join two tokens to a third"),
        ("merges", None, r"tokenizer\.ggml\.merges is missing or empty"),
    ],
)
def test_what_is_wrong_with_merges_and_splits_is_told(
    key: str, value: Any, words: str, byte_level: dict[str, Any], tmp_path: Path
) -> None:
    def fill(writer: Writer) -> None:
        add_byte_level(writer, byte_level, "gpt-2")
        del writer.kv_data[0][f"tokenizer.ggml.{key}"]
        if isinstance(value, list):
            writer.add_token_merges(value)
        elif value is not None:
            writer.add_tokenizer_pre(value)

    with pytest.raises(ModelError, match=words):
        tokenizer_files(read_gguf(write(tmp_path / "m.gguf", fill)))


def test_folders_are_made_once_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byte_level: dict[str, Any]
) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dragoman.models.gguf.opening._MOST_FOLDERS", 2)
    model = open_gguf([write(tmp_path / "m.gguf", lambda writer: add_byte_level(writer, byte_level, "gpt-2"))])
    folder = describing_folder(model)
    made = (folder / "config.json").stat().st_mtime_ns
    assert describing_folder(model) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    for pre in ("qwen2", "smollm"):
        other = write(tmp_path / f"{pre}.gguf", lambda writer, pre=pre: add_byte_level(writer, byte_level, pre))
        assert describing_folder(open_gguf([other])).is_dir()
    assert len(list((tmp_path / "cache" / "gguf").iterdir())) == 2
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"m\.gguf: its tokenizer could not be written to .*DRAGOMAN_CACHE"):
        describing_folder(model)


def test_pieces_of_gemma_4_are_joined_in_the_order_of_the_merges(load: Callable[..., Tokenizer]) -> None:
    """Scores count for nothing, and tokens that a file calls user-defined have their text."""
    tokens = [
        "<pad>",
        "<eos>",
        "<bos>",
        "<unk>",
        "<turn|>",
        "<|tool_call>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    tokens += ["a", "b", "c", "▁", "▁a", "ab", "abc", "▁ab"]
    types = [CONTROL] * 5 + [USER_DEFINED] + [BYTE] * 256 + [NORMAL] * 8

    def fill(writer: Writer) -> None:
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(tokens)
        writer.add_token_scores([float(place) for place in range(len(tokens))])
        writer.add_token_types(types)
        writer.add_token_merges(["a b", "▁ ab", "▁ a", "ab c"])
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)
        writer.add_add_space_prefix(False)
        writer.add_add_bos_token(True)

    tokenizer = load(fill)

    def texts(text: str) -> list[str]:
        return [tokens[i] for i in tokenizer.encode(text)]

    assert texts("ab abc a") == ["<bos>", "ab", "▁ab", "c", "▁a"]
    assert texts("é<|tool_call>") == ["<bos>", "<0xC3>", "<0xA9>", "<|tool_call>"]
    assert tokenizer.decode(tokenizer.encode(" ab  c<|tool_call>é")) == " ab  c<|tool_call>é"
    assert tokenizer.is_special(tokens.index("<turn|>"))
    assert tokens.index("<turn|>") in tokenizer.eos_ids
