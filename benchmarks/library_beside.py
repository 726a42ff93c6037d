#!/usr/bin/env python3
"""The engine beside llama.cpp's library, neither with a server around it, on the same weights in alternation.

    python -m benchmarks.library_beside MODEL_FOLDER --precision int8 --rounds 3
    python -m benchmarks.library_beside qwen3.5-0.8b --gguf qwen3.5-0.8b-Q8_0.gguf --driver ./library_beside \\
        --backends FOLDER

``MODEL_FOLDER``, or the name of a shape of ``recurrent_shapes.py``, which is made where it is missing. ``--gguf``: the
same weights as llama.cpp's ``convert_hf_to_gguf.py`` writes them. ``--driver``: ``library_beside.cpp``, built with

    g++ -std=c++17 -O2 -I LLAMA/include -I LLAMA/ggml/include library_beside.cpp -o library_beside \\
        -lllama -lggml -lggml-base

``--backends``: the folder of its ``libggml-cpu-*.so``. Each figure of ours has the machine's limit beside it, measured
just before and just after it, as ``make bench`` has; the profile of a step by operation gives what recurrences take.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.bench.command import default_folder, machine_line, made
from benchmarks.bench.report import Spread
from benchmarks.recurrent_shapes import RECURRENT_SHAPES
from benchmarks.steps import batch_of, profile
from dragoman import kernels, models
from dragoman.cli.machine_speed import between, measured
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.models.limits import Limits, Machine, shape_of

STREAMS, PROMPT, OUTPUT, LONG = 8, 128, 128, 2048
RECURRENCES = ("recur", "convolve")
"""Operations that go through a state."""


class Row(NamedTuple):
    """A kind of work, asked ``times`` times in a round. ``value``: of the seconds after the first tokens and in all."""

    title: str
    streams: int
    prompt: int
    output: int
    value: Callable[[float, float], float]
    limit: Callable[[Limits], float]
    is_rate: bool
    times: int = 1


ROWS = (
    Row(
        "one stream, tokens/s",
        1,
        PROMPT,
        OUTPUT,
        lambda after, all_s: (OUTPUT - 1) / after,
        lambda limits: limits.decode_tokens_per_s(PROMPT + OUTPUT // 2),
        True,
        3,
    ),
    Row(
        f"first token after {LONG:,} tokens, s",
        1,
        LONG,
        1,
        lambda after, all_s: all_s,
        lambda limits: limits.first_token_s(LONG),
        False,
    ),
    Row(
        f"{STREAMS} streams, {PROMPT} + {OUTPUT} tokens, tokens/s",
        STREAMS,
        PROMPT,
        OUTPUT,
        lambda after, all_s: STREAMS * OUTPUT / all_s,
        lambda limits: limits.tokens_per_s(STREAMS, PROMPT, OUTPUT),
        True,
    ),
)


class Ours:
    """An engine in this process, which drafts nothing and finds no prefix again."""

    def __init__(self, model: models.Model) -> None:
        self._model = model
        self._engine = Engine(model, SchedulerSettings(draft_sources=(), speculation=0, prefix_cache=False))
        self._random = random.Random(1)
        self._count = 0

    def run(self, streams: int, prompt: int, output: int) -> tuple[float, float]:
        """Seconds after the first tokens and in all."""
        start = time.perf_counter()
        for _ in range(streams):
            self._count += 1
            ids = tuple(self._random.randrange(self._model.vocab_size) for _ in range(prompt))
            request = EngineRequest(
                request_id=str(self._count),
                prompt=ids,
                seeds=(0,),
                max_tokens=output,
                sampling=SamplingParams(temperature=0.0),
            )
            self._engine.submit(request)
        first, tokens = 0.0, 0
        while self._engine.has_work:
            tokens += sum(hasattr(event, "token_id") for event in self._engine.step().events)
            first = first or (time.perf_counter() if tokens >= streams else 0.0)
        end = time.perf_counter()
        assert tokens == streams * output, f"{tokens} tokens"
        return end - first, end - start


class Side(Protocol):
    """Whoever does the work."""

    def run(self, streams: int, prompt: int, output: int) -> tuple[float, float]:
        """Seconds after the first tokens, and in all."""


class Theirs:
    """The driver of llama.cpp's library."""

    def __init__(self, driver: Path, gguf: Path, backends: Path, log: Path) -> None:
        command = [str(driver), str(gguf), str(backends), str(kernels.threads())]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._log = log
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"the driver ended: {self._log.read_text(errors='replace')[-2000:]}")
        return line

    def run(self, streams: int, prompt: int, output: int) -> tuple[float, float]:
        """Seconds after the first tokens and in all."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"first {prompt}\n" if output == 1 else f"streams {streams} {prompt} {output}\n")
        self._process.stdin.flush()
        after, whole = self._answer().split()
        return float(after), float(whole)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(ours: Side, theirs: Side | None, row: Row, rounds: int, limits: Callable[[Machine], Limits]) -> str:
    """A line of the table: medians of all rounds, with the least and the most."""
    mine, parts, other, ratios = list[float](), list[float](), list[float](), list[float]()
    work = (row.streams, row.prompt, row.output)
    for turn in range(rounds * row.times):
        if theirs is not None and turn % 2:
            other.append(row.value(*theirs.run(*work)))
        before = measured()
        mine.append(row.value(*ours.run(*work)))
        limit = row.limit(limits(between((before, measured()))))
        parts.append(100 * (mine[-1] / limit if row.is_rate else limit / mine[-1]))
        if theirs is not None and not turn % 2:
            other.append(row.value(*theirs.run(*work)))
        if theirs is not None:
            ratios.append(mine[-1] / other[-1] if row.is_rate else other[-1] / mine[-1])
    cells = [row.title, _text(mine), _text(parts), _text(other), _text(ratios)]
    return f"| {' | '.join(cells)} |"


def _text(values: list[float]) -> str:
    found = Spread.of(values)
    return "–" if found is None else found.text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--precision", default="int8", choices=["bfloat16", "int8", "int4"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", default=list(range(len(ROWS))), help="numbers of rows, from 0")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--driver", type=Path)
    parser.add_argument("--backends", type=Path, default=Path())
    parser.add_argument("--log", type=Path, default=Path("library_beside.log"), help="what llama.cpp says")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where shapes are made")
    options = parser.parse_args()
    folder = made(options.folder, options.model) if options.model in RECURRENT_SHAPES else Path(options.model)
    settings = models.ModelSettings(
        precision=options.precision, kv_tokens=4096, max_context=4096, cache_bytes=0, weights_memory="copy"
    )
    model = models.load(str(folder), settings)
    shape = shape_of(models.describe(folder), options.precision)
    ours, theirs = Ours(model), None
    if options.driver is not None and options.gguf is not None:
        theirs = Theirs(options.driver, options.gguf, options.backends, options.log)
    for each in (ours, theirs):
        if each is not None:
            each.run(STREAMS, 16, 4)
    print(f"{folder.name}, {options.precision}, {machine_line()}")
    for name, batch in (
        ("1 row", batch_of(1, 1, PROMPT, model)),
        (f"{STREAMS} rows", batch_of(STREAMS, 1, PROMPT, model)),
        ("chunk of 512", batch_of(1, 512, PROMPT, model)),
    ):
        found = profile(model, batch, 20 if name != "chunk of 512" else 4)
        share = sum(found.get(each, 0.0) for each in RECURRENCES) / found["step"]
        parts = ", ".join(f"{operation} {value:,.0f}" for operation, value in found.items())
        print(f"\n{name}, in µs: {parts}; recurrence {100 * share:.1f} %", flush=True)

    print()
    print("| work | ours | of the limit, % | llama.cpp | ours / theirs |\n|---|---|---|---|---|", flush=True)
    for number in options.rows:
        print(measure(ours, theirs, ROWS[number], options.rounds, lambda speed: Limits(shape, speed)), flush=True)
    if theirs is not None:
        theirs.close()


if __name__ == "__main__":
    main()
