"""Attention against NumPy, and promise 1: no bit of a row depends on what runs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.kv_pool import KVPrecision
from dragoman.kernels.reference import attention as reference

Floats = NDArray[np.float32]
PLAIN_TILES = ["amx_plain"] if kernels.instruction_sets()[0] == "avx512" else []  # where the processor has none
BLOCKS, OWN = 200, 7  # of a pool; and so far behind a block of the first group lies the own one
Kept = KVPrecision | Literal["own"]  # int4, with each query's own block in bfloat16
PRECISIONS: tuple[Kept, ...] = ("float32", "bfloat16", "int8", "int4", "own")
MOST_PRECISIONS: tuple[Kept, ...] = ("float32", "bfloat16", "int8", "own")
LATENT_PRECISIONS: tuple[KVPrecision, ...] = ("float32", "bfloat16", "int8")
# In bfloat16 the AVX-512 kernel also rounds queries and weights: relative errors of 2⁻⁹ each. In int8 those are 2⁻¹⁶.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 5e-4, "int4": 5e-4, "own": 2e-2}


def rounded(x: Floats) -> Floats:
    """To bfloat16 and back, to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


@dataclass(frozen=True)
class Chunk:
    """Rows ``begin : end`` of a sequence, with the blocks it lives in."""

    sequence: int
    begin: int
    end: int
    blocks: tuple[int, ...]


@dataclass
class Layer:
    """One attention layer: rows of [q | k | v] come in as embeddings (token id = table row), attention comes out.

    All sequences' rows are made in advance; sequence s has its tokens at ids ``s · length + position``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    precision: Kept
    window: int = 0
    sequences: int = 4
    length: int = 200
    seed: int = 1
    softcap: float = 0.0
    sloped: bool = False
    reach: int = -1
    causal: bool = True
    sinking: bool = False
    chunk: int = 0
    latent: int = 0
    table: Floats = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        width = (self.heads + (1 if self.latent else 2) * self.kv_heads) * self.head_dim
        self.table = rng.normal(size=(self.sequences * self.length, width)).astype(np.float32)
        self.scale = self.head_dim**-0.5
        self.terms = {
            "softcap": self.softcap,
            "slopes": 2.0 ** -np.arange(1, self.heads + 1) if self.sloped else None,
            "bias": rng.normal(size=(self.heads, 2 * self.reach + 1)) if self.reach >= 0 else None,
            "causal": self.causal,
            "sinks": rng.normal(size=self.heads) * 2 if self.sinking else None,
            "chunk": self.chunk,
        }

    def start(self, blocks: int = BLOCKS) -> tuple[kernels.KVPool, kernels.Program]:
        """A pool full of NaN, as a worst case of what others may have left there, and a program over it."""
        kv = kernels.KVPool(
            layers=2,
            blocks=blocks,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            precision="int4" if self.precision == "own" else self.precision,
            latent=self.latent,
            own_blocks=blocks if self.precision == "own" else 0,
        )
        for group in range(len(kv.blocks)):  # only the padding of the head dimension is nobody's, and stays zero
            kv.block_data(group)[:] = 0 if self.head_dim % 16 else 0xFF
        p = kernels.Program(max_tokens=700, max_sequences=16, max_logit_rows=700, kv=kv)
        mixed = self.heads * (self.latent or self.head_dim)
        qkv, out, picked = p.buffer(self.table.shape[1]), *(p.buffer(mixed) for _ in range(2))
        k = self.heads * self.head_dim
        p.embed(qkv, kernels.pack(self.table, "float32"))
        p.write_kv(qkv, k, k + self.kv_heads * self.head_dim, layer=1)
        p.attend(out, qkv, 0, self.heads, layer=1, scale=self.scale, window=self.window, **self.terms)
        p.select_rows(picked, out)
        p.logits(picked)
        return kv, p

    def run(self, program: kernels.Program, chunks: list[Chunk]) -> list[Floats]:
        """One step; each chunk's rows of the result."""
        positions = [np.arange(c.begin, c.end) for c in chunks]
        ids = [c.sequence * self.length + p for c, p in zip(chunks, positions, strict=True)]
        starts = np.cumsum([0, *(c.end - c.begin for c in chunks)])
        tables = np.full((len(chunks), max(len(c.blocks) for c in chunks)), -1)
        for i, c in enumerate(chunks):
            tables[i, : len(c.blocks)] = c.blocks
        if self.precision == "own":  # of this step's positions alone, and others than theirs in the first group
            own = np.where(tables < 0, -1, (tables + OWN) % BLOCKS)
            for i, c in enumerate(chunks):
                own[i, : c.begin // 32] = -1
            tables = np.stack([tables, own])
        result = program.run(
            np.concatenate(ids), np.concatenate(positions), starts, tables, np.arange(starts[-1])
        ).copy()
        return np.split(result, starts[1:-1])

    def alone(self, sequence: int, length: int) -> Floats:
        """The whole sequence in one chunk, by itself."""
        blocks = tuple(range(-(-length // 32)))
        _, program = self.start(len(blocks) + OWN)
        return self.run(program, [Chunk(sequence, 0, length, blocks)])[0]

    def expected(self, sequence: int, length: int) -> Floats:
        rows = self.table[sequence * self.length :][:length]
        q, k, *rest = np.split(rows, [self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim], axis=1)
        v, shape = k if self.latent else rest[0], (length, -1, self.head_dim)
        near = rounded(np.ascontiguousarray(k)).reshape(shape), rounded(np.ascontiguousarray(v)).reshape(shape)
        if self.precision == "bfloat16":
            k, v = near
        if self.precision == "int8":
            k, v = reference.in_int8(k.reshape(shape)), reference.in_int8(v.reshape(shape))
        if self.precision in ("int4", "own"):
            k, v = reference.int4_keys(k.reshape(shape)), reference.int4_values(v.reshape(shape))
        v = v.reshape(shape)[..., : self.latent or None]
        own = near if self.precision == "own" and self.causal else None
        return reference.attend(
            q.reshape(shape), k.reshape(shape), v, 0, self.scale, self.window, **self.terms, own=own
        )


@pytest.fixture(params=[*kernels.instruction_sets(), *PLAIN_TILES], autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield
    kernels.force(before)


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


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[list[tuple[int, int]]], list[int]]:
    """Lengths of four sequences, steps (each a list of (sequence, tokens to run)), and a permutation of the blocks."""
    lengths = draw(st.lists(st.integers(1, 150), min_size=4, max_size=4))
    left = list(lengths)
    steps: list[list[tuple[int, int]]] = []
    while any(left):
        step = []
        for s in draw(st.permutations(range(4))):
            if left[s] and (draw(st.booleans()) or not any(left[:s])):
                tokens = min(left[s], draw(st.sampled_from([1, 1, 2, 7, 31, 32, 33, 64, 150])))
                step.append((s, tokens))
                left[s] -= tokens
        if step:
            steps.append(step)
    return lengths, steps, draw(st.permutations(range(40)))


LAYERS = [
    Layer(4, 2, 64, "bfloat16"),
    Layer(4, 4, 20, "float32"),
    Layer(6, 1, 32, "float32", window=50),
    Layer(6, 2, 48, "bfloat16", window=33),
    Layer(4, 2, 32, "bfloat16", softcap=1.0, sloped=True, reach=40),
    Layer(6, 2, 80, "int8"),
    Layer(4, 4, 32, "int8", window=33),
    Layer(20, 1, 72, "bfloat16", window=40, latent=64),
    Layer(6, 1, 48, "int8", latent=32),
    Layer(6, 2, 80, "own"),
    Layer(4, 4, 32, "own", window=20),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.precision}-{layer.window}-{layer.softcap}")
@settings(max_examples=8, deadline=None)
@given(schedule=schedules(), threads=st.sampled_from([1, 2]))
def test_a_row_is_the_same_bits_in_any_batch_and_chunking(
    layer: Layer, schedule: tuple[list[int], list[list[tuple[int, int]]], list[int]], threads: int
) -> None:
    lengths, steps, order = schedule
    before = kernels.threads()
    kernels.set_threads(threads)
    try:
        _, program = layer.start()
        done = [0] * 4
        rows: list[list[Floats]] = [[] for _ in range(4)]
        blocks = [tuple(order[s * 5 : s * 5 + -(-lengths[s] // 32)]) for s in range(4)]
        for step in steps:
            chunks = [Chunk(s, done[s], done[s] + n, blocks[s]) for s, n in step]
            for chunk, result in zip(chunks, layer.run(program, chunks), strict=True):
                rows[chunk.sequence].append(result)
                done[chunk.sequence] = chunk.end
        for s in range(4):
            np.testing.assert_array_equal(np.concatenate(rows[s]), layer.alone(s, lengths[s]))
    finally:
        kernels.set_threads(before)


@pytest.mark.parametrize("precision", MOST_PRECISIONS)
@pytest.mark.parametrize("window", [0, 700])
def test_long_contexts_are_the_same_bits_however_divided(precision: Kept, window: int) -> None:
    """A sequence of several KV splits: whole chunks in one thread, then single rows whose splits go to two threads."""
    layer = Layer(2, 1, 16, precision, window, sequences=2, length=1700)
    blocks = tuple(range(54))
    results = []
    before = kernels.threads()
    try:
        for threads, sizes in ((1, [600, 600, 500]), (2, [511, 513, 640]), (2, [700, 700, *[1] * 40])):
            kernels.set_threads(threads)
            _, program = layer.start()
            done, rows = 0, []
            for size in sizes:
                rows += layer.run(program, [Chunk(1, done, done + size, blocks)])
                done += size
            results.append(np.concatenate(rows)[:1440])
    finally:
        kernels.set_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_row_of_several_tiles_is_the_same_bits_however_divided() -> None:
    layer = Layer(33, 1, 48, "bfloat16", sequences=1, length=524, latent=32)
    blocks = tuple(range(17))
    before = kernels.threads()
    kernels.set_threads(2)
    try:
        _, program = layer.start()
        layer.run(program, [Chunk(0, 0, 520, blocks)])
        rows = [layer.run(program, [Chunk(0, t, t + 1, blocks)])[0] for t in range(520, 524)]
        together = layer.run(program, [Chunk(0, 520, 524, blocks)])[0]
    finally:
        kernels.set_threads(before)
    np.testing.assert_array_equal(np.concatenate(rows), together)


@pytest.mark.parametrize(
    ("precision", "latent"), [*((each, 0) for each in MOST_PRECISIONS), *((each, 32) for each in LATENT_PRECISIONS)]
)
def test_what_lies_in_foreign_slots_has_no_influence(precision: Kept, latent: int) -> None:
    """The pool starts as NaN, zeros or huge numbers: the results do not differ in a bit."""
    layer = Layer(4, 1 if latent else 2, 48 if latent else 32, precision, latent=latent)
    results = []
    for garbage in (0x00, 0xFF, 0x7F):
        kv, program = layer.start()
        for group in range(len(kv.blocks)):
            kv.block_data(group)[:] = garbage
        chunks = [Chunk(0, 0, 33, (3, 7)), Chunk(1, 0, 1, (5,))]
        first = layer.run(program, chunks)
        second = layer.run(program, [Chunk(1, 1, 2, (5,)), Chunk(0, 33, 100, (3, 7, 1, 2))])
        results.append(np.concatenate(first + second))
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("window", [0, 20])
def test_rows_that_see_to_both_sides_do_not_see_their_neighbours(window: int) -> None:
    layer = Layer(4, 2, 32, "bfloat16", window, causal=False, reach=16)
    _, program = layer.start()
    both = layer.run(program, [Chunk(0, 0, 90, (0, 1, 2)), Chunk(1, 0, 41, (3, 4))])
    np.testing.assert_array_equal(both[0], layer.alone(0, 90))
    np.testing.assert_array_equal(both[1], layer.alone(1, 41))


@pytest.mark.parametrize("precision", MOST_PRECISIONS)
@pytest.mark.parametrize("part", ["queries", "keys", "values", "all"])
def test_a_sequence_of_nan_stays_alone(precision: Kept, part: str) -> None:
    layer = Layer(4, 2, 32, precision)
    columns = {"queries": slice(0, 128), "keys": slice(128, 192), "values": slice(192, 256), "all": slice(None)}[part]
    layer.table[layer.length : 2 * layer.length, columns] = np.nan
    _, program = layer.start()
    healthy, broken = layer.run(program, [Chunk(0, 0, 90, (0, 1, 2)), Chunk(1, 0, 90, (3, 4, 5))])
    assert np.isnan(broken).all()
    np.testing.assert_array_equal(healthy, layer.alone(0, 90))


@pytest.mark.parametrize("precision", MOST_PRECISIONS)
def test_copied_blocks_continue_as_the_original(precision: Kept) -> None:
    layer = Layer(4, 2, 32, precision)
    kv, program = layer.start()
    layer.run(program, [Chunk(0, 0, 50, (0, 1))])
    kv.copy_blocks([1], [9])
    if precision == "own":
        kv.copy_blocks([1 + OWN], [9 + OWN], group=1)
    original, copy = layer.run(program, [Chunk(0, 50, 60, (0, 1)), Chunk(0, 50, 60, (0, 9))])
    np.testing.assert_array_equal(original, copy)


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


def test_a_prefix_written_in_the_same_step_can_be_shared() -> None:
    layer = Layer(4, 2, 32, "float32")
    _, program = layer.start()
    whole, rest = layer.run(program, [Chunk(0, 0, 64, (0, 1)), Chunk(0, 32, 64, (0, 2))])
    np.testing.assert_array_equal(whole[32:], rest)
