"""Calibration of int4: a text that the model writes decides how its weights are rounded, and the result is a model of
its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from small_models import VARIANTS, checkpoint_of, make_folder, run_rows

from dragoman import kernels
from dragoman.core.errors import ModelError
from dragoman.models import ModelSettings, describe, load, loading, plan, product_inputs
from dragoman.models.calibration_plan import calibrated_formats
from dragoman.models.error_feedback import inverse_factor, quantize_for_inputs
from dragoman.models.layout import plan_layout
from dragoman.models.packing import Weights, pack_checkpoint
from dragoman.models.tensors import Format

_SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are large enough for tokens to depend on each other."""
    config = VARIANTS["llama"] | _SIZES | {"num_key_value_heads": 1, "head_dim": 32}
    return make_folder(tmp_path_factory.mktemp("model"), config, "BF16")


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_inputs, "SEQUENCE_TOKENS", 32)


def settings(cache: Path, **changes: Any) -> ModelSettings:
    asked = {"precision": "int4", "calibrate": 1024, "cache_folder": str(cache), "kv_tokens": 2048} | changes
    return ModelSettings(**asked)


def written(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.int32]:
    """Texts that the model writes with other random numbers."""
    monkeypatch.setattr(product_inputs, "_SEED", seed)
    checkpoint = checkpoint_of(folder)
    layout = plan_layout(checkpoint.spec, "float32")
    weights = Weights(layout, pack_checkpoint(checkpoint, layout))
    return product_inputs.TextWriter(checkpoint.spec, weights, 512, 0).write(lambda *_: None)


def divergence(exact: Any, model: Any, texts: NDArray[np.int32]) -> float:
    """Mean over the tokens of the texts, in nats."""
    total = 0.0
    for text in texts:
        logits = [run_rows(each, text).astype(np.float64) for each in (exact, model)]
        ours, theirs = (each - np.log(np.exp(each).sum(1, keepdims=True)) for each in logits)
        total += float((np.exp(ours) * (ours - theirs)).sum(1).mean())
    return total / len(texts)


def test_what_is_packed_is_nearer_to_the_model_on_texts_it_has_not_seen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = load(folder, ModelSettings(precision="float32", cache_bytes=0))
    plain = load(folder, settings(tmp_path, calibrate=0))
    calibrated = load(folder, settings(tmp_path))
    texts = written(folder, 99, monkeypatch)
    assert divergence(exact, calibrated, texts) < 0.75 * divergence(exact, plain, texts)
    assert calibrated.card.fingerprint != plain.card.fingerprint
    assert calibrated.card.weights != plain.card.weights
    assert calibrated.card.weight_bytes <= 1.05 * plain.card.weight_bytes


def test_the_same_number_gives_the_same_bytes_and_is_found_again(folder: Path, tmp_path: Path) -> None:
    first, second = (loading.pack(folder, settings(tmp_path / name)) for name in "ab")
    assert first.path is not None
    assert second.path is not None
    assert first.path.name == second.path.name
    assert first.path.read_bytes() == second.path.read_bytes()
    assert loading.pack(folder, settings(tmp_path / "a")).was_there
    other = loading.pack(folder, settings(tmp_path / "a", calibrate=512))
    assert not other.was_there
    assert other.path is not None
    assert other.path.name != first.path.name


def test_the_fingerprint_tells_what_weights_were_calibrated_on(folder: Path) -> None:
    described = describe(folder)
    planned = plan(described, ModelSettings(precision="int4"))
    layout = plan_layout(described.spec, "int4")
    checksums = [0] * len(layout.entries)
    seen = {loading.fingerprint(described.spec, planned, layout, checksums, tokens) for tokens in (0, 512, 1024)}
    assert len(seen) == 3


@pytest.mark.parametrize("variant", ["mixtral", "deepseek-v3", "granite4", "gemma3n", "zamba2"])
def test_every_kind_of_decoder_shows_its_inputs(variant: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Through one seam; what cannot be read is said, and packed without calibration."""
    made = make_folder(tmp_path / "model", VARIANTS[variant], "BF16")
    with caplog.at_level(logging.WARNING, "dragoman.models"):
        packed = load(made, settings(tmp_path / "cache", calibrate=512))
    plain = load(made, settings(tmp_path / "cache", calibrate=0))
    changed = [
        name
        for name in plain.weights
        if getattr(plain.weights[name], "precision", None) == "iq4_nl"
        and not np.array_equal(plain.weights[name].data, packed.weights[name].data)
    ]
    assert len(changed) >= 2
    assert ("cannot be read; these are packed without calibration: latent_value" in caplog.text) == (
        variant == "deepseek-v3"
    )
    assert np.isfinite(run_rows(packed, np.arange(9, dtype=np.int32))).all()


def test_what_errs_most_has_five_bits(tmp_path: Path) -> None:
    """All of the last layer, the first network's first matrix, and attention from the last layer on: 5 % at most."""
    described = describe(Path(__file__).parents[2] / "builtin")
    formats = calibrated_formats(described, settings(tmp_path))
    assert set(formats.values()) == {Format("q5_k")}
    layers = {5: ["qkv", "attention_out", "feed_forward_in"], 0: ["feed_forward_in"]}
    layers |= {layer: ["qkv", "attention_out"] for layer in (4, 3)}
    assert formats.keys() == {f"layers.{layer}.{each}.weight" for layer, all_ in layers.items() for each in all_}
    plain = plan_layout(described.spec, "int4").nbytes
    assert plain < plan_layout(described.spec, "int4", formats).nbytes <= 1.05 * plain


def test_rows_that_are_not_whole_blocks_of_five_bits_have_eight(folder: Path, tmp_path: Path) -> None:
    formats = calibrated_formats(describe(folder), settings(tmp_path))
    assert set(formats.values()) <= {Format("int8", wide=True)}


def test_rounding_for_inputs_errs_less_on_them() -> None:
    rng = np.random.default_rng(3)
    inputs = (rng.standard_normal((512, 40)) @ rng.standard_normal((40, 160))).astype(np.float32)
    weight = rng.standard_normal((48, 160)).astype(np.float32)
    factor = inverse_factor(inputs.T @ inputs / np.float32(len(inputs)))
    assert factor is not None

    def error(blocks: NDArray[np.uint8]) -> float:
        changed = kernels.pack_blocks(blocks, 160, "iq4_nl").dequantize() - weight
        return float(((inputs @ changed.T) ** 2).sum())

    assert error(quantize_for_inputs(weight, factor).data) < 0.3 * error(kernels.quantize_blocks(weight))


def test_inputs_that_were_never_seen_have_no_factor() -> None:
    assert inverse_factor(np.zeros((64, 64), np.float32)) is None
    assert inverse_factor(np.full((64, 64), np.nan, np.float32)) is None
    rank_one = np.ones((320, 320), np.float32)
    factor = inverse_factor(rank_one)
    assert factor is not None
    damped = rank_one + 0.1 * np.eye(320)
    np.testing.assert_allclose(factor.T.astype(np.float64) @ factor, np.linalg.inv(damped), atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"precision": "int8"}, "int4, not in int8"),
        ({"precision": "auto"}, "add --precision int4"),
        ({"calibrate": 100}, "at least 512"),
    ],
)
def test_refusals(folder: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        loading.pack(folder, settings(tmp_path, **changes))


def test_models_that_cannot_be_calibrated_are_refused(folder: Path, tmp_path: Path) -> None:
    described, asked = describe(folder), settings(tmp_path)
    with pytest.raises(ModelError, match="is quantized already"):
        calibrated_formats(replace(described, formats={"layers.0.qkv.weight": Format("int8")}), asked)
    with pytest.raises(ModelError, match="writes no text by itself"):
        calibrated_formats(replace(described, spec=replace(described.spec, causal=False)), asked)
    assert calibrated_formats(described, msgspec.structs.replace(asked, calibrate=0)) == {}


def test_a_model_that_does_not_fit_twice_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.models.calibration.available_memory", lambda: 1 << 20)
    with pytest.raises(ModelError, match="on 1024 tokens takes"):
        loading.pack(folder, settings(tmp_path))
