"""Malformed requests of every kind: each gets an answer or the end of its connection, and nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.raw_http import NO_STATUS, connected, exchange, frame, handshake, request_bytes
from benchmarks.under_test import ServerUnderTest, descriptors
from tests.simulation.workload import Template, templates

AT_A_TIME = 16
PATIENCE_S = 90.0
"""Longer than the server's own limits, which ``OPTIONS`` make short, and than an answer of a whole context."""
KV_TOKENS = 16_384
"""Few, so that the cache of keys and values is in memory as a whole before memory is looked at for the first time."""
OPTIONS = (
    *("--header-timeout-s=2", "--body-timeout-s=2", "--write-timeout-s=2", "--keep-alive-s=2"),
    f"--kv-tokens={KV_TOKENS}",
)
EXPLAINED = {501, 503, 505}
"""Statuses from 500 on that say something true: not implemented, no room, another version of HTTP."""
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    1e308,
    "",
    "x",
    [],
    {},
    [[]],
    {"a": None},
    "\ud800",
    "\0",
    -0.5,
    "9" * 400,
)


def mutated(rng: random.Random, value: Any) -> Any:
    """The value with one place of it made odd."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != name}
        return {**value, name: mutated(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(rng, value[at]), *value[at + 1 :]]
    return rng.choice(ODD)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some of them changed, gone or doubled."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(0, 8))
        data = data[:at] + rng.choice([b"", b"\0", b"\r\n", b"\xff\xfe", b": ", data[at:end] * 2]) + data[end:]
    return data


async def send_one(server: ServerUnderTest, rng: random.Random, chosen: list[Template]) -> str:
    """Its outcome."""
    template = rng.choice(chosen)
    body = mutated(rng, template.fields(rng.randrange(10**9)))
    if isinstance(body, dict):
        body = {k: min(v, 32) if "max" in k and isinstance(v, int) else v for k, v in body.items()}
    key = rng.choice([server.hostile_key] * 4 + ["", "wrong"])
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    kind = rng.choice(["fields"] * 5 + ["json", "http", "length", "socket", "cut"])
    if kind == "socket":
        return await converse(server, rng, damaged(rng, content) if rng.random() < 0.5 else content)
    if kind == "json":
        content = damaged(rng, content)
    length = len(content) + rng.choice([-1, 1, 10**6, 10**12]) if kind == "length" else None
    data = request_bytes("POST", template.path, content, key=key, content_length=length)
    if kind == "http":
        head, _, rest = data.partition(b"\r\n\r\n")
        data = damaged(rng, head) + b"\r\n\r\n" + rest
    if kind in ("cut", "length"):
        async with connected(server.port) as (reader, writer):
            writer.write(data[: rng.randrange(len(data))] if kind == "cut" else data)
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(reader.read(100), 0.3)
        return "left"
    reply = await exchange(server.port, data, timeout_s=PATIENCE_S)
    return "closed" if reply.status == NO_STATUS else str(reply.status)


async def converse(server: ServerUnderTest, rng: random.Random, content: bytes) -> str:
    path = rng.choice(["/alexandria/api/ws", "/api/ws", "/ws", "/locallab/ws"])
    async with connected(server.port) as (reader, writer):
        writer.write(handshake(path, key=server.hostile_key))
        for _ in range(rng.randint(1, 4)):
            odd = frame(content, opcode=rng.choice([0, 1, 1, 2, 3, 8, 9, 15]), masked=rng.random() < 0.9)
            writer.write(odd if rng.random() < 0.8 else damaged(rng, odd))
        with contextlib.suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(reader.read(4096), 0.5)
    return "socket"


async def state(server: ServerUnderTest) -> dict[str, float]:
    """What has to be as it was, once all is over."""
    metrics = await server.metrics()
    names = ("requests_waiting", "requests_running", "sequences_running", "sequences_waiting", "kv_blocks_used")
    processes = server.processes()
    found = {name: metrics.get(f"dragoman_{name}", -1.0) for name in names}
    found["threads"] = processes[0].num_threads()
    # A helper that was started when it was first needed has one.
    found["descriptors"] = descriptors(processes[0]) - len(processes)
    return found


async def hostile(server: ServerUnderTest, count: int, seed: int) -> list[str]:
    """What was wrong, in words. Prints the figures."""
    chosen = templates()
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []

    async def again(numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                outcome = await send_one(server, random.Random(f"hostile {seed} {number}"), chosen)
            except TimeoutError:
                outcome = "silent"
            except OSError:
                outcome = "closed"
            outcomes[outcome] += 1
            if outcome == "silent" or (outcome.isdigit() and int(outcome) >= 500 and int(outcome) not in EXPLAINED):
                wrong.append(f"number {number} of seed {seed}: {outcome}")
            if number > 0 and number % 5000 == 0:
                print(f"  {number} requests, {len(wrong)} wrong", flush=True)

    async def crowd(numbers: Iterator[int]) -> None:
        await asyncio.gather(*(again(numbers) for _ in range(AT_A_TIME)))

    await crowd(iter(range(-min(5000, count // 4), 0)))  # what is made once and kept
    await asyncio.sleep(6.0)
    before, before_bytes = await state(server), server.resident_bytes()
    await crowd(iter(range(count)))
    for _ in range(30):
        await asyncio.sleep(1.0)
        after = await state(server)
        if after == before:
            break
    else:
        wrong.append(f"left behind: {after} where it was {before}")
    grown = server.resident_bytes() / before_bytes - 1
    # Fewer requests before this fill neither that cache nor what is made once and kept.
    if count >= 10_000 and grown > 0.05 and server.resident_bytes() - before_bytes > 30e6:
        wrong.append(f"memory has grown by {100 * grown:.1f} %")
    print(f"hostile: {count} requests: {dict(outcomes.most_common())}, memory {100 * grown:+.1f} %, {after}")
    return wrong
