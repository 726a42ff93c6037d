"""Tokenizer files of a model folder: which ones are read, and what each defines.

``tokenizer.json`` holds the pipeline; without one, a vocabulary in another form (``vocabularies``).
``tokenizer_config.json``, or in older folders ``special_tokens_map.json``, names the special tokens. ``config.json``
and ``generation_config.json`` list the ids that end a generation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from dragoman.core.errors import ModelError
from dragoman.core.stand_ins import broken_link_problem, stand_in_problem
from dragoman.text import vocabularies
from dragoman.text.vocabularies.folder import FolderSettings, Vocabulary, call_library, token_text

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Most files have the key without a prefix. An escape that could spell the key in another way is checked as well.
_SUBWORD_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*(?!\s|null|"")|\\u00[567]')


class TokenizerFiles(NamedTuple):
    """Content of one folder's files. ``decoder`` is the pipeline's own, as plain data; None: there is none."""

    pipeline: Tokenizer
    decoder: Mapping[str, Any] | None
    special_tokens: Mapping[str, str]
    eos_ids: tuple[int, ...]
    fill_tokens: Mapping[str, int] = {}
    """Ids of fill-in-the-middle marks that a GGUF file names, by ``fim.FILE_MARKS``."""


def parse_pipeline(document: bytes) -> Tokenizer:
    """Return the pipeline of a ``tokenizer.json``. Raises an Exception for an invalid one.

    Where a merge does not begin with the model's prefix of later subwords the library cuts through a character, and
    aborts the process: such a document is refused before.
    """
    if _SUBWORD_PREFIX.search(document):
        json.loads(document, object_pairs_hook=_checked_object)
    return call_library(Tokenizer.from_buffer, document)


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises ValueError for a BPE model whose merges do not fit its prefix."""
    found = dict(pairs)
    prefix, merges = found.get("continuing_subword_prefix"), found.get("merges")
    if isinstance(prefix, str) and isinstance(merges, list):
        for merge in merges:
            parts = merge.split(" ") if isinstance(merge, str) else merge
            later = parts[-1] if isinstance(parts, list) and parts else None
            if isinstance(later, str) and not later.startswith(prefix):
                raise ValueError(f"the merge {merge!r:.200} does not fit continuing_subword_prefix {prefix!r:.100}")
    return found


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read a model folder. Raises ModelError that names the wrong file, or what to do when one is missing."""
    settings = _read_object(folder / "tokenizer_config.json")
    legacy = {} if "added_tokens_decoder" in settings else _read_object(folder / "special_tokens_map.json")
    named = {**settings, **legacy}
    try:
        declared = settings.get("added_tokens_decoder") or _older_added_tokens(folder, settings)
        texts = {int(token_id): str(token["content"]) for token_id, token in declared.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / 'tokenizer_config.json'}: {error}") from error
    vocabulary = _read_pipeline(folder, named, texts)
    pipeline, named = vocabulary.pipeline, {**vocabulary.names, **named}
    pipeline.no_truncation()
    pipeline.no_padding()
    tokens = _named_tokens(named)
    special_tokens = {name: text for name, token in tokens.items() if (text := token_text(token))}
    try:
        if vocabulary.finds_added_as_written:
            declared = {token_id: {**token, "normalized": False} for token_id, token in declared.items()}
        _add_declared_tokens(pipeline, declared)
        others = named.get("additional_special_tokens") or named.get("extra_special_tokens") or ()
        extra = others if isinstance(others, list) else ()
        of_text = {token["content"]: token for token in declared.values()}
        pipeline.add_special_tokens([_added(each, of_text) for each in (*tokens.values(), *extra) if token_text(each)])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / 'tokenizer_config.json'}: {error}") from error
    vocabulary.finish()
    decoder = None if pipeline.decoder is None else json.loads(pipeline.decoder.__getstate__())
    fill = settings.get("fill_tokens") or {}
    if not isinstance(fill, dict) or not all(type(each) is int and 0 <= each < 2**32 for each in fill.values()):
        raise ModelError(f"{folder / 'tokenizer_config.json'}: fill_tokens must be token ids by their marks")
    fill = {mark: token_id for mark, token_id in fill.items() if pipeline.id_to_token(token_id) is not None}
    return TokenizerFiles(pipeline, decoder, special_tokens, tuple(dict.fromkeys(_eos_ids(folder))), fill)


def _read_pipeline(folder: Path, named: Mapping[str, Any], declared: Mapping[int, str]) -> Vocabulary:
    path = folder / "tokenizer.json"
    if problem := broken_link_problem(path):
        raise ModelError(problem)
    if not path.is_file():
        family = str(_read_object(folder / "config.json").get("model_type") or "")
        return vocabularies.read_vocabulary(FolderSettings(folder, named, declared, family))
    document = path.read_bytes()
    if problem := stand_in_problem(path, document):
        raise ModelError(problem)
    try:
        return Vocabulary(parse_pipeline(document))
    except Exception as error:  # the library raises plain Exception for every malformed file
        newer = "untagged enum" in str(error)  # the library's words for a part that it does not know
        hint = "; a newer release of the library may know it: pip install --upgrade tokenizers" if newer else ""
        raise ModelError(f"{path}: not a tokenizer that can be read: {error}{hint}") from error


def _named_tokens(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special tokens by the names that chat templates use: the usual ones, and those of the model alone,
    such as ``image_token``."""
    own = named.get("extra_special_tokens")
    found = {**named, **own} if isinstance(own, Mapping) else named
    others = sorted(name for name in found if str(name).endswith("_token") and name not in SPECIAL_TOKEN_NAMES)
    return {name: found[name] for name in (*SPECIAL_TOKEN_NAMES, *others) if token_text(found.get(name))}


def _older_added_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what older folders have in place of ``added_tokens_decoder``."""
    if "added_tokens_decoder" in settings:
        return {}
    ids = _read_object(folder / "added_tokens.json")
    return {str(token_id): {"content": text} for text, token_id in ids.items()}


def _add_declared_tokens(pipeline: Tokenizer, declared: Mapping[str, Mapping[str, Any]]) -> None:
    """Add tokens that only ``tokenizer_config.json`` has, which must get the ids it states. It also says of those that
    the pipeline has which spaces around them they take."""
    known = pipeline.get_added_tokens_decoder()
    wanted = []
    for token_id, token in sorted((int(token_id), token) for token_id, token in declared.items()):
        if token_id in known and (known[token_id].content != token["content"] or "lstrip" not in token):
            continue
        wanted.append((token_id, AddedToken(**token)))
    # All at once: each call prepares the search for all tokens anew.
    pipeline.add_tokens([added for _, added in wanted])
    for token_id, added in wanted:
        if pipeline.token_to_id(added.content) != token_id:
            raise ValueError(f"the added token {added.content!r} cannot have the id {token_id}")


def _added(token: object, declared: Mapping[str, Mapping[str, Any]]) -> AddedToken:
    """Return a special token. Which spaces around it it takes is what is ``declared`` of its text; what stands beside
    its name has no effect, as in transformers."""
    text = str(token_text(token))
    options = declared.get(text, {})
    spaces = {name: bool(options.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized")}
    return AddedToken(text, special=True, **spaces)


def _eos_ids(folder: Path) -> Iterator[int]:
    for name in ("generation_config.json", "config.json"):
        ids = _read_object(folder / name).get("eos_token_id")
        for token_id in ids if isinstance(ids, list) else [ids]:
            if token_id is None:
                continue
            if not isinstance(token_id, int) or token_id < 0:
                raise ModelError(f"{folder / name}: eos_token_id {token_id!r} is not a token id")
            yield token_id


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value
