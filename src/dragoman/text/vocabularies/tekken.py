"""Mistral's ``tekken.json``: the bytes of each token, the pattern that splits texts, and the special tokens, whose ids
come before all others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from tokenizers import AddedToken

from dragoman.core.errors import ModelError
from dragoman.text.vocabularies.byte_ranks import byte_level_pipeline, named_ids
from dragoman.text.vocabularies.folder import MOST_TOKENS, FolderSettings, Vocabulary, check_added

_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# Those of files that do not list them: the first ones that were published.
_FIRST_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _Token(msgspec.Struct, frozen=True, gc=False):
    token_bytes: bytes  # in base64
    rank: _Count | None = None


class _Special(msgspec.Struct, frozen=True, gc=False):
    rank: _Count
    token_str: Annotated[str, msgspec.Meta(min_length=1)]


class _Config(msgspec.Struct, frozen=True):
    pattern: str
    default_vocab_size: _Count | None = None
    default_num_special_tokens: _Count | None = None


class _File(msgspec.Struct, frozen=True):
    config: _Config
    vocab: Annotated[list[_Token], msgspec.Meta(max_length=MOST_TOKENS)]
    special_tokens: list[_Special] | None = None


def read_tekken(path: Path, data: bytes, settings: FolderSettings) -> Vocabulary:
    """Return the pipeline of a file. Raises ModelError that names it."""
    try:
        content = msgspec.json.decode(data, type=_File)
        given = len(content.special_tokens or ())
        check_added(path, max(given, content.config.default_num_special_tokens or 0))
        specials = _specials(content.special_tokens, content.config.default_num_special_tokens)
        tokens = _tokens(content.vocab, content.config.default_vocab_size, len(specials))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from None
    pipeline = byte_level_pipeline(path, tokens, content.config.pattern, before=named_ids(specials))
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    names = {name: token for name, token in _NAMES.items() if token in specials}
    return Vocabulary(pipeline, names).surrounded(settings, adds_bos=True, adds_eos=False)


def _specials(stored: Sequence[_Special] | None, count: int | None) -> list[str]:
    """Return the special tokens by their ids, with names for those that are kept for later. Raises ValueError."""
    if stored is None:
        texts = list(_FIRST_SPECIALS)
    else:
        found = sorted(stored, key=lambda each: each.rank)
        if [each.rank for each in found] != list(range(len(found))):
            raise ValueError("special_tokens must have all ranks from 0 on")
        texts = [each.token_str for each in found]
    if count is not None and count < len(texts):
        raise ValueError(f"default_num_special_tokens {count} is less than the {len(texts)} special_tokens")
    texts += [f"<SPECIAL_{i}>" for i in range(len(texts), len(texts) if count is None else count)]
    if len(set(texts)) != len(texts):
        raise ValueError("two special tokens have the same text, or one that of a token that is kept for later")
    return texts


def _tokens(stored: Sequence[_Token], size: int | None, specials: int) -> list[bytes]:
    """Return the tokens by their ranks; those beyond the vocabulary's size are none of it. Raises ValueError."""
    most = None if size is None else size - specials
    if most is not None and most < 0:
        raise ValueError(f"default_vocab_size {size} is less than the {specials} special tokens")
    if most is not None and len(stored) < most:
        raise ValueError(f"vocab has {len(stored)} tokens, fewer than the {most} of default_vocab_size")
    for rank, token in enumerate(stored[:most]):
        if token.rank not in (None, rank):
            raise ValueError(f"token {rank} of vocab has the rank {token.rank}")
    return [token.token_bytes for token in stored[:most]]
