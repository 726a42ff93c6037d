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
