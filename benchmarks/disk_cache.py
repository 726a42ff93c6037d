#!/usr/bin/env python3
"""The prefix cache on disk: the first token after a restart, and what reading and writing cost streams that run.

    python benchmarks/disk_cache.py --model DIR
    python benchmarks/disk_cache.py --model DIR --prompt 8000 --parts restart,writing,reading

``restart``: the time to the first token of a prompt that is computed, and of the same prompt after the engine was
started again; the files are dropped from the system's memory before. With ``--made-up`` nothing is computed: the blocks
have the right names and sizes. ``writing``: the tokens of streams in a second with the cache and without, in turns,
each while a prompt is computed. ``reading``: the times between the tokens of streams, and the same while
``--read-bytes`` of made-up blocks come in, of a prompt with one token more than it has blocks for.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from dragoman.core.events import FinishEvent, TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.engine.kv_cache import block_hash
from dragoman.engine.messages import DiskCache, LoadModel, WorkerSettings
from dragoman.engine.prefix_store.folder import CacheFolder, StoredSegment
from dragoman.engine.prefix_store.segment import Record, key_of, scan
from dragoman.engine.prefix_store.store import checksum_of
from dragoman.engine_client.client import EngineClient
from dragoman.models import ModelSettings

LIMIT = 8 << 30


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--kv-precision", default="int8")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--output", type=int, default=160, help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=3, help="of writing, with and without")
    parser.add_argument("--read-bytes", type=int, default=1 << 30)
    parser.add_argument("--made-up", action="store_true", help="restart: with blocks that were not computed")
    parser.add_argument("--parts", default="restart,writing,reading")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default a temporary one")
    return parser.parse_args()


def settings_of(options: argparse.Namespace, folder: Path | None) -> WorkerSettings:
    model = ModelSettings(precision=options.precision, kv_precision=options.kv_precision, kv_tokens=120_000)
    return WorkerSettings(
        model=LoadModel(source=options.model, settings=model),
        threads=options.threads or os.cpu_count(),
        disk=None if folder is None else DiskCache(folder=str(folder), limit_bytes=LIMIT),
    )


def prompt_of(seed: int, count: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(1000), k=count))


async def times_of(client: EngineClient, name: str, prompt: tuple[int, ...], output: int) -> list[float]:
    """Return when each token of a request came, in seconds after it was sent."""
    request = EngineRequest(
        request_id=name, prompt=prompt, seeds=(1,), max_tokens=output, sampling=SamplingParams(temperature=0.0)
    )
    started, found = time.perf_counter(), []
    async for event in client.submit(request):
        if isinstance(event, TokenEvent):
            found.append(time.perf_counter() - started)
        if isinstance(event, FinishEvent) and event.message:
            raise SystemExit(event.message)
    return found


async def measure_restart(options: argparse.Namespace, folder: Path) -> None:
    prompt = prompt_of(1, options.prompt)
    computed = 0.0
    async with Running(settings_of(options, folder)) as client:
        await times_of(client, "short", prompt_of(2, 128), 4)
        if not options.made_up:
            computed = (await times_of(client, "computed", prompt, 4))[0]
    if options.made_up:
        prompt = make_up(folder, 1, options.prompt)[0]
    stored = sum(segment.nbytes for segment in segments(folder))
    payload = sum(record.nbytes for _, record in records(folder))
    drop(folder)
    started = time.perf_counter()
    read = read_all(folder)
    disk_s = time.perf_counter() - started
    drop(folder)
    async with Running(settings_of(options, folder)) as client:
        again = (await times_of(client, "again", prompt, 4))[0]
        stats = client.stats()
        once_more = (await times_of(client, "in memory", prompt, 4))[0]
    print(f"first token of {options.prompt} tokens: computed {computed:.2f} s, after a restart {again:.2f} s, "
          f"from memory {once_more:.2f} s")  # fmt: skip
    print(f"the disk alone: {read / 1e6:.0f} MB in {disk_s:.2f} s, {read / disk_s / 1e6:.0f} MB/s; "
          f"read by the engine {stats.disk_read_bytes / 1e6:.0f} MB; rest {again - disk_s:.2f} s")  # fmt: skip
    print(f"bytes written for each byte of keys and values: {stored / payload:.4f}")


async def measure_writing(options: argparse.Namespace, folder: Path) -> None:
    """Tokens of streams in a second, while a prompt is computed whose blocks are written, and while none is."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(options.rounds):
        for writes in (True, False) if number % 2 else (False, True):
            async with Running(settings_of(options, folder if writes else None)) as client:
                await times_of(client, "warm", prompt_of(number, 64), 8)
                streams = [
                    times_of(client, f"s{each}", prompt_of(100 + each + 10 * number, 64), options.output)
                    for each in range(options.streams)
                ]
                long = asyncio.create_task(times_of(client, "long", prompt_of(200 + number, 1600), 1))
                found = await asyncio.gather(*streams)
                await long
                rates[writes].append(sum(len(each) - 1 for each in found) / max(each[-1] for each in found))
    on, off = statistics.median(rates[True]), statistics.median(rates[False])
    print(f"tokens in a second with a prompt beside: without {off:.2f}, while it is written {on:.2f}, "
          f"{100 * (off - on) / off:.1f} % slower; all {rates}")  # fmt: skip


async def measure_reading(options: argparse.Namespace, folder: Path) -> None:
    async with Running(settings_of(options, folder)) as client:
        await times_of(client, "first", prompt_of(3, 512), 2)
    prompts = make_up(folder, options.read_bytes, 100_000)
    gaps: dict[str, list[float]] = {}
    async with Running(settings_of(options, folder)) as client:
        await times_of(client, "warm", prompt_of(5, 64), 8)
        for kind in ("alone", "while reading"):
            streams = [
                asyncio.create_task(times_of(client, f"{kind}{each}", prompt_of(300 + each, 64), options.output))
                for each in range(options.streams)
            ]
            await asyncio.sleep(1.0)
            started = time.perf_counter()
            # Names of what is read are those of whole prompts, which are never computed: each ends after one token.
            reads = [times_of(client, f"{kind}-{each}", prompts[each], 1) for each in range(len(prompts))]
            if kind == "while reading":
                await asyncio.gather(*reads)
                took = time.perf_counter() - started
            else:
                for read in reads:
                    read.close()
            found = await asyncio.gather(*streams)
            until = took if kind == "while reading" else 1e9
            gaps[kind] = [
                after - before for times in found for before, after in itertools.pairwise(times) if 1.0 < before < until
            ]
        stats = client.stats()
    alone, reading = (np.percentile(gaps[kind], 99) * 1e3 for kind in ("alone", "while reading"))
    print(f"{stats.disk_read_bytes / 1e6:.0f} MB in {took:.1f} s; p99 between tokens: alone {alone:.0f} ms, "
          f"meanwhile {reading:.0f} ms ({100 * (reading / alone - 1):+.0f} %), medians "
          f"{1e3 * statistics.median(gaps['alone']):.0f} and {1e3 * statistics.median(gaps['while reading']):.0f} ms, "
          f"{len(gaps['while reading'])} gaps")  # fmt: skip


def make_up(folder: Path, nbytes: int, tokens: int) -> list[tuple[int, ...]]:
    """Write blocks of so many bytes in all, for prompts of so many tokens, which are returned."""
    opened = CacheFolder(folder)
    (model,) = opened.models()
    block_bytes = max(record.nbytes for _, record in records(folder))
    prompts: list[tuple[int, ...]] = []
    data = np.random.default_rng(0).integers(0, 4, block_bytes, np.uint8)
    sum_of_data, written = checksum_of(data), 0
    while written < nbytes:
        prompt = prompt_of(1000 + len(prompts), tokens)
        prompts.append(prompt)
        writer, name = opened.new_segment(model, ""), b""
        for start in range(0, tokens, 32):  # the last block too, which may not be full
            name = block_hash(name, prompt[start : start + 32])
            writer.append(Record(key_of(0, name), block_bytes, 0.1, start + 32, sum_of_data), memoryview(data))
            written += block_bytes
            if written >= nbytes > 1:
                prompts[-1] = prompt[: start + 33]
                break
        writer.close()
    opened.close()
    return prompts


class Running:
    """An engine, started and closed."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._client = EngineClient(settings)

    async def __aenter__(self) -> EngineClient:
        await self._client.start()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


def segments(folder: Path) -> list[StoredSegment]:
    opened = CacheFolder(folder)
    found = list(opened.segments())
    opened.close()
    return found


def records(folder: Path) -> list[tuple[int, Record]]:
    opened = CacheFolder(folder)
    found = []
    for segment in opened.segments():
        file = opened.open_segment(segment.model, segment.name)
        found += list(scan(file))
        os.close(file)
    opened.close()
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.blocks"))


def drop(folder: Path) -> None:
    """Have the disk read the files again."""
    for path in files(folder):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_all(folder: Path) -> int:
    read = 0
    for path in files(folder):
        with path.open("rb", buffering=0) as file:
            while part := file.read(1 << 20):
                read += len(part)
    return read


async def main() -> None:
    options = parsed()
    for part in options.parts.split(","):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measure = {"restart": measure_restart, "writing": measure_writing, "reading": measure_reading}[part]
            await measure(options, Path(folder, "cache"))


if __name__ == "__main__":
    asyncio.run(main())
