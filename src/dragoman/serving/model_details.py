"""Details of a model that its small files show, whether or not it is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman.core.catalog import ModelDetails
from dragoman.models import ModelDescription, gguf, parameter_count
from dragoman.text import vocabularies
from dragoman.text.chat_template import read_templates
from dragoman.text.fim import find_fill_tokens

_REASONING = ("<think>", "enable_thinking", "reasoning_content")
_LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
MOST_LICENSE_CHARS = 1 << 16


def details_of(description: ModelDescription) -> ModelDetails:
    """Return the details of a described model. Reads its tokenizer's files; raises ModelError for invalid ones."""
    spec, folder, is_gguf = description.spec, description.tokenizer_folder, bool(description.source.gguf)
    templates = read_templates(folder)
    source = templates.get("tool_use") or templates.get("default", "")
    metadata: Any = gguf.open_gguf(description.source.gguf).first.metadata if is_gguf else {}
    tokens = _tokenizer_file(folder)
    return ModelDetails(
        architecture=str(metadata["general.architecture"]) if is_gguf else spec.architecture,
        format="gguf" if is_gguf else "safetensors",
        stored_as=description.stored_as.removeprefix("GGUF "),
        parameters=parameter_count(spec),
        context_tokens=spec.context,
        hidden_size=spec.width,
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        vocab_size=spec.vocab_size,
        bos_token_id=description.bos_token_id,
        eos_token_ids=description.eos_token_ids,
        license=str(metadata.get("general.license", "")) or _license(folder),
        chat_template=source,
        tokenizer=str(metadata.get("tokenizer.ggml.model", ""))
        or _tokenizer(tokens.get("model"))
        or vocabularies.kind_of(folder),
        tools="tools" in source,
        reasoning=any(mark in source for mark in _REASONING),
        fill=_has_marks(tokens.get("added_tokens")),
    )


def _license(folder: Path) -> str:
    for name in _LICENSES:
        try:
            with (folder / name).open(errors="replace") as file:
                return file.read(MOST_LICENSE_CHARS)
        except OSError:
            continue
    return ""


def _tokenizer_file(folder: Path) -> dict[str, Any]:
    """Return what ``tokenizer.json`` says; without one, the tokens that ``tokenizer_config.json`` adds."""
    if (folder / "tokenizer.json").exists():
        return _object(folder / "tokenizer.json")
    declared = _object(folder / "tokenizer_config.json").get("added_tokens_decoder")
    tokens = declared.items() if isinstance(declared, dict) else ()
    return {"added_tokens": [{**token, "id": token_id} for token_id, token in tokens if isinstance(token, dict)]}


def _object(path: Path) -> dict[str, Any]:
    """Return the content of a file; nothing where it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tokenizer(model: Any) -> str:
    """Return the kind of a tokenizer by GGUF's names: merges with a token for each byte are SentencePiece's."""
    if not isinstance(model, dict):
        return ""
    merges = "llama" if model.get("byte_fallback") else "gpt2"
    return {"BPE": merges, "WordPiece": "bert", "Unigram": "t5"}.get(str(model.get("type")), "")


def _has_marks(added: Any) -> bool:
    """Return whether the added tokens of a tokenizer include the marks of gaps."""
    found: Iterable[Any] = added if isinstance(added, list) else ()
    ids = {str(each.get("content")): each.get("id") for each in found if isinstance(each, dict)}
    return find_fill_tokens(ids.get) is not None
