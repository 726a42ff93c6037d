"""``make fuzz`` in short: some hundred files changed at random, and that what may not come out would be seen."""

from __future__ import annotations

import json
import random
import subprocess
import sys
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


ESCAPED = "".join(f"\\u{ord(c):04x}" for c in "continuing_subword_prefix")


@pytest.mark.parametrize("merge", [["a", "é"], "a é", ["a", "通"]])
@pytest.mark.parametrize("key", ["continuing_subword_prefix", ESCAPED])
@pytest.mark.parametrize("where", ["only", "first of two"])
def test_merges_that_would_abort_the_process_are_refused(tmp_path: Path, merge: object, key: str, where: str) -> None:
    """In a process of its own: without the check it is the library's abort that ends it."""
    model = {"type": "BPE", key: "#", "vocab": {"a": 0, "é": 1, "通": 2}, "merges": [merge]}
    text = json.dumps({"version": "1.0", "added_tokens": [], "model": model}).replace("\\\\u", "\\u")
    if where == "first of two":  # the library reads both
        text = text[:-1] + ', "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
    (tmp_path / "tokenizer.json").write_text(text)
    assert "does not fit continuing_subword_prefix '#'" in _loaded_in_a_process(tmp_path)


def test_a_pipeline_written_again_is_checked_too(tmp_path: Path) -> None:
    """Of two tokens with one id the library writes either, and so another merge than it has read."""
    for tokens in ({"é": 1, "#b": 1}, {"#b": 1, "é": 1}):
        model = {"type": "BPE", "continuing_subword_prefix": "#", "merges": [["a", "#b"]]}
        vocabulary = {"a": 0, **tokens, "ab": 2}
        document = {"version": "1.0", "added_tokens": [], "model": model | {"vocab": vocabulary}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
        script = "t.encode('ab', parse_special=False)"
        outcomes = {_loaded_in_a_process(tmp_path, script) for _ in range(3)}
        assert all(found == "" or "does not fit" in found or "cannot take" in found for found in outcomes), outcomes


def test_merges_that_fit_their_prefix_load(tmp_path: Path) -> None:
    for merges in ([["a", "##é"]], ["a ##é"]):
        model = {"type": "BPE", "continuing_subword_prefix": "##", "vocab": {"a": 0, "##é": 1, "aé": 2}}
        document = {"version": "1.0", "added_tokens": [], "model": model | {"merges": merges}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
        assert Tokenizer.load(tmp_path).encode("aé") == (2,)


def _loaded_in_a_process(folder: Path, then: str = "") -> str:
    """Load the folder's tokenizer in another process. Returns the error's text, or nothing."""
    script = f"from dragoman.text import Tokenizer; t = Tokenizer.load({str(folder)!r}); {then}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return done.stderr if done.returncode else ""


def test_a_vocabulary_of_far_ids_is_refused_at_once(tmp_path: Path) -> None:
    document = json.loads(readers._tokenizer())
    document["model"]["vocab"]["far"] = 2**31
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(UnsupportedFeature, match=r"ids up to 2147483648 for \d+ tokens"):
        tokenizer.encode("the", parse_special=False)
