"""Files of tiktoken: a line for each token, its bytes in base64 and its rank, which is its id.

They hold neither the pattern that splits texts nor the special tokens: these are in the class that reads a file, and so
here by the class's name.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken

from dragoman.core.errors import ModelError
from dragoman.core.split_patterns import KIMI, LLAMA3, QWEN2
from dragoman.text.vocabularies.byte_ranks import byte_level_pipeline, named_ids
from dragoman.text.vocabularies.folder import MOST_TOKENS, FolderSettings, Vocabulary

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d{1,8}\r?\n")
_EXTRAS = tuple(f"<|extra_{i}|>" for i in range(205))
_KIMI_SPECIALS = 258


def _listed(*tokens: str) -> Callable[[int, Mapping[int, str]], Sequence[str]]:
    return lambda first, declared: tokens


def _reserved(first: int, declared: Mapping[int, str]) -> Sequence[str]:
    """Return Kimi's special tokens: a fixed number, of which the settings name some."""
    return [declared.get(i, f"<|reserved_token_{i}|>") for i in range(first, first + _KIMI_SPECIALS)]


class _Class(NamedTuple):
    """One class of tokenizers.

    Attributes:
        specials: those that follow the tokens of a file, by their first id and the texts that settings declare.
        counts_lines: a token's id is not the stored rank, but its place among the lines, without repeated tokens.
    """

    pattern: str
    specials: Callable[[int, Mapping[int, str]], Sequence[str]]
    names: Mapping[str, str]
    nfc: bool = False
    before: tuple[str, ...] = ()
    counts_lines: bool = False


_CLASSES = {
    "TikTokenTokenizer": _Class(KIMI, _reserved, {"bos_token": "[BOS]", "eos_token": "[EOS]"}),
    "QWenTokenizer": _Class(
        QWEN2,
        _listed("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_EXTRAS),
        {"eos_token": "<|endoftext|>"},
        nfc=True,
    ),
    "HYTokenizer": _Class(
        QWEN2,
        _listed("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_EXTRAS),
        {"bos_token": "<|startoftext|>", "eos_token": "<|eos|>"},
        nfc=True,
        counts_lines=True,
    ),
    "ChatGLM4Tokenizer": _Class(
        LLAMA3,
        _listed(
            *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>"),
            *("<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>"),
            "<|end_of_video|>",
        ),
        {"eos_token": "<|endoftext|>"},
        before=("[gMASK]", "<sop>"),
    ),
}
# Classes of folders that do not name one, by their files' names.
_USUAL = {"qwen.tiktoken": "QWenTokenizer", "hy.tiktoken": "HYTokenizer", "tiktoken.model": "TikTokenTokenizer"}


def is_tiktoken(data: bytes) -> bool:
    """Return whether a file begins with a line of tiktoken's."""
    return _LINE.match(data[:4096]) is not None


def knows_class(path: Path, settings: FolderSettings) -> bool:
    """Return whether the class that reads the file is known here."""
    return _class_name(path, settings) in _CLASSES


def _class_name(path: Path, settings: FolderSettings) -> str:
    return settings.kind or _USUAL.get(path.name, "")


def read_tiktoken(path: Path, data: bytes, settings: FolderSettings) -> Vocabulary:
    """Return the pipeline of a file. Raises ModelError that names it."""
    kind = _CLASSES[_class_name(path, settings)]
    lines = list(_lines(path, data))
    tokens = list(dict.fromkeys(token for _, token in lines)) if kind.counts_lines else _by_rank(path, lines)
    pipeline = byte_level_pipeline(path, tokens, kind.pattern, nfc=kind.nfc)
    specials = kind.specials(len(tokens), settings.declared)
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    for token, wanted in named_ids(specials, len(tokens)).items():
        if pipeline.token_to_id(token) != wanted:
            raise ModelError(f"{path}: the special token {token!r:.100} cannot have the id {wanted}")
    names = {name: token for name, token in kind.names.items() if token in specials}
    found = Vocabulary(pipeline, names, before=kind.before)
    return found if kind.before else found.surrounded(settings, adds_bos=False, adds_eos=False)


def _lines(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the ranks and tokens of a file."""
    for number, line in enumerate(map(bytes.rstrip, io.BytesIO(data)), 1):
        if number > 2 * MOST_TOKENS:
            raise ModelError(f"{path}: it has more than {2 * MOST_TOKENS:,} lines")
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        try:
            if not rank.isdigit() or len(rank) > 8:
                raise ValueError
            yield int(rank), base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise ModelError(f"{path}: line {number} is not a token in base64 and its rank; {_CUT}") from None


def _by_rank(path: Path, lines: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Return the tokens by their ranks, which are all numbers below their count."""
    found = dict(lines)
    missing = next((rank for rank in range(len(lines)) if rank not in found), None)
    if missing is not None:
        raise ModelError(f"{path}: no token has the rank {missing}, or two have the same; {_CUT}")
    return [found[rank] for rank in range(len(lines))]


_CUT = "the file may be cut off"
