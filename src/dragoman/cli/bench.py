"""``dragoman bench``: time to first token, inter-token latency and tokens per second, for several loads in turn."""

from __future__ import annotations

import itertools
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol

import msgspec

from dragoman.cli import console
from dragoman.cli.address import Address
from dragoman.cli.measurement import StreamRecord, Summary, run_streams, summarize
from dragoman.cli.remote import stream_json
from dragoman.cli.session import LocalSession, RemoteSession
from dragoman.cli.settings import BenchSettings
from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason, GenerationDone, TextDelta
from dragoman.core.request import GenerationRequest, TokenPrompt
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.core.serving import Serving

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A load of so many concurrent streams, each of which starts a new request when its last one has ended."""

    streams: int
    prompt_tokens: int
    output_tokens: int


class Target(Protocol):
    """A source of generations that can be timed."""

    async def time(self, load: Load, number: int) -> StreamRecord:
        """Run one request of the load, with a prompt unique to ``number``. Errors are in the record."""


class LocalTarget:
    """The command's own engine, with the same serving layer as the server. The measurements include no HTTP."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._vocab_size = serving.models()[0].vocab_size

    async def time(self, load: Load, number: int) -> StreamRecord:
        chance = random.Random(number)
        ids = tuple(chance.randrange(self._vocab_size) for _ in range(load.prompt_tokens))
        request = GenerationRequest(
            request_id=f"bench-{number}",
            prompt=TokenPrompt(token_ids=ids),
            seeds=(0,),
            sampling=SamplingParams(temperature=0.0),
            ending=EndingParams(max_tokens=load.output_tokens, ignore_eos=True),
        )
        record = StreamRecord(start_s=time.perf_counter())
        try:
            async with aclosing(self._serving.stream(request)) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        record.arrivals_s.append(time.perf_counter())
                        if event.finish is FinishReason.ERROR:
                            record.error = event.message
                    elif isinstance(event, GenerationDone):
                        record.tokens = event.usage.completion_tokens
                        record.prompt_tokens = event.usage.prompt_tokens
                        record.cached_tokens = event.usage.cached_tokens
        except DragomanError as error:
            record.error = error.message
        return record


class RemoteTarget:
    """A running server. Its tokenizer is unknown here: a prompt has about as many words as tokens were asked for."""

    def __init__(self, address: Address, model: str) -> None:
        self._address = address
        self._model = model

    async def time(self, load: Load, number: int) -> StreamRecord:
        words = random.Random(number).choices(WORDS, k=max(1, load.prompt_tokens - 2))
        return await time_completion(
            self._address,
            {"model": self._model, "prompt": " ".join([str(number), *words]), "max_tokens": load.output_tokens},
        )


def target_of(session: LocalSession | RemoteSession) -> Target:
    if isinstance(session, LocalSession):
        return LocalTarget(session.serving)
    return RemoteTarget(session.address, session.model)


async def time_completion(address: Address, body: dict[str, object], *, path: str = "/v1/completions") -> StreamRecord:
    """Ask for a greedy stream of full length, and record when its text arrives. ``path``: that of completions, or
    ``/v1/chat/completions``."""
    body = {
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **body,
    }
    record = StreamRecord(start_s=time.perf_counter())
    try:
        async with aclosing(stream_json(address, path, body)) as events:
            async for event in events:
                now = time.perf_counter()
                if usage := event.get("usage"):
                    record.tokens = usage.get("completion_tokens") or 0
                    record.prompt_tokens = usage.get("prompt_tokens")
                    record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
                choice = (event.get("choices") or [None])[0]
                # A token whose text is still held back, or that has none, arrives as an empty delta: it counts too.
                delta = choice.get("delta", {}) if choice else {}
                if "role" in delta and not delta.get("content"):
                    continue  # a chat's stream begins with it, before the first token
                if choice and (choice.get("text") or delta.get("content") or not choice.get("finish_reason")):
                    record.arrivals_s.append(now)
    except DragomanError as error:
        record.error = error.message
    record.tokens = record.tokens or len(record.arrivals_s)
    return record


class Countdown:
    """The progress of a measurement: the load and its number of answered requests, on a line of standard error that
    the next overwrites; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()


async def measure(
    target: Target, settings: BenchSettings, countdown: Countdown | None = None
) -> AsyncIterator[tuple[Load, Summary]]:
    """Measure every combination of lengths and streams, after one request that is not counted."""
    shown = countdown or Countdown()

    async def time_one(load: Load, number: int, count: int) -> StreamRecord:
        record = await target.time(load, number)
        done[0] += 1
        what = f"{load.streams} streams, prompts of {load.prompt_tokens} tokens"
        shown.show(f"{what}: {done[0]} of {count} requests")
        return record

    done = [0]
    shown.show("one request to warm up")
    numbers = itertools.count()
    await target.time(Load(streams=1, prompt_tokens=16, output_tokens=8), next(numbers))
    for prompt_tokens, streams in itertools.product(settings.prompt_tokens, settings.streams):
        load = Load(streams=streams, prompt_tokens=prompt_tokens, output_tokens=settings.output_tokens)
        count, done[0] = max(2, streams * settings.rounds), 0
        requests = [partial(time_one, load, next(numbers), count) for _ in range(count)]
        found = summarize(*await run_streams(requests, streams))
        shown.show("")
        yield load, found


async def print_measurements(
    target: Target, settings: BenchSettings, done: Callable[[Load, Summary], None] | None = None
) -> None:
    """Print each measurement when it is complete: as a line of a table, or as JSON. ``done`` gets each as well."""
    widths = [6, 6, 7, 8, 8, 8, 7, 7, 10]
    head = ["prompt", "output", "streams", "tokens/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "one stream"]
    units = ["tokens", "tokens", "", "", "ms", "ms", "ms", "ms", "tokens/s"]
    if not settings.json:
        for names in (head, units):
            print(*(name.rjust(width) for name, width in zip(names, widths, strict=True)), flush=True)
    async for load, found in measure(target, settings, Countdown()):
        if done is not None:
            done(load, found)
        if settings.json:
            print(
                msgspec.json.encode({**msgspec.structs.asdict(load), **msgspec.to_builtins(found)}).decode(), flush=True
            )
            continue
        cells = [
            f"{found.prompt_tokens or load.prompt_tokens:.0f}",
            str(load.output_tokens),
            str(load.streams),
            f"{found.tokens_per_s:.1f}",
            *(f"{value:.0f}" if value is not None else "-" for value in (found.ttft_p50_ms, found.ttft_p99_ms)),
            *(f"{value:.2f}" if value is not None else "-" for value in (found.itl_p50_ms, found.itl_p99_ms)),
            f"{found.stream_tokens_per_s:.1f}" if found.stream_tokens_per_s is not None else "-",
        ]
        print(*(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)
        for error in found.errors:
            console.error(f"{found.failed} of {found.requests} requests failed: {error}")
