"""The details of models, read from their small files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dragoman.models import describe
from dragoman.models.source import embedded_path
from dragoman.serving.model_details import details_of

KINDS = (
    ("BPE", False, "gpt2"),
    ("BPE", True, "llama"),
    ("WordPiece", None, "bert"),
    ("Unigram", None, "t5"),
    ("WordLevel", None, ""),
)


@pytest.mark.parametrize(("kind", "byte_fallback", "name"), KINDS)
def test_a_tokenizer_has_ggufs_name(kind: str, byte_fallback: bool | None, name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(embedded_path(), tmp_path / "model"))
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"] |= {"type": kind, "byte_fallback": byte_fallback}
    file.write_text(json.dumps(content))
    assert details_of(describe(str(folder))).tokenizer == name


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, '{"model": 1, "added_tokens": {}}'])
def test_a_tokenizer_that_cannot_be_read_has_none(content: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(embedded_path(), tmp_path / "model"))
    (folder / "tokenizer.json").write_text(content)
    found = details_of(describe(str(folder)))
    assert (found.tokenizer, found.fill) == ("", False)
