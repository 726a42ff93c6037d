"""The command: ``python -m benchmarks.bench`` in the folder of the project, or ``make bench``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.bench import machine
from benchmarks.bench.beside import beside
from benchmarks.bench.chart import draw
from benchmarks.bench.report import Sample, json_lines, table
from benchmarks.bench.rounds import START_ROW, Case, Rounds, line
from benchmarks.bench.servers import Ours, other
from benchmarks.bench.workloads import SHORT, Effort, Failed, workloads
from benchmarks.make_models import SHAPES, make_model, make_tokenizer
from benchmarks.recurrent_shapes import RECURRENT_SHAPES, make_recurrent_model
from benchmarks.seeing_shapes import SEEING_SHAPES, make_seeing_model
from dragoman import kernels
from dragoman.core.errors import DragomanError
from dragoman.models.settings import Precision

PRECISIONS: tuple[Precision, ...] = ("bfloat16", "int8", "int4")
OF_SHAPES: dict[str, tuple[tuple[Precision, ...], tuple[str, ...]]] = {
    "llama-3.2-1b": (PRECISIONS, ()),
    "qwen2.5-0.5b": (("bfloat16", "int8"), ("one-stream", "first-512", "first-2048", "8-streams", "32-streams")),
    "tiny": (("int8",), ("one-stream", "8-streams", "32-streams")),
    **dict.fromkeys(SEEING_SHAPES, (("bfloat16", "int8"), ("image",))),
    **dict.fromkeys(RECURRENT_SHAPES, (("int8",), ("one-stream", "first-2048", "8-streams"))),
}
"""What is measured of the shapes that we make: precisions, and rows; no rows: all."""

WITHOUT_NAMES = tuple(name for name in OF_SHAPES if name not in RECURRENT_SHAPES)
"""The shapes that are measured where none is named: the others take 29 GB and long."""

MINUTES = {False: 30.0, True: 8.0}


def main() -> None:
    options = arguments().parse_args()
    try:
        sys.exit(run(options))
    except (DragomanError, Failed) as error:
        sys.exit(f"error: {error}")


def run(options: argparse.Namespace) -> int:
    """0: everything was measured. 1: something failed, or time was too short for it."""
    if options.clean:
        shutil.rmtree(options.folder, ignore_errors=True)
        return 0
    if options.threads:
        kernels.set_threads(options.threads)
    until = time.monotonic() + 60 * (options.minutes or MINUTES[options.short])
    samples: list[Sample] = []

    def seen(sample: Sample) -> None:
        samples.append(sample)
        print(line(sample), file=sys.stderr, flush=True)
        if options.json:
            with options.json.open("ab") as file:
                file.write(json_lines([sample]))

    effort = SHORT if options.short else Effort()
    if options.prefixed:
        effort = msgspec.structs.replace(effort, prefixed=options.prefixed)
    effort = msgspec.structs.replace(effort, in_a_hurry=options.hurry)
    cases = cases_of(options, effort)
    print(machine_line(effort.in_a_hurry), file=sys.stderr, flush=True)
    others = [other(named) for named in options.against]
    options.folder.mkdir(parents=True, exist_ok=True)
    # Packed weights take as much again as the models; they are needed until the end of the run.
    with tempfile.TemporaryDirectory(prefix="packed-", dir=options.folder) as cache:
        ours = Ours(cache=Path(cache), threads=options.threads, more=tuple(options.more))
        rounds = Rounds(ours, others, effort, until, seen)
        try:
            rounds.run(cases, options.rounds)
        except KeyboardInterrupt:
            print("stopped; this is what there is", file=sys.stderr)
    print(machine_line(effort.in_a_hurry))
    print()
    print(table(samples))
    if others:
        print(f"\n{beside(samples)}")
    for file in draw(samples, options.charts) if options.charts else ():
        print(f"\nDrawn: {file}")
    if rounds.left_out:
        print(f"\nTime was too short for {rounds.left_out} rows; --minutes gives more.")
    return int(rounds.left_out > 0 or any(sample.failure for sample in samples))


def machine_line(in_a_hurry: bool = False) -> str:
    found = machine.measured(in_a_hurry=in_a_hurry)
    peaks = ", ".join(f"{value / 1e12:.2f} TOP/s {name}" for name, value in found.operations_per_s.items())
    threads = f"{kernels.threads()} threads, {kernels.instruction_set()} kernels"
    return f"{threads}; memory {found.bytes_per_s / 1e9:.0f} GB/s; {peaks}"


def cases_of(options: argparse.Namespace, effort: Effort) -> list[Case]:
    """The models to measure, made where they are ours to make and missing."""
    rows = workloads(effort)
    names = [*(row.name for row in rows), START_ROW]
    for only in options.only:
        if only not in names:
            raise DragomanError(f"there is no row {only!r}; there are {', '.join(names)}")
    cases = []
    for name in options.model or WITHOUT_NAMES:
        precisions, wanted = OF_SHAPES.get(name, (PRECISIONS, ()))
        wanted = wanted or tuple(names)
        wanted = tuple(row for row in wanted if not options.only or row in options.only)
        case = Case(
            model=made(options.folder, name) if name in OF_SHAPES else Path(name),
            precisions=tuple(p for p in options.precision or precisions if name not in OF_SHAPES or p in precisions),
            rows=tuple(row for row in rows if row.name in wanted),
            start=START_ROW in wanted,
        )
        cases.append(case)
    return cases


def made(folder: Path, name: str) -> Path:
    """The folder of a shape of ours. A model that was not finished is made anew."""
    model = folder / name
    if not (model / "tokenizer.json").exists():
        print(f"making {model}, once; `--clean` removes it", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as unfinished:
            making = Path(unfinished) / name
            if name in SEEING_SHAPES:
                make_seeing_model(making, SEEING_SHAPES[name])
            elif name in SHAPES:
                make_model(making, SHAPES[name])
            else:
                make_recurrent_model(making, RECURRENT_SHAPES[name])
            if name not in SEEING_SHAPES:
                make_tokenizer(making, (SHAPES | RECURRENT_SHAPES)[name]["vocab_size"])
            making.rename(model)
    return model


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dragoman" / "benchmarks"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench",
        description="Measure the server, and the machine beside it: a table of what is reached of what is possible.",
        epilog="Options for `dragoman serve` follow after --.",
    )
    shapes = ", ".join(OF_SHAPES)
    add = parser.add_argument
    add("--short", action="store_true", help="each row once: minutes instead of half an hour")
    add("--rounds", type=int, default=1, help="how often all of it is done, in turn (default: 1)")
    minutes = f"begin nothing after so many (default: {MINUTES[False]:g}; short: {MINUTES[True]:g})"
    add("--minutes", type=float, help=minutes)
    default = ", ".join(WITHOUT_NAMES)
    add("--model", nargs="+", help=f"of {shapes} (default: {default}), made where missing; or folders")
    add("--precision", nargs="+", choices=["float32", *PRECISIONS], help="default: those that have bars")
    add("--only", nargs="+", default=[], metavar="ROW", help="measure these rows only")
    add(
        "--against", nargs="+", default=[], metavar="[NAME=]URL", help="other OpenAI-compatible servers, in alternation"
    )
    add("--prefixed", type=int, metavar="N", help="requests of the row `prefix`, fewer for a server that is slow at it")
    add("--hurry", action="store_true", help="look at the machine too shortly for figures: does all of it work?")
    add("--json", type=Path, metavar="FILE", help="append each result as a line of JSON")
    add("--charts", type=Path, metavar="FOLDER", help="draw each model's table there, as bench-MODEL.svg")
    add("--threads", type=int, help="of the engine, and of the measurement of the machine")
    add("--folder", type=Path, default=default_folder(), help="where models are made and kept (default: %(default)s)")
    add("--clean", action="store_true", help="remove that folder, and do nothing else")
    add("more", nargs="*", help=argparse.SUPPRESS)
    return parser
