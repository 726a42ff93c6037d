"""Promises that hold in every world: 75 of them here, any number with ``make simulate SEEDS=20000``."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dragoman.core.caller import Caller
from dragoman.core.errors import RateLimited, Unauthorized
from dragoman.core.request import EngineRequest
from dragoman.engine.fair_queue import FairQueue, Share
from dragoman.server import accounts, quotas
from dragoman.server.keys import Keyring
from dragoman.server.ledger import Ledger
from dragoman.server.quotas import Quotas
from tests.simulation.answers import Violation
from tests.simulation.engine_process import SimulatedProcess
from tests.simulation.plan import plan_of
from tests.simulation.runs import prepare, simulate
from tests.simulation.virtual_time import Stuck, ThreadStarted, VirtualLoop
from tests.simulation.world import World

CHUNK = 25


@pytest.mark.parametrize("first", range(0, 75, CHUNK))
def test_every_promise_holds_whatever_fails(first: int) -> None:
    broken = []
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except Violation as error:
            broken.append(f"python -m tests.simulation --seed {seed}   # {str(error)[:2000]}")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", [400279])
def test_a_world_that_failed_once_holds_now(seed: int) -> None:
    simulate(seed)


def test_a_seed_is_the_same_world_each_time() -> None:
    assert simulate(7).trace == simulate(7).trace


def test_a_changed_token_is_found() -> None:
    """The simulation can fail: an engine that draws another token once is seen by the client that gets it."""
    plan = plan_of(10)
    prepare(plan)
    world = World(plan)
    step = world.stepped

    def wrong(process: SimulatedProcess) -> None:
        for each in world.processes:
            if each._output is not None:
                for number, event in enumerate(each._output.events):
                    if getattr(event, "token_id", None) is not None:
                        each._output.events[number] = msgspec.structs.replace(event, token_id=300)
        step(process)

    world.stepped = wrong  # type: ignore[method-assign]
    with pytest.raises(Violation, match=r"in place of|is not"):
        world.run()


def _roomy(room: Callable[..., Any]) -> Callable[..., Any]:
    def one_more(name: str, window: object, share_key: str, limit: int, cost: int) -> Any:
        return room(name, window, share_key, limit + 1, cost)._replace(limit=limit)

    return one_more


def _hasty(refusal: Callable[..., RateLimited]) -> Callable[..., RateLimited]:
    def half_as_long(room: Any, tokens: int = 0) -> RateLimited:
        error = refusal(room, tokens)
        error.retry_after_s = max(1, error.retry_after_s // 2)
        return error

    return half_as_long


def _without_scope(self: Keyring, caller: Caller, scope: str) -> Caller:
    return caller if not caller.tenant or caller.tenant in self._by_tenant else _refuse()


def _refuse() -> Caller:
    raise Unauthorized("gone", reason="unknown")


def _of_arrival(share: Share) -> tuple[bool, float]:
    return share.is_background, float(share.waiting[0].order[1]) if share.waiting else 0.0


def _without_weight(share: Share, tokens: float) -> None:
    share.counter += tokens


def _unlimited(queue: FairQueue, request: EngineRequest) -> Share:
    return _share_of(queue, msgspec.structs.replace(request, max_running=None))


_share_of = FairQueue.share_of

BROKEN: dict[str, tuple[int, Any, str, Any, str]] = {
    "a limit of a minute lets one more in": (3, quotas, "_minute_room", _roomy(quotas._minute_room), "x-ratelimit"),
    "Retry-After is half as long": (3, quotas, "_refusal", _hasty(quotas._refusal), "there is no room"),
    "a restart gives the quota of the day again": (329, Quotas, "restore", lambda *_: None, "x-ratelimit"),
    "a caller runs more than it may": (5, FairQueue, "share_of", _unlimited, "sequences of .* run"),
    "the ledger is late": (693, accounts, "LOOK_S", 5.0, "the ledger has"),
    "the ledger loses a request": (0, Ledger, "_write", lambda self: self._pending.clear(), "the ledger has"),
    "changed keys are not read": (18, Keyring, "reload_if_changed", lambda self: None, "are not in force"),
    "keys do not expire": (158, Keyring, "_check_expiry", lambda self, key: None, "was let in"),
    "a WebSocket keeps a scope that its key has lost": (861, Keyring, "renewed", _without_scope, "goes on without"),
    "service is not divided by weight": (39, Share, "charge", _without_weight, "by weight and charged"),
    "who comes back keeps its credit": (39, FairQueue, "_lift", lambda self, share: None, "comes back with"),
    "callers are served as they come": (79, Share, "rank", property(_of_arrival), "ahead of"),
}
"""By what is wrong: a seed that meets it, what is put in place of which attribute, and what is then said."""


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, owner, name, value, words = BROKEN[what]
    prepare(plan_of(seed))
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(Violation, match=words):
        simulate(seed)


def test_a_thread_beside_the_loop_is_found() -> None:
    """What a thread does follows from the load of the machine: the seed would not be the same world each time."""
    ended = threading.Event()
    loop = VirtualLoop(random.Random(0))
    thread = threading.Thread(target=ended.wait, name="beside")
    try:
        loop.call_soon(thread.start)
        with pytest.raises(ThreadStarted, match="beside"):
            loop.run_until_complete(asyncio.sleep(1.0))
    finally:
        ended.set()
        thread.join()
        loop.close()


def test_a_loop_that_waits_for_nothing_is_found() -> None:
    loop = VirtualLoop(random.Random(0))
    with pytest.raises(Stuck):
        loop.run_until_complete(_wait_for_ever())
    loop.close()


async def _wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()
