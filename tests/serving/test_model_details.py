"""The details of models, read from their small files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dragoman.models import describe
from dragoman.models.source import embedded_path
from dragoman.serving.model_details import details_of

PIECES = Path(__file__).parents[1] / "text" / "sentencepiece_models"
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


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("tokenizer.model", (PIECES / "merges.model").read_bytes(), "llama"),
        ("spiece.model", (PIECES / "unigram.model").read_bytes(), "t5"),
        ("tokenizer.model", b"YQ== 0\n", "gpt2"),
        ("qwen.tiktoken", b"YQ== 0\n", "gpt2"),
        ("tekken.json", b"{}", "gpt2"),
        ("vocab.txt", b"[UNK]\n", "bert"),
        ("tokenizer.model", b"\x0a", "llama"),
    ],
)
def test_vocabularies_in_other_forms_have_their_kinds(name: str, content: bytes, kind: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(embedded_path(), tmp_path / "model"))
    (folder / "tokenizer.json").unlink()
    (folder / name).write_bytes(content)
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    added = {str(4000 + i): {"content": mark} for i, mark in enumerate(marks)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    found = details_of(describe(str(folder)))
    assert (found.tokenizer, found.fill) == (kind, True)
