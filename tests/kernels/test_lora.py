"""Low-rank changes: right on every instruction set, and the same bits for a row in any company."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import linear as linear_reference
from dragoman.kernels.reference import lora as reference

Floats = NDArray[np.float32]


@pytest.fixture(params=kernels.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield request.param
    kernels.force(before)


def random_floats(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("isa", kernels.instruction_sets())
def test_change_equals_the_reference(isa: str, precision: kernels.LowRankPrecision) -> None:
    """Odd sizes, several parts side by side, some with scaled columns; columns of no part stay as they are."""

    @settings(max_examples=30, deadline=None)
    @given(
        rows=st.integers(1, 70),
        k=st.integers(1, 130),
        parts=st.lists(st.tuples(st.integers(1, 80), st.integers(1, 20), st.booleans()), min_size=1, max_size=3),
        seed=st.integers(0, 2**32),
    )
    def check(rows: int, k: int, parts: list[tuple[int, int, bool]], seed: int) -> None:
        n = sum(size for size, _, _ in parts) + 5
        weight = random_floats(seed, n, k) / np.float32(np.sqrt(k))
        x = random_floats(seed + 1, rows, k)
        w, change = kernels.pack(weight, "float32"), kernels.LowRank(k, precision)
        y = random_floats(seed + 2, rows, n)
        base = linear_reference.linear(x, weight, "float32", None, False)
        expected, offset = y.astype(np.float64), 0
        for place, (size, rank, is_scaled) in enumerate(parts):
            a, b = random_floats(seed + 3 + place, rank, k) / np.float32(np.sqrt(k)), random_floats(seed, size, rank)
            scale = 1 + 0.3 * random_floats(seed + 9, size) if is_scaled else None
            change.add(offset, a, b, 0.5 + place, scale)
            added = reference.low_rank(x, a, b, 0.5 + place, precision)
            columns = slice(offset, offset + size)
            expected[:, columns] += added if scale is None else reference.scaled(base[:, columns], added, scale)
            offset += size
        change.apply(w, x, y)
        assert np.abs(y - expected).max() <= 2e-5 * np.abs(expected).max()

    before = kernels.instruction_set()
    kernels.force(isa)
    try:
        check()
    finally:
        kernels.force(before)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    instruction_set: str, precision: kernels.LowRankPrecision, is_scaled: bool
) -> None:
    n, k, rank = 150, 130, 10
    w, change = kernels.pack(random_floats(0, n, k), precision), kernels.LowRank(k, precision)
    scale = random_floats(4, 100) if is_scaled else None
    change.add(30, random_floats(1, rank, k), random_floats(2, 100, rank), 2.0, scale)
    x, y = random_floats(5, 70, k), random_floats(6, 70, n)

    def changed(rows: NDArray[np.int64]) -> Floats:
        out = y[rows]
        change.apply(w, x[rows], out)
        return out

    alone = np.concatenate([changed(np.array([row])) for row in range(70)])
    rng = np.random.default_rng(3)
    for rows in range(1, 71):
        chosen = rng.choice(70, rows, replace=False)
        assert (changed(chosen) == alone[chosen]).all()


def test_threads_change_no_bit() -> None:
    change = kernels.LowRank(512, "bfloat16")
    change.add(0, random_floats(1, 48, 512), random_floats(2, 3000, 48), 2.0)
    w, x = kernels.pack(random_floats(0, 3000, 512), "bfloat16"), random_floats(5, 90, 512)
    results = []
    before = kernels.threads()
    for threads in (1, 2, 3):
        kernels.set_threads(threads)
        y = np.zeros((90, 3000), np.float32)
        change.apply(w, x, y)
        results.append(y)
    kernels.set_threads(before)
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_avx512_and_avx2_agree_to_the_bit() -> None:
    if not {"avx512", "avx2"} <= set(kernels.instruction_sets()):
        pytest.skip("this machine has one of them only")
    results, before = [], kernels.instruction_set()
    for name in ("avx512", "avx2"):
        kernels.force(name)
        change = kernels.LowRank(130, "bfloat16")
        change.add(0, random_floats(1, 7, 130), random_floats(2, 150, 7), 2.0)
        y = np.zeros((9, 150), np.float32)
        change.apply(kernels.pack(random_floats(0, 150, 130), "float32"), random_floats(5, 9, 130), y)
        results.append(y)
    kernels.force(before)
    assert (results[0] == results[1]).all()


def test_what_does_not_fit_is_refused() -> None:
    change = kernels.LowRank(16, "float32")
    with pytest.raises(ValueError, match="rank, k"):
        change.add(0, np.zeros((2, 15)), np.zeros((8, 2)), 1.0)
    with pytest.raises(ValueError, match="n, rank"):
        change.add(0, np.zeros((2, 16)), np.zeros((8, 3)), 1.0)
    with pytest.raises(ValueError, match="column_scale"):
        change.add(0, np.zeros((2, 16)), np.zeros((8, 2)), 1.0, np.zeros(7))
    with pytest.raises(ValueError, match="rank from 1"):
        change.add(0, np.zeros((0, 16)), np.zeros((8, 0)), 1.0)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        kernels.LowRank(16, "int8")  # type: ignore[arg-type]
    change.add(0, np.zeros((2, 16)), np.zeros((8, 2)), 1.0)
    with pytest.raises(ValueError, match="beyond y"):
        change.apply(
            kernels.pack(np.zeros((7, 16), np.float32), "float32"),
            np.zeros((1, 16), np.float32),
            np.zeros((1, 7), np.float32),
        )


# In a program ---------------------------------------------------------------------------------------------------------


def adaptable() -> tuple[kernels.Program, kernels.LowRank]:
    """Four tokens of 16 numbers, and one product that makes logits of them."""
    kv = kernels.KVPool(layers=1, blocks=4, kv_heads=1, head_dim=16, precision="float32")
    program = kernels.Program(max_tokens=8, max_sequences=4, max_logit_rows=8, kv=kv)
    x, wanted, logits = program.buffer(16), program.buffer(16), program.buffer(8)
    table, head = kernels.pack(random_floats(0, 8, 16), "float32"), kernels.pack(random_floats(1, 8, 16), "float32")
    program.embed(x, table)
    program.select_rows(wanted, x)
    program.linear(logits, wanted, head)
    program.adapt(logits, wanted, head, "head")
    program.logits(logits)
    change = kernels.LowRank(16, "float32")
    change.add(0, random_floats(2, 2, 16), random_floats(3, 8, 2), 1.0)
    return program, change


def run(program: kernels.Program, logit_rows: list[int], adapters: list[int] | None) -> Floats:
    tables = np.zeros((3, 1), np.int32)
    found = program.run([1, 2, 3, 4], [0, 1, 0, 0], [0, 2, 3, 4], tables, logit_rows, adapters=adapters)
    return np.array(found)


def test_wanted_rows_keep_the_adapter_of_their_sequence() -> None:
    program, change = adaptable()
    program.set_adapter(5, {"head": change})
    rows = [1, 2, 3]
    plain = run(program, rows, None)
    for slots in ([5, -1, -1], [-1, 5, -1], [5, 5, -1], [-1, -1, 5], [5, 5, 5]):
        is_changed = (run(program, rows, slots) != plain).any(axis=1)
        assert is_changed.tolist() == [slot == 5 for slot in slots]
    assert (run(program, [1, 3], [-1, 5, -1]) == plain[[0, 2]]).all()  # no row of the sequence is wanted


def test_a_program_refuses_slots_and_changes_that_do_not_fit() -> None:
    program, change = adaptable()
    with pytest.raises(ValueError, match="no product tail"):
        program.set_adapter(0, {"tail": change})
    wide = kernels.LowRank(32, "float32")
    wide.add(0, random_floats(2, 2, 32), random_floats(3, 8, 2), 1.0)
    long = kernels.LowRank(16, "float32")
    long.add(4, random_floats(2, 2, 16), random_floats(3, 8, 2), 1.0)
    for other in (wide, long):
        with pytest.raises(ValueError, match="does not fit"):
            program.set_adapter(0, {"head": other})
    for slot in (-1, 1024):
        with pytest.raises(ValueError, match="there are slots for"):
            program.set_adapter(slot, {"head": change})
    program.set_adapter(0, {"head": change})
    for slots in ([1, -1, -1], [-2, 0, 0], [0, 0, 10**6]):
        with pytest.raises(ValueError, match="no adapter in slot"):
            run(program, [1], slots)
    with pytest.raises(ValueError, match="one entry of adapters per sequence"):
        run(program, [1], [0])
    program.remove_adapter(0)
    with pytest.raises(ValueError, match="no adapter in slot 0"):
        run(program, [1], [0, -1, -1])
    assert run(program, [1], None).shape == (1, 8)
