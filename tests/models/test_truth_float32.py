"""In float32 every family computes what transformers computes from the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_models import JUDGED, SCALED, VARIANTS, Config, make_folder, prompt, run_greedy, run_rows
from transformers_reference import (
    assert_close,
    load_reference,
    reference_confirms,
    reference_decode,
    reference_greedy,
    reference_logits,
)

from dragoman import models

SETTINGS = models.ModelSettings(precision="float32", max_tokens=256, max_logit_rows=256, max_sequences=1)


@pytest.mark.parametrize("config", JUDGED.values(), ids=JUDGED)
def test_logits_and_greedy_continuation_equal_transformers(config: Config, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, config)
    theirs, ours = load_reference(folder), models.load(folder, SETTINGS)
    ids = prompt(config["vocab_size"])
    expected = reference_confirms(theirs, ids, run_greedy(ours, ids, 64))
    assert_close(run_rows(ours, ids), expected, 1e-4)


@pytest.mark.parametrize("config", SCALED.values(), ids=SCALED)
def test_rope_scaling_equals_transformers_beyond_the_original_context(config: Config, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, config)
    theirs, ours = load_reference(folder), models.load(folder, SETTINGS)
    assert ours.max_context == 256
    ids = prompt(
        config["vocab_size"], length=20
    )  # within the original context, so that dynamic scaling starts behind it
    continuation = run_greedy(ours, ids, 64)
    assert continuation == reference_greedy(theirs, ids, 64)
    if "dynamic" not in (config["rope_scaling"].get("type"), config["rope_scaling"].get("rope_type")):
        ids = prompt(config["vocab_size"], length=200)
        assert_close(run_rows(ours, ids), reference_logits(theirs, ids), 1e-4)


def test_dynamic_scaling_equals_transformers_decoding_token_by_token(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, SCALED["dynamic"])
    theirs, ours = load_reference(folder), models.load(folder, SETTINGS)
    ids = prompt(131, length=200)
    assert_close(run_rows(ours, ids), reference_decode(theirs, ids), 1e-4)


@pytest.mark.parametrize("name", ["mistral-window", "qwen2-window"])
def test_sliding_window_hides_what_lies_before_it(name: str, tmp_path: Path) -> None:
    """Three windows of 20 reach 57 tokens back: what lies before changes nothing, unless one layer sees all."""
    folder = make_folder(tmp_path, VARIANTS[name])
    ours = models.load(folder, SETTINGS)
    ids = prompt(131, length=100)
    changed = ids.copy()
    changed[10] = (changed[10] + 1) % 131
    before, after = run_rows(ours, ids), run_rows(ours, changed)
    assert (before[10:30] != after[10:30]).any()
    assert (before[70:] == after[70:]).all() == (name == "mistral-window")


def test_chunked_prompt_gives_the_same_bits(tmp_path: Path) -> None:
    ours = models.load(make_folder(tmp_path, VARIANTS["qwen2-window"]), SETTINGS)
    ids = prompt(131, length=90)
    whole = run_rows(ours, ids)
    for cuts in ([1], [31, 32, 33], [7, 64], list(range(1, 90))):
        parts = [run_rows(ours, part, start) for start, part in zip([0, *cuts], np.split(ids, cuts), strict=True)]
        assert (np.concatenate(parts) == whole).all()
