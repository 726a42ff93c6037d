"""Typical-p, XTC, mirostat, rows that are overwritten, and green lists, against float64 NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import sampling as reference

Floats = NDArray[np.float32]
BORDER = 1e-5
"""Shares nearer to a border than this may fall on either side in float32."""


@pytest.fixture(params=kernels.instruction_sets(), autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield
    kernels.force(before)


def run(
    row: Floats,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniform: float = 0.5,
    typical_p: float = 1.0,
    xtc_threshold: float = 1.0,
    version: int = 0,
    limit: float = 0.0,
) -> tuple[int, Floats, float]:
    """The token drawn from one row, the row overwritten by what it was drawn from, and mirostat's surprise."""
    logits = row[None].copy()
    token_ids, surprise = np.empty(1, np.int32), np.empty(1, np.float32)
    mirostat = kernels.Mirostat(np.array([version], np.int32), np.array([limit], np.float32), surprise)
    kernels.sample(
        logits,
        [temperature],
        [uniform],
        token_ids,
        {
            "top_k": [top_k],
            "top_p": [top_p],
            "min_p": [min_p],
            "typical_p": [typical_p],
            "xtc_threshold": [xtc_threshold],
        },
        mirostat=mirostat,
        overwrite=[1],
    )
    return int(token_ids[0]), logits[0], float(surprise[0])


def row_of(seed: int, vocab: int, spread: float) -> Floats:
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=vocab) * spread).astype(np.float32)
    row[rng.random(vocab) < 0.1] = -np.inf
    row[0] = 0.5
    return row


def check_kept(got: Floats, row: Floats, temperature: float, alternatives: list[Floats]) -> None:
    """The same tokens kept as in one of the alternatives, which differ by what may fall on either side."""
    kept = np.isfinite(got)
    assert any(np.array_equal(kept, each > 0) for each in alternatives)
    np.testing.assert_allclose(got[kept], row[kept] / np.float32(temperature), rtol=1e-6)


rows = st.builds(row_of, st.integers(0, 10**6), st.sampled_from([2, 65, 700, 3000]), st.sampled_from([0.5, 2.0, 6.0]))
temperatures = st.sampled_from([0.5, 1.0, 1.7])


@settings(max_examples=20, deadline=None)
@given(rows, temperatures, st.sampled_from([0.02, 0.3, 0.8, 0.95, 0.999]), st.sampled_from([0, 40]))
def test_typical_keeps_the_tokens_nearest_to_the_entropy(
    row: Floats, temperature: float, mass: float, top_k: int
) -> None:
    before = reference.kept(row, temperature, top_k=top_k)
    alternatives = [reference.typical(before, mass + d) for d in (0, BORDER, -BORDER)]
    _, got, _ = run(row, temperature=temperature, typical_p=mass, top_k=top_k)
    check_kept(got, row, temperature, alternatives)


@settings(max_examples=20, deadline=None)
@given(rows, temperatures, st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9]), st.sampled_from([1.0, 0.8]))
def test_xtc_drops_all_top_choices_but_the_least_likely(
    row: Floats, temperature: float, threshold: float, top_p: float
) -> None:
    alternatives = [
        reference.exclude_top_choices(reference.kept(row, temperature, top_p=p), threshold + d)
        for p in np.clip([top_p, top_p - BORDER, top_p + BORDER], 0, 1)
        for d in (0, BORDER, -BORDER)
    ]
    _, got, _ = run(row, temperature=temperature, xtc_threshold=threshold, top_p=float(top_p))
    check_kept(got, row, temperature, [each * (row > -np.inf) for each in alternatives])


def test_xtc_keeps_the_last_of_equal_top_choices() -> None:
    row = np.array([0, 3, 3, 3, -1], np.float32)
    assert np.flatnonzero(np.isfinite(run(row, xtc_threshold=0.2)[1])).tolist() == [0, 3, 4]
    assert np.isfinite(run(row, xtc_threshold=0.4)[1]).all()


def test_the_order_is_top_k_then_top_p_then_min_p_then_typical_then_xtc() -> None:
    """Each step reckons with the mass that the step before has left."""
    row = np.log(np.array([0.30, 0.25, 0.18, 0.12, 0.09, 0.06], np.float64)).astype(np.float32)
    p = np.exp(row.astype(np.float64))
    p = np.where(np.arange(6) < 5, p, 0)  # top-k 5
    p = np.where(np.cumsum(p) - p < 0.85 * p.sum(), p, 0)  # top-p
    p = np.where(p >= 0.35 * p.max(), p, 0)  # min-p
    p = reference.exclude_top_choices(reference.typical(p, 0.9), 0.3)
    _, got, _ = run(row, top_k=5, top_p=0.85, min_p=0.35, typical_p=0.9, xtc_threshold=0.3)
    assert np.array_equal(np.isfinite(got), p > 0)
    assert 1 < np.isfinite(got).sum() < 5


def test_the_table_is_that_of_the_reference() -> None:
    assert tuple(reference.TRUNCATIONS) == kernels.TRUNCATIONS
    with pytest.raises(ValueError, match="there is no truncation top_q"):
        kernels.sample(np.zeros((1, 8), np.float32), [1.0], [0.5], np.empty(1, np.int32), {"top_q": [0.5]})


@pytest.mark.parametrize("name", kernels.TRUNCATIONS)
@settings(max_examples=20, deadline=None)
@given(rows, temperatures, st.sampled_from([0.02, 0.3, 0.8, 0.95, 1.0]))
def test_each_truncation_keeps_what_its_reference_keeps(
    name: str, row: Floats, temperature: float, value: float
) -> None:
    value = float(round(60 * value)) if name == "top_k" else value
    near = [value] if name == "top_k" or value == 1 else [value, value + BORDER, value - BORDER]
    logits = row[None].copy()
    kernels.sample(logits, [temperature], [0.5], np.empty(1, np.int32), {name: [value]}, overwrite=[1])
    whole = reference.weights(row, temperature)
    alternatives = [reference.TRUNCATIONS[name](whole.copy(), each) * (row > -np.inf) for each in near]
    check_kept(logits[0], row, temperature, alternatives)


@settings(max_examples=30, deadline=None)
@given(rows, temperatures, st.sampled_from([1, 2]), st.floats(-3, 14, width=32), st.floats(0, 1, exclude_max=True))
def test_mirostat_keeps_what_its_limit_allows_and_measures_the_surprise(
    row: Floats, temperature: float, version: int, limit: float, uniform: float
) -> None:
    uniform = min(uniform, 0.99999)
    token, got, surprise = run(row, temperature=temperature, version=version, limit=limit, uniform=uniform)
    alternatives = [reference.mirostat(row, temperature, version, limit + d)[1] for d in (0, 1e-4, -1e-4)]
    check_kept(got, row, temperature, [each * (row > -np.inf) for each in alternatives])
    assert np.isfinite(got[token])
    assert surprise == pytest.approx(-np.log2(reference.kept(row, temperature)[token]), rel=1e-4, abs=1e-4)


def test_mirostat_takes_the_place_of_the_other_truncations() -> None:
    row = row_of(3, 700, 2.0)
    alone = run(row, version=2, limit=5.0)
    beside = run(row, version=2, limit=5.0, top_k=2, top_p=0.1, min_p=0.9, typical_p=0.1, xtc_threshold=0.01)
    assert alone[0] == beside[0]
    assert np.array_equal(alone[1], beside[1])


def test_rows_are_overwritten_only_where_asked_and_changed_only_by_what_ran() -> None:
    logits = np.stack([row_of(seed, 300, 2.0) for seed in range(4)])
    before = logits.copy()
    ids = np.empty(4, np.int32)
    kernels.sample(logits, [2, 2, 0, 2], np.full(4, 0.5), ids, {"top_k": [5, 5, 5, 0]}, overwrite=[0, 1, 1, 1])
    assert np.array_equal(logits[0], before[0])
    assert np.isfinite(logits[1]).sum() == 5
    assert np.array_equal(logits[2], before[2]), "greedy: the rest is skipped"
    assert np.array_equal(logits[3], before[3] * np.float32(0.5))


def test_green_lists_are_of_the_published_generator_and_of_the_right_size() -> None:
    for vocab, key, previous, share in ((1, 5, 0, 0.5), (77, 15485863, 3, 0.25), (1000, 2**64 - 1, 999, 0.9)):
        got = kernels.green_list(vocab, key, previous, share)
        assert np.array_equal(got, reference.green_list(vocab, key, previous, share))
    assert not kernels.green_list(100, 1, 1, 0.0).any()
    assert kernels.green_list(100, 1, 1, 1.0).all()
    sizes = [kernels.green_list(10_000, 1, previous, 0.25).sum() for previous in range(50)]
    assert abs(np.mean(sizes) - 2500) < 4 * np.sqrt(10_000 * 0.25 * 0.75 / 50)
    assert len(set(sizes)) > 10


@pytest.mark.parametrize(("vocab", "share"), [(1, 0.5), (77, 0.25), (1000, 0.0), (1001, 1.0), (40_007, 0.3)])
def test_a_bias_on_the_green_list_is_that_of_the_reference(vocab: int, share: float) -> None:
    """To the bit, in logits that are not numbers and in -0.0 too, which an added 0 would change."""
    row = np.random.default_rng(vocab).normal(size=vocab).astype(np.float32)
    row[::5], row[::7], row[::11] = -0.0, -np.inf, np.nan
    expected = row.copy()
    np.add(row, np.float32(1.7), out=expected, where=reference.green_list(vocab, 15485863, 77, share))
    kernels.add_to_green_list(row, 15485863, 77, share, 1.7)
    assert np.array_equal(row.view(np.uint32), expected.view(np.uint32))
    with pytest.raises(ValueError, match="share is out of its range"):
        kernels.add_to_green_list(row, 1, 1, 1.5, 1.0)


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 9.0])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_typical_alone_keeps_what_it_keeps_of_all_tokens(spread: float, temperature: float) -> None:
    """Alone it looks at the tokens near the entropy; behind a truncation that drops none, at all of them."""
    rng = np.random.default_rng(int(spread * 10))
    row = (rng.normal(size=20_011) * spread).astype(np.float32)
    peaked, masked = row.copy(), row.copy()
    peaked[17] = 2 * spread + 5
    masked[rng.random(len(row)) < 0.9] = -np.inf
    for each in (row, peaked, (np.round(row * 8) / 8).astype(np.float32), masked):
        for mass in (0.0, 0.2, 0.9, 0.999):
            alone = run(each, temperature=temperature, typical_p=mass)
            behind = run(each, temperature=temperature, typical_p=mass, min_p=1e-38)
            assert alone[0] == behind[0]
            assert np.array_equal(alone[1], behind[1])


@pytest.mark.parametrize("vocab", [5, 16, 47, 20_011])
def test_many_candidates_and_equal_ones_stay_as_the_reference_says(vocab: int) -> None:
    """Vectors of them are moved to the front of where they were; what is left of a vector, and equals, one by one."""
    row = (np.random.default_rng(vocab).normal(size=vocab) * 2).astype(np.float32)
    equals = (np.round(row * 2) / 2).astype(np.float32)
    for each, truncation in (
        (row, {"min_p": 1e-3}),
        (equals, {"min_p": 0.1}),
        (row, {"top_k": 4}),
        (equals, {"top_k": 3}),
    ):
        check_kept(run(each, **truncation)[1], each, 1.0, [reference.kept(each, 1.0, **truncation)])
    for mass in (0.3, 0.9, 0.99):
        alternatives = [reference.kept(row, 1.0, top_p=mass + d) for d in (0, BORDER, -BORDER)]
        check_kept(run(row, top_p=mass)[1], row, 1.0, alternatives)


@pytest.mark.parametrize(
    "bad",
    [{"typical_p": 1.1}, {"xtc_threshold": -0.1}, {"version": 3}, {"version": 1, "limit": float("nan")}],
    ids=str,
)
def test_parameters_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"typical_p|xtc_threshold|mirostat"):
        run(np.zeros(10, np.float32), **bad)  # type: ignore[arg-type]
