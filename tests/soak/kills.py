"""The engine is killed at random moments under 32 streams: no token is lost, doubled or changed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter

import psutil

from benchmarks.raw_http import Reply, ask
from benchmarks.under_test import ServerUnderTest
from tests.simulation.clients import Answer
from tests.simulation.workload import Template, comparable, difference, error_of, templates

STREAMS = 32
PATIENCE_S = 120.0


def answer_of(reply: Reply) -> Answer:
    return Answer(status=reply.status, headers=reply.headers, body=reply.body)


async def asked(server: ServerUnderTest, template: Template, serial: int) -> Reply:
    body = template.fields(serial)
    return await ask(server.port, "POST", template.path, body, key=server.polite_key, timeout_s=PATIENCE_S)


async def kill_engine(server: ServerUnderTest, kills: int, seed: int) -> list[str]:
    """What was wrong, in words. Prints how it goes on."""
    rng = random.Random(f"kills {seed}")
    chosen = templates()
    expected = {}
    for template in chosen:
        reply = await asked(server, template, 10**6 + template.number)
        expected[template.number] = reply.status, comparable(answer_of(reply))
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    serial = iter(range(10**9))
    is_over = asyncio.Event()

    async def stream(number: int) -> None:
        own = random.Random(f"stream {seed} {number}")
        while not is_over.is_set():
            template = own.choice(chosen)
            try:
                reply = await asked(server, template, next(serial))
            except TimeoutError:
                wrong.append(f"{template.kind}: no answer within {PATIENCE_S:g} s")
                continue
            answer = answer_of(reply)
            if reply.status in (429, 503) and "retry-after" in reply.headers:
                outcomes[str(reply.status)] += 1
                await asyncio.sleep(1.0)
            elif not reply.complete or error_of(answer):
                wrong.append(f"{template.kind}: status {reply.status}, cut: {reply.body[-300:]!r}")
            elif (reply.status, comparable(answer)) != expected[template.number]:
                status, content = expected[template.number]
                wrong.append(f"{template.kind}: {status} -> {reply.status}, {difference(comparable(answer), content)}")
            else:
                outcomes["same"] += 1

    streams = [asyncio.create_task(stream(number)) for number in range(STREAMS)]
    killed, last, begun = 0, 0, time.monotonic()
    while killed < kills:
        engine = server.engine()
        if engine is not None and engine.pid != last and await is_ready(server):
            await asyncio.sleep(rng.uniform(0.0, 0.6))
            with contextlib.suppress(psutil.Error):
                engine.kill()
                killed, last = killed + 1, engine.pid
                if killed % 20 == 0 or killed == kills:
                    minutes = (time.monotonic() - begun) / 60
                    print(f"  {killed} kills, {dict(outcomes)}, {len(wrong)} wrong, {minutes:.1f} min", flush=True)
        await asyncio.sleep(0.05)
    is_over.set()
    await asyncio.gather(*streams)
    print(f"kills: {killed} under {STREAMS} streams: {dict(outcomes)}, {len(wrong)} lost, doubled or changed")
    return wrong


async def is_ready(server: ServerUnderTest) -> bool:
    with contextlib.suppress(TimeoutError):
        return (await ask(server.port, "GET", "/readyz", timeout_s=5)).status == 200
    return False
