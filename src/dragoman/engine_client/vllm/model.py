"""The model of a vLLM server, as the files of its tokenizer and its config describe it here: weights are not needed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec

from dragoman.core.errors import ModelError
from dragoman.core.vocabulary_files import VOCABULARY_FILES, VOCABULARY_PAIR
from dragoman.models.config import read_json, token_ids
from dragoman.models.source import find_source

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_DESCRIBING = ("config.json", "generation_config.json", "tokenizer.json", *VOCABULARY_PAIR, *VOCABULARY_FILES)


class RemoteModel(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a model that runs elsewhere.

    Attributes:
        name: the user's name for it. names: those under which a vLLM server may list it.
        folder: holds the tokenizer's files.
        context_tokens: longest context that its config allows; None where that follows from more than one value.
        digest: of the files in the folder.
    """

    name: str
    names: frozenset[str]
    folder: Path
    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    context_tokens: int | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    digest: str

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder


def describe_remote(source: str, *, revision: str | None, token: str | None, name: str | None = None) -> RemoteModel:
    """Describe a model from its config. ``name``: what the vLLM servers call it; by default as it is called here.

    Raises ModelError where there are no such files, or the config says no sizes.
    """
    found = find_source(source, revision=revision, token=token)
    config = read_json(found.folder / "config.json")
    text = config.get("text_config")
    sizes = {**config, **text} if isinstance(text, dict) else config
    generation_file = found.folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    bos = token_ids(generation, "bos_token_id") or token_ids(sizes, "bos_token_id")
    architectures = config.get("architectures")
    dtype = sizes.get("dtype") or sizes.get("torch_dtype")
    digest = hashlib.blake2b(digest_size=8)
    for file in _DESCRIBING:
        path = found.folder / file
        digest.update(path.read_bytes() if path.is_file() else b"")
    return RemoteModel(
        name=found.name,
        names=frozenset([name] if name else {str(source), found.name, str(found.folder)}),
        folder=found.folder,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "unknown",
        dtype=dtype if isinstance(dtype, str) else "auto",
        vocab_size=_size(found.folder, sizes, "vocab_size"),
        hidden_size=_size(found.folder, sizes, "hidden_size", "n_embd", "d_model"),
        context_tokens=_longest_context(sizes),
        eos_token_ids=token_ids(generation, "eos_token_id") or token_ids(sizes, "eos_token_id"),
        bos_token_id=bos[0] if bos else None,
        digest=digest.hexdigest(),
    )


def _size(folder: Path, config: dict[str, object], *keys: str) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise ModelError(f"{folder / 'config.json'} has no {keys[0]}: {json.dumps(config, default=str)[:80]}")


def _longest_context(config: dict[str, object]) -> int | None:
    """Return the longest context; None where a scaling of the positions makes it longer than the config's number."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    if kind not in (None, "default", "llama3"):
        return None
    lengths = [value for key in _CONTEXT_KEYS if isinstance(value := config.get(key), int)]
    return max(lengths, default=None)
