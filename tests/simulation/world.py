"""One simulated world: a server, its clients, a schedule of faults, and the promises that always hold."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from dragoman.core.errors import EngineUnavailable
from dragoman.dialects import made_dialects
from dragoman.engine.client import PATIENCE_S, State
from dragoman.engine.engine import Engine
from dragoman.engine.messages import WorkerSettings
from dragoman.server.app import create_app
from dragoman.server.body_budget import BodyBudget
from dragoman.server.keys import Keyring, hashed
from dragoman.server.opening import House, open_house
from dragoman.server.settings import CatalogSettings, ContinueSettings
from tests.simulation.clients import Answer, Manner, ask
from tests.simulation.engine_process import SimulatedProcess
from tests.simulation.plan import Plan
from tests.simulation.references import reference
from tests.simulation.sessions import continued, conversed
from tests.simulation.sharing import FOLDER, deterministic
from tests.simulation.virtual_time import VirtualLoop, virtual_clocks
from tests.simulation.workload import Template, comparable, difference, error_of, poisonous, templates

TEMPLATES = templates()
KEYS = {name: f"dgm-simulated-key-of-{name}" for name in ("ann", "bob", "admin")}
SETTLE_S = 120.0
"""After the last fault everything has come to its end within this time."""
LONGEST_S = 400.0
"""The longest that any client waits for its answer, whatever happens."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Report:
    """What happened in a world."""

    seed: int
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    virtual_s: float = 0.0
    trace: list[str] = field(default_factory=list)


class World:
    """Runs one plan. ``run`` returns what happened, or raises Violation."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"world {plan.seed}")
        self.loop = VirtualLoop(self.rng)
        self.processes: list[SimulatedProcess] = []
        self.report = Report(plan.seed)
        self._start_faults: list[str] = []
        self._slow_until_s = 0.0
        self.is_drained = self._is_ended = False
        self._down: list[tuple[float, float]] = []
        self._swaps = 0
        self.had_full_disk = False
        self._seen_s = 0.0
        self.bodies = BodyBudget()
        self.house: House

    # What the engine's processes ask ---------------------------------------------------------------------------------

    def step_s(self) -> float:
        slow = 20.0 if self.loop.time() < self._slow_until_s else 1.0
        return self.plan.step_s * self.rng.uniform(0.5, 1.5) * slow

    def next_start_fault(self) -> str:
        return self._start_faults.pop() if self._start_faults else ""

    def stepped(self, engine: Engine) -> None:
        """A step was computed: the books balance."""
        self.report.steps += 1
        engine.scheduler.check_integrity()

    # The whole -------------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        with deterministic(self.plan.seed), virtual_clocks(self.loop):
            try:
                self.loop.on_turn = self._check_bounds
                self.loop.run_until_complete(self._live())
                self._check_nothing_left()
            except Violation:
                raise
            except BaseException as error:
                raise Violation(f"{type(error).__name__}: {error}") from error
            finally:
                self.report.virtual_s = self.loop.time()
                with contextlib.suppress(Exception):
                    self.loop.close()
        return self.report

    async def _live(self) -> None:
        plan = self.plan
        keys = Keyring([hashed(key, name) for name, key in KEYS.items()]) if plan.has_keys else Keyring()
        worker = WorkerSettings(model=plan.stub, scheduler=plan.scheduler, hang_s=8.0)
        catalog = CatalogSettings(offer=(f"other={FOLDER}",), offer_cached=False)
        async with AsyncExitStack() as stack:
            self.house = await stack.enter_async_context(
                open_house(
                    plan.settings,
                    worker,
                    FOLDER,
                    catalog=catalog,
                    continuing=ContinueSettings(continue_store="memory"),
                    spawn=functools.partial(SimulatedProcess.spawn, self),
                )
            )
            self.app = create_app(
                self.house.serving,
                plan.settings,
                metrics=self.house.metrics,
                ready=self.house.not_ready,
                ended=lambda: self._is_ended,
                dialects=made_dialects(),
                keys=keys,
                pools=self.house.pools,
                bodies=self.bodies,
            )
            before = len(asyncio.all_tasks())
            clients = [asyncio.create_task(self._client(number)) for number in range(plan.clients)]
            faults = [asyncio.create_task(self._fault(at_s, kind)) for at_s, kind in plan.faults]
            drain = asyncio.create_task(self._drain(plan.drains_at_s)) if plan.drains_at_s is not None else None
            done, late = await asyncio.wait(clients, timeout=LONGEST_S)
            if late:
                raise Violation(f"{len(late)} clients have no answer after {LONGEST_S:g} s")
            for task in (*done, *faults):
                await task
            if drain is not None:
                await drain
            else:
                await self._check_serves()
            await asyncio.sleep(SETTLE_S)
            self._check_idle()
            if len(asyncio.all_tasks()) > before:
                raise Violation(f"tasks are left: {sorted(map(_task_name, asyncio.all_tasks()))}")
        await asyncio.sleep(1.0)  # what the processes had said last has arrived
        if len(asyncio.all_tasks()) > 1:
            raise Violation(f"tasks are left at the end: {sorted(map(_task_name, asyncio.all_tasks()))}")

    # Clients ---------------------------------------------------------------------------------------------------------

    async def _client(self, number: int) -> None:
        rng = random.Random(f"client {self.plan.seed} {number}")
        await asyncio.sleep(rng.uniform(0, 3))
        kind = rng.random()
        if kind < 0.15:
            await continued(self, rng, number, rng.choice(("ann", "bob")))
            return
        if kind < 0.3:
            await conversed(self, rng, number, rng.choice(("ann", "bob")))
            return
        for _ in range(rng.choice([1, 1, 2, 3])):
            template = rng.choice(TEMPLATES)
            if self.plan.poison and number == 0:
                template = poisonous()
            manner = Manner(
                read_s=rng.choice([0, 0, 0, 0.01, 0.2]),
                leaves_after_s=rng.choice([None, None, None, rng.uniform(0, 1.5)]),
                body_s=rng.choice([0, 0, 0, 0, 0.5, 3.0, float("inf")]),
            )
            answer = await self.ask(template, manner, rng.choice(("ann", "bob")))
            self._check(template, manner, answer)
            await asyncio.sleep(rng.uniform(0, 0.5))

    async def ask(
        self, template: Template, manner: Manner, holder: str, headers: dict[str, str] | None = None
    ) -> Answer:
        self.report.requests += 1
        return await ask(
            self.app,
            self.loop,
            template.path,
            template.fields(self.report.requests),
            key=self.key(holder),
            manner=manner,
            headers=headers or {},
            address={"ann": "10.0.0.1", "bob": "10.0.0.2", "admin": "10.0.0.3"}[holder],
        )

    def note(self, outcome: str, template: Template, answer: Answer) -> None:
        self.report.outcomes[outcome] += 1
        self.report.trace.append(f"{answer.ended_s:.6f} {template.number} {answer.status} {outcome} {len(answer.body)}")

    def key(self, holder: str) -> str:
        return KEYS[holder] if self.plan.has_keys else ""

    def broken(self, template: Template, what: str, answer: Answer) -> Violation:
        return Violation(f"template {template.number} ({template.kind}): {what}; {_shown(answer)}")

    def reference(self, template: Template) -> tuple[int, dict[str, list[str]]]:
        return reference(self.plan, template)

    @property
    def kills(self) -> int:
        """Deaths that no request was to blame for."""
        return sum(self.report.faults[kind] for kind in ("kill", "hang", "start dies", "start fails", "descriptors"))

    def _was_blamed(self, words: str) -> bool:
        """Whether a request was alone at each of three deaths, without a token between them: whoever kills the process
        from outside is not told from a request that does."""
        return "process died 3 times" in words and self.kills >= 3

    def _is_explained(self, words: str) -> bool:
        """Whether an answer may have been cut with these words."""
        return self.is_drained or "did not finish" in words or self._was_blamed(words)

    def may_fail(self) -> bool:
        """Whether requests may be refused or cut now, for want of an engine or because the server stops."""
        lately = self.loop.time() - 10.0
        return self.is_drained or any(end >= lately for _, end in self._down) or self.plan.settings.max_waiting < 10

    def check_refusal(self, template: Template, answer: Answer) -> None:
        """An answer that is no success has its reason."""
        words = error_of(answer)
        if answer.status == 200 and not self._is_explained(words):
            raise self.broken(template, "it was cut", answer)
        self._check(template, Manner(), answer)

    def _check(self, template: Template, manner: Manner, answer: Answer) -> None:
        """The answer is right, or says why it is not, and that is so."""

        def broken(what: str) -> Violation:
            return self.broken(template, what, answer)

        if answer.starts > 1 or answer.ends > 1:
            raise broken("it was answered twice")
        if answer.left:
            self.note("left", template, answer)
            self._check_part(template, answer, broken)
            return
        if answer.dropped and (words := error_of(answer)):
            # A dialect whose streams break off behind an error.
            if not self._is_explained(words):
                raise broken(f"a stream was cut: {words}")
            self.note("cut", template, answer)
            self._check_part(template, answer, broken)
            return
        if answer.dropped:
            # Only one that reads too slowly is dropped.
            if not manner.read_s:
                raise broken("the server dropped the connection of a client that reads")
            self.note("dropped", template, answer)
            return
        if not (answer.starts and answer.ends):
            raise broken("it was not answered to the end")
        if template.kind == "poison":
            self.note("poison", template, answer)
            if answer.status == 200:
                raise broken("a request that kills the engine was answered")
            return
        match answer.status:
            case 408 if manner.body_s == float("inf"):
                self.note("408", template, answer)
            case 429:
                self.note("429", template, answer)
                if "retry-after" not in answer.headers:
                    raise broken("429 without Retry-After")
                if self.plan.settings.max_waiting > self.plan.clients and self.plan.stub.max_sequences > 4:
                    raise broken("it was refused although there was room")
            case 503 if b"Try again later" in answer.body:  # some dialects have no other word for it
                self.note("429", template, answer)
            case 503:
                self.note("503", template, answer)
                if not (self.is_drained or self._was_down(answer)):
                    raise broken("503 although the server neither stops nor waits for its engine")
                if "retry-after" not in answer.headers:
                    raise broken("503 without Retry-After")
            case 400 if b"No model is currently loaded" in answer.body and (self.is_drained or self._was_down(answer)):
                self.note("503", template, answer)
            case 500 if self._was_blamed(answer.body.decode()):
                self.note("blamed", template, answer)
            case _ if self.plan.settings.generation_timeout_s and b"did not finish within" in answer.body:
                self.note("timeout", template, answer)
            case 404 if self._swaps and b"The model 'stub' does not exist" in answer.body:
                self.note("another model", template, answer)
            case _:
                self._check_whole(template, answer, broken)

    def _was_down(self, answer: Answer) -> bool:
        """Whether the engine was away for some seconds when the answer came: requests are refused then."""
        return any(begin + PATIENCE_S <= answer.ended_s <= end + 1.0 for begin, end in self._down)

    def _check_whole(self, template: Template, answer: Answer, broken: Callable[[str], Violation]) -> None:
        if words := error_of(answer):
            if "overloaded" in words and not comparable(answer).get("choice 0"):
                self.note("429", template, answer)
                return
            if "unhealthy" in words and self._was_down(answer):  # a refusal, in a dialect that has begun its stream
                self.note("503", template, answer)
                return
            if not self._is_explained(words):
                raise broken(f"a stream was cut: {words}")
            self.note("cut", template, answer)
            self._check_part(template, answer, broken)
            return
        expected = reference(self.plan, template)
        if answer.status >= 500 and self.is_drained:
            self.note("ended", template, answer)
            return
        if (answer.status, comparable(answer)) != expected:
            if self.is_drained and answer.is_stream:  # dialects that end a stream with an event of their own
                self.note("cut", template, answer)
                self._check_part(template, answer, broken)
                return
            raise broken(f"expected {expected[0]}, {difference(comparable(answer), expected[1])}")
        self.note("whole", template, answer)

    def _check_part(self, template: Template, answer: Answer, broken: Callable[[str], Violation]) -> None:
        """What came of a stream is how the whole begins."""
        if not answer.is_stream or answer.status != 200 or template.kind == "poison":
            return
        status, expected = reference(self.plan, template)
        if status != 200:
            return
        for sequence, events in comparable(answer).items():
            whole = expected.get(sequence, [])
            wrong = [i for i, (got, due) in enumerate(zip(events, whole, strict=False)) if got != due]
            if wrong and wrong[0] < len(events) - 1:  # the last may tell of the end
                raise broken(f"a part differs in event {wrong[0]}: {events[wrong[0]]} is not {whole[wrong[0]]}")

    # Faults ----------------------------------------------------------------------------------------------------------

    async def _fault(self, at_s: float, kind: str) -> None:
        await asyncio.sleep(at_s)
        self.report.faults[kind] += 1
        self.report.trace.append(f"{self.loop.time():.6f} {kind}")
        alive = [each for each in self.processes if each.is_alive]
        match kind:
            case "kill":
                if alive:
                    self.rng.choice(alive).kill()
            case "hang":
                if alive:
                    self.rng.choice(alive).stop_moving()
            case "slow":
                self._slow_until_s = self.loop.time() + 2.0
            case "start dies" | "start fails" | "descriptors":
                self._start_faults += [kind.removeprefix("start ")] * self.rng.randint(1, 3)
                if alive:
                    self.rng.choice(alive).kill()
            case "clock":
                self.loop.wall_offset_s += self.rng.choice([-86400.0, -10.0, 10.0, 3600.0, 86400.0])
            case "disk full":
                await self._full_disk()
            case "swap":
                await self._swap()

    async def _full_disk(self) -> None:
        """Nothing can be written for a while; what is there can be read."""
        store = self.house.serving.continuing
        self.had_full_disk = True
        await store._run(lambda: store._connected().execute("PRAGMA query_only = 1"))
        await asyncio.sleep(1.5)
        with contextlib.suppress(RuntimeError):  # the store is closed
            await store._run(lambda: store._connected().execute("PRAGMA query_only = 0"))

    async def _swap(self) -> None:
        """Another model takes the place of the first, which has the same tokens."""
        name = "other" if not self._swaps % 2 else "stub"
        self._swaps += 1
        template = Template(-2, "swap", f"/locallab/models/load/{name}", "{}")
        answer = await self.ask(template, Manner(), "admin")
        self.note(f"swap {answer.status}", template, answer)
        if answer.status != 200 and not self.is_drained:
            faults = self.report.faults
            if not any(faults[kind] for kind in ("start dies", "start fails", "descriptors", "kill")):
                raise Violation(f"the model could not be changed: {_shown(answer)}")

    async def _drain(self, at_s: float) -> None:
        """As ``Server.shutdown``."""
        await asyncio.sleep(at_s)
        self.report.faults["drain"] += 1
        self.is_drained = True
        self.house.serving.admission.close("The server is shutting down.")
        await asyncio.sleep(self.plan.settings.drain_s)
        self._is_ended = True
        await self.house.end()

    # Promises --------------------------------------------------------------------------------------------------------

    def _check_bounds(self) -> None:
        """At every turn of the loop."""
        house = getattr(self, "house", None)
        if house is None:
            return
        try:
            is_down = house.engine.health().state is not State.READY
        except EngineUnavailable:
            is_down = False
        if is_down:
            now = self.loop.time()
            if self._down and self._down[-1][1] == self._seen_s:
                self._down[-1] = self._down[-1][0], now
            else:
                self._down.append((now, now))
        self._seen_s = self.loop.time()
        admission = house.serving.admission
        if not 0 <= admission.waiting <= self.plan.settings.max_waiting or admission.running < 0:
            raise Violation(f"{admission.waiting} requests wait, {admission.running} run")

    async def _check_serves(self) -> None:
        """After all of it the server answers as if nothing had been."""
        tries = 100  # the engine's longest wait for its next start, and some more
        while tries:
            answer = await self.ask(TEMPLATES[0], Manner(), "ann")
            if answer.status == 200:
                self._check(TEMPLATES[0], Manner(), answer)
                return
            await asyncio.sleep(1.0)
            tries = tries - 1 if not self._start_faults else 100  # each of those makes it wait once more
        raise Violation(f"the server serves no more: {_shown(answer)}")

    def _check_idle(self) -> None:
        admission = self.house.serving.admission
        if admission.waiting or admission.running:
            raise Violation(f"{admission.waiting} requests wait and {admission.running} run when all are over")
        if self.is_drained:
            return
        client = self.house.engine
        if client._requests or client._streams:
            raise Violation(f"the engine's client holds {list(client._requests)}")
        if self.house.serving.continuing._turns:
            raise Violation("a key of a cut generation is held")
        if self.bodies.used:
            raise Violation(f"{self.bodies.used} bytes of bodies are counted that nobody has")
        for pool in self.house.pools.all:
            if pool.running or pool.queued:
                raise Violation(f"the pool {pool.name} has {pool.running} running and {pool.queued} waiting")
        for process in self.processes:
            if process.is_alive and process.engine is not None and not process._is_stopped:
                scheduler = process.engine.scheduler
                if scheduler.groups or scheduler.cache.available != scheduler.cache.num_blocks:
                    raise Violation(f"the engine holds {list(scheduler.groups)} and blocks")

    def _check_nothing_left(self) -> None:
        alive = [each.pid for each in self.processes if each.is_alive]
        if alive:
            raise Violation(f"processes are left: {alive}")
        if self.loop.errors:
            raise Violation(f"nobody took care of: {self.loop.errors[:3]}")
        timers = [each for each in self.loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        if timers:
            raise Violation(f"timers are left: {timers[:3]}")


def _task_name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", str(task))


def _shown(answer: Answer) -> str:
    return f"status {answer.status}, {answer.asked_s:.3f} to {answer.ended_s:.3f} s, {answer.body[-400:]!r}"
