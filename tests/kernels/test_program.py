"""Programs: a small decoder against NumPy, what recording and running refuse, and promise 1 for the whole step."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.reference import attention as attention_reference
from dragoman.kernels.reference import transform as reference

Floats = NDArray[np.float32]

WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCAB, LAYERS, CONTEXT = 48, 4, 2, 12, 80, 97, 2, 128
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM


class Decoder:
    """A two-layer decoder with random weights, as a program and in NumPy."""

    def __init__(self, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)

        def normal(*shape: int) -> Floats:
            return np.asarray(rng.normal(size=shape) / np.sqrt(shape[-1]), np.float32)

        self.embedding = normal(VOCAB, WIDTH) * 4
        self.head = normal(VOCAB, WIDTH)
        self.layers = [
            {
                "norm1": 1 + normal(WIDTH),
                "qkv": normal(QKV, WIDTH),
                "bias": normal(QKV),
                "q_norm": 1 + normal(HEAD_DIM),
                "o": normal(WIDTH, HEADS * HEAD_DIM),
                "norm2": 1 + normal(WIDTH),
                "up": normal(2 * HIDDEN, WIDTH),
                "down": normal(WIDTH, HIDDEN),
            }
            for _ in range(LAYERS)
        ]
        angles = np.arange(CONTEXT)[:, None] * 100.0 ** -(np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def program(self, max_tokens: int = 256, max_sequences: int = 8, max_logit_rows: int = 256) -> kernels.Program:
        kv = kernels.KVPool(layers=LAYERS, blocks=64, kv_heads=KV_HEADS, head_dim=HEAD_DIM, precision="float32")
        p = kernels.Program(max_tokens=max_tokens, max_sequences=max_sequences, max_logit_rows=max_logit_rows, kv=kv)
        x, normed, qkv, attended = (p.buffer(w) for w in (WIDTH, WIDTH, QKV, HEADS * HEAD_DIM))
        up, gated, last, logits = (p.buffer(w) for w in (2 * HIDDEN, HIDDEN, WIDTH, VOCAB))
        k_offset, v_offset = HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM
        p.embed(x, kernels.pack(self.embedding, "float32"))
        for i, layer in enumerate(self.layers):
            p.norm(normed, x, layer["norm1"], eps=1e-5)
            p.linear(qkv, normed, kernels.pack(layer["qkv"], "float32"), layer["bias"])
            p.head_norm(qkv, 0, HEADS, HEAD_DIM, layer["q_norm"], 1e-5)
            p.rotate(qkv, 0, HEADS, HEAD_DIM, self.cos, self.sin)
            p.rotate(qkv, k_offset, KV_HEADS, HEAD_DIM, self.cos, self.sin)
            p.write_kv(qkv, k_offset, v_offset, i)
            p.attend(attended, qkv, 0, HEADS, i, HEAD_DIM**-0.5)
            p.linear(x, attended, kernels.pack(layer["o"], "float32"), accumulate=True)
            p.norm(normed, x, layer["norm2"], eps=1e-5)
            p.linear(up, normed, kernels.pack(layer["up"], "float32"))
            p.gate(gated, up, "silu")
            p.linear(x, gated, kernels.pack(layer["down"], "float32"), accumulate=True)
        p.select_rows(last, x)
        p.linear(logits, last, kernels.pack(self.head, "float32"))
        p.logits(logits)
        return p

    def reference(self, token_ids: NDArray[np.int32]) -> NDArray[np.float64]:
        x = self.embedding[token_ids].astype(np.float64)
        positions = np.arange(len(token_ids), dtype=np.int32)
        split = [HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM]
        for layer in self.layers:
            qkv = reference.norm(x, layer["norm1"]) @ layer["qkv"].T + layer["bias"]
            qkv = reference.head_norm(qkv, 0, HEADS, HEAD_DIM, layer["q_norm"], 1e-5)
            qkv = reference.rotate(qkv, 0, HEADS + KV_HEADS, HEAD_DIM, self.cos, self.sin, positions)
            q, k, v = (a.reshape(len(x), -1, HEAD_DIM) for a in np.split(qkv, split, axis=1))
            x = x + attention_reference.attend(q, k, v, 0, HEAD_DIM**-0.5) @ layer["o"].T
            x = x + reference.gate(reference.norm(x, layer["norm2"]) @ layer["up"].T, "silu") @ layer["down"].T
        return x @ self.head.T


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder()


@pytest.fixture(params=kernels.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.instruction_set()
    kernels.force(request.param)
    yield request.param
    kernels.force(before)


def one(token_ids: NDArray[np.int32], /, **changes: Any) -> dict[str, Any]:
    """The batch of one sequence from position 0, with arguments of ``run`` changed."""
    n = len(token_ids)
    batch: dict[str, Any] = {
        "token_ids": token_ids,
        "positions": np.arange(n),
        "row_starts": [0, n],
        "block_tables": [list(range(-(-n // 32)))],
        "logit_rows": np.arange(n),
    }
    return batch | changes


def test_a_decoder_equals_the_reference(decoder: Decoder, instruction_set: str) -> None:
    token_ids = np.random.default_rng(0).integers(0, VOCAB, 77).astype(np.int32)
    got = decoder.program().run(**one(token_ids))
    expected = decoder.reference(token_ids)
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


def test_only_the_wanted_rows_come_back(decoder: Decoder) -> None:
    token_ids = np.arange(50, dtype=np.int32)
    program = decoder.program(max_logit_rows=3)
    program_all = decoder.program()
    everything = program_all.run(**one(token_ids)).copy()
    np.testing.assert_array_equal(program.run(**one(token_ids, logit_rows=[0, 17, 49])), everything[[0, 17, 49]])
    assert program.run(**one(token_ids, logit_rows=[])).shape == (0, VOCAB)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_logits_are_the_same_bits_in_any_batch_and_chunking(decoder: Decoder, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    lengths = data.draw(st.lists(st.integers(1, 120), min_size=1, max_size=5))
    texts = [rng.integers(0, VOCAB, n).astype(np.int32) for n in lengths]
    order = rng.permutation(64)
    tables = order[: 4 * len(texts)].reshape(-1, 4)
    program = decoder.program()
    rows: list[list[Floats]] = [[] for _ in texts]
    done = [0] * len(texts)
    before = kernels.threads()
    try:
        while any(d < n for d, n in zip(done, lengths, strict=True)):
            kernels.set_threads(data.draw(st.integers(1, 3)))  # with several, each has some rows of its own
            step = [
                (s, min(n - done[s], data.draw(st.sampled_from([1, 2, 30, 50]))))
                for s, n in enumerate(lengths)
                if done[s] < n
            ]
            starts = np.cumsum([0, *(n for _, n in step)])
            logits = program.run(
                np.concatenate([texts[s][done[s] : done[s] + n] for s, n in step]),
                np.concatenate([np.arange(done[s], done[s] + n) for s, n in step]),
                starts,
                tables[[s for s, _ in step]],
                np.arange(starts[-1]),
            )
            for i, (s, n) in enumerate(step):
                rows[s].append(logits[starts[i] : starts[i + 1]].copy())
                done[s] += n
    finally:
        kernels.set_threads(before)
    for text, parts in zip(texts, rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), decoder.program().run(**one(text)))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_errand_is_done_once_beside_a_step(decoder: Decoder, threads: int) -> None:
    token_ids = np.arange(40, dtype=np.int32)
    program = decoder.program()
    expected = program.run(**one(token_ids)).copy()
    before = kernels.threads()
    kernels.set_threads(threads)
    try:
        calls: list[None] = []
        for count in range(1, 200):
            logits = program.run(**one(token_ids), meanwhile=lambda: calls.append(None))
            assert len(calls) == count
            np.testing.assert_array_equal(logits, expected)
    finally:
        kernels.set_threads(before)


def test_what_an_errand_raises_is_raised_behind_the_step(decoder: Decoder) -> None:
    def fail() -> None:
        raise BrokenPipeError("nobody listens")

    program = decoder.program()
    with pytest.raises(BrokenPipeError, match="nobody listens"):
        program.run(**one(np.arange(4, dtype=np.int32)), meanwhile=fail)
    calls: list[None] = []
    with pytest.raises(ValueError, match="vocabulary"):
        program.run(**one(np.array([VOCAB], np.int32)), meanwhile=lambda: calls.append(None))
    assert calls == [None]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_ends_early_when_the_file_is_readable(decoder: Decoder, threads: int) -> None:
    token_ids = np.arange(40, dtype=np.int32)
    program = decoder.program()
    expected = program.run(**one(token_ids)).copy()
    quiet, loud = os.pipe(), os.pipe()
    os.write(loud[1], b"x")
    before = kernels.threads()
    kernels.set_threads(threads)
    try:
        for _ in range(20):
            with pytest.raises(kernels.Interrupted):
                program.run(**one(token_ids), interrupt=loud[0])
            np.testing.assert_array_equal(program.run(**one(token_ids), interrupt=quiet[0]), expected)
            with contextlib.suppress(kernels.Interrupted):  # it comes in the middle, or too late
                logits = program.run(**one(token_ids), meanwhile=lambda: os.write(quiet[1], b"x"), interrupt=quiet[0])
                np.testing.assert_array_equal(logits, expected)
            os.read(quiet[0], 1)
    finally:
        kernels.set_threads(before)
        for file in quiet + loud:
            os.close(file)


def test_given_embeddings_replace_looked_up_ones(decoder: Decoder) -> None:
    token_ids = np.array([5, 6, 7, 8], np.int32)
    program = decoder.program()
    plain = program.run(**one(token_ids)).copy()
    rows, values = np.array([1, 3]), decoder.embedding[[6, 8]]
    replaced = program.run(**one(np.array([5, 0, 7, 1]), embedding_rows=rows, embedding_values=values))
    np.testing.assert_array_equal(replaced, plain)


def test_the_result_is_a_view_that_keeps_the_program_alive(decoder: Decoder) -> None:
    token_ids = np.array([1, 2], np.int32)
    result = decoder.program().run(**one(token_ids))
    before = result.copy()
    gc.collect()
    np.testing.assert_array_equal(result, before)
    assert result.strides[0] % 64 == 0
    assert result.flags.writeable


def test_profile_names_what_ran(decoder: Decoder) -> None:
    program = decoder.program()
    assert program.profile() == {}
    program.run(**one(np.array([1, 2], np.int32)))
    profile = program.profile()
    assert {"embed", "norm", "linear", "rotate", "write_kv", "attend", "activation", "select_rows"} == set(profile)
    assert all(seconds > 0 for seconds in profile.values())
    assert program.profile() == {}
    program.run(**one(np.array([1, 2], np.int32)))
    shapes = {name for name in program.profile(by_shape=True) if name.startswith("linear ")}
    assert f"linear {VOCAB} x {WIDTH}" in shapes


TOKENS = np.arange(40, dtype=np.int32)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": np.where(TOKENS == 9, VOCAB, TOKENS)},
        {"token_ids": np.where(TOKENS == 9, -1, TOKENS)},
        {"token_ids": TOKENS[:-1]},
        {"token_ids": [], "positions": [], "row_starts": [0, 0], "logit_rows": []},
        {"positions": TOKENS + CONTEXT - 39, "block_tables": [list(range(8))]},
        {"positions": TOKENS - 1},
        {"positions": TOKENS[::-1]},
        {"positions": np.where(TOKENS == 9, 2**31 - 1, TOKENS)},
        {"row_starts": [0, 39]},
        {"row_starts": [1, 40]},
        {"row_starts": [0, 40, 40], "block_tables": [[0, 1], [2, 3]]},
        {"row_starts": [0, 50, 40], "block_tables": [[0, 1], [2, 3]]},
        {"row_starts": [0, 2**31 - 1, 40], "block_tables": [[0, 1], [2, 3]]},
        {"row_starts": [0, -5, 40], "block_tables": [[0, 1], [2, 3]]},
        {"row_starts": [0, 20, 40]},
        {"block_tables": [[0]]},
        {"block_tables": [[0, -1]]},
        {"block_tables": [[0, 64]]},
        {"block_tables": [[-1, 1]]},
        {"block_tables": [[5, 5]]},
        {"block_tables": np.zeros((1, 0), np.int32)},
        {"logit_rows": [40]},
        {"logit_rows": [-1]},
        {"logit_rows": [3, 3]},
        {"logit_rows": [4, 3]},
        {"embedding_rows": [40], "embedding_values": np.zeros((1, WIDTH))},
        {"embedding_rows": [-1], "embedding_values": np.zeros((1, WIDTH))},
        {"embedding_rows": [0], "embedding_values": np.zeros((1, WIDTH + 1))},
        {"embedding_rows": [0], "embedding_values": np.zeros((2, WIDTH))},
        {"embedding_rows": [0]},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_run_refuses_what_does_not_fit(decoder: Decoder, changes: dict[str, Any]) -> None:
    program = decoder.program()
    expected = program.run(**one(TOKENS)).copy()
    with pytest.raises(ValueError, match=r"\w"):
        program.run(**one(TOKENS, **changes))
    np.testing.assert_array_equal(program.run(**one(TOKENS)), expected)


def test_run_refuses_more_than_its_limits(decoder: Decoder) -> None:
    program = decoder.program(max_tokens=39)
    with pytest.raises(ValueError, match="tokens"):
        program.run(**one(TOKENS))
    program = decoder.program(max_logit_rows=39)
    with pytest.raises(ValueError, match="logits rows"):
        program.run(**one(TOKENS))
    program = decoder.program(max_sequences=1)
    with pytest.raises(ValueError, match="sequences"):
        program.run(**one(TOKENS, row_starts=[0, 20, 40], block_tables=[[0, 1], [2, 3]]))


def test_blocks_behind_every_window_need_not_exist() -> None:
    kv = kernels.KVPool(layers=1, blocks=4, kv_heads=1, head_dim=16, precision="float32")
    p = kernels.Program(max_tokens=1, max_sequences=1, max_logit_rows=1, kv=kv)
    x, out, last = (p.buffer(16) for _ in range(3))
    p.embed(x, kernels.pack(np.ones((2, 16), np.float32), "float32"))
    p.write_kv(x, 0, 0, 0)
    p.attend(out, x, 0, 1, 0, 1.0, window=10)
    p.select_rows(last, out)
    p.logits(last)
    assert p.run([0], [100], [0, 1], [[-1, -1, 2, 3]], [0]).shape == (1, 16)
    with pytest.raises(ValueError, match="block"):
        p.run([0], [100], [0, 1], [[-1, -1, -1, 3]], [0])


@pytest.fixture
def empty() -> kernels.Program:
    kv = kernels.KVPool(layers=1, blocks=4, kv_heads=2, head_dim=16, precision="float32")
    return kernels.Program(max_tokens=8, max_sequences=2, max_logit_rows=8, kv=kv)


def test_recording_refuses_widths_that_do_not_fit(empty: kernels.Program) -> None:
    p = empty
    x, y = p.buffer(64), p.buffer(32)
    p.embed(x, kernels.pack(np.zeros((5, 64), np.float32), "float32"))
    p.norm(x, x, np.ones(64))
    bad: list[Callable[[], object]] = [
        lambda: p.embed(y, kernels.pack(np.zeros((5, 64), np.float32), "float32")),
        lambda: p.norm(y, x, np.ones(64)),
        lambda: p.norm(x, x, np.ones(63)),
        lambda: p.norm(x, x, np.ones(64), np.ones(65)),
        lambda: p.norm(x, x, np.ones(64), kind="batch"),  # type: ignore[arg-type]
        lambda: p.linear(y, x, kernels.pack(np.zeros((33, 64), np.float32), "float32")),
        lambda: p.linear(y, x, kernels.pack(np.zeros((32, 63), np.float32), "float32")),
        lambda: p.linear(y, x, kernels.pack(np.zeros((32, 64), np.float32), "float32"), np.zeros(31)),
        lambda: p.linear(x, x, kernels.pack(np.zeros((64, 64), np.float32), "float32")),
        lambda: p.add_positions(x, np.zeros((9, 63))),
        lambda: p.head_norm(x, 33, 2, 16, np.ones(16), 1e-5),
        lambda: p.head_norm(x, -1, 2, 16, np.ones(16), 1e-5),
        lambda: p.head_norm(x, 0, 2, 16, np.ones(15), 1e-5),
        lambda: p.rotate(x, 0, 5, 16, np.ones((9, 8)), np.ones((9, 8))),
        lambda: p.rotate(x, 0, 4, 16, np.ones((9, 9)), np.ones((9, 9))),
        lambda: p.rotate(x, 0, 4, 16, np.ones((9, 8)), np.ones((8, 8))),
        lambda: p.write_kv(x, 33, 0, 0),
        lambda: p.write_kv(x, 0, 33, 0),
        lambda: p.write_kv(x, 0, 0, 1),
        lambda: p.attend(y, x, 33, 2, 0, 1.0),
        lambda: p.attend(y, x, 0, 3, 0, 1.0),
        lambda: p.attend(y, x, 0, 4, 0, 1.0),
        lambda: p.attend(y, x, 0, 2, 1, 1.0),
        lambda: p.attend(y, x, 0, 2, 0, 1.0, window=-1),
        lambda: p.attend(y, x, 0, 2, 0, -1.0),
        lambda: p.gate(x, x, "silu"),
        lambda: p.gate(y, x, "tanh"),  # type: ignore[arg-type]
        lambda: p.add(x, y),
        lambda: p.select_rows(y, x),
        lambda: p.buffer(0),
        lambda: p.logits(7),
    ]
    for record in bad:
        with pytest.raises(ValueError, match=r"\w"):
            record()


def test_recording_refuses_buffers_read_before_written_and_mixed_rows(empty: kernels.Program) -> None:
    p = empty
    x, y, z = (p.buffer(32) for _ in range(3))
    table = kernels.pack(np.zeros((5, 32), np.float32), "float32")
    square = kernels.pack(np.zeros((32, 32), np.float32), "float32")
    for record in (
        lambda: p.norm(y, x, np.ones(32)),
        lambda: p.activate(x, "relu"),
        lambda: p.select_rows(y, x),
        lambda: p.run([0], [0], [0, 1], [[0]], [0]),
    ):
        with pytest.raises(ValueError, match=r"before it is written|no logits"):
            record()
    p.embed(x, table)
    with pytest.raises(ValueError, match="before it is written"):
        p.linear(y, x, square, accumulate=True)
    p.select_rows(y, x)
    for record in (
        lambda: p.add(x, y),
        lambda: p.linear(x, y, square, accumulate=True),
        lambda: p.write_kv(y, 0, 0, 0),
        lambda: p.attend(z, y, 0, 2, 0, 1.0, causal=False),
        lambda: p.cross_attend(z, y, 0, 2, 0, 1.0),
        lambda: p.logits(x),
    ):
        with pytest.raises(ValueError, match=r"rows of (different|another) kind|logits row|attend causally"):
            record()


@pytest.mark.parametrize(
    "changes", [{"layers": -1}, {"blocks": 0}, {"kv_heads": -1}, {"head_dim": 1025}, {"precision": "int3"}]
)
def test_a_pool_of_impossible_size_is_refused(changes: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"layers": 1, "blocks": 1, "kv_heads": 1, "head_dim": 16, "precision": "float32"}
    with pytest.raises(ValueError, match=r"\w"):
        kernels.KVPool(**sizes | changes)


def test_a_pool_without_layers_takes_no_memory() -> None:
    kv = kernels.KVPool(layers=0, blocks=1 << 20, kv_heads=1, head_dim=1, precision="bfloat16")
    assert (kv.nbytes, kv.bytes_per_block) == (0, 0)
    kv.copy_blocks([0], [1])
    with pytest.raises(ValueError, match="is not in a pool"):
        kv.copy_blocks([0], [1 << 20])


def test_pool_sizes_and_copies() -> None:
    kv = kernels.KVPool(layers=3, blocks=5, kv_heads=2, head_dim=20, precision="bfloat16")
    assert kv.bytes_per_block == 3 * 2 * 2 * 32 * 32 * 2
    assert kv.nbytes == 5 * kv.bytes_per_block
    blocks = kv.data.reshape(5, 3, -1).swapaxes(0, 1)
    assert not blocks.any()
    blocks[:, 1] = 7
    kv.copy_blocks([1, 4], [4, 0])
    np.testing.assert_array_equal(blocks[:, [0, 1, 4]], 7 + np.zeros_like(blocks[:, :3]))
    assert not blocks[:, [2, 3]].any()
    for sources, targets in (([5], [0]), ([0], [5]), ([-1], [0]), ([0], [1, 2])):
        with pytest.raises(ValueError, match=r"\w"):
            kv.copy_blocks(sources, targets)


def test_buffers_in_the_memory_of_others_hold_one_value_at_a_time(empty: kernels.Program) -> None:
    p = empty
    x, wide, y = p.buffer(32), p.buffer(64), p.buffer(32)
    narrow, first = p.buffer(32, over=wide), p.buffer(48, over=wide)
    table = kernels.pack(np.zeros((5, 32), np.float32), "float32")
    up, square = (kernels.pack(np.zeros((n, 32), np.float32), "float32") for n in (64, 32))
    with pytest.raises(ValueError, match="wider"):
        p.buffer(33, over=x)
    p.embed(x, table)
    p.linear(first, x, kernels.pack(np.zeros((48, 32), np.float32), "float32"))
    p.linear(wide, x, up)
    with pytest.raises(ValueError, match="before it is written"):
        p.head_norm(first, 0, 3, 16, np.ones(16), 1e-5)
    p.gate(narrow, wide, "silu")
    with pytest.raises(ValueError, match="before it is written"):
        p.gate(y, wide, "silu")
    with pytest.raises(ValueError, match="its own input"):
        p.linear(wide, narrow, up)
    p.linear(y, narrow, square)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("hidden", [16, 24, 80, 96])
def test_a_gate_in_place_is_the_gate(precision: kernels.Precision, hidden: int) -> None:
    rng = np.random.default_rng(hidden)
    rows = 37
    table, up, down = (
        np.asarray(rng.normal(size=shape), np.float32) for shape in ((rows, 32), (2 * hidden, 32), (32, hidden))
    )
    results = []
    for shared in (False, True):
        kv = kernels.KVPool(layers=1, blocks=2, kv_heads=1, head_dim=16, precision="float32")
        p = kernels.Program(max_tokens=rows, max_sequences=1, max_logit_rows=rows, kv=kv)
        x, wide, out, last = p.buffer(32), p.buffer(2 * hidden), p.buffer(32), p.buffer(32)
        narrow = p.buffer(hidden, over=wide if shared else None)
        p.embed(x, kernels.pack(table, "float32"))
        p.linear(wide, x, kernels.pack(up, precision))
        p.gate(narrow, wide, "gelu")
        p.linear(out, narrow, kernels.pack(down, precision))
        p.select_rows(last, out)
        p.logits(last)
        at = np.arange(rows)
        results.append(p.run(at, at, [0, rows], [[0, 1]], at).copy())
    np.testing.assert_array_equal(*results)
