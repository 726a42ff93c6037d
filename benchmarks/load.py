#!/usr/bin/env python3
"""A load generator for an OpenAI-compatible /v1/completions endpoint, with the latencies of its clients. One JSON line
per result.

    python benchmarks/load.py --tokenizer DIR --mode single                      one stream, median of 5
    python benchmarks/load.py --tokenizer DIR --mode serve --streams 1 8 32      many streams at once
    python benchmarks/load.py --tokenizer DIR --mode ttft --lengths 512 2048     time to first token
    python benchmarks/load.py --tokenizer DIR --mode prefix                      64 requests with a shared beginning

Prompts are text that the tokenizer in DIR encodes to an exact number of tokens, so that every server under test gets
the same work (it may add a BOS). Every request is greedy, streamed, and asks for its full length with ``ignore_eos``.
Latencies are of the deltas as they arrive: time to first token from sending the request (the connection included),
inter-token latency from one delta to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import struct
import sys
import time
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from dragoman.cli.address import Address
from dragoman.cli.bench import time_completion
from dragoman.cli.measurement import StreamRecord, Summary, run_streams, summarize
from dragoman.cli.remote import fetch_json
from dragoman.core.errors import DragomanError

COMMON = """
the of and to in that was his it with is for as had you not be her on at by which have or from this him but all she
they were my are me one their so an said them we who would been will no when there if more out up into do any your
what has man could other than our some very time about upon may its only now like little then can should made did
us such great before must two these see know over much down after first good men own never most old day where those
came himself way work long come might life being without make same house through again still hand place think
"""
WORDS = COMMON.split()


Prompt = str | list[int]
NOTHING: Mapping[str, Any] = {}


class Prompts:
    """Random words, cut to an exact number of the tokenizer's tokens."""

    def __init__(self, folder: Path, seed: str) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._random = random.Random(seed)

    def length(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def make(self, tokens: int) -> str:
        """A prompt of exactly ``tokens`` tokens that shares its beginning with no other."""
        while True:
            words = [f"{self._random.randrange(10**6)}", *self._random.choices(WORDS, k=tokens)]
            ids = self._tokenizer.encode(" ".join(words), add_special_tokens=False).ids[:tokens]
            text = self._tokenizer.decode(ids)
            # A cut can fall inside a word whose pieces then merge differently.
            if self.length(text) == tokens:
                return str(text)

    def ids(self, tokens: int) -> list[int]:
        """``make``, in token ids."""
        return list(self._tokenizer.encode(self.make(tokens), add_special_tokens=False).ids)

    def with_shared_prefix(self, prefix: int, own: int, count: int) -> list[str]:
        """``count`` prompts with the same ``prefix`` tokens, then ``own`` different ones (give or take the seam)."""
        start = self.make(prefix)
        return [f"{start}\n\n{self.make(own)}" for _ in range(count)]


class Load:
    """One server under test and the way to ask it."""

    def __init__(self, address: Address, model: str, *, timeout_s: float, extra: Mapping[str, Any] = NOTHING) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._body = {"model": model, **extra}

    async def run(self, prompts: Sequence[Prompt], tokens: int, streams: int) -> tuple[list[StreamRecord], float]:
        """All prompts, ``streams`` at a time, each asking for ``tokens``; the records, and the seconds in all."""
        return await run_streams((partial(self.time, prompt, tokens) for prompt in prompts), streams)

    async def time(self, prompt: Prompt, tokens: int, **more: Any) -> StreamRecord:
        """One request; ``more`` are further fields of its body."""
        body = {**self._body, "prompt": prompt, "max_tokens": tokens, **more}
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await time_completion(self._address, body)
        except TimeoutError:
            return StreamRecord(start_s=start, error=f"no answer within {self._timeout_s:g} s")

    async def time_image(self, width: int, height: int, text: str, tokens: int, seed: str) -> StreamRecord:
        """One chat with an image of noise, of ``seed``, whose pixels are sent as they are."""
        url = f"data:image/png;base64,{b64encode(noise_png(width, height, seed)).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        body = {**self._body, "messages": [{"role": "user", "content": content}], "max_tokens": tokens}
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await time_completion(self._address, body, path="/v1/chat/completions")
        except TimeoutError:
            return StreamRecord(start_s=start, error=f"no answer within {self._timeout_s:g} s")


def noise_png(width: int, height: int, seed: str) -> bytes:
    """A picture of noise, the same for the same seed, that nothing is compressed in
    (https://www.w3.org/TR/png-3/)."""
    pixels = random.Random(seed).randbytes(3 * width * height)
    rows = b"".join(b"\0" + pixels[at : at + 3 * width] for at in range(0, len(pixels), 3 * width))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


async def results(options: argparse.Namespace) -> AsyncIterator[dict[str, Any]]:
    """Run the mode that was asked for; each result comes as soon as it is there."""
    address = Address.parse(options.url)
    model = options.model or (await fetch_json(address, "/v1/models"))["data"][0]["id"]
    load = Load(address, model, timeout_s=options.timeout, extra=options.extra)
    prompts = Prompts(options.tokenizer, f"{options.seed} {options.mode} {options.streams}")
    if options.warmup:
        await load.run([prompts.make(64) for _ in range(options.warmup)], 8, options.warmup)
    if options.mode == "single":
        records = [
            record
            for _ in range(options.repeat or 5)
            for record in (await load.run([prompts.make(options.prompt_len)], options.output_len, 1))[0]
        ]
        rates = [record.decode_tokens_per_s for record in records if record.succeeded]
        yield {**spread("tokens_per_s", rates), **failures(records)}
    elif options.mode == "ttft":
        for length in options.lengths:
            records = [(await load.run([prompts.make(length)], 2, 1))[0][0] for _ in range(options.repeat or 3)]
            times = [1e3 * record.first_token_s for record in records if record.succeeded]
            yield {"length": length, **spread("ttft_ms", times), **failures(records)}
    elif options.mode == "serve":
        for streams in options.streams:
            for _ in range(options.repeat or 1):
                count = options.requests or max(2, streams * options.rounds)
                texts = [prompts.make(options.prompt_len) for _ in range(count)]
                yield {"streams": streams, **plain(summarize(*await load.run(texts, options.output_len, streams)))}
    else:
        for _ in range(options.repeat or 1):
            texts = prompts.with_shared_prefix(1024, 32, options.requests or 64)
            yield {"streams": 8, **plain(summarize(*await load.run(texts, 16, 8)))}


def plain(summary: Summary) -> dict[str, Any]:
    return dict(msgspec.to_builtins(summary))


def spread(name: str, values: Sequence[float | None]) -> dict[str, Any]:
    """Median, least and greatest of what was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return {"repeats": 0}
    return {
        "repeats": len(known),
        f"{name}_median": round(statistics.median(known), 2),
        f"{name}_min": round(min(known), 2),
        f"{name}_max": round(max(known), 2),
    }


def failures(records: Sequence[StreamRecord]) -> dict[str, Any]:
    errors = sorted({record.error or "no text arrived" for record in records if not record.succeeded})
    return {"failed": sum(not r.succeeded for r in records), "errors": errors[:3]} if errors else {}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server; its API is below /v1")
    parser.add_argument("--tokenizer", required=True, type=Path, help="folder that holds the model's tokenizer.json")
    parser.add_argument("--model", default=None, help="model to name in each request (default: the server's first)")
    parser.add_argument("--mode", choices=["single", "serve", "ttft", "prefix"], default="serve")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="serve: requests at a time")
    parser.add_argument("--rounds", type=int, default=2, help="serve: requests per stream")
    parser.add_argument(
        "--requests", type=int, default=0, help="serve, prefix: requests in all (default: by rounds; 64)"
    )
    parser.add_argument("--prompt-len", type=int, default=128, help="single, serve: tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=128, help="single, serve: tokens of an answer")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048], help="ttft: tokens of the prompts")
    parser.add_argument(
        "--repeat", type=int, default=0, help="measurements of each kind (default: single 5, ttft 3, else 1)"
    )
    parser.add_argument("--warmup", type=int, default=1, help="requests before the first measurement")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other prompts")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one request")
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON object merged into each request")
    parser.add_argument("--json", type=Path, help="append each result to this file")
    parser.add_argument("--label", default="", help="a name that each result carries")
    return parser


async def run(options: argparse.Namespace) -> None:
    async for result in results(options):
        line = json.dumps({"label": options.label, "mode": options.mode, **result})
        print(line, flush=True)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def main() -> None:
    try:
        asyncio.run(run(arguments().parse_args()))
    except DragomanError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
