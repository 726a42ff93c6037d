"""The engine with more threads than most machines of tests have processors: the same bits as with one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from dragoman import kernels, models
from dragoman.core.sampling import LogprobParams
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.settings import Precision
from simulation import random_request, run

THREADS = 8


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = kernels.threads()
    yield
    kernels.set_threads(before)


# The second is so small that each thread takes some rows through all operations; the first is computed together.
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_eight_threads_give_the_bits_of_one(precision: Precision) -> None:
    settings = models.ModelSettings(precision=precision, max_tokens=512, max_context=512, cache_bytes=0)
    runner = models.load(None, settings)
    rng = random.Random(precision)
    requests = []
    for index in range(12):
        asked = random_request(rng, str(index), runner.vocab_size, hidden_size=runner.hidden_size)
        prompt = tuple(rng.randrange(runner.vocab_size) for _ in range(rng.choice([1, 30, 200])))
        requests.append(
            msgspec.structs.replace(asked, prompt=prompt, embeddings=None, max_tokens=12, logprobs=LogprobParams(top=2))
        )
    kernels.set_threads(1)
    alone = run(Engine(runner, SchedulerSettings()), requests)
    kernels.set_threads(THREADS)
    for _ in range(3):
        assert run(Engine(runner, SchedulerSettings()), requests) == alone
