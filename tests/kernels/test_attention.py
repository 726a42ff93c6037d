"""Attention against NumPy, in all formats of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dragoman import kernels
from dragoman.kernels.kv_pool import KVPrecision
from dragoman.kernels.reference import attention as reference
from tests.kernels.attention_layer import (
    LATENT_PRECISIONS,
    PRECISIONS,
    SETS,
    TOLERANCE,
    Chunk,
    Kept,
    Layer,
    forced,
)


@pytest.fixture(params=SETS, autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced(request.param):
        yield


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(1, 1, 16), (4, 4, 64), (8, 2, 32), (3, 1, 20), (6, 2, 128), (40, 1, 24)]
)
@pytest.mark.parametrize("window", [0, 1, 45])
def test_equals_the_reference(precision: Kept, heads: int, kv_heads: int, head_dim: int, window: int) -> None:
    layer = Layer(heads, kv_heads, head_dim, precision, window, length=100)
    tolerance = TOLERANCE[precision]
    np.testing.assert_allclose(layer.alone(2, 97), layer.expected(2, 97), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("window", [0, 600])
def test_equals_the_reference_over_several_splits(precision: Kept, window: int) -> None:
    layer = Layer(4, 2, 16, precision, window, sequences=1, length=650)
    tolerance = TOLERANCE[precision]
    np.testing.assert_allclose(layer.alone(0, 640), layer.expected(0, 640), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", LATENT_PRECISIONS)
@pytest.mark.parametrize(
    ("heads", "head_dim", "latent", "length"), [(5, 576, 512, 70), (40, 44, 32, 97), (2, 106, 96, 530)]
)
def test_values_that_are_part_of_the_keys_equal_the_reference(
    precision: KVPrecision, heads: int, head_dim: int, latent: int, length: int
) -> None:
    layer = Layer(heads, 1, head_dim, precision, sequences=1, length=length, latent=latent)
    tolerance = TOLERANCE[precision]
    np.testing.assert_allclose(layer.alone(0, length), layer.expected(0, length), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", LATENT_PRECISIONS)
def test_a_latent_pool_keeps_keys_alone(precision: KVPrecision) -> None:
    sizes = [
        kernels.KVPool(layers=3, blocks=2, kv_heads=1, head_dim=576, precision=precision, latent=latent).bytes_per_block
        for latent in (512, 0)
    ]
    bits = {"float32": 32, "bfloat16": 16, "int8": 8 + 16 / 32}[precision]
    assert sizes == [3 * 32 * 576 * bits / 8, 2 * 3 * 32 * 576 * bits / 8]


@pytest.mark.parametrize("latent", [-32, 16, 96])
def test_a_latent_that_is_no_part_of_a_key_is_refused(latent: int) -> None:
    with pytest.raises(ValueError, match="latent must be a multiple of 32 up to head_dim"):
        kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=64, precision="float32", latent=latent)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_own_blocks_beside_other_precisions_than_int4_are_refused(precision: KVPrecision) -> None:
    with pytest.raises(ValueError, match="only a pool in int4 has own blocks"):
        kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=16, precision=precision, own_blocks=1)


def test_a_batch_without_its_own_blocks_is_refused() -> None:
    """They must be there from the first position of a step on, and before it they may be gone."""
    layer = Layer(2, 1, 16, "own")
    _, program = layer.start()
    layer.run(program, [Chunk(0, 0, 40, (0, 1))])
    one, starts, row = np.array([40], np.int32), np.array([0, 1], np.int32), np.array([0], np.int32)
    tables = np.array([[[0, 1]], [[-1, 8]]], np.int32)
    assert np.isfinite(program.run(one, one, starts, tables, row)).all()
    tables[1, 0, 1] = -1
    with pytest.raises(ValueError, match="block -1 is not in a pool"):
        program.run(one, one, starts, tables, row)
    with pytest.raises(ValueError, match="block tables of 2 groups"):
        program.run(one, one, starts, tables[:1], row)


def test_latent_keys_in_int4_are_refused() -> None:
    with pytest.raises(ValueError, match="the keys of latent attention cannot be kept in int4"):
        kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=64, precision="int4", latent=32)


TERMS: list[dict[str, Any]] = [
    {"softcap": 1.5},
    {"sloped": True},
    {"reach": 0},
    {"reach": 7},
    {"reach": 128},
    {"causal": False},
    {"causal": False, "window": 1},
    {"causal": False, "window": 20},
    {"softcap": 0.5, "window": 45},
    {"sloped": True, "window": 70},
    {"reach": 20, "causal": False},
    {"softcap": 2.0, "sloped": True, "reach": 33},
    {"sinking": True},
    {"sinking": True, "softcap": 1.5, "window": 45},
    {"chunk": 20},
    {"chunk": 64, "sinking": True},
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_terms_of_a_score_equal_the_reference(precision: KVPrecision, terms: dict[str, Any]) -> None:
    tolerance = TOLERANCE[precision]
    for heads, kv_heads, head_dim in [(4, 2, 20), (6, 1, 64)]:
        layer = Layer(heads, kv_heads, head_dim, precision, length=120, **terms)
        np.testing.assert_allclose(layer.alone(2, 117), layer.expected(2, 117), rtol=tolerance, atol=tolerance)


BOTH_SIDES: list[dict[str, Any]] = [{"causal": False, "window": window} for window in (129, 520)]


def test_terms_over_several_splits() -> None:
    for terms in ({"sloped": True}, {"reach": 600, "causal": False}, {"sinking": True}, {"chunk": 520}, *BOTH_SIDES):
        layer = Layer(4, 2, 16, "float32", sequences=1, length=650, **terms)
        np.testing.assert_allclose(layer.alone(0, 640), layer.expected(0, 640), rtol=1e-5, atol=1e-5)


def test_a_softcap_far_above_the_scores_changes_little_and_one_far_below_evens_them_out() -> None:
    """Where tanh is the identity, and where it is ±1: the ends of its range."""
    plain, high, low = (Layer(2, 1, 16, "float32", softcap=cap).alone(0, 60) for cap in (0.0, 1e5, 1e-6))
    np.testing.assert_allclose(high, plain, rtol=1e-5, atol=1e-6)
    values = Layer(2, 1, 16, "float32").table[:60, 3 * 16 :]
    means = np.cumsum(values, axis=0) / np.arange(1, 61)[:, None]
    np.testing.assert_allclose(low, np.tile(means, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"softcap": -1.0}, "softcap"),
        ({"softcap": float("nan")}, "softcap"),
        ({"slopes": np.ones(3)}, "slopes must have 4 elements"),
        ({"bias": np.ones((3, 5))}, "a row for each head"),
        ({"bias": np.ones((4, 4))}, "odd number of columns"),
        ({"chunk": 5, "window": 5}, "chunks go with"),
        ({"sinks": np.ones(3)}, "sinks must have 4 elements"),
    ],
    ids=str,
)
def test_terms_that_do_not_fit_are_refused(terms: dict[str, Any], message: str) -> None:
    kv = kernels.KVPool(layers=1, blocks=1, kv_heads=2, head_dim=16, precision="float32")
    p = kernels.Program(max_tokens=1, max_sequences=1, max_logit_rows=1, kv=kv)
    q, out = p.buffer(64), p.buffer(64)
    p.embed(q, kernels.pack(np.zeros((1, 64), np.float32), "float32"))
    with pytest.raises(ValueError, match=message):
        p.attend(out, q, 0, 4, layer=0, scale=1.0, **terms)


def test_int8_is_the_same_bits_with_every_instruction_set_but_for_exponentials() -> None:
    """Sums of integers are exact, so what differs are the last places of exponentials where fma() rounds twice."""
    layer = Layer(4, 2, 64, "int8")
    results = []
    for name in kernels.instruction_sets():
        kernels.force(name)
        results.append(layer.alone(0, 100))
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=2e-4, atol=2e-5)


def test_a_few_large_dimensions_of_int8_keys_do_not_cost_the_others_their_precision() -> None:
    """As in keys with a bias: what errs is no more than where all are of one size, but in the group of the large."""
    layer = Layer(2, 1, 128, "int8", length=100)
    layer.table[:, 2 * 128 + 5] += 50.0  # keys of dimension 5; each query sees the same there but for its own factor
    _, k, v = (part.reshape(400, -1, 128) for part in np.split(layer.table, [256, 384], axis=1))
    error = np.abs(reference.in_int8(k) - k)
    assert error[:, :, 32:].max() < 0.03 < error[:, :, :32].max() < 0.25
    assert np.abs(reference.in_int8(v) - v).max() < 0.03
    np.testing.assert_allclose(layer.alone(1, 90), layer.expected(1, 90), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("head_dim", [16, 64, 96, 128])
def test_a_block_of_int4_takes_four_bits_and_what_its_codes_share(head_dim: int) -> None:
    pool = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=head_dim, precision="int4")
    groups = -(-head_dim // 32)
    assert pool.bytes_per_block == 2 * 32 * head_dim * 4 // 8 + 2 * 32 * groups * 2 + groups * 32


def test_a_bias_of_int4_keys_costs_them_little_precision() -> None:
    """What the keys of a block have in common is stored once, in int8."""
    layer = Layer(2, 1, 128, "int4", length=100)
    layer.table[:, 2 * 128 + 5 : 2 * 128 + 13] += 40.0
    k = layer.table[:, 256:384].reshape(4, 100, 1, 128)[1]
    error = reference.int4_keys(k) - k
    assert np.sqrt((error**2).mean()) < 0.15  # 0.08 without a bias, and 0.8 if it were not stored apart
    np.testing.assert_allclose(layer.alone(1, 90), layer.expected(1, 90), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_huge_and_tiny_numbers_in_integers(precision: KVPrecision) -> None:
    for factor in (1e-30, 1e-12, 1e12):
        layer = Layer(2, 1, 32, precision)
        layer.table[:, 3 * 32 :] *= np.float32(factor)  # values
        np.testing.assert_allclose(layer.alone(0, 70) / factor, layer.expected(0, 70) / factor, rtol=5e-4, atol=5e-4)
