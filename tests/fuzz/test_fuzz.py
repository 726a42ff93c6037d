"""``make fuzz`` in short: some hundred files changed at random, and that what may not come out would be seen."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dragoman.core.errors import BadRequest, ModelError, UnsupportedFeature
from dragoman.text import Tokenizer
from tests.fuzz import readers
from tests.fuzz.json_mutation import mutate_json
from tests.fuzz.mutations import run_mutations


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", sorted(set(readers.READERS) - {"tokenizer"}))  # whose seeds take a second to train
def test_only_documented_errors_come_out_of_a_reader(name: str) -> None:
    assert not run_mutations(name, 40)


def test_another_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes) -> None:
        if b"junk" in data:
            raise KeyError("x")

    reader = readers.Reader(read, lambda: iter([b'["junk"]']), is_json=True)
    monkeypatch.setitem(readers.READERS, "planted", reader)
    assert any("KeyError" in found for found in run_mutations("planted", 20))


def test_changed_json_is_json() -> None:
    (seed,) = readers._safetensors_headers()
    changed = {mutate_json(seed, random.Random(number)) for number in range(100)}
    assert len(changed) > 50
    for each in changed:
        json.loads(each)


def test_a_tokenizer_that_the_library_cannot_write_again_says_so(tmp_path: Path) -> None:
    document = json.loads(readers._tokenizer())
    vocabulary = document["model"]["vocab"]
    vocabulary["t"] = vocabulary["h"]  # of the two only one is written, and the merge needs both
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer.load(tmp_path)
    for _ in range(2):
        with pytest.raises(UnsupportedFeature, match=r"tokenizer\.json cannot"):
            tokenizer.encode("the", parse_special=False)


def test_text_without_a_token_is_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"the": 0}}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the") == (0,)
    for encode in (tokenizer.encode, tokenizer.encode_with_offsets):
        with pytest.raises(BadRequest, match="cannot read the text"):
            encode("dragoman")
    with pytest.raises(BadRequest, match="cannot read the text"):
        tokenizer.encode("dragoman" * 50_000, max_tokens=150_000)


def test_a_panic_of_the_library_is_an_error_like_others(tmp_path: Path) -> None:
    document = json.loads(readers._tokenizer())
    piece = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [piece, sequence], "pair": [], "special_tokens": {}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document | {"post_processor": template}))
    with pytest.raises((BadRequest, ModelError)):
        Tokenizer.load(tmp_path).encode("the")


def test_a_vocabulary_of_far_ids_is_refused_at_once(tmp_path: Path) -> None:
    document = json.loads(readers._tokenizer())
    document["model"]["vocab"]["far"] = 2**31
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(UnsupportedFeature, match=r"ids up to 2147483648 for \d+ tokens"):
        tokenizer.encode("the", parse_special=False)
