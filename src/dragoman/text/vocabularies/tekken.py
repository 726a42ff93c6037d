"""Mistral's ``tekken.json``: the bytes of each token, the pattern that splits texts, and the special tokens, whose ids
come before all others."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken

from dragoman.core.errors import ModelError
from dragoman.text.vocabularies.byte_ranks import MOST_TOKENS, byte_level_pipeline, named_ids
from dragoman.text.vocabularies.folder import FolderSettings, Vocabulary

_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# Those of files that do not list them: the first ones that were published.
_FIRST_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


def read_tekken(path: Path, data: bytes, settings: FolderSettings) -> Vocabulary:
    """Return the pipeline of a file. Raises ModelError that names it."""
    try:
        content = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from None
    config = content.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("pattern"), str):
        raise ModelError(f"{path}: config.pattern is missing")
    specials = _specials(path, content, config)
    size = _count(path, config, "default_vocab_size")
    if size is not None and size < len(specials):
        raise ModelError(f"{path}: default_vocab_size {size} is less than the {len(specials)} special tokens")
    tokens = _tokens(path, content.get("vocab"), None if size is None else size - len(specials))
    pipeline = byte_level_pipeline(path, tokens, config["pattern"], before=named_ids(specials))
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    names = {name: token for name, token in _NAMES.items() if token in specials}
    return Vocabulary(pipeline, names).surrounded(settings, adds_bos=True, adds_eos=False)


def _specials(path: Path, content: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the special tokens by their ids, with names for those that are kept for later."""
    stored = content.get("special_tokens")
    count = _count(path, config, "default_num_special_tokens")
    if stored is None:
        found = list(enumerate(_FIRST_SPECIALS))
    elif isinstance(stored, list) and all(isinstance(each, dict) for each in stored):
        found = [(each.get("rank"), each.get("token_str")) for each in stored]
    else:
        raise ModelError(f"{path}: special_tokens must be a list of objects")
    if not all(type(rank) is int and isinstance(text, str) and text for rank, text in found):
        raise ModelError(f"{path}: a special token has no rank or no token_str")
    found.sort()
    texts = [text for _, text in found]
    if [rank for rank, _ in found] != list(range(len(found))) or len(set(texts)) != len(texts):
        raise ModelError(f"{path}: special_tokens must have all ranks from 0 on, and different texts")
    if count is not None and count < len(texts):
        raise ModelError(f"{path}: default_num_special_tokens {count} is less than the {len(texts)} special_tokens")
    texts += [f"<SPECIAL_{i}>" for i in range(len(texts), len(texts) if count is None else count)]
    if len(set(texts)) != len(texts):
        raise ModelError(f"{path}: a special token has the name of one that is kept for later")
    return texts


def _tokens(path: Path, stored: Any, most: int | None) -> list[bytes]:
    if not isinstance(stored, list) or len(stored) > MOST_TOKENS:
        raise ModelError(f"{path}: vocab must be a list of at most {MOST_TOKENS:,} tokens")
    if most is not None and len(stored) < most:
        raise ModelError(f"{path}: vocab has {len(stored)} tokens, fewer than the {most} of default_vocab_size")
    tokens = []
    for rank, entry in enumerate(stored[:most]):
        try:
            if entry.get("rank", rank) != rank:
                raise ModelError(f"{path}: token {rank} of vocab has the rank {entry['rank']!r:.80}")
            tokens.append(base64.b64decode(entry["token_bytes"], validate=True))
        except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
            raise ModelError(f"{path}: token {rank} of vocab has no token_bytes in base64") from None
    return tokens


def _count(path: Path, config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= MOST_TOKENS):
        raise ModelError(f"{path}: config.{name} must be a number up to {MOST_TOKENS:,}")
    return value
