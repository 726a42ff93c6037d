"""Tokenizer and chat template of a GGUF file's metadata, as the files of a model folder.

``tokenizer.ggml.model`` is ``llama`` (SentencePiece's pieces with scores, with byte fallback), ``gemma4`` (such
pieces, with merges), ``gpt2`` (byte-level, with merges), ``t5`` (pieces of the best sum of scores) or ``bert`` (pieces
of words). All become a ``tokenizer.json``; token ids are those of llama.cpp.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.core.merges import TooManyMerges, merges_of
from dragoman.models.gguf import unigram, wordpiece
from dragoman.models.gguf.file import GgufFile
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

Json = dict[str, Any]

_PREFIX = "tokenizer.ggml."
_SPACE = "▁"

# Tokens that end a generation whatever type the metadata gives them, as in llama.cpp: files name only one of them.
_END_TOKENS = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "</s>",
     "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
     "<｜end▁of▁sentence｜>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>",
     "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>", "<turn|>", "<|tool_response>")
)  # fmt: skip
_MODELS = ("llama", "gemma4", "gpt2", "t5", "bert")
_DEFAULT_IDS = {
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "t5": unigram.DEFAULT_IDS,
    "bert": wordpiece.DEFAULT_IDS,
}
_BERT_KEYS = {"bos": ("cls",), "eos": ("seperator", "separator")}
# Keys that repeat what the tokens' texts say, or belong to other kinds of tokenizers.
_INERT = ("token_type_count", "fsep_token_id", "seperator_token_id", "separator_token_id", "mask_token_id",
          "cls_token_id")  # fmt: skip
# Fill-in-the-middle marks: their names here, and the keys that have their ids, the older one last.
_FILL_KEYS = {"pre": ("fim_pre", "prefix"), "suf": ("fim_suf", "suffix"), "mid": ("fim_mid", "middle"),
              "pad": ("fim_pad",), "rep": ("fim_rep",), "sep": ("fim_sep",)}  # fmt: skip


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(msgspec.Struct, frozen=True):
    """The tokens of a file. ``ids``: of special tokens, by their names in ``tokenizer_config.json``."""

    tokens: list[str]
    types: NDArray[np.int32]
    ids: dict[str, int]
    end_ids: list[int]
    adds_bos: bool
    adds_eos: bool

    def of(self, *types: TokenType) -> list[int]:
        """Return the ids of tokens of these types."""
        return [int(i) for i in np.flatnonzero(np.isin(self.types, types))]


def tokenizer_files(file: GgufFile) -> dict[str, Json]:
    """Return the content of ``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json``, by file name.

    Raises ModelError naming a wrong key.
    """
    keys = Metadata(file, _PREFIX)
    kind = keys.text("model")
    if kind not in _MODELS:
        raise file.fail(f"{_PREFIX}model", f"{kind!r} is not supported; known: {', '.join(_MODELS)}")
    pre = _pre_tokenizer(keys) if kind == "gpt2" else None
    encodes = _is_encoder(file)
    adds_bos = encodes or (pre.adds_bos if pre else kind != "t5")
    vocabulary = _read_vocabulary(keys, adds_bos=adds_bos, adds_eos=encodes or kind == "t5")
    if kind == "bert":
        vocabulary, pipeline = _words(keys, vocabulary)
    elif kind == "t5":
        unfound = vocabulary.of(TokenType.UNKNOWN, TokenType.CONTROL)
        pipeline = unigram.unigram_pieces(keys, vocabulary.tokens, unfound, vocabulary.ids.get("unk_token"))
    else:
        pipeline = _pieces(keys, vocabulary) if pre is None else _byte_level(keys, vocabulary, pre)
    pipeline |= {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(file, vocabulary),
        "post_processor": _template(file, vocabulary),
    }
    fill = _fill_tokens(keys, len(vocabulary.tokens))
    for key in _INERT:
        keys.has(key)
    # Between two texts: an encoder that scores pairs has one.
    keys.refuse("add_sep_token", False, *[True] * encodes)
    keys.refuse("remove_extra_whitespaces", False, *[True] * (kind == "t5"))
    keys.refuse_others()
    names = {name: vocabulary.tokens[token_id] for name, token_id in vocabulary.ids.items()}
    settings: Json = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    if fill:
        settings["fill_tokens"] = fill
    if templates := _chat_templates(file):
        settings["chat_template"] = templates
    return {
        "tokenizer.json": pipeline,
        "tokenizer_config.json": settings,
        "generation_config.json": _generation(vocabulary) | _recommended_sampling(file),
    }


def _is_encoder(file: GgufFile) -> bool:
    """Return whether it is of the BERT family, whose texts have marks around them."""
    return "bert" in Metadata(file).text("general.architecture")


def _read_vocabulary(keys: Metadata, adds_bos: bool, adds_eos: bool) -> Vocabulary:
    # llama.cpp gives empty tokens this name.
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(keys.texts("tokens"))]
    if not tokens:
        raise keys.file.fail(f"{_PREFIX}tokens", "is missing or empty")
    if len(set(tokens)) != len(tokens):
        [(twice, _)] = Counter(tokens).most_common(1)
        raise keys.file.fail(f"{_PREFIX}tokens", f"has the token {twice!r} twice")
    given = keys.numbers("token_type", len(tokens))
    types = np.full(len(tokens), TokenType.NORMAL, np.int32) if given is None else given.astype(np.int32)
    default = _DEFAULT_IDS.get(keys.text("model"), {})
    ids: dict[str, int] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        found = keys.token_id(f"{key}_token_id", len(tokens))
        if name in _BERT_KEYS and _is_encoder(keys.file):  # its marks have other names, too
            others = (keys.token_id(f"{other}_token_id", len(tokens)) for other in _BERT_KEYS[name])
            other = next((other for other in others if other is not None), None)
            found = other if found is None or (other is not None and keys.text("model") == "bert") else found
        found = default.get(f"{name}_token") if found is None else found
        if found is not None and found < len(tokens):
            ids[f"{name}_token"] = found
    ends = [ids.get("eos_token"), *(keys.token_id(f"{name}_token_id", len(tokens)) for name in ("eot", "eom"))]
    ends += [i for i, token in enumerate(tokens) if token in _END_TOKENS]
    if {"<|return|>", "<|call|>"} <= set(tokens):  # in these vocabularies <|end|> ends a message, not the turn
        ends = [i for i in ends if i is None or tokens[i] != "<|end|>"]
    end_ids = list(dict.fromkeys(i for i in ends if i is not None))
    types[[i for i in end_ids if tokens[i] in _END_TOKENS]] = TokenType.CONTROL
    return Vocabulary(
        tokens, types, ids, end_ids, keys.flag("add_bos_token", adds_bos), keys.flag("add_eos_token", adds_eos)
    )


def _fill_tokens(keys: Metadata, count: int) -> dict[str, int]:
    """Return the fill-in-the-middle marks that a file names. Ids of no token name none."""
    found: dict[str, int] = {}
    for mark, names in _FILL_KEYS.items():
        ids = [keys.value(f"{name}_token_id") for name in names]
        known = [each for each in ids if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < count]
        if known:
            found[mark] = known[0]
    return found


def _pre_tokenizer(keys: Metadata) -> PreTokenizer:
    kind = keys.text("pre", "default")
    if kind not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise keys.file.fail(f"{_PREFIX}pre", f"{kind!r} is not supported; known: {known}")
    return PRE_TOKENIZERS[kind]


def _words(keys: Metadata, vocabulary: Vocabulary) -> tuple[Vocabulary, Json]:
    """Return the vocabulary in the spelling of ``tokenizer.json``, and the pipeline of ``bert``."""
    for key in ("pre", "scores", "merges", "add_space_prefix"):  # llama.cpp does not use them here either
        keys.has(key)
    special = set(vocabulary.ids.values()) | set(
        vocabulary.of(TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    )
    vocabulary.types[list(vocabulary.ids.values())] = TokenType.CONTROL
    tokens = wordpiece.stored_pieces(keys.file, vocabulary.tokens, special)
    if "unk_token" not in vocabulary.ids:
        raise keys.file.fail(f"{_PREFIX}unknown_token_id", "is missing")
    vocabulary = replace(vocabulary, tokens=tokens, adds_eos=True)
    return vocabulary, wordpiece.pieces_of_words(tokens, tokens[vocabulary.ids["unk_token"]])


def _byte_level(keys: Metadata, vocabulary: Vocabulary, pre: PreTokenizer) -> Json:
    """Return the pipeline of ``gpt2``: split, bytes as characters, merges in their order."""
    for key in ("scores", "add_space_prefix"):  # llama.cpp does not use them here either
        keys.has(key)
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in pre.patterns
    ]
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, plain]},
        "decoder": {**plain, "use_regex": True},
        "model": _bpe(vocabulary, _merges(keys, vocabulary), ignore_merges=pre.whole_words),
    }


def _merges(keys: Metadata, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    known = set(vocabulary.tokens)
    merges = []
    for text in keys.texts("merges"):
        place = text.find(" ", 1)
        left, right = text[:place], text[place + 1 :]
        if place < 0 or left not in known or right not in known or left + right not in known:
            raise keys.file.fail(f"{_PREFIX}merges", f"has {text!r}, which does not join two tokens to a third")
        merges.append((left, right))
    if not merges:
        raise keys.file.fail(f"{_PREFIX}merges", "is missing or empty")
    return merges


def _pieces(keys: Metadata, vocabulary: Vocabulary) -> Json:
    """Return the pipeline of ``llama``, where of all neighbours that form a token those of the best score merge first,
    or of ``gemma4``, with merges in their order."""
    keys.has("pre")  # used by byte-level vocabularies only
    if keys.text("model") == "gemma4":
        keys.has("scores")  # the order of the merges counts
        merges = _merges(keys, vocabulary)
    else:
        keys.has("merges")
        scores = keys.numbers("scores", len(vocabulary.tokens))
        if scores is None:
            raise keys.file.fail(f"{_PREFIX}scores", "is missing")
        merges = _merges_by_score(keys, vocabulary, scores)
    prefix = keys.flag("add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    has_bytes = {f"<0x{byte:02X}>" for byte in range(256)} <= set(vocabulary.tokens)
    unknown = vocabulary.ids.get("unk_token")
    if not has_bytes and unknown is None:
        raise keys.file.fail(f"{_PREFIX}tokens", "has neither a token for each byte nor an unknown one")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *after,
            ],
        },
        "model": _bpe(
            vocabulary,
            merges,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            byte_fallback=has_bytes,
            fuse_unk=True,
        ),
    }


def _merges_by_score(keys: Metadata, vocabulary: Vocabulary, scores: NDArray[Any]) -> list[tuple[str, str]]:
    """Return how neighbours are joined, those of the best score first."""
    pieces = vocabulary.of(TokenType.NORMAL, TokenType.USER_DEFINED)
    try:
        return merges_of({vocabulary.tokens[i]: -float(scores[i]) for i in pieces})
    except TooManyMerges as error:
        raise keys.file.fail(f"{_PREFIX}tokens", str(error)) from None


def _bpe(vocabulary: Vocabulary, merges: list[tuple[str, str]], **options: Any) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": {token: i for i, token in enumerate(vocabulary.tokens)},
        "merges": merges,
    }


def _added_tokens(file: GgufFile, vocabulary: Vocabulary) -> list[Json]:
    """Return the tokens that are matched in a text before all others."""
    strip = _stripping(file)
    return [
        {
            "id": i,
            "content": vocabulary.tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": strip and vocabulary.tokens[i] not in ("<unk>", "<s>", "<|endoftext|>"),
            "normalized": False,
            "special": int(vocabulary.types[i]) != TokenType.USER_DEFINED,
        }
        for i in vocabulary.of(TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    ]


def _stripping(file: GgufFile) -> bool:
    """Return whether special tokens absorb the spaces after them: Phi-3's do, and only the model's name shows it."""
    name = str(file.metadata.get("general.name", "")).lower().replace(" ", "-")
    return file.metadata.get(f"{_PREFIX}model") == "llama" and ("phi-3" in name or "phi3" in name)


def _template(file: GgufFile, vocabulary: Vocabulary) -> Json | None:
    """Return the post-processor that puts special tokens around a text; None where there are none."""
    around: dict[str, int] = {}
    for name, wanted in (("bos_token", vocabulary.adds_bos), ("eos_token", vocabulary.adds_eos)):
        if wanted and name not in vocabulary.ids:
            raise file.fail(f"{_PREFIX}add_{name}", f"is set, but there is no {_PREFIX}{name}_id")
        if wanted:
            around[name] = vocabulary.ids[name]
    if not around:
        return None

    def special(name: str, kind: int = 0) -> list[Json]:
        if name not in around:
            return []
        return [{"SpecialToken": {"id": vocabulary.tokens[around[name]], "type_id": kind}}]

    first: Json = {"Sequence": {"id": "A", "type_id": 0}}
    single = [*special("bos_token"), first, *special("eos_token")]
    second: Json = {"Sequence": {"id": "B", "type_id": 0}}
    pair = [*single, *special("bos_token"), second, *special("eos_token")]
    if _is_encoder(file):
        # RoBERTa, whose vocabulary is not of words, has two ends between the texts; only BERT has types of tokens.
        has_words = Metadata(file, _PREFIX).text("model") == "bert"
        is_roberta = not has_words and Metadata(file).text("general.architecture") != "modern-bert"
        between = special("eos_token") if is_roberta else []
        second = {"Sequence": {"id": "B", "type_id": int(has_words)}}
        pair = [*single, *between, second, *special("eos_token", int(has_words))]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            (text := vocabulary.tokens[i]): {"id": text, "ids": [i], "tokens": [text]} for i in around.values()
        },
    }


def _chat_templates(file: GgufFile) -> str | list[Json] | None:
    metadata = Metadata(file, "tokenizer.")
    default = metadata.text("chat_template", "")
    named = {name: metadata.text(f"chat_template.{name}") for name in metadata.texts("chat_templates")}
    if not named:
        return default or None
    named = ({"default": default} if default else {}) | named
    return [{"name": name, "template": template} for name, template in named.items()]


def _generation(vocabulary: Vocabulary) -> Json:
    found: Json = {"eos_token_id": vocabulary.end_ids} if vocabulary.end_ids else {}
    for name in ("bos_token", "pad_token"):
        if name in vocabulary.ids:
            found[f"{name}_id"] = vocabulary.ids[name]
    return found


_SAMPLING = {
    "temp": "temperature",
    "penalty_repeat": "repetition_penalty",
    "mirostat": "mirostat_mode",
    **{
        name: name
        for name in ("top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "mirostat_tau", "mirostat_eta")
    },
    "penalty_last_n": "penalty_last_n",
}
"""Keys of ``general.sampling.``, llama.cpp's, and what they are called in a ``generation_config.json``."""


def _recommended_sampling(file: GgufFile) -> Json:
    keys, found = Metadata(file, "general.sampling."), {}
    for key, name in _SAMPLING.items():
        value = keys.value(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            # The digits that float32 does not have are left out; below 0, top-k and temperature are off and greedy.
            number = value if isinstance(value, int) else float(str(np.float32(value)))
            found[name] = max(number, 0) if key in ("temp", "top_k") else number
        elif value is not None:
            raise file.fail(f"general.sampling.{key}", f"must be a number, got {value!r}")
    return found


def check_vocabulary(file: GgufFile, rows: int) -> None:
    """Raise ModelError where a file has more tokens than its embedding table has rows."""
    count = len(Metadata(file, _PREFIX).texts("tokens"))
    if count > rows:
        raise ModelError(f"{file.path}: {_PREFIX}tokens has {count} tokens, tensor token_embd.weight {rows} rows")
