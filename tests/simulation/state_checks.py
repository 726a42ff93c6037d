"""Whether the state of a world's server is right: at every turn of the loop, and when all is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.core.errors import EngineUnavailable
from dragoman.engine_client.health import State
from tests.simulation.answers import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World


class StateChecks:
    """Raises Violation where a promise about the state is broken, and notes when the engine was down."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen_s = 0.0

    def check_turn(self) -> None:
        """At every turn of the loop."""
        world = self._world
        if world._is_dying:
            return
        if world._wrong is not None:
            raise world._wrong
        if world.key_file is not None:
            world.key_file.check_read()
        runtime = getattr(world, "runtime", None)
        if runtime is None:
            return
        try:
            is_down = runtime.engine.health().state is not State.READY
        except EngineUnavailable:
            is_down = False
        if is_down:
            now = world.loop.time()
            if world._down and world._down[-1][1] == self._seen_s:
                world._down[-1] = world._down[-1][0], now
            else:
                world._down.append((now, now))
        self._seen_s = world.loop.time()
        admission = runtime.serving.admission
        if not 0 <= admission.waiting <= world.plan.settings.max_waiting or admission.running < 0:
            raise Violation(f"{admission.waiting} requests wait, {admission.running} run")
        for queue in admission._queues.values() if world.plan.limits else ():
            most = self._most_waiting(queue.caller.name)
            waiting = sum(place.sequences for place in queue.waiting)
            if most is not None and waiting > most and len(queue.waiting) > 1:
                raise Violation(f"{waiting} sequences of {queue.caller.name!r} wait, {most} may")

    def _most_waiting(self, holder: str) -> int | None:
        """How many sequences of a holder may ever have waited."""
        limits = [each.max_waiting for each in self._world.limits_of(holder)]
        return None if None in limits else max(each for each in limits if each is not None)

    def check_idle(self) -> None:
        """When all requests are over."""
        world = self._world
        admission = world.runtime.serving.admission
        if admission.waiting or admission.running:
            raise Violation(f"{admission.waiting} requests wait and {admission.running} run when all are over")
        if world.is_drained:
            return
        client = world.runtime.engine
        if client._requests or client._streams:
            raise Violation(f"the engine's client holds {list(client._requests)}")
        if world.runtime.serving.continuing._turns:
            raise Violation("a key of a cut generation is held")
        if world.bodies.used:
            raise Violation(f"{world.bodies.used} bytes of bodies are counted that nobody has")
        for pool in world.runtime.pools.all:
            if pool.running or pool.queued:
                raise Violation(f"the pool {pool.name} has {pool.running} running and {pool.queued} waiting")
        for process in world.processes:
            if process.is_alive and process.engine is not None and not process._is_stopped:
                scheduler = process.engine.scheduler
                if scheduler.groups or any(g.cache.available != g.cache.num_blocks for g in scheduler.tables.groups):
                    raise Violation(f"the engine holds {list(scheduler.groups)} and blocks")

    def check_nothing_left(self) -> None:
        """When the world has ended."""
        world = self._world
        alive = [each.pid for each in world.processes if each.is_alive]
        if alive:
            raise Violation(f"processes are left: {alive}")
        if world.loop.errors:
            raise Violation(f"nobody took care of: {world.loop.errors[:3]}")
        timers = [each for each in world.loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        if timers:
            raise Violation(f"timers are left: {timers[:3]}")
