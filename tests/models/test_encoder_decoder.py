"""Encoder-decoder models compute what transformers computes from the same files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from encoder_decoders import VARIANTS, Driven, load_reference, make_folder, reference_greedy, reference_logits
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from small_models import prompt
from transformers_reference import assert_close

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.settings import Precision

VOCAB = 131


def loaded(folder: Path, precision: Precision = "float32", **settings: int) -> models.Model:
    limits = {"max_tokens": 64, "max_logit_rows": 64, "max_sequences": 2, "max_context": 192} | settings
    return models.load(folder, models.ModelSettings(precision=precision, **limits))


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_greedy_continuation_equal_transformers(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, name)
    theirs, ours = load_reference(folder), loaded(folder)
    for length in (1, 33, 150):  # one token; behind a whole block; beyond every exact distance of T5's, and a step
        inputs = prompt(VOCAB, length, seed=length)
        driven = Driven(ours, inputs)
        outputs = prompt(VOCAB, 45, seed=7)
        assert_close(driven.rows(outputs), reference_logits(theirs, inputs, outputs), 1e-4)
    assert driven.greedy(64) == reference_greedy(theirs, inputs, 64)


@pytest.mark.parametrize("name", ["t5", "t5-gated", "bart", "blenderbot", "blenderbot-small"])
def test_bfloat16_errs_no_more_than_transformers_in_bfloat16(name: str, tmp_path: Path) -> None:
    """As for decoders: the yardstick is the same (bfloat16) weights computed in float32."""
    folder = make_folder(tmp_path, name, "bfloat16")
    inputs, outputs = prompt(VOCAB, 70, seed=1), prompt(VOCAB, 40, seed=2)
    exact = reference_logits(load_reference(folder), inputs, outputs)
    theirs = reference_logits(load_reference(folder, "bfloat16"), inputs, outputs)
    ours = Driven(loaded(folder, "bfloat16"), inputs).rows(outputs)
    assert 0 < rms(ours - exact) <= rms(theirs - exact)


@pytest.mark.parametrize(("name", "most"), [("t5-gated", 0.25), ("bart", 0.05)])
def test_int8_errs_by_the_roundings_of_eight_bits(name: str, most: float, tmp_path: Path) -> None:
    """Weights err by 1/254 of the largest of their group, inputs of products by 1/254 of the largest of their span.

    T5's scores have no scale: their errors are as much larger as they are, which the softmax turns into factors. (In
    bfloat16 transformers errs by 9 % of such a model's logits, where it errs by 1 % of BART's.)
    """
    folder = make_folder(tmp_path, name)
    inputs, outputs = prompt(VOCAB, 70, seed=1), prompt(VOCAB, 40, seed=2)
    exact = reference_logits(load_reference(folder), inputs, outputs)
    ours = Driven(loaded(folder, "int8"), inputs).rows(outputs)
    assert 0 < rms(ours - exact) <= most * rms(exact)


def rms(x: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(x.astype(np.float64)).mean()))


def test_the_files_say_which_tokens_begin_and_end_an_output(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "bart")

    def tokens(config: dict[str, object], generation: dict[str, object] | None = None) -> tuple[int | None, ...]:
        values = {key: value for key, value in original.items() if "token_id" not in key} | config
        (folder / "config.json").write_text(json.dumps(values))
        (folder / "generation_config.json").unlink(missing_ok=True)
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        encoder = models.describe(folder).encoder
        assert encoder is not None
        return encoder.start_token_id, encoder.first_token_id, encoder.last_token_id

    original = json.loads((folder / "config.json").read_text())
    assert tokens({}) == (2, None, 2)  # what transformers' BartConfig has where a file says nothing
    assert tokens({"decoder_start_token_id": 7, "forced_bos_token_id": 0}) == (7, 0, 2)
    assert tokens({"forced_bos_token_id": 0}, {"decoder_start_token_id": 9}) == (9, None, None)
    with pytest.raises(ModelError, match="forced_bos_token_id"):
        tokens({"forced_bos_token_id": [1, 2]})
    with pytest.raises(ModelError, match="decoder_start_token_id 131"):
        tokens({"decoder_start_token_id": 131})


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj"),
        ("t5", {"is_gated_act": True}, "is_gated_act"),
        ("t5", {"relative_attention_max_distance": 10}, "relative_attention_max_distance"),
        ("t5", {"is_encoder_decoder": "yes"}, "is_encoder_decoder"),
        ("t5", {"decoder_start_token_id": None}, "decoder_start_token_id is missing"),
        ("bart", {"encoder_attention_heads": 2}, "encoder_attention_heads"),
        ("bart", {"d_model": 42}, "d_model"),
        ("bart", {"activation_function": "mish"}, "activation_function"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    name: str, changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path, name)
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=message):
        models.describe(folder)


def test_a_bias_of_logits_that_is_not_stored_is_none(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "bart")
    tensors = load_file(folder / "model.safetensors")
    bias = tensors.pop("final_logits_bias").numpy()
    inputs, outputs = prompt(VOCAB, 10, seed=1), prompt(VOCAB, 5, seed=2)
    before = Driven(loaded(folder), inputs).rows(outputs)
    save_file(tensors, folder / "model.safetensors")
    assert np.abs(Driven(loaded(folder), inputs).rows(outputs) + bias - before).max() < 1e-5


def test_memory_holds_an_input_beside_the_output(tmp_path: Path) -> None:
    model = loaded(make_folder(tmp_path, "t5"), max_context=100)
    assert (model.max_context, model.encoder_context) == (100, 100)
    assert model.card.encoder is not None
    assert model.card.encoder.context_tokens == 100
    assert model.num_blocks >= 8  # four blocks each
