"""How much memory the bodies of requests may take together."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType

import msgspec
import pytest
from stub_runtime import LONG, QUICK, LocalServer, local_server

from dragoman.core.errors import EngineUnavailable
from dragoman.core.images import ImageInfo
from dragoman.dialects import made_dialects
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.server.body import read_body
from dragoman.server.body_budget import MANY_BYTES, BodyBudget
from dragoman.text import ChatTemplate

LIMITS = msgspec.structs.replace(QUICK, max_body_bytes=100_000, max_image_body_bytes=3_000_000, linger_s=0.02)
JSON = {"content-type": "application/json"}


def sees(runtime: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the served model see images, as far as its card says."""
    cards = [
        msgspec.structs.replace(card, images=ImageInfo(most_tokens=4, has_detail=False))
        for card in runtime.serving.models()
    ]
    monkeypatch.setattr(runtime.serving, "models", lambda: tuple(cards))


async def status_of(runtime: LocalServer, size: int, path: str = "/v1/completions", tokens: int = 1) -> int:
    """The status of a request whose body has so many bytes."""
    named = {"prompt": "a", "max_tokens": tokens, "ignore_eos": True}
    if path.endswith("generate"):
        named = {"inputs": "a", "parameters": {"max_new_tokens": tokens}}
    answer = await runtime.client.post(path, content=json.dumps(named).encode().ljust(size), headers=JSON)
    return answer.status_code


def test_bodies_share_one_budget() -> None:
    budget = BodyBudget(100)
    budget.take(60)
    with pytest.raises(EngineUnavailable):
        budget.take(41)
    budget.give_back(60)
    budget.take(100)
    assert (budget.used, budget.refused) == (100, 1)


def test_pipelined_requests_leave_half_of_the_budget_to_bodies() -> None:
    """What is not parsed yet has shown no key: it must not keep out those that have."""
    budget = BodyBudget(100)
    assert budget.can_hold(30)
    assert budget.can_hold(20)
    assert not budget.can_hold(1)
    budget.take(50)
    assert (budget.used, budget.unparsed, budget.refused) == (100, 50, 1)
    budget.release(30)
    assert (budget.used, budget.unparsed) == (70, 20)
    budget.take(30)
    assert not budget.can_hold(1)
    budget.release(20)
    budget.give_back(80)
    assert (budget.used, budget.unparsed) == (0, 0)


def test_large_bodies_have_a_budget_of_their_own() -> None:
    budget = BodyBudget(100, 50)
    budget.take(100)
    budget.take_large(50)
    with pytest.raises(EngineUnavailable, match="images"):
        budget.take_large(1)
    budget.give_back_large(20)
    budget.take_large(20)
    assert (budget.used, budget.large, budget.refused) == (100, 50, 1)


def test_when_many_large_bodies_have_passed_it_is_told_once() -> None:
    told: list[int] = []
    budget = BodyBudget(on_passed=lambda: told.append(budget.large))
    budget.take_large(MANY_BYTES - 1)
    budget.give_back_large(MANY_BYTES - 1)
    assert not told
    budget.take_large(MANY_BYTES - 1)
    budget.take_large(1)
    budget.give_back_large(1)
    assert not told
    budget.give_back_large(MANY_BYTES - 1)
    budget.take_large(1)
    budget.give_back_large(1)
    assert told == [0]


@pytest.mark.anyio
async def test_an_error_keeps_no_bytes_of_a_body_that_is_refused() -> None:
    """Its traceback has the frame that read them, until the collector finds both."""
    pieces = iter([b"x" * 80_000] * 3)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    with pytest.raises(EngineUnavailable) as refused:
        await read_body(receive, {}, max_bytes=300_000, timeout_s=1, budget=BodyBudget(100_000))
    kept = [each.tb_frame.f_locals for each in walk(refused.value.__traceback__)]
    assert sum(len(value) for found in kept for value in found.values() if isinstance(value, bytes | bytearray)) == 0


def walk(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


@pytest.mark.anyio
async def test_bodies_may_be_larger_where_a_model_sees(template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    async with local_server(template, LIMITS) as runtime:
        assert await status_of(runtime, 100_000) == 200
        assert await status_of(runtime, 100_001) == 413
        sees(runtime, monkeypatch)
        assert await status_of(runtime, 3_000_000) == 200
        assert await status_of(runtime, 3_000_001) == 413
        assert await status_of(runtime, 3_000_000, "/tgi/generate") == 200
        assert await status_of(runtime, 3_000_001, "/tgi/generate") == 413
    few = msgspec.structs.replace(LIMITS, image_bytes=200_000)
    async with local_server(template, few) as runtime:
        sees(runtime, monkeypatch)
        assert await status_of(runtime, 200_000) == 200
        assert await status_of(runtime, 200_001) == 413


@pytest.mark.anyio
async def test_an_own_limit_of_a_dialect_holds_where_a_model_sees(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = made_dialects({"tgi": TgiSettings(payload_limit=1000)})
    async with local_server(template, LIMITS, dialects=limited) as runtime:
        sees(runtime, monkeypatch)
        assert await status_of(runtime, 1000, "/tgi/generate") == 200
        assert await status_of(runtime, 1001, "/tgi/generate") == 413
        assert await status_of(runtime, 2 * 2**20, "/locallab/generate") != 413
        assert await status_of(runtime, 2 * 2**20 + 1, "/locallab/generate") == 413


@pytest.mark.anyio
async def test_large_bodies_together_are_bounded_until_their_requests_end(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = BodyBudget(max_large_bytes=3_000_005)
    async with local_server(template, LIMITS, LONG, bodies=budget) as runtime:
        sees(runtime, monkeypatch)
        running = [asyncio.create_task(status_of(runtime, 1_000_000, tokens=100_000)) for _ in range(3)]
        while budget.large < 3_000_000:
            await asyncio.sleep(0.01)
        assert [await status_of(runtime, 1_000_000) for _ in range(5)] == [503] * 5
        assert await status_of(runtime, 100_000) == 200
        assert (budget.large, budget.used) == (3_000_000, 0), "ordinary bodies have theirs"
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        while budget.large:
            await asyncio.sleep(0.01)
        assert await status_of(runtime, 1_000_000) == 200
        assert (budget.large, budget.used) == (0, 0)


FREED = """
import sys
from dragoman.server.lifecycle import _post_start_cleanup

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

if sys.argv[1] == "server":
    _post_start_cleanup()
before, kept = resident(), []
for _ in range(3):
    blocks = []
    for _ in range(30):
        blocks.append(b"a" * (5 << 20))
        kept.append(b"b" * 40_000)
    del blocks
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_freed_bodies_leave_no_holes_behind() -> None:
    def grown(mode: str) -> float:
        done = subprocess.run([sys.executable, "-c", FREED, mode], capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert grown("server") < 30 < grown("plain")
