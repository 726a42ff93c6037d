"""The NumPy decoder that judges the quantized models is itself judged by transformers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from newcomer_variants import RARELY_JUDGED
from numpy_decoder import NumpyDecoder
from small_models import VARIANTS, Config, checkpoint_of, make_folder, prompt
from transformers_reference import assert_close, load_reference, reference_logits

from dragoman.models.parameters import parameters

STEP = 1 if os.environ.get("DRAGOMAN_THOROUGH") else 2


NAMES = [name for name in VARIANTS if STEP == 1 or name not in RARELY_JUDGED][::STEP]


@pytest.mark.parametrize("config", [VARIANTS[name] for name in NAMES], ids=NAMES)
def test_numpy_decoder_equals_transformers(config: Config, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, config)
    checkpoint = checkpoint_of(folder)
    weights = {parameter.name: checkpoint.read(parameter) for parameter in parameters(checkpoint.spec)}
    ids = prompt(config["vocab_size"])
    spec = checkpoint.spec.served_within(checkpoint.spec.context)
    ours = NumpyDecoder(spec, weights).logits(ids)
    assert_close(ours, reference_logits(load_reference(folder), ids), 1e-4)
