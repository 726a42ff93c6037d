"""Byte-level vocabularies that list the bytes of each token, best first, without merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.core.errors import ModelError
from dragoman.core.merges import TooManyMerges, merges_of
from dragoman.text.decoder import byte_level_token
from dragoman.text.vocabularies.folder import MOST_TOKENS, build


def byte_level_pipeline(
    path: Path, tokens: Sequence[bytes], pattern: str, *, before: Mapping[str, int] | None = None, nfc: bool = False
) -> Tokenizer:
    """Return the pipeline of tokens by their ranks. ``before``: ids of special tokens that come before them.

    Raises ModelError that names the file: for a token twice, and where bytes have no token.
    """
    if len(tokens) > MOST_TOKENS:
        raise ModelError(f"{path}: it has more than {MOST_TOKENS:,} tokens")
    spelled = [byte_level_token(token) for token in tokens]
    if len(set(spelled)) != len(spelled):
        [(twice, _)] = Counter(tokens).most_common(1)
        raise ModelError(f"{path}: it has the token {twice!r:.100} twice")
    ranks = {token: rank for rank, token in enumerate(spelled)}
    if "" in ranks:
        raise ModelError(f"{path}: token {ranks['']} is empty")
    missing = next((byte for byte in range(256) if byte_level_token(bytes((byte,))) not in ranks), None)
    if missing is not None:
        raise ModelError(f"{path}: it has no token for the byte {missing}; the file may be cut off")
    first = {} if before is None else before
    if clash := next((token for token in first if token in ranks), None):
        raise ModelError(f"{path}: {clash!r:.100} is a special token and another one")
    try:
        merges = merges_of(ranks)
    except TooManyMerges as error:
        raise ModelError(f"{path}: its tokens {error}") from None
    vocabulary = {**first, **{token: rank + len(first) for token, rank in ranks.items()}}
    model = build(path, models.BPE, vocabulary, merges, fuse_unk=False)
    model.ignore_merges = True
    pipeline = Tokenizer(model)
    split_words(path, pipeline, pattern, nfc=nfc)
    return pipeline


def split_words(path: Path, pipeline: Tokenizer, pattern: str, *, nfc: bool = False, prefix: bool = False) -> None:
    """Have the pipeline split texts by a pattern, and take the bytes of each word. ``prefix``: with a space before the
    text."""
    if nfc:
        pipeline.normalizer = normalizers.NFC()
    steps = [
        build(path, pre_tokenizers.Split, build(path, Regex, pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
    ]
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(steps)
    pipeline.decoder = decoders.ByteLevel()


def named_ids(tokens: Iterable[str], first: int = 0) -> dict[str, int]:
    """Return the ids of tokens that follow one another."""
    return {token: first + i for i, token in enumerate(tokens)}
