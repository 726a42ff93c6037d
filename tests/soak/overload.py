"""Three times as many requests as can be served: each is answered or refused in time, and no connection is reset."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter

from benchmarks.raw_http import Reply, ask
from benchmarks.under_test import ServerUnderTest, percentile

TOKENS = 48
DEADLINE_S = 60.0
FACTOR = 3


async def overload(server: ServerUnderTest, seconds: float) -> list[str]:
    """What was wrong, in words. Prints the figures."""
    serial = itertools.count()

    async def one() -> Reply:
        body = {"model": "builtin", "prompt": f"{next(serial)} Once upon a time", "max_tokens": TOKENS}
        body |= {"ignore_eos": True, "stream": True}
        return await ask(server.port, "POST", "/v1/completions", body, key=server.polite_key, timeout_s=DEADLINE_S)

    async def closed(until: float) -> int:
        done = 0
        while time.monotonic() < until:
            done += (await one()).status == 200
        return done

    measured_s = min(10.0, max(2.0, seconds / 5))
    until = time.monotonic() + measured_s
    capacity = sum(await asyncio.gather(*(closed(until) for _ in range(16)))) / measured_s
    per_s = FACTOR * max(1.0, capacity)
    outcomes: Counter[str] = Counter()
    refused_s: list[float] = []
    first_s: list[float] = []
    wrong: list[str] = []

    async def counted() -> None:
        try:
            reply = await one()
        except TimeoutError:
            wrong.append(f"silent for {DEADLINE_S:g} s")
            return
        outcomes[str(reply.status)] += 1
        if reply.status == 200 and reply.complete and reply.first_s is not None:
            first_s.append(reply.first_s)
        elif reply.status in (429, 503) and reply.complete:
            refused_s.append(reply.total_s)
            if "retry-after" not in reply.headers:
                wrong.append(f"{reply.status} without Retry-After")
        else:
            wrong.append(f"status {reply.status or 'none: reset'}, complete: {reply.complete}")

    begun, tasks = time.monotonic(), set[asyncio.Task[None]]()
    for number in range(int(seconds * per_s)):
        await asyncio.sleep(begun + number / per_s - time.monotonic())
        task = asyncio.create_task(counted())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    print(
        f"overload: capacity {capacity:.0f}/s, {per_s:.0f}/s for {seconds:g} s: {dict(outcomes)}, "
        f"refused p99 {percentile(refused_s, 0.99):.2f} s, first token p50 {percentile(first_s, 0.5):.2f} s "
        f"p99 {percentile(first_s, 0.99):.2f} s, {len(wrong)} silent or reset"
    )
    return wrong
