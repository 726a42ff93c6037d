"""Comparison of a model with transformers, where that is installed: tokens, rendered prompts and logits.

transformers runs in a separate process (``transformers_reference.py``): it takes seconds to import and gigabytes of
memory, and the rest of this program must not depend on it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.cli import console
from dragoman.cli.checkpoint_lint import Examination
from dragoman.core.errors import DragomanError, ModelError
from dragoman.core.request import ChatPrompt
from dragoman.models import ModelDescription, ModelSettings, load
from dragoman.models.batch import Batch, rows_of_slot
from dragoman.models.parameters import parameter_count
from dragoman.text.chat_template import ChatTemplate
from dragoman.text.tokenizer import Tokenizer

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two spaces, a\ttab,\n\nnew lines",
    "Ünïcödé, 東京, Привет, 🙂👩‍👩‍👧, 3.14159, x_1 != y²",
    "def f(x):\n    return {'a': [x ** 2, None]}",
)
MESSAGES = (
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
)
TOLERANCE = 1e-3
"""The largest accepted difference between two logits, relative to the largest logit: both sides compute in float32."""

_TIME_S = 600.0
_BYTES_PER_PARAMETER = 4


class Comparison(msgspec.Struct):
    """Rows of the comparison. ``differs``: the two sides disagree in one of them."""

    rows: dict[str, str] = msgspec.field(default_factory=dict)
    differs: bool = False

    def note(self, name: str, agrees: bool, text: str) -> None:
        self.rows[name] = text
        self.differs = self.differs or not agrees


def has_witness() -> bool:
    """Return whether transformers and PyTorch are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("transformers", "torch"))


def compare(found: Examination) -> Comparison:
    """Compare an examined model with transformers. What transformers cannot load is reported, and is no difference."""
    described, tokenizer = found.described, found.tokenizer
    assert described is not None
    assert tokenizer is not None
    comparison = Comparison()
    enough, needed = _has_memory(described)
    if not enough:
        comparison.rows["logits"] = f"not compared: two copies in float32 take {needed}"
    try:
        theirs = _ask_witness(described, tokenizer, with_logits=enough)
    except DragomanError as error:
        comparison.rows["transformers"] = error.message
        return comparison
    _compare_tokens(theirs, tokenizer, comparison)
    _compare_chats(theirs, described, tokenizer, comparison)
    if "logits" in theirs:
        _compare_logits(theirs, described, comparison)
    elif enough:
        comparison.rows["logits"] = f"not compared: {theirs['failures'].get('logits', 'unknown')}"
    return comparison


def _compare_tokens(theirs: dict[str, Any], tokenizer: Tokenizer, comparison: Comparison) -> None:
    if "token_ids" not in theirs:
        comparison.rows["token ids"] = f"not compared: {theirs['failures'].get('token_ids', 'unknown')}"
        return
    for text, ids in zip(TEXTS, theirs["token_ids"], strict=True):
        ours = list(tokenizer.encode(text))
        if ours != ids:
            comparison.note("token ids", False, f"differ for {text!r}: {ours} here, {ids} there")
            return
    comparison.note("token ids", True, f"equal for {len(TEXTS)} texts")


def _compare_chats(
    theirs: dict[str, Any], described: ModelDescription, tokenizer: Tokenizer, comparison: Comparison
) -> None:
    if theirs.get("chat") is None:
        if "chat" in theirs["failures"]:
            comparison.rows["chats"] = f"not compared: {theirs['failures']['chat']}"
        return
    template = ChatTemplate.load(described.tokenizer_folder, tokenizer.special_tokens)
    try:
        ours = template.render(ChatPrompt(messages=MESSAGES))
    finally:
        template.close()
    if ours == theirs["chat"]:
        comparison.note("chats", True, "rendered to the same text")
    else:
        comparison.note("chats", False, f"rendered to {ours!r} here, {theirs['chat']!r} there")


def _compare_logits(theirs: dict[str, Any], described: ModelDescription, comparison: Comparison) -> None:
    ours = _logits(described, theirs["encoder_ids"], theirs["logit_ids"])
    expected = np.array(theirs["logits"], np.float32)
    difference = float(np.abs(ours - expected).max() / np.abs(expected).max())
    same = int((ours.argmax(1) == expected.argmax(1)).sum())
    agrees = difference <= TOLERANCE
    told = (
        f"differ by at most {difference:.1e} of the largest, the most likely token is the same at {same} of {len(ours)}"
    )
    comparison.note("logits", agrees, told if agrees else f"{told}: more than rounding explains")


def _logits(described: ModelDescription, encoder_ids: list[int] | None, ids: list[int]) -> NDArray[np.float32]:
    """Return the logits of every position of ``ids``, after the encoder's input where the model has an encoder, in
    float32."""
    source = described.source
    settings = ModelSettings(
        precision="float32",
        revision=source.revision,
        max_context=min(described.spec.context, 256),
        max_sequences=1,
        cache_bytes=0,
    )
    model = load(source.gguf[0] if source.gguf else source.repository or source.folder, settings)
    # The first half of the blocks is the encoder's.
    before, behind = np.array_split(np.arange(model.num_blocks, dtype=np.int32), 2)
    batch = _one_sequence(ids, behind if encoder_ids else np.concatenate([before, behind]))
    if model.num_states:
        batch = batch._replace(state_slots=np.zeros(1, np.int32), state_rows=rows_of_slot(len(ids), 0))
    if encoder_ids:
        model.encode(_one_sequence(encoder_ids, before)._replace(logit_rows=np.array([], np.int32)))
        lengths = np.array([len(encoder_ids)], np.int32)
        batch = batch._replace(encoder_tables=before[None], encoder_lengths=lengths)
    return np.array(model.run(batch))


def _one_sequence(ids: list[int], blocks: NDArray[np.int32]) -> Batch:
    rows = np.arange(len(ids), dtype=np.int32)
    return Batch(np.array(ids, np.int32), rows, np.array([0, len(ids)], np.int32), blocks[None], rows)


def _has_memory(described: ModelDescription) -> tuple[bool, str]:
    from dragoman.models import available_memory

    needed = 2 * _BYTES_PER_PARAMETER * parameter_count(described.spec)
    return needed < 0.8 * available_memory(), console.size(needed)


def _ask_witness(described: ModelDescription, tokenizer: Tokenizer, *, with_logits: bool) -> dict[str, Any]:
    """Return transformers' results for the same files. Raises ModelError with its last line of output where it fails
    as a whole."""
    gguf = described.source.gguf
    asked = {
        "folder": str(gguf[0].parent if gguf else described.source.folder),
        "gguf_file": gguf[0].name if gguf else None,
        "texts": TEXTS,
        "messages": MESSAGES,
        **(_ids_to_run(described, tokenizer) if with_logits else {"encoder_ids": None, "logit_ids": None}),
    }
    script = Path(__file__).with_name("transformers_reference.py")
    try:
        done = subprocess.run(
            [sys.executable, str(script)], input=json.dumps(asked), capture_output=True, text=True, timeout=_TIME_S
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"gave no answer in {_TIME_S:.0f} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        raise ModelError(f"cannot be asked: {last[0][:500]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _ids_to_run(described: ModelDescription, tokenizer: Tokenizer) -> dict[str, list[int] | None]:
    """Return a short prompt of the model's own tokens; for an encoder-decoder model an input, and the beginning of
    its answer."""
    ids = [i for text in TEXTS for i in tokenizer.encode(text) if i < described.spec.vocab_size][:48] or [0]
    if described.encoder is None:
        return {"encoder_ids": None, "logit_ids": ids}
    return {"encoder_ids": ids, "logit_ids": [described.encoder.start_token_id, *ids[:15]]}
