"""Servers with files and batches, and short ways to use them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
from openai.types import Batch
from stub_runtime import QUICK, STUB, RunningServer, running_server

from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.server.settings import NetworkSettings
from dragoman.serving.settings import BatchSettings

COMPLETIONS = "/v1/completions"
OVER = ("completed", "failed", "expired", "cancelled")
ANN, BOB = "key-of-ann-0123456789", "key-of-bob-0123456789"
SETTINGS = BatchSettings(files_max_bytes=64 * 1024, files_max_total_bytes=256 * 1024, batch_parallel=4)
PROXY = "127.0.0.2"
"""The address of a trusted proxy."""
LONG = 120
"""Tokens of lines that are not over at once: ``STUB`` takes 2 ms for each."""


@contextmanager
def batch_server(state: Path, settings: BatchSettings = SETTINGS) -> Iterator[RunningServer]:
    keys = Keyring([hashed(ANN, "ann"), hashed(BOB, "bob")])
    stub = msgspec.structs.replace(STUB, step_s=0.002)
    network = NetworkSettings(trusted_proxy=(PROXY,))
    with running_server(QUICK, stub, keys=keys, batches=settings, state=state, network=network) as server:
        yield server


@contextmanager
def held(server: RunningServer, position: int) -> Iterator[None]:
    """Hold the lines from this position on, which count as running, until the block ends."""
    store, released = server.runtime.serving.batches, threading.Event()
    read = store.read

    async def waiting(work: Any, file: str) -> Any:
        line = work.keywords.get("line")
        while line is not None and line.position >= position and not released.is_set():
            await asyncio.sleep(0.01)
        return await read(work, file)

    store.read = waiting  # type: ignore[method-assign]
    try:
        yield
    finally:
        released.set()
        store.read = read  # type: ignore[method-assign]


def client_of(server: RunningServer, key: str = ANN) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def line(custom_id: Any, body: Any = None, **fields: Any) -> dict[str, Any]:
    """A line for completions, with more members in its body; or with other members of its own."""
    whole = {"model": "stub", "prompt": f"Once {custom_id}", "max_tokens": 4} | (body or {})
    if fields.get("url", COMPLETIONS) != COMPLETIONS and body is not None:
        whole = body
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": whole} | fields


def jsonl(lines: Sequence[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)


def begin(client: openai.OpenAI, lines: Sequence[Any], **fields: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    fields = {"endpoint": COMPLETIONS, "completion_window": "24h"} | fields
    return client.batches.create(input_file_id=file.id, **fields)


def until(client: openai.OpenAI, batch: Batch, holds: Callable[[Batch], bool]) -> Batch:
    for _ in range(1500):
        batch = client.batches.retrieve(batch.id)
        if holds(batch):
            return batch
        time.sleep(0.02)
    raise AssertionError(f"it stays {batch.status}: {batch.request_counts}")


def finished(client: openai.OpenAI, batch: Batch) -> Batch:
    return until(client, batch, lambda batch: batch.status in OVER)


def results(client: openai.OpenAI, file: str | None) -> list[dict[str, Any]]:
    return [] if file is None else [json.loads(each) for each in client.files.content(file).text.splitlines()]
