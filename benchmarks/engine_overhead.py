"""The cost of the engine's Python per step: everything except the model's forward pass.

    python benchmarks/engine_overhead.py [--rows 1 8 32] [--vocab 32000] [--steps 300]

A runner that returns ready-made logits replaces the model. Reported are medians per decode step, in microseconds:
``schedule``, ``batch`` (the arrays), ``sample`` (native drawing included), ``postprocess`` (bookkeeping and
events), ``send`` (encoding the message), and their sum.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.engine import batch as batch_module
from dragoman.engine import engine as engine_module
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.engine import Engine
from dragoman.engine.messages import frame
from dragoman.engine.settings import SchedulerSettings
from dragoman.kernels import set_threads
from dragoman.models.batch import Batch, PoolSize


class ReadyMade:
    """A runner whose logits are there already, as peaked as a language model's."""

    hidden_size = 64
    block_size = 32
    block_data: tuple[NDArray[np.uint8], ...] = ()
    read_bytes = 0
    pools = (PoolSize(0, 4096),)
    max_context = 4096
    max_tokens = 512
    max_sequences = 64
    max_logit_rows = 64
    max_adapters = 0
    num_states = 0
    encoder_context = 0
    causal = True
    tower = None
    image_cache_bytes = 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        made = np.random.default_rng(0).normal(scale=4.0, size=(self.max_logit_rows, vocab_size))
        self._logits = made.astype(np.float32)
        self._output = np.empty_like(self._logits)

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None, interrupt: int | None = None) -> Float32:
        rows = len(batch.logit_rows)
        self._output[:rows] = self._logits[:rows]
        return self._output[:rows]

    def copy_blocks(self, sources: Int32, targets: Int32, group: int = 0) -> None:
        pass


class Stopwatch:
    """Adds up the time spent in the functions it is put around."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - started

        return timed

    def take(self) -> dict[str, float]:
        spent, self.spent = self.spent, {}
        return spent


KINDS = {
    "greedy": (SamplingParams(temperature=0.0), None),
    "sampled": (SamplingParams(temperature=0.8, top_k=40, top_p=0.95), None),
    "all": (
        SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.2, logit_bias={5: 1.0}),
        LogprobParams(top=5),
    ),
}


def measure(rows: int, vocab_size: int, steps: int, kind: str) -> dict[str, float]:
    """Medians in microseconds of each part of a step that decodes ``rows`` sequences."""
    sampling, logprobs = KINDS[kind]
    runner = ReadyMade(vocab_size)
    engine = Engine(runner, SchedulerSettings(speculation=0))
    for index in range(rows):
        prompt = tuple(np.random.default_rng(index).integers(0, vocab_size, 64).tolist())
        request = EngineRequest(
            request_id=f"cmpl-{index:032x}",
            prompt=prompt,
            seeds=(index,),
            max_tokens=steps + 100,
            sampling=sampling,
            logprobs=logprobs,
        )
        engine.submit(request)
    while any(s.remaining > 1 for s in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    watch = Stopwatch()
    runner.run = watch.around("run", runner.run)  # type: ignore[method-assign]
    engine.scheduler.schedule = watch.around("schedule", engine.scheduler.schedule)  # type: ignore[method-assign]
    sampler = engine.postprocessor._sampler
    sampler.sample = watch.around("sample", sampler.sample)  # type: ignore[method-assign]
    build_batch = batch_module.build_batch
    setattr(engine_module, "build_batch", watch.around("batch", build_batch))  # noqa: B010
    parts: dict[str, list[float]] = {}
    try:
        for _ in range(steps):
            started = time.perf_counter()
            output = engine.step()
            stepped = time.perf_counter()
            frame(output)
            sent = time.perf_counter()
            spent = watch.take()
            spent["postprocess"] = stepped - started - sum(spent.values())
            spent["send"] = sent - stepped
            spent["sum"] = sent - started - spent.pop("run")
            for name, seconds in spent.items():
                parts.setdefault(name, []).append(1e6 * seconds)
    finally:
        setattr(engine_module, "build_batch", build_batch)  # noqa: B010
    return {name: statistics.median(values) for name, values in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    set_threads(options.threads)
    names = ("schedule", "batch", "sample", "postprocess", "send", "sum")
    print(f"{'microseconds per step':24}" + "".join(f"{name:>13}" for name in names))
    for kind in KINDS:
        for rows in options.rows:
            parts = measure(rows, options.vocab, options.steps, kind)
            print(f"{rows:4} rows, {kind:12}" + " " * 2 + "".join(f"{parts[name]:13.1f}" for name in names))


if __name__ == "__main__":
    main()
