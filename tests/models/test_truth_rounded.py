"""bfloat16 against transformers, int8 and int4 against the same mathematics in NumPy on the same quantized weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latent_variants import REPEATED
from numpy.typing import NDArray
from numpy_decoder import NumpyDecoder, round_to_bfloat16
from small_models import JUDGED, VARIANTS, Config, checkpoint_of, make_folder, prompt, run_rows
from transformers_reference import load_reference, reference_logits

from dragoman import kernels, models
from dragoman.models.families import read_spec
from dragoman.models.model import Model
from dragoman.models.parameters import parameters
from dragoman.models.settings import Precision

Array = NDArray[Any]

STEP = 1 if os.environ.get("DRAGOMAN_THOROUGH") else 4
"""Of the variants at bfloat16 and int4, each one of so many is a test; of those that repeat others, none."""


def loaded(folder: Path, precision: Precision) -> Model:
    return models.load(folder, models.ModelSettings(precision=precision, max_tokens=256, max_logit_rows=256))


def rms(x: Array) -> float:
    return float(np.sqrt(np.square(x.astype(np.float64)).mean()))


def median_rms(rows: Array) -> float:
    return float(np.median([rms(row) for row in rows]))


@pytest.mark.parametrize("config", list(JUDGED.values())[::STEP], ids=list(JUDGED)[::STEP])
def test_bfloat16_errs_no_more_than_transformers_in_bfloat16(config: Config, tmp_path: Path) -> None:
    """The yardstick is the same (bfloat16) weights computed in float32.

    Rounding to bfloat16 errs by up to 2⁻⁹ of a number. Here the inputs of products, keys and values are rounded, in
    transformers every intermediate result besides. So its error on the same weights bounds ours, and 2 % of the logits'
    size (some fifty roundings, whose squares add up) bounds both. Between two experts that are nearly equal to a router
    any rounding may decide, here and in transformers, and such a row is another, as are those after it that see its
    keys and values: of a mixture the median row of several prompts counts.
    """
    folder = make_folder(tmp_path, config, "BF16")
    mixture = read_spec(config).experts is not None
    prompts = [
        prompt(config["vocab_size"], length=20 if mixture else 100, seed=seed) for seed in range(8 if mixture else 1)
    ]
    model, reference, rounded_reference = (
        loaded(folder, "bfloat16"),
        load_reference(folder),
        load_reference(folder, "bfloat16"),
    )
    exact = np.concatenate([reference_logits(reference, ids) for ids in prompts])
    theirs = np.concatenate([reference_logits(rounded_reference, ids) for ids in prompts])
    ours = np.concatenate([run_rows(model, ids) for ids in prompts])
    size = median_rms if mixture else rms
    assert size(ours - exact) <= size(theirs - exact)
    assert size(ours - theirs) <= 2 * size(theirs - exact)
    assert size(ours - exact) <= 0.02 * size(exact)


def round_to_int8(x: Array) -> Array:
    """Spans of 128 as whole multiples of their largest magnitude / 127."""
    rows, width = x.shape
    padded = np.zeros((rows, -(-width // 128) * 128), np.float32)
    padded[:, :width] = x
    groups = padded.reshape(rows, -1, 128)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    counts = np.rint(groups * inverse)
    rounded: Array = (counts * scale).reshape(rows, -1)[:, :width]
    return rounded


def rounded_cases() -> list[Any]:
    """Every second variant at int8, every fourth one at the other precisions; with DRAGOMAN_THOROUGH all at all."""
    return [
        pytest.param(config, precision, id=f"{name}-{precision}")
        for place, (name, config) in enumerate(JUDGED.items())
        for precision in ("bfloat16", "int8", "int4")
        if STEP == 1 or (place % (2 if precision == "int8" else STEP) == 0 and name not in REPEATED)
    ]


@pytest.mark.parametrize(("config", "precision"), rounded_cases())
def test_rounded_model_equals_numpy_on_the_same_rounded_weights(
    config: Config, precision: Precision, tmp_path: Path
) -> None:
    """Sums are taken in another order, so numbers differ by float32 rounding, until that moves one of them across the
    middle between two steps of a rounded format. From there on the two go different ways, by the effect of one step.

    A short prompt rounds some ten thousand numbers, and one in 10⁵ falls that close: most prompts meet no such case and
    must agree to 10⁻⁵ of the largest logit, the others to 5 % (one step moves a logit of these models by 1 to 4 %), and
    one in ten, which may meet two such cases, to 6 %, and one in fifty, which may meet three, to 10 %. A wrong scale,
    rounding or group moves every prompt.
    In a mixture one step may also decide which of two experts is chosen: in one prompt of ten, it may do anything.
    """
    assert_equals_numpy(loaded(make_folder(tmp_path, config, "BF16"), precision), precision)


def assert_equals_numpy(model: Model, precision: Precision) -> None:
    """As the test above says."""
    weights = {
        name: value.dequantize() if isinstance(value, kernels.PackedMatrix) else np.asarray(value)
        for name, value in model.weights.items()
    }
    round_input = round_to_bfloat16 if precision == "bfloat16" else round_to_int8
    # AVX-512 and AMX multiply two bfloat16; the other kernels widen keys and values and leave the rest in float32.
    round_query = round_to_bfloat16 if kernels.instruction_set() in ("amx", "avx512") else np.asarray
    judge = NumpyDecoder(model.config, weights, round_input, round_to_bfloat16, round_query, rounded=True)
    errors = []
    for seed in range(48):
        ids = prompt(model.config.vocab_size, length=5, seed=seed)
        expected = judge.logits(ids)
        errors.append(np.abs(run_rows(model, ids) - expected).max() / np.abs(expected).max())
    assert np.median(errors) <= 1e-5
    assert np.quantile(errors, 0.9) <= 5e-2
    if model.config.experts is None:
        assert np.quantile(errors, 0.98, method="lower") <= 6e-2
        assert max(errors) <= 0.1


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantized_weights_are_near_the_stored_ones(precision: Precision, tmp_path: Path) -> None:
    """Half a step of 1/127 of a group's largest weight at int8, half of the table's widest step at int4; scales are
    rounded to fp16, and at int4 may cut off a sixth of the largest weight.

    In an int4 model the tables stay at int8.
    """
    folder = make_folder(tmp_path, VARIANTS["llama"], "F32")
    model, checkpoint = loaded(folder, precision), checkpoint_of(folder)
    for parameter in (p for p in parameters(checkpoint.spec) if p.matrix):
        table = parameter.module in ("embedding", "head")
        stored, packed = checkpoint.read(parameter), model.weights.matrix(parameter.module, parameter.layer)
        assert packed.precision == ("int8" if table or precision == "int8" else "iq4_nl")
        step = 1 / 226 if packed.precision == "int8" else 1 / 6
        assert np.abs(packed.dequantize() - stored).max() <= step * np.abs(stored).max()
