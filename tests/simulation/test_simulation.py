"""Promises that hold in every world: 300 of them here, any number with ``make simulate SEEDS=20000``."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.plan import plan_of
from tests.simulation.runs import prepare, simulate
from tests.simulation.virtual_time import Stuck, VirtualLoop
from tests.simulation.world import Violation, World

CHUNK = 50


@pytest.mark.parametrize("first", range(0, 300, CHUNK))
def test_every_promise_holds_whatever_fails(first: int) -> None:
    broken = []
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except Violation as error:
            broken.append(f"python -m tests.simulation --seed {seed}   # {str(error)[:2000]}")
    assert not broken, "\n".join(broken)


def test_a_seed_is_the_same_world_each_time() -> None:
    assert simulate(7).trace == simulate(7).trace


def test_a_changed_token_is_found() -> None:
    """The simulation can fail: an engine that draws another token once is seen by the client that gets it."""
    plan = plan_of(10)
    prepare(plan)
    world = World(plan)
    step = world.stepped

    def wrong(engine: object) -> None:
        for process in world.processes:
            if process._output is not None:
                for number, event in enumerate(process._output.events):
                    if getattr(event, "token_id", None) is not None:
                        import msgspec

                        process._output.events[number] = msgspec.structs.replace(event, token_id=300)
        step(engine)  # type: ignore[arg-type]

    world.stepped = wrong  # type: ignore[method-assign]
    with pytest.raises(Violation, match=r"in place of|is not"):
        world.run()


def test_a_loop_that_waits_for_nothing_is_found() -> None:
    loop = VirtualLoop(random.Random(0))
    with pytest.raises(Stuck):
        loop.run_until_complete(_wait_for_ever())
    loop.close()


async def _wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()
