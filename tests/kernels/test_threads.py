"""The thread pool: resized at will, safe to call from anywhere, never in the way of a right result."""

import multiprocessing
import threading

import numpy as np
import pytest

from dragoman import kernels


@pytest.fixture(autouse=True)
def threads_as_before():
    before = kernels.threads()
    yield
    kernels.set_threads(before)


def work() -> tuple[np.ndarray, kernels.PackedMatrix]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((1024, 256)).astype(np.float32)
    return rng.standard_normal((4, 256)).astype(np.float32), kernels.pack(weight, "int8")


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_an_impossible_number_of_threads_is_refused(threads):
    with pytest.raises(ValueError, match="number of threads"):
        kernels.set_threads(threads)


def test_the_pool_can_be_resized_between_any_two_calls():
    x, w = work()
    expected = kernels.linear(x, w)
    for threads in (1, 2, 3, 2, 1, 5, 2) * 10:
        kernels.set_threads(threads)
        assert kernels.threads() == threads
        np.testing.assert_array_equal(kernels.linear(x, w), expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("bias", [False, True])
def test_products_in_parts_of_their_rows_have_the_same_bits(precision, bias):
    """Many threads share the rows as well as the columns: here 5 blocks of columns, the last of 7, and 173 rows."""
    rng = np.random.default_rng(0)
    w = kernels.pack(rng.standard_normal((135, 192)).astype(np.float32), precision)
    x = rng.standard_normal((173, 192)).astype(np.float32)
    offset = rng.standard_normal(135).astype(np.float32) if bias else None
    kernels.set_threads(1)
    expected = kernels.linear(x, w, bias=offset)
    for threads in (2, 3, 8, 9, 40):
        kernels.set_threads(threads)
        for _ in range(5):
            np.testing.assert_array_equal(kernels.linear(x, w, bias=offset), expected)
        for rows in (1, 23, 24, 25, 47, 48, 100):
            np.testing.assert_array_equal(kernels.linear(x[:rows], w, bias=offset), expected[:rows])


def test_several_cursors_hand_out_everything_once():
    """More threads than share a cursor, and more cursors than chunks; the pool is resized between loops."""
    x, w = work()
    expected = kernels.linear(x, w)
    out = np.empty_like(expected)
    for threads in (9, 40, 17, 3, 64, 2, 200, 8) * 3:
        kernels.set_threads(threads)
        for _ in range(20):
            out.fill(0)
            kernels.linear(x, w, out=out)
            np.testing.assert_array_equal(out, expected)


def test_thousands_of_short_loops_in_a_row():
    """About as many as a hundred steps of a model make; with more threads than cores, so that some always come late."""
    kernels.set_threads(4)
    x, w = work()
    expected = kernels.linear(x, w)
    out = np.empty_like(expected)
    for _ in range(10_000):
        out.fill(0)
        kernels.linear(x, w, out=out)
        assert out[3, 1023] == expected[3, 1023]
    np.testing.assert_array_equal(out, expected)


def test_calls_from_several_python_threads_at_once_are_all_right():
    x, w = work()
    expected = kernels.linear(x, w)
    wrong = []

    def caller() -> None:
        for _ in range(500):
            if not np.array_equal(kernels.linear(x, w), expected):
                wrong.append(1)

    callers = [threading.Thread(target=caller) for _ in range(3)]
    for thread in callers:
        thread.start()
    for _ in range(20):
        kernels.set_threads(3)
        kernels.set_threads(2)
    for thread in callers:
        thread.join()
    assert not wrong


def attention_of_two_layers(precision: kernels.KVPrecision) -> kernels.Program:
    """A small model's program: its threads take some rows each. What layer 0 has written is read again at the end."""
    rng = np.random.default_rng(0)
    heads, kv_heads, dim, vocab = 4, 2, 32, 50
    attended_width, width = heads * dim, (heads + 2 * kv_heads) * dim
    pool = kernels.KVPool(layers=2, blocks=3, kv_heads=kv_heads, head_dim=dim, precision=precision)
    p = kernels.Program(max_tokens=96, max_sequences=1, max_logit_rows=96, kv=pool)
    x, attended, last = p.buffer(width), p.buffer(attended_width), p.buffer(attended_width)
    p.embed(x, kernels.pack(rng.standard_normal((vocab, width)).astype(np.float32), "float32"))
    for layer in (0, 1):
        p.write_kv(x, heads * dim, (heads + kv_heads) * dim, layer)
        p.attend(attended, x, 0, heads, layer, dim**-0.5)
        p.linear(x, attended, kernels.pack(rng.standard_normal((width, attended_width)).astype(np.float32), "float32"))
    p.attend(attended, x, 0, heads, 0, dim**-0.5)
    p.select_rows(last, attended)
    p.logits(last)
    return p


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
def test_threads_with_rows_of_one_text_read_and_write_its_blocks(precision):
    """Their 9 to 16 rows share blocks of 32: the thread sanitizer sees one written while another thread reads it."""
    program = attention_of_two_layers(precision)
    tokens = np.random.default_rng(1).integers(0, 50, 96).astype(np.int32)

    def run(first: int, end: int) -> np.ndarray:
        rows = np.arange(first, end)
        return program.run(tokens[rows], rows, [0, len(rows)], [[2, 0, 1]], np.arange(len(rows))).copy()

    kernels.set_threads(1)
    expected = run(0, 96)
    for threads in (2, 3, 5):
        kernels.set_threads(threads)
        for _ in range(3):
            np.testing.assert_array_equal(run(0, 96), expected)
            np.testing.assert_array_equal(run(39, 91), expected[39:91])


def multiply_in_child(queue: "multiprocessing.Queue[bytes]") -> None:
    x, w = work()
    queue.put(kernels.linear(x, w).tobytes())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_process_computes_the_same(method):
    """After a fork the pool's threads are gone; the caller then does the work alone."""
    x, w = work()
    expected = kernels.linear(x, w).tobytes()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=multiply_in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == expected
    finally:
        child.join(timeout=60)
    assert child.exitcode == 0
