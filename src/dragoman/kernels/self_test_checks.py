"""``python -m dragoman.kernels.self_test_checks LEVEL``: all kernels of ``csrc/simd/kernels.h``, at odd shapes.

Bounds are relative to the largest magnitude of a result. Kernels compute the same operations in the same order on every
instruction set; what may differ is where a multiplication and an addition are rounded, once or twice, and what the
processor's bfloat16 instructions round. ``ROUNDING`` is that of sums of some hundred float32 products, 2⁻²⁴ each.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.kv_pool import KVPrecision
from dragoman.kernels.lora import LowRankPrecision
from dragoman.kernels.self_test import Check, Floats, run

ROUNDING = 1e-5
# Attention on bfloat16 may round queries and weights to bfloat16 too, 2⁻⁹ each; on int8 and int4 they have 16 bits.
ATTENTION: dict[KVPrecision, float] = {"float32": ROUNDING, "bfloat16": 2e-2, "int8": 5e-4, "int4": 5e-4}
# A recurrence carries its rounding from row to row.
RECURRENCE = 5e-4
EXACT = 0.0

PACKED: tuple[tuple[str, kernels.Precision, bool, bool], ...] = (
    ("float32", "float32", False, False),
    ("bfloat16", "bfloat16", False, False),
    ("int8", "int8", False, False),
    ("int8 wide", "int8", False, True),
    ("int4", "int4", False, False),
    ("int4 with minimums", "int4", True, False),
)
# Of ggml's blocks: numbers, bytes, and where they have float16 numbers.
BLOCKS: dict[kernels.BlockPrecision, tuple[int, int, tuple[int, ...]]] = {
    "mxfp4": (32, 17, ()), "iq4_nl": (32, 18, (0,)), "iq4_xs": (256, 136, (0,)), "q3_k": (256, 110, (108,)),
    "q4_k": (256, 144, (0, 2)), "q5_k": (256, 176, (0, 2)), "q6_k": (256, 210, (208,)),
}  # fmt: skip
ROWS = (1, 2, 3, 5, 8, 13, 33)

Record = Callable[[kernels.Program, int], int]


def checks() -> Iterator[Check]:
    """All checks, in the order of the report."""
    yield from _products()
    yield from _low_rank()
    yield from _attention()
    yield from _transforms()
    yield from _experts()
    yield from _streams()
    yield from _recurrences()
    yield from _sampling()
    yield from _measurements()


def _random(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _products() -> Iterator[Check]:
    for name, precision, minimum, wide in PACKED:
        for n, k in ((130, 321), (31, 33), (1, 7)):

            def pack(
                n: int = n, k: int = k, form: tuple[kernels.Precision, bool, bool] = (precision, minimum, wide)
            ) -> kernels.PackedMatrix:
                return kernels.pack(_random(1, n, k), form[0], minimum=form[1], wide=form[2])

            yield Check("packing", 1e-6, lambda pack=pack: pack().dequantize())  # type: ignore[misc]
            for rows in ROWS:
                yield Check(f"product {name}", ROUNDING, partial(_product, pack, rows, k))
            yield Check(f"product {name}, rows alone", EXACT, partial(_rows_alone, pack, k))
        source = _random(1, 70, 64).astype(np.float16)
        yield Check("packing", 1e-6, partial(_packed_half, source, precision, minimum, wide))
    for block, (numbers, size, halves) in BLOCKS.items():

        def pack_blocks(
            block: kernels.BlockPrecision = block, numbers: int = numbers, size: int = size,
            halves: tuple[int, ...] = halves,
        ) -> kernels.PackedMatrix:  # fmt: skip
            return kernels.pack_blocks(_blocks(block, 70, size, halves), 3 * numbers, block)

        yield Check("packing", 1e-6, lambda pack=pack_blocks: pack().dequantize())  # type: ignore[misc]
        for rows in ROWS:
            yield Check(f"product {block}", ROUNDING, partial(_product, pack_blocks, rows, 3 * numbers))
        yield Check(f"product {block}, rows alone", EXACT, partial(_rows_alone, pack_blocks, 3 * numbers))


def _packed_half(source: NDArray[np.float16], precision: kernels.Precision, minimum: bool, wide: bool) -> Floats:
    return kernels.pack(source, precision, minimum=minimum, wide=wide).dequantize()


def _blocks(block: kernels.BlockPrecision, n: int, size: int, halves: tuple[int, ...]) -> NDArray[np.uint8]:
    """Three blocks of each row with every bit drawn but those of float16 numbers, and small exponents."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (3 * n, size), dtype=np.uint8)
    if block == "mxfp4":
        blocks[:, 0] = rng.integers(112, 126, len(blocks))
    for place in halves:
        blocks[:, place : place + 2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(n, -1)


def _product(pack: Callable[[], kernels.PackedMatrix], rows: int, k: int) -> Floats:
    w = pack()
    return kernels.linear(_random(2, rows, k), w, _random(3, w.shape[0]))


def _rows_alone(pack: Callable[[], kernels.PackedMatrix], k: int) -> Floats:
    """Return the number of rows of which a bit changes in company, or with the number of threads."""
    w, x = pack(), _random(2, 40, k)
    alone = np.concatenate([kernels.linear(x[i : i + 1], w) for i in range(len(x))])
    changed = 0
    for count in (2, 3, 4, 7, 16, 40):
        changed += int((kernels.linear(x[:count], w) != alone[:count]).any(axis=1).sum())
    before = kernels.threads()
    try:
        kernels.set_threads(1)
        changed += int((kernels.linear(x, w) != alone).any(axis=1).sum())
    finally:
        kernels.set_threads(before)
    return np.array([changed], np.float32)


def _low_rank() -> Iterator[Check]:
    def change(precision: LowRankPrecision, rows: int, scaled: bool) -> Floats:
        k, n, rank = 100, 70, 9
        w, part = kernels.pack(_random(1, n + 5, k), "float32"), kernels.LowRank(k, precision)
        part.add(5, _random(2, rank, k), _random(3, n, rank), 0.5, 1 + _random(4, n) if scaled else None)
        x = _random(5, rows, k)
        y = kernels.linear(x, w)
        part.apply(w, x, y)
        return y

    for precision in ("float32", "bfloat16"):
        for rows in (1, 2, 5, 16):
            for scaled in (False, True):
                # float32 of x and of what is between the matrices: both precisions differ by rounding alone.
                yield Check(f"low-rank {precision}", ROUNDING, partial(change, precision, rows, scaled))


def _attention() -> Iterator[Check]:
    terms: tuple[dict[str, Any], ...] = (
        {},
        {"window": 37},
        {"chunk": 48},
        {"softcap": 5.0},
        {"slopes": 2.0 ** -np.arange(1, 7)},
        {"bias": _random(9, 6, 21)},
        {"sinks": _random(8, 6) * 2},
        {"causal": False},
    )
    for precision in ATTENTION:
        for head_dim in (16, 20, 64, 128):
            for kv_heads in (6, 2):
                one = partial(_attended, precision, kv_heads, head_dim)
                yield Check(f"attention {precision}", ATTENTION[precision], one)
        for term in terms:
            one = partial(_attended, precision, 2, 64, **term)
            yield Check(f"attention {precision}", ATTENTION[precision], one)
        if precision != "int4":
            yield Check(f"attention {precision}", ATTENTION[precision], partial(_attended, precision, 1, 96, latent=64))
        yield Check(f"attention {precision}, rows alone", EXACT, partial(_attended_alone, precision))


def _attended(precision: KVPrecision, kv_heads: int, head_dim: int, *, latent: int = 0, **terms: Any) -> Floats:
    """A prompt of 150 tokens in two pieces, then a token: tiles of many rows, of few, and of one."""
    program, run = _attention_program(precision, kv_heads, head_dim, latent, **terms)
    del program
    if "causal" in terms:
        return run(0, 150)
    return np.concatenate([run(0, 140), run(140, 149), run(149, 150)])


def _attended_alone(precision: KVPrecision) -> Floats:
    """Return the number of rows that depend on the pieces in which a prompt is computed."""
    whole = _attention_program(precision, 2, 64, 0)[1](0, 150)
    _, run = _attention_program(precision, 2, 64, 0)
    cuts = (0, 1, 3, 20, 64, 131, 149, 150)
    pieces = np.concatenate([run(begin, end) for begin, end in itertools.pairwise(cuts)])
    return np.array([(whole != pieces).any(axis=1).sum()], np.float32)


def _attention_program(
    precision: KVPrecision, kv_heads: int, head_dim: int, latent: int, **terms: Any
) -> tuple[kernels.Program, Callable[[int, int], Floats]]:
    heads, length = 6, 150
    width = (heads + (1 if latent else 2) * kv_heads) * head_dim
    table = _random(7, length, width)
    kv = kernels.KVPool(layers=1, blocks=8, kv_heads=kv_heads, head_dim=head_dim, precision=precision, latent=latent)
    kv.data[:] = 0
    p = kernels.Program(max_tokens=length, max_sequences=1, max_logit_rows=length, kv=kv)
    mixed = heads * (latent or head_dim)
    qkv, out, picked = p.buffer(width), p.buffer(mixed), p.buffer(mixed)
    k = heads * head_dim
    p.embed(qkv, kernels.pack(table, "float32"))
    p.write_kv(qkv, k, k + kv_heads * head_dim, layer=0)
    p.attend(out, qkv, 0, heads, layer=0, scale=head_dim**-0.5, **terms)
    p.select_rows(picked, out)
    p.logits(picked)
    blocks = np.arange(-(-length // kernels.BLOCK_TOKENS))[None]

    def run(begin: int, end: int) -> Floats:
        rows = np.arange(begin, end)
        return p.run(rows, rows, [0, end - begin], blocks, np.arange(end - begin)).copy()

    return p, run


def _recorded(x: Floats, record: Record, floats: tuple[int, ...] = (), cuts: tuple[int, ...] | None = None) -> Floats:
    """What a program makes of the rows of x: each alone, or, with ``cuts``, as one sequence computed in pieces."""
    rows = len(x)
    kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=1, precision="float32")
    states = kernels.StatePool(slots=1, floats=floats) if floats else None
    p = kernels.Program(max_tokens=rows, max_sequences=rows, max_logit_rows=rows, kv=kv, states=states)
    start = p.buffer(x.shape[1])
    p.embed(start, kernels.pack(x, "float32"))
    result = record(p, start)
    out = p.buffer(p.width(result))
    p.select_rows(out, result)
    p.logits(out)
    if cuts is None:
        ids = np.arange(rows)
        return p.run(ids, ids % 7, np.arange(rows + 1), np.zeros((rows, 1)), ids).copy()
    pieces = []
    for begin, end in itertools.pairwise(cuts):
        ids, count = np.arange(begin, end), end - begin
        slots = {"state_slots": [0], "state_rows": [-1] * (count - 1) + [0]} if floats else {}
        pieces.append(p.run(ids, ids, [0, count], np.zeros((1, 1)), np.arange(count), **slots).copy())  # type: ignore[arg-type]
    return np.concatenate(pieces)


def _in_place(operation: Callable[[kernels.Program, int], None]) -> Record:
    return lambda p, x: (operation(p, x), x)[1]  # type: ignore[func-returns-value]


def _transforms() -> Iterator[Check]:
    width = 100
    x, weight, bias = _random(1, 6, width) * 3 + 1, _random(2, width), _random(3, width)
    angles = np.random.default_rng(4).uniform(0, 6, (7, 12))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    table = kernels.pack(_random(5, 6, width), "float32")

    def gate(activation: kernels.Activation, p: kernels.Program, start: int) -> int:
        out = p.buffer(width // 2)
        p.gate(out, start, activation)
        return out

    def add(p: kernels.Program, start: int) -> int:
        other = p.buffer(width)
        p.embed(other, table)
        p.add(other, start, 0.7)
        return other

    records: list[tuple[str, Record]] = [("add", add)]
    for kind in ("rms", "layer"):
        for b in (None, bias):
            records += [
                ("norm", _in_place(lambda p, x, k=kind, b=b: p.norm(x, x, weight, b, 1e-6, k))),  # type: ignore[misc]
                ("norm of heads", _in_place(
                    lambda p, x, k=kind, b=b: p.head_norm(x, 5, 3, 30, weight[:90], 1e-6, b if b is None else b[:90], k)  # type: ignore[misc]
                )),
            ]  # fmt: skip
    for interleaved in (False, True):
        records.append(
            ("rotary embedding", _in_place(lambda p, x, i=interleaved: p.rotate(x, 3, 3, 30, cos, sin, i)))  # type: ignore[misc]
        )
    for activation in ("silu", "gelu", "gelu_tanh", "relu", "relu2"):
        records.append(("activation", _in_place(lambda p, x, a=activation: p.activate(x, a))))  # type: ignore[misc]
    for activation in ("silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"):
        records.append(("gate", partial(gate, activation)))  # type: ignore[arg-type]
    records += [
        ("xIELU", _in_place(lambda p, x: p.xielu(x, 0.8, 0.6, 0.5, -1e-6))),
        ("clip", _in_place(lambda p, x: p.clip(x, 2.0))),
        ("scale", _in_place(lambda p, x: p.scale(x, 0.3, 5, 60))),
        ("scale by position", _in_place(lambda p, x: p.scale_by_position(x, 5, 60, bias))),
        ("add positions", _in_place(lambda p, x: p.add_positions(x, _random(6, 7, width)))),
        ("soft cap", _in_place(lambda p, x: p.soft_cap(x, 5.0))),
    ]
    for name, record in records:
        yield Check(name, ROUNDING, partial(_recorded, x, record))


def _experts() -> Iterator[Check]:
    width, hidden, count = 72, 40, 8

    def record(precision: kernels.Precision, options: dict[str, Any], p: kernels.Program, x: int) -> int:
        shared = "shared" in options
        total = count + shared
        out = p.buffer(width)
        p.experts(
            out,
            x,
            kernels.pack(_random(1, total, width), "float32"),
            [kernels.pack(_random(2 + e, 2 * hidden, width), precision) for e in range(total)],
            [kernels.pack(_random(20 + e, width, hidden), precision) for e in range(total)],
            active=3,
            **options,
        )
        return out

    kinds: tuple[dict[str, Any], ...] = (
        {}, {"over_all": True}, {"shared": "gated"}, {"scores": "sigmoid", "groups": 4, "active_groups": 2},
        {"choice_bias": _random(5, count) / 9},
    )  # fmt: skip
    for precision in ("float32", "bfloat16", "int8", "int4"):
        for options in kinds if precision == "float32" else kinds[:1]:
            # A second product quantizes what the first computed: a last bit may move a number to its neighbour.
            bound = ROUNDING if precision == "float32" else 2e-2
            x = _random(9, 20, width)
            yield Check(f"experts {precision}", bound, partial(_recorded, x, partial(record, precision, options)))


def _streams() -> Iterator[Check]:
    parts, width, rows = 3, 33, 5

    def given(p: kernels.Program, seed: int, size: int) -> int:
        buffer = p.buffer(size)
        p.embed(buffer, kernels.pack(_random(seed, rows, size), "float32"))
        return buffer

    def predict(p: kernels.Program, x: int) -> int:
        out = p.buffer(parts * width)
        p.predict_parts(out, x, given(p, 2, parts**2))
        return out

    records: tuple[tuple[str, Record], ...] = (
        ("predicted parts", predict),
        ("corrected parts", _in_place(lambda p, x: p.correct_parts(x, given(p, 3, width), given(p, 4, parts), 1))),
        ("magnitudes", _in_place(lambda p, x: p.match_magnitude(x, given(p, 5, width), 1e-5))),
        ("largest", _in_place(lambda p, x: p.keep_largest(x, 2 * width, 0.5))),
    )
    for name, record in records:
        yield Check(name, ROUNDING, partial(_recorded, _random(1, rows, parts * width), record))


def _recurrences() -> Iterator[Check]:
    length, whole, cuts = 41, (0, 41), (0, 1, 20, 21, 41)
    forms: list[tuple[str, int, Record, int]] = []
    for taps, width, activated in ((4, 35, True), (3, 80, False)):
        weight, bias = _random(1, taps, width), _random(2, width)
        convolve = _in_place(
            lambda p, x, w=weight, b=bias, a=activated: p.convolve(x, 0, w, 0, b, activated=a)  # type: ignore[misc]
        )
        forms.append(("convolution", width, convolve, (taps - 1) * width))
    for delta in (True, False):
        forms.append((*_linear_recurrence(4, 2, 24, 20, delta),))
    forms += [_keyed_recurrence(), _selective_scan(), _gated_unit()]
    for name, width, record, floats in forms:
        x = _random(3, length, width) * 0.5
        yield Check(name, RECURRENCE, partial(_recorded, x, record, (floats,), whole))
        yield Check(f"{name}, pieces of a text", EXACT, partial(_pieces_differ, x, record, (floats,), whole, cuts))
    for factor in ("plain", "silu", "sigmoid", "gelu_tanh"):

        def multiply(p: kernels.Program, x: int, factor: kernels.Factor = factor) -> int:
            out = p.buffer(35)
            p.multiply(out, 0, x, 1, x, 36, 35, factor)
            return out

        yield Check("products of columns", ROUNDING, partial(_recorded, _random(1, 5, 71), multiply))


def _pieces_differ(
    x: Floats, record: Record, floats: tuple[int, ...], whole: tuple[int, ...], cuts: tuple[int, ...]
) -> Floats:
    differ = _recorded(x, record, floats, whole) != _recorded(x, record, floats, cuts)
    return np.array([differ.any(axis=1).sum()], np.float32)


def _linear_recurrence(
    heads: int, group: int, key_dim: int, value_dim: int, delta: bool
) -> tuple[str, int, Record, int]:
    keys, values = heads // group * key_dim, heads * value_dim
    rate, bias = np.abs(_random(1, heads)) + 0.1, _random(2, heads)
    skip = None if delta else _random(3, heads)
    first = 2 * keys + values

    def record(p: kernels.Program, x: int) -> int:
        gates, out = p.buffer(2 * heads), p.buffer(values)
        p.scale(x, key_dim**-0.5, keys, keys)
        p.recurrence_gates(gates, x, first, first + heads if delta else None, rate, bias, 0.0, 5.0)
        p.recur(
            out, x, gates, q_offset=0, k_offset=keys, v_offset=2 * keys, heads=heads, group=group, key_dim=key_dim,
            value_dim=value_dim, part=0, skip=skip, delta=delta,
        )  # fmt: skip
        return out

    name = "delta rule" if delta else "state space"
    return name, first + 2 * heads, record, heads * key_dim * (-(-value_dim // 16) * 16)


def _keyed_recurrence() -> tuple[str, int, Record, int]:
    heads, dim = 2, 70
    width = heads * dim
    rate, bias = np.abs(_random(1, width)) + 0.1, _random(2, width)

    def record(p: kernels.Program, x: int) -> int:
        gates, out = p.buffer(width + heads), p.buffer(width)
        p.scale(x, dim**-0.5, width, width)
        p.recurrence_gates(gates, x, 3 * width, 4 * width, rate, bias)
        p.recur(
            out, x, gates, q_offset=0, k_offset=width, v_offset=2 * width, heads=heads, group=1, key_dim=dim,
            value_dim=dim, part=0, delta=True, key_decays=True,
        )  # fmt: skip
        return out

    return "delta rule by key", 4 * width + heads, record, heads * dim * 80


def _selective_scan() -> tuple[str, int, Record, int]:
    width, state = 35, 5
    rate, bias, skip = np.abs(_random(1, state, width)), _random(2, width), _random(3, width)

    def record(p: kernels.Program, x: int) -> int:
        values, steps, bc, out = p.buffer(width), p.buffer(width), p.buffer(2 * state), p.buffer(width)
        p.copy_columns(values, x, 0)
        p.copy_columns(steps, x, width)
        p.copy_columns(bc, x, 2 * width)
        p.scan(out, values, steps, bc, b_offset=0, c_offset=state, rate=rate, bias=bias, skip=skip, part=0)
        return out

    return "selective scan", 2 * width + 2 * state, record, state * 48


def _gated_unit() -> tuple[str, int, Record, int]:
    width = 35
    rate, of_input, of_decay = np.abs(_random(1, width)), _random(2, width), _random(3, width)

    def record(p: kernels.Program, x: int) -> int:
        values, one, two = (p.buffer(width) for _ in range(3))
        for place, buffer in enumerate((values, one, two)):
            p.copy_columns(buffer, x, place * width)
        p.unit(values, one, two, rate=rate, input_bias=of_input, decay_bias=of_decay, part=0)
        return values

    return "gated unit", 3 * width, record, width


def _sampling() -> Iterator[Check]:
    vocab = 5000

    def probabilities(truncations: dict[str, float]) -> Floats:
        """What the tokens are drawn from, as logits."""
        logits = _random(1, 7, vocab) * 3
        rows = len(logits)
        tokens = np.empty(rows, np.int32)
        limits = {name: np.full(rows, value) for name, value in truncations.items()}
        kernels.sample(logits, np.full(rows, 0.7), np.linspace(0.1, 0.9, rows), tokens, limits, overwrite=np.ones(rows))
        return np.concatenate([logits, tokens[:, None].astype(np.float32)], axis=1)

    def most_likely() -> Floats:
        logits, tokens = _random(2, 7, vocab), np.empty(7, np.int32)
        logprobs = np.empty(7, np.float32)
        kernels.sample(logits, np.zeros(7), np.zeros(7), tokens, logprobs=logprobs)
        ids, top = kernels.top_logprobs(logits, np.arange(7), 5)
        return np.concatenate([tokens[:, None], logprobs[:, None], ids, top], axis=1).astype(np.float32)

    def at() -> Floats:
        rows = np.repeat(np.arange(7), 3)
        return kernels.log_softmax_at(_random(3, 7, vocab), rows, np.arange(21) * 200)

    for truncations in ({}, {"top_k": 40.0}, {"top_p": 0.9}, {"min_p": 0.05}, {"typical_p": 0.8}):
        yield Check("sampling", ROUNDING, partial(probabilities, truncations))
    yield Check("log-probabilities", ROUNDING, most_likely)
    yield Check("log-probabilities", ROUNDING, at)


def _measurements() -> Iterator[Check]:
    def without_result() -> Floats:
        measured = [kernels.multiply_peak(precision) for precision in ("float32", "bfloat16", "int8", "int4")]
        return np.array([sum(each <= 0 for each in (*measured, *kernels.memory_passes(1e-9)))], np.float32)

    yield Check("measurements", EXACT, without_result)


def main() -> int:
    """Print a line of JSON when each check begins, ``[kernel, bound, null]``, and one with its error at its end."""

    def announced() -> Iterator[Check]:
        for check in checks():
            print(json.dumps([check.kernel, check.bound, None]), flush=True)
            yield check

    for check, error in run(announced(), sys.argv[1]):
        print(json.dumps([check.kernel, check.bound, error]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
