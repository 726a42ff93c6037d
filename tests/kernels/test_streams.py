"""Operations on columns and on streams of several parts against NumPy, by programs of a few operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import streams as reference

Floats = NDArray[np.float32]
ROWS = 5
SIZES = [(2, 7), (3, 16), (4, 33), (2, 130)]


@pytest.fixture(params=kernels.instruction_sets(), autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield
    kernels.force(before)


def random(width: int, seed: int = 3) -> Floats:
    return np.random.default_rng(seed).normal(size=(ROWS, width)).astype(np.float32)


class Tables:
    """A program whose buffers begin with the rows of given tables."""

    def __init__(self) -> None:
        kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=1, precision="float32")
        self.program = kernels.Program(max_tokens=ROWS, max_sequences=ROWS, max_logit_rows=ROWS, kv=kv)

    def given(self, x: Floats) -> int:
        buffer = self.program.buffer(x.shape[1])
        self.program.embed(buffer, kernels.pack(x, "float32"))
        return buffer

    def result(self, buffer: int) -> Floats:
        p, ids = self.program, np.arange(ROWS)
        out = p.buffer(p.width(buffer))
        p.select_rows(out, buffer)
        p.logits(out)
        return p.run(ids, np.zeros(ROWS), np.arange(ROWS + 1), np.zeros((ROWS, 1)), ids).copy()


@pytest.mark.parametrize(("parts", "width"), SIZES)
def test_parts_are_predicted_and_corrected(parts: int, width: int) -> None:
    stream, factors, computed = random(parts * width), random(parts**2, 4), random(width, 5)
    shares = np.ascontiguousarray(factors[:, :parts])
    t = Tables()
    x, by, out = t.given(stream), t.given(factors), t.program.buffer(parts * width)
    t.program.predict_parts(out, x, by)
    t.program.correct_parts(out, t.given(computed), t.given(shares), parts - 1)
    t.program.add_to_parts(out, t.given(computed), 1)
    expected = reference.correct_parts(reference.predict_parts(stream, factors), computed, shares, parts - 1)
    expected[:, width:] += np.tile(computed, parts - 1)
    np.testing.assert_allclose(t.result(out), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("parts", "width"), SIZES)
def test_magnitudes_are_matched(parts: int, width: int) -> None:
    x, to = random(parts * width), random(width, 4)
    x[0], x[1, :width] = 1e-6, 0
    t = Tables()
    out = t.given(x)
    t.program.match_magnitude(out, t.given(to), 1e-5)
    np.testing.assert_allclose(t.result(out), reference.match_magnitude(x, to, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [1, 15, 16, 70, 130])
@pytest.mark.parametrize("deviations", [-0.5, 0.0, 1.6])
def test_the_largest_are_kept(width: int, deviations: float) -> None:
    x = random(width + 3)
    t = Tables()
    out = t.given(x)
    t.program.keep_largest(out, width, deviations)
    np.testing.assert_allclose(t.result(out), reference.keep_largest(x, width, deviations), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, 15, 16, 70, 130])
def test_parts_of_given_embeddings_are_added(width: int) -> None:
    table, parts = random(width), random(3 * width, 4)[:2]
    t = Tables()
    x = t.given(table)
    t.program.add_given(x, 2)
    t.program.add_given(x, 1)
    t.result(x)
    run = {"token_ids": np.arange(ROWS), "positions": np.zeros(ROWS), "row_starts": np.arange(ROWS + 1)}
    run |= {"block_tables": np.zeros((ROWS, 1)), "logit_rows": np.arange(ROWS), "embedding_rows": np.array([1, 3])}
    expected = table.copy()
    expected[[1, 3]] = parts[:, :width] + parts[:, 2 * width :] + parts[:, width : 2 * width]
    np.testing.assert_allclose(t.program.run(**run, embedding_values=parts), expected, rtol=1e-6, atol=1e-6)
    expected[[1, 3]] = parts[:, :width]  # without parts
    np.testing.assert_array_equal(t.program.run(**run, embedding_values=parts[:, :width]), expected)
    for wrong in (2 * width, 4 * width):
        with pytest.raises(ValueError, match=f"given embeddings must be {width} or {3 * width} wide"):
            t.program.run(**run, embedding_values=np.zeros((2, wrong)))


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.25), (-np.inf, 0.0), (0.1, np.inf), (0.3, 0.3)])
def test_columns_are_clipped(low: float, high: float) -> None:
    x = random(70)
    t = Tables()
    out = t.given(x)
    t.program.clip_columns(out, 3, 40, low, high)
    expected = x.copy()
    expected[:, 3:43] = np.clip(x[:, 3:43], np.float32(low), np.float32(high))
    np.testing.assert_array_equal(t.result(out), expected)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_embeddings_of_parts_are_added(precision: kernels.Precision) -> None:
    """Tokens 3 and 4 are not in the table."""
    x, packed = random(2 * 40), kernels.pack(random(40)[:, :40].repeat(2, 0)[:6], precision)
    t = Tables()
    out = t.given(x)
    t.program.add_embeddings(out, packed, 0.75)
    expected = reference.add_embeddings(x, packed.dequantize(), np.arange(ROWS, dtype=np.int32), 0.75)
    np.testing.assert_allclose(t.result(out), expected, rtol=1e-6, atol=1e-6)


def test_columns_are_copied_joined_and_scaled() -> None:
    x, factors = random(30), np.linspace(-1, 1, 12, dtype=np.float32)
    t = Tables()
    p = t.program
    wide = p.buffer(42)
    within, copied = p.buffer(30, over=wide), p.buffer(12)
    p.embed(within, kernels.pack(x, "float32"))
    p.copy_columns(copied, within, 10)
    p.scale_columns(copied, factors)
    p.join(wide, within, within, 18)
    out = p.buffer(54)
    p.join(out, wide, copied)
    expected = np.concatenate([x, x[:, 18:], x[:, 10:22] * factors], axis=1)
    np.testing.assert_array_equal(t.result(out), expected)


REFUSED: list[tuple[str, Callable[[kernels.Program, int, int], None]]] = [
    ("there is a factor from each part to each", lambda p, x, y: p.predict_parts(p.buffer(24), x, y)),
    ("do not fit the buffer.s parts", lambda p, x, y: p.correct_parts(x, y, y, 0)),
    ("do not fit each other", lambda p, x, y: p.match_magnitude(x, y, 1e-5)),
    ("the limit must be positive", lambda p, x, y: p.match_magnitude(x, x, 0.0)),
    ("reach beyond the buffer", lambda p, x, y: p.keep_largest(x, 25, 1.0)),
    ("reach beyond the buffer", lambda p, x, y: p.copy_columns(p.buffer(20), x, 5)),
    ("cannot replace its own input", lambda p, x, y: p.copy_columns(x, x, 0)),
    ("reach beyond the buffer", lambda p, x, y: p.join(p.buffer(30), x, y, 2)),
    (
        "the table does not have the buffer's parts",
        lambda p, x, y: p.add_embeddings(x, kernels.pack(random(7), "int8")),
    ),
    ("they reach beyond the buffer", lambda p, x, y: p.clip_columns(x, 20, 5, 0.0, 1.0)),
    ("the lower limit is above", lambda p, x, y: p.clip_columns(x, 0, 5, 1.0, 0.0)),
    ("a part is as wide as the embeddings", lambda p, x, y: p.add_given(x, 0)),
    ("the stream has no such part", lambda p, x, y: p.add_to_parts(x, x, 1)),
]


@pytest.mark.parametrize(("reason", "record"), REFUSED)
def test_what_does_not_fit_is_refused(reason: str, record: Callable[[kernels.Program, int, int], None]) -> None:
    t = Tables()
    x, y = t.given(random(24)), t.given(random(7))
    with pytest.raises(ValueError, match=reason):
        record(t.program, x, y)


def test_layers_of_a_pool_have_their_own_heads() -> None:
    """Each layer's keys and values are as wide as its heads, and copies of blocks take all layers along."""
    kv = kernels.KVPool(layers=3, blocks=2, kv_heads=[1, 2, 1], head_dim=[16, 24, 48], precision="float32")
    assert kv.bytes_per_block == 32 * 4 * 2 * (16 + 2 * 32 + 48)
    kv.data[: kv.bytes_per_block] = np.arange(kv.bytes_per_block) % 251
    kv.copy_blocks([0], [1])
    first, second = kv.data.reshape(2, -1)
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="heads of 1 layers for 2"):
        kernels.KVPool(layers=2, blocks=1, kv_heads=[1], head_dim=16, precision="float32")
