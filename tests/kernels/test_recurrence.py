"""Convolutions and recurrences with a state: against NumPy, and the same bits however their rows are divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import recurrence as reference

Floats = NDArray[np.float32]
SLOTS = 12
LENGTH = 41

Record = Callable[[kernels.Program, int], int]


@pytest.fixture(params=kernels.instruction_sets(), autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield
    kernels.force(before)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


class Recurrent:
    """A program of recurrences over the rows of ``x``: token i has embedding i, and its logits are what is recorded."""

    def __init__(self, x: Floats, floats: Sequence[int], record: Record) -> None:
        kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=1, precision="float32")
        self.states = kernels.StatePool(slots=SLOTS, floats=floats)
        sizes = {"max_tokens": 256, "max_sequences": 16, "max_logit_rows": 256}
        self.program = p = kernels.Program(**sizes, kv=kv, states=self.states)
        start = p.buffer(x.shape[1])
        p.embed(start, kernels.pack(x, "float32"))
        result = record(p, start)
        out = p.buffer(p.width(result))
        p.select_rows(out, result)
        p.logits(out)

    def run(self, *sequences: tuple[Sequence[int], int, int, Sequence[int]]) -> Floats:
        """Each is its tokens, its first position, the slot before it, and the slots of its rows."""
        ids = np.concatenate([tokens for tokens, *_ in sequences]).astype(np.int32)
        starts = np.cumsum([0] + [len(tokens) for tokens, *_ in sequences])
        positions = np.concatenate([np.arange(first, first + len(tokens)) for tokens, first, *_ in sequences])
        return self.program.run(
            ids,
            positions,
            starts,
            np.zeros((len(sequences), 1), np.int32),
            np.arange(len(ids)),
            state_slots=[before for _, _, before, _ in sequences],
            state_rows=np.concatenate([rows for *_, rows in sequences]),
        ).copy()

    def whole(self, tokens: Sequence[int], slot: int = 0) -> Floats:
        return self.run((tokens, 0, slot, last(len(tokens), slot)))


def last(count: int, slot: int) -> list[int]:
    return [-1] * (count - 1) + [slot]


TAPS = [2, 3, 4, 16]
WIDTHS = [1, 16, 35, 300]
HEADS = [(1, 1, 16, 16), (4, 2, 24, 20), (6, 3, 8, 70), (2, 1, 128, 128), (3, 3, 5, 33)]


def convolution(rng: np.random.Generator, width: int, taps: int, biased: bool) -> tuple[Record, list[int], Floats]:
    weight = rng.normal(size=(taps, width)).astype(np.float32)
    bias = rng.normal(size=width).astype(np.float32) if biased else None
    x = rng.normal(size=(LENGTH, width + 3)).astype(np.float32)

    def record(p: kernels.Program, start: int) -> int:
        p.convolve(start, 2, weight, 0, bias, activated=biased)
        return start

    expected = x.astype(np.float64)
    expected[:, 2 : 2 + width] = reference.convolve(x[:, 2 : 2 + width], weight, bias, biased)
    return record, [(taps - 1) * width], np.concatenate([x, expected], axis=1)


def recurrence(
    rng: np.random.Generator, heads: int, group: int, key_dim: int, value_dim: int, delta: bool
) -> tuple[Record, list[int], Floats]:
    shared, keys, values = heads // group, heads // group * key_dim, heads * value_dim
    x = rng.normal(size=(LENGTH, 2 * keys + values + 2 * heads)).astype(np.float32)
    q, k, v, steps, factors = np.split(x, np.cumsum([keys, keys, values, heads]), axis=1)
    k /= np.sqrt(key_dim)
    rate, bias = rng.uniform(0.1, 2, heads).astype(np.float32), rng.normal(size=heads).astype(np.float32)
    skip = None if delta else rng.normal(size=heads).astype(np.float32)

    def record(p: kernels.Program, start: int) -> int:
        gates, out = p.buffer(2 * heads), p.buffer(values)
        first = 2 * keys + values
        p.recurrence_gates(gates, start, first, first + heads if delta else None, rate, bias, 0.0, 5.0)
        sizes = {"heads": heads, "group": group, "key_dim": key_dim, "value_dim": value_dim}
        p.recur(
            out, start, gates, q_offset=0, k_offset=keys, v_offset=2 * keys, **sizes, part=0, skip=skip, delta=delta
        )
        return out

    decay, factor = reference.gates(steps, factors if delta else None, rate, bias, 0.0, 5.0)
    parts = (part.reshape(LENGTH, count, -1) for part, count in ((q, shared), (k, shared), (v, heads)))
    expected = reference.recur(*parts, decay, factor, skip, delta).reshape(LENGTH, -1)
    return record, [heads * key_dim * (-(-value_dim // 16) * 16)], np.concatenate([x, expected], axis=1)


def keyed_recurrence(rng: np.random.Generator, heads: int, dim: int) -> tuple[Record, list[int], Floats]:
    """A delta rule with a decay for each number of a key."""
    width = heads * dim
    x = rng.normal(size=(LENGTH, 4 * width + heads)).astype(np.float32)
    q, k, v, steps, factors = np.split(x, np.cumsum([width] * 4), axis=1)
    k /= np.sqrt(dim)
    rate, bias = rng.uniform(0.1, 2, width).astype(np.float32), rng.normal(size=width).astype(np.float32)

    def record(p: kernels.Program, start: int) -> int:
        gates, out = p.buffer(width + heads), p.buffer(width)
        p.recurrence_gates(gates, start, 3 * width, 4 * width, rate, bias)
        sizes = {"heads": heads, "group": 1, "key_dim": dim, "value_dim": dim, "part": 0}
        offsets = {"q_offset": 0, "k_offset": width, "v_offset": 2 * width}
        p.recur(out, start, gates, **offsets, **sizes, delta=True, key_decays=True)
        return out

    decay, _ = reference.gates(steps, None, rate, bias)
    parts = (part.reshape(LENGTH, heads, dim) for part in (q, k, v))
    expected = reference.recur(
        *parts, decay.reshape(LENGTH, heads, dim), 1 / (1 + np.exp(-factors.astype(np.float64))), delta=True
    )
    return record, [width * (-(-dim // 16) * 16)], np.concatenate([x, expected.reshape(LENGTH, -1)], axis=1)


def selective_scan(rng: np.random.Generator, width: int, state_dim: int) -> tuple[Record, list[int], Floats]:
    x = rng.normal(size=(LENGTH, 2 * width + 2 * state_dim)).astype(np.float32)
    inputs, steps, b, c = np.split(x, [width, 2 * width, 2 * width + state_dim], axis=1)
    rate = rng.uniform(0.1, 2, (state_dim, width)).astype(np.float32)
    bias, skip = rng.normal(size=(2, width)).astype(np.float32)

    def record(p: kernels.Program, start: int) -> int:
        ours, times, out = (p.buffer(width) for _ in range(3))
        p.copy_columns(ours, start, 0)
        p.copy_columns(times, start, width)
        offsets = {"b_offset": 2 * width, "c_offset": 2 * width + state_dim}
        p.scan(out, ours, times, start, **offsets, rate=rate, bias=bias, skip=skip, part=0)
        return out

    expected = reference.scan(inputs, steps, b, c, rate, bias, skip)
    return record, [state_dim * (-(-width // 16) * 16)], np.concatenate([x, expected], axis=1)


def gated_unit(rng: np.random.Generator, width: int) -> tuple[Record, list[int], Floats]:
    x = rng.normal(size=(LENGTH, 3 * width)).astype(np.float32)
    inputs, opening, decaying = np.split(x, 3, axis=1)
    rate = rng.uniform(0.1, 2, width).astype(np.float32)
    input_bias, decay_bias = rng.normal(size=(2, width)).astype(np.float32)

    def record(p: kernels.Program, start: int) -> int:
        out, input_gate, decay_gate = (p.buffer(width) for _ in range(3))
        for number, buffer in enumerate((out, input_gate, decay_gate)):
            p.copy_columns(buffer, start, number * width)
        p.unit(out, input_gate, decay_gate, rate=rate, input_bias=input_bias, decay_bias=decay_bias, part=0)
        return out

    expected = reference.unit(inputs, opening + input_bias, decaying + decay_bias, rate)
    return record, [width], np.concatenate([x, expected], axis=1)


def made(rng: np.random.Generator, kind: str) -> tuple[Recurrent, Floats]:
    """A small one of each kind, and its outputs by the reference."""
    if kind == "convolution":
        record, floats, both = convolution(rng, 150, 4, True)  # twice 64 channels together, and 22
        width = both.shape[1] // 2
    elif kind == "selective scan":
        record, floats, both = selective_scan(rng, 100, 12)
        width = both.shape[1] - 100
    elif kind == "delta rule by key":
        record, floats, both = keyed_recurrence(rng, 3, 20)
        width = both.shape[1] - 60
    elif kind == "gated unit":
        record, floats, both = gated_unit(rng, 35)
        width = both.shape[1] - 35
    else:
        record, floats, both = recurrence(rng, 4, 2, 24, 20, kind == "delta rule")
        width = both.shape[1] - 80
    return Recurrent(both[:, :width].astype(np.float32), floats, record), both[:, width:]


KINDS = ["convolution", "delta rule", "state space", "selective scan", "gated unit", "delta rule by key"]


@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("biased", [False, True])
def test_convolution(rng: np.random.Generator, width: int, taps: int, biased: bool) -> None:
    record, floats, both = convolution(rng, width, taps, biased)
    ours = Recurrent(both[:, : width + 3].astype(np.float32), floats, record).whole(range(LENGTH))
    np.testing.assert_allclose(ours, both[:, width + 3 :], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("heads", "group", "key_dim", "value_dim"), HEADS)
@pytest.mark.parametrize("delta", [False, True])
def test_recurrence(
    rng: np.random.Generator, heads: int, group: int, key_dim: int, value_dim: int, delta: bool
) -> None:
    record, floats, both = recurrence(rng, heads, group, key_dim, value_dim, delta)
    width = both.shape[1] - heads * value_dim
    ours = Recurrent(both[:, :width].astype(np.float32), floats, record).whole(range(LENGTH))
    np.testing.assert_allclose(ours, both[:, width:], rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize(("width", "state_dim"), [(1, 1), (16, 16), (35, 5), (300, 16)])
def test_selective_scan(rng: np.random.Generator, width: int, state_dim: int) -> None:
    record, floats, both = selective_scan(rng, width, state_dim)
    inputs = both.shape[1] - width
    ours = Recurrent(both[:, :inputs].astype(np.float32), floats, record).whole(range(LENGTH))
    np.testing.assert_allclose(ours, both[:, inputs:], rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize(("heads", "dim"), [(1, 16), (3, 5), (2, 70), (2, 128)])
def test_recurrence_with_decays_of_keys(rng: np.random.Generator, heads: int, dim: int) -> None:
    record, floats, both = keyed_recurrence(rng, heads, dim)
    inputs = both.shape[1] - heads * dim
    ours = Recurrent(both[:, :inputs].astype(np.float32), floats, record).whole(range(LENGTH))
    np.testing.assert_allclose(ours, both[:, inputs:], rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("width", [1, 16, 300])
def test_gated_unit(rng: np.random.Generator, width: int) -> None:
    record, floats, both = gated_unit(rng, width)
    ours = Recurrent(both[:, : 3 * width].astype(np.float32), floats, record).whole(range(LENGTH))
    np.testing.assert_allclose(ours, both[:, 3 * width :], rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("factor", ["plain", "silu", "sigmoid", "gelu_tanh"])
@pytest.mark.parametrize("width", [1, 16, 35])
def test_multiply(rng: np.random.Generator, width: int, factor: kernels.Factor) -> None:
    x = rng.normal(size=(5, 2 * width + 1)).astype(np.float32)

    def record(p: kernels.Program, start: int) -> int:
        out = p.buffer(width)
        p.multiply(out, 0, start, 1, start, 1 + width, width, factor)
        return out

    expected = reference.multiply(x[:, 1 : 1 + width], x[:, 1 + width :], factor)
    ours = Recurrent(x, [1], record)
    np.testing.assert_allclose(ours.whole(range(5)), expected, rtol=1e-5, atol=1e-6)


def test_gates_of_large_arguments_do_not_overflow() -> None:
    x = np.array([[-200.0, -20.0, 0.0, 20.0, 200.0]], np.float32)
    rate, bias = np.full(5, 0.5, np.float32), np.zeros(5, np.float32)

    def record(p: kernels.Program, start: int) -> int:
        out = p.buffer(10)
        p.recurrence_gates(out, start, 0, None, rate, bias)
        return out

    decay, step = reference.gates(x, None, rate, bias)
    ours = Recurrent(x, [1], record).whole([0])
    np.testing.assert_allclose(ours, np.concatenate([decay, step], axis=1), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_any_division_into_steps_gives_the_same_bits(rng: np.random.Generator, kind: str) -> None:
    model, _ = made(rng, kind)
    whole = model.whole(range(LENGTH))
    for cuts in ([1], [20, 21, 22], list(range(1, LENGTH))):
        parts = []
        for number, part in enumerate(np.split(np.arange(LENGTH), cuts)):
            slot = 2 + number % 2  # from one slot into the other
            parts.append(model.run((part.tolist(), int(part[0]), 5 - slot, last(len(part), slot))))
        assert (np.concatenate(parts) == whole).all()


@pytest.mark.parametrize("kind", KINDS)
def test_company_changes_no_bits(rng: np.random.Generator, kind: str) -> None:
    model, _ = made(rng, kind)
    whole = model.whole(range(LENGTH))
    model.run((range(10), 0, 0, last(10, 3)))
    crowd = [([int(t)], 0, 0, [4 + place]) for place, t in enumerate(rng.integers(0, LENGTH, 4))]
    rows = model.run(*crowd, (list(range(10, LENGTH)), 10, 3, last(LENGTH - 10, 3)))
    assert (rows[4:] == whole[10:]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_single_rows_continue_where_they_were(rng: np.random.Generator, kind: str) -> None:
    """As drafts and snapshots need them: a slot has the state after its row, and copies are as good."""
    model, _ = made(rng, kind)
    whole = model.whole(range(LENGTH))
    rows = [-1] * LENGTH
    rows[6], rows[7], rows[30], rows[-1] = 5, 6, 7, 8
    model.run((range(LENGTH), 0, 0, rows))
    model.states.copy_slots([7, 5], [9, 10])
    for slot, done in ((9, 31), (10, 7), (6, 8), (8, LENGTH)):
        left = list(range(done, LENGTH)) or [0]
        again = model.run((left, done, slot, last(len(left), slot)))
        if done < LENGTH:
            assert (again == whole[done:]).all()


def test_what_a_step_cannot_do_with_slots_is_refused(rng: np.random.Generator) -> None:
    model, _ = made(rng, "convolution")
    model.whole(range(4), slot=1)
    before = model.states.data.copy()
    for sequences, message in (
        ([([1], 4, SLOTS, [1])], "slot 12 is not in a pool of 12"),
        ([([1], 4, -1, [1])], "slot -1 is not in a pool"),
        ([([1, 2], 4, 1, [1, -1])], "the last row of a sequence must have a slot"),
        ([([1, 2], 4, 1, [-2, 1])], "slot -2 is not in a pool"),
        ([([1, 2], 4, 1, [2, 2])], "slot 2 would be written twice"),
        ([([1], 4, 1, [2]), ([2], 4, 1, [1])], "slot 1 would be written and read by two sequences"),
    ):
        with pytest.raises(ValueError, match=message):
            model.run(*sequences)
    with pytest.raises(ValueError, match="has no slots for their states"):
        model.program.run([1], [0], [0, 1], np.zeros((1, 1), np.int32), [0])
    assert (model.states.data == before).all()


def test_impossible_pools_and_layers_are_refused() -> None:
    for sizes, message in (
        ({"slots": 0, "floats": [1]}, "slots must be"),
        ({"slots": 1, "floats": []}, "at least one part"),
        ({"slots": 1, "floats": [0]}, "of that size cannot exist"),
        ({"slots": 1, "floats": [1 << 40]}, "of that size cannot exist"),
        ({"slots": 1 << 20, "floats": [1 << 30]}, "of that size cannot exist"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.StatePool(**sizes)
    kv = kernels.KVPool(layers=1, blocks=1, kv_heads=1, head_dim=1, precision="float32")
    table = kernels.pack(np.ones((4, 8), np.float32), "float32")
    for states, message in ((None, "needs a pool of states"), (kernels.StatePool(slots=1, floats=[9]), "takes 16")):
        p = kernels.Program(max_tokens=1, max_sequences=1, max_logit_rows=1, kv=kv, states=states)
        x = p.buffer(8)
        p.embed(x, table)
        with pytest.raises(ValueError, match=message):
            p.convolve(x, 0, np.ones((3, 8), np.float32), 0)
        with pytest.raises(ValueError, match="reach beyond the buffer"):
            p.convolve(x, 1, np.ones((3, 8), np.float32), 0)
        steps, out, ones = p.buffer(8), p.buffer(8), np.ones(8, np.float32)
        p.copy_columns(steps, x, 0)
        for rate, b_offset, wrong in (
            (np.ones((2, 8)), 0, "needs a pool of states" if states is None else "takes 32"),
            (np.ones((2, 9)), 0, "do not have the result's width"),
            (np.ones((2, 8)), 7, "reach beyond the buffer"),
        ):
            with pytest.raises(ValueError, match=wrong):
                p.scan(out, x, steps, x, b_offset=b_offset, c_offset=2, rate=rate, bias=ones, skip=ones, part=0)
