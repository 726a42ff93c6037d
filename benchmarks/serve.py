#!/usr/bin/env python3
"""Serve a model at several precisions and measure each: one markdown table, with what the memory allowed at the time.

    python benchmarks/serve.py MODEL_FOLDER                                   bfloat16, int8 and int4
    python benchmarks/serve.py MODEL_FOLDER --precision int8 --rounds 3       medians of three runs
    python benchmarks/serve.py MODEL_FOLDER --short                           a few minutes instead of many

With several rounds the precisions take turns. Progress and every single result go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import load
from dragoman import kernels
from dragoman.cli.remote import Address, fetch_json
from dragoman.core.errors import EngineUnavailable
from dragoman.models import ModelSettings, describe, plan
from startup import free_port

BANDWIDTH_S = 0.5
START_S = 600.0

# Rows that say what the machine was like; they stand at the table's end.
BANDWIDTH = "memory bandwidth, GB/s"
BANDWIDTH_SINGLE = "memory bandwidth beside one stream, GB/s"
FOREIGN = "cores busy with other work"


@contextlib.contextmanager
def served(command: Path, model: Path, precision: str, more: list[str]) -> Iterator[tuple[str, int]]:
    """A server of the model; gives its address and process id once it answers."""
    url = f"http://127.0.0.1:{free_port()}"
    port = url.rpartition(":")[2]
    arguments: list[str | Path] = [
        command,
        "serve",
        model,
        "--precision",
        precision,
        "--host",
        "127.0.0.1",
        "--port",
        port,
        *more,
    ]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(arguments, stdout=log, stderr=log, env={**os.environ, "DRAGOMAN_CONFIG": os.devnull})
        try:
            deadline = time.monotonic() + START_S
            while not asyncio.run(answers(url)):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.1)
            yield url, server.pid
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)


async def answers(url: str) -> bool:
    try:
        await fetch_json(Address.parse(url), "/v1/models", timeout_s=5)
    except EngineUnavailable:
        return False
    return True


def foreign_cores() -> float:
    """How many cores are busy while nothing is asked of the server: other people's work, which spoils the figures."""
    return psutil.cpu_percent(0.3) / 100 * (psutil.cpu_count() or 1)


def bandwidth_gb_s() -> float:
    return float(kernels.memory_bandwidth(BANDWIDTH_S)) / 1e9


def memory_gb(pid: int) -> float:
    """What the server and its engine hold together, shared pages counted once."""
    server = psutil.Process(pid)
    return sum(p.memory_full_info().pss for p in (server, *server.children(recursive=True))) / 1e9


Loads = dict[str, list[str]]


def loads(short: bool) -> Loads:
    """The rows of the table and the arguments of load.py that measure each."""
    single, rounds, prefixed = ("2", "1", "16") if short else ("5", "2", "64")
    return {
        "one stream, tokens/s": ["--mode", "single", "--repeat", single],
        "8 streams, tokens/s": ["--mode", "serve", "--streams", "8", "--rounds", rounds],
        "32 streams, tokens/s": ["--mode", "serve", "--streams", "32", "--rounds", rounds],
        "first token after 512, s": ["--mode", "ttft", "--lengths", "512", "--repeat", "1" if short else "5"],
        "first token after 2,048, s": ["--mode", "ttft", "--lengths", "2048", "--repeat", "1" if short else "3"],
        f"{prefixed} requests with a shared prefix, s": ["--mode", "prefix", "--requests", prefixed],
    }


def figure(row: str, result: dict[str, Any]) -> float:
    """The one number of a result that its row shows; not a number when the load failed."""
    if result.get("failed"):
        print(f"  {result['failed']} requests failed: {result.get('errors')}", file=sys.stderr)
    mode = result["mode"]
    names = {"single": "tokens_per_s_median", "serve": "tokens_per_s", "ttft": "ttft_ms_median", "prefix": "wall_s"}
    value = float(result.get(names[mode], "nan"))
    return value / 1e3 if mode == "ttft" else value


Figures = dict[str, dict[str, list[float]]]


async def measure(url: str, model: Path, rows: Loads, found: dict[str, list[float]]) -> None:
    """Run every load once, and look at the machine before and after each."""
    for row, arguments in rows.items():
        found[FOREIGN].append(foreign_cores())
        before = bandwidth_gb_s()
        options = load.arguments().parse_args(["--url", url, "--tokenizer", str(model), *arguments])
        async for result in load.results(options):
            result = {"mode": options.mode, **result}
            print(f"  {row}: {json.dumps(result)}", file=sys.stderr, flush=True)
            found[row].append(figure(row, result))
            if options.mode == "serve":
                for name in ("itl_p50_ms", "itl_p99_ms"):
                    found[f"{result['streams']} streams, {name[4:7]} ms between tokens"].append(
                        result.get(name, float("nan"))
                    )
        after = bandwidth_gb_s()
        found[BANDWIDTH].append((before + after) / 2)
        if options.mode == "single":
            found[BANDWIDTH_SINGLE].append((before + after) / 2)


def table(model: Path, figures: Figures, precisions: list[str]) -> str:
    """The medians, one column for each precision."""
    described = describe(model)
    lines = [f"| {model.name} | {' | '.join(precisions)} |", "|---" * (len(precisions) + 1) + "|"]
    rows = list(dict.fromkeys(row for found in figures.values() for row in found))
    for row in sorted(rows, key=(BANDWIDTH, BANDWIDTH_SINGLE, FOREIGN).__contains__):
        cells = [f"{statistics.median(figures[p][row]):.4g}" if figures[p].get(row) else "–" for p in precisions]
        lines.append(f"| {row} | {' | '.join(cells)} |")
        if row == "one stream, tokens/s":
            shares = []
            for precision in precisions:
                settings = ModelSettings(precision=precision)  # type: ignore[arg-type]
                size = plan(described, settings).bytes_per_decoded_token
                limit = statistics.median(figures[precision][BANDWIDTH_SINGLE]) * 1e9 / size
                shares.append(f"{100 * statistics.median(figures[precision][row]) / limit:.0f} % of {limit:.1f}")
            lines.append(f"| of bandwidth / weights | {' | '.join(shares)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder with config.json, weights and tokenizer.json")
    parser.add_argument("--precision", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--rounds", type=int, default=1, help="how often each precision is measured, in turn")
    parser.add_argument("--short", action="store_true", help="fewer requests of each kind")
    parser.add_argument("--only", help="measure only the rows whose name contains this")
    parser.add_argument("--command", type=Path, default=Path(sys.executable).with_name("dragoman"))
    parser.add_argument(
        "--threads", type=int, help="threads of the server's engine, and of the bandwidth's measurement"
    )
    parser.add_argument("more", nargs="*", help="more options for `dragoman serve`, after --")
    options = parser.parse_args()
    more = list(options.more)
    if options.threads:
        kernels.set_threads(options.threads)
        more += ["--threads", str(options.threads)]
    rows = {row: arguments for row, arguments in loads(options.short).items() if (options.only or "") in row}
    figures: Figures = {precision: defaultdict(list) for precision in options.precision}
    for _ in range(options.rounds):
        for precision in options.precision:
            print(f"{options.model.name} at {precision}", file=sys.stderr)
            with served(options.command, options.model, precision, more) as (url, pid):
                asyncio.run(measure(url, options.model, rows, figures[precision]))
                figures[precision]["memory, GB"].append(memory_gb(pid))
    print(table(options.model, figures, options.precision))


if __name__ == "__main__":
    main()
