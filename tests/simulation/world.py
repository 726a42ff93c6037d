"""One simulated world: a server, its clients, a schedule of faults, and the promises that always hold."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.core.caller import CallerLimits
from dragoman.dialects import made_dialects
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.messages import WorkerSettings
from dragoman.server.accounts import Accounts
from dragoman.server.app import create_app
from dragoman.server.body_budget import BodyBudget
from dragoman.server.keys import LOOK_S, Keyring
from dragoman.server.ledger import RETRY_S
from dragoman.server.lifecycle import metrics_of
from dragoman.server.signals import Reloads
from dragoman.serving import serving as serving_module
from dragoman.serving.recorder import Recorder
from dragoman.serving.runtime import Runtime, start_runtime
from dragoman.serving.settings import CatalogSettings, ContinueSettings
from tests.simulation.answers import TOO_LARGE, AnswerChecks, Violation, shown
from tests.simulation.books import LOST_S, BookedMeter, Books, CheckedQuotas, SimulatedLedger
from tests.simulation.clients import Answer, Manner, ask
from tests.simulation.engine_process import SimulatedProcess
from tests.simulation.fair_shares import FairShares
from tests.simulation.key_files import CheckedKeyring, KeyFile, Line
from tests.simulation.plan import Plan, limits_of
from tests.simulation.sessions import ADDRESSES, FLOODING, continued, conversed, flooding
from tests.simulation.sharing import FOLDER, deterministic
from tests.simulation.state_checks import StateChecks
from tests.simulation.virtual_time import EPOCH_S, VirtualLoop, virtual_clocks
from tests.simulation.workload import Template, poisonous, templates

TEMPLATES = templates()
KEYS = {name: f"dgm-simulated-key-of-{name}" for name in ("ann", "bob", "admin")}
MEMORY = Path("/dev/shm")
"""Files of a world are there, where there is such a folder: a disk takes longer to be sure than a world does."""
SETTLE_S = 120.0
TASKS_OF_ENGINE = 2  # of a model in memory: one supervises, one watches
"""After the last fault everything has come to its end within this time."""
LONGEST_S = 400.0
"""The longest that any client waits for its answer, whatever happens."""


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


class World(AnswerChecks):
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
        self._full_disks = 0
        self._full_until_s = float("-inf")
        self._wrong: Violation | None = None
        self._is_dying = False
        self.books = Books(self)
        self._state = StateChecks(self)
        self.shares: list[FairShares] = []
        self.folder: Path
        self.key_file: KeyFile | None = None
        self.ledger: SimulatedLedger
        self.bodies = BodyBudget()
        self.runtime: Runtime
        self.recorder = Recorder()

    # What the engine's processes ask ---------------------------------------------------------------------------------

    def step_s(self) -> float:
        slow = 20.0 if self.loop.time() < self._slow_until_s else 1.0
        return self.plan.step_s * self.rng.uniform(0.5, 1.5) * slow

    def fair_shares(self, engine: Engine) -> FairShares | None:
        """What watches the shares of a process that begins."""
        if not self.plan.is_flooded:
            return None
        self.shares.append(FairShares(self, engine))
        return self.shares[-1]

    def next_start_fault(self) -> str:
        return self._start_faults.pop() if self._start_faults else ""

    def stepped(self, process: SimulatedProcess) -> None:
        """A step was computed: the books balance, and nobody runs more than it may."""
        self.report.steps += 1
        assert process.engine is not None
        scheduler = process.engine.scheduler
        check_integrity(scheduler)
        if not self.plan.limits:
            return
        # The texts of a beam search count as one: it cannot go on without any of them.
        units = {(each.share.key, id(each.group if each.group.search else each)) for each in scheduler.running}
        for key, count in Counter(key for key, _ in units).items():
            if count > process.most_running[key]:
                raise self.wrong(f"{count} sequences of {key} run, {process.most_running[key]} may")

    def wall(self) -> float:
        """What the wall clock says."""
        return EPOCH_S + self.loop.time() + self.loop.wall_offset_s

    def wrong(self, what: str) -> Violation:
        """A promise is broken. It is raised again where nobody catches it."""
        error = Violation(what)
        if self._wrong is None and not self._is_dying:
            self._wrong = error
        return error

    @property
    def is_disk_full(self) -> bool:
        return self._full_disks > 0

    # The whole -------------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        with (
            deterministic(self.plan.seed),
            virtual_clocks(self.loop),
            self._booked(),
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        ):
            self.folder = Path(folder)
            if self.plan.has_keys:
                self.key_file = KeyFile(self, self.folder / "keys.txt", self._lines())
            try:
                self.loop.on_turn = self._state.check_turn
                self.loop.run_until_complete(self._lives())
                self._state.check_nothing_left()
                if self._wrong is not None:
                    raise self._wrong
            except Violation:
                raise
            except BaseException as error:
                raise Violation(f"{type(error).__name__}: {error}") from error
            finally:
                self.report.virtual_s = self.loop.time()
                with contextlib.suppress(Exception):
                    self.loop.close()
        return self.report

    @contextlib.contextmanager
    def _booked(self) -> Iterator[None]:
        """Every token that reaches the server is in the books."""
        stats = type("GenerationStats", (BookedMeter,), {"books": self.books})
        before, serving_module.GenerationStats = serving_module.GenerationStats, stats  # type: ignore[misc]
        try:
            yield
        finally:
            serving_module.GenerationStats = before  # type: ignore[misc]

    def _lines(self) -> list[Line]:
        return [Line(key, name, limits=tuple(self.plan.limits.get(name, {}).items())) for name, key in KEYS.items()]

    async def _lives(self) -> None:
        """One life of the server, or two: one that is killed, and the next."""
        plan = self.plan
        clients = FLOODING if plan.is_flooded else plan.clients
        life = asyncio.create_task(self._live(range(clients), plan.faults, plan.drains_at_s))
        if plan.dies_at_s is not None:
            await asyncio.wait((life,), timeout=plan.dies_at_s)
            if not life.done():
                await self._kill_server()
                life = asyncio.create_task(self._live(range(100, 100 + plan.clients), [], None))
        await life
        await asyncio.sleep(1.0)  # what the processes had said last has arrived
        if len(asyncio.all_tasks()) > 1:
            raise Violation(f"tasks are left at the end: {sorted(map(_task_name, asyncio.all_tasks()))}")

    async def _kill_server(self) -> None:
        """As SIGKILL does, which its engine dies with: what is on the disk is left."""
        self.report.faults["server killed"] += 1
        self.report.trace.append(f"{self.loop.time():.6f} server killed")
        self.ledger.die()
        was_full = self.is_disk_full or self.loop.time() < self._full_until_s + RETRY_S + LOST_S
        self.books.check_ledger(self.ledger.file, lost_s=self.loop.time() if was_full else LOST_S)
        self._is_dying = True
        for process in self.processes:
            process.kill()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=1.0)
            for task in others:
                if task.done() and not task.cancelled():
                    task.exception()
        self.loop.errors.clear()
        self.is_drained = self._is_ended = self._is_dying = False
        self._swaps = self._full_disks = 0
        self._start_faults.clear()
        self.processes.clear()
        self.bodies = BodyBudget()
        self.books.restart(self.ledger.file)
        if self.key_file is not None:
            self.key_file.write()  # a server does not start with one that cannot be used

    async def _live(self, clients: range, faults: list[tuple[float, str]], drains_at_s: float | None) -> None:
        plan = self.plan
        keys = Keyring(defaults=self._defaults()) if self.key_file is None else CheckedKeyring(self.key_file)
        self.reloads = Reloads()
        if keys.has_file:
            self.reloads.add("API keys", keys.reload)
        self.ledger = SimulatedLedger(self, self.folder / "ledger.sqlite3")
        accounts = Accounts(self.ledger, CheckedQuotas(self.books))
        worker = WorkerSettings(model=plan.stub, scheduler=plan.scheduler, hang_s=8.0)
        catalog = CatalogSettings(offer=(f"other={FOLDER}",), offer_cached=False)
        async with AsyncExitStack() as stack:
            self.runtime = await stack.enter_async_context(
                start_runtime(
                    plan.settings,
                    worker,
                    FOLDER,
                    catalog=catalog,
                    continuing=ContinueSettings(continue_store="memory"),
                    check_prompt=accounts.check_prompt,
                    spawn=functools.partial(SimulatedProcess.spawn, self),
                    recorder=self.recorder,
                )
            )
            await stack.enter_async_context(accounts.opened(self.runtime))
            metrics = metrics_of(self.runtime, accounts)
            self.app = create_app(
                self.runtime.serving,
                plan.settings,
                metrics=metrics,
                ready=self.runtime.not_ready,
                ended=lambda: self._is_ended,
                dialects=made_dialects(),
                keys=keys,
                pools=self.runtime.pools,
                bodies=self.bodies,
                accounts=accounts,
            )
            looking = asyncio.create_task(self._look_at_keys(keys))
            before = len(asyncio.all_tasks())
            client = functools.partial(flooding, self) if plan.is_flooded else self._client
            asking = [asyncio.create_task(client(number)) for number in clients]
            failing = [asyncio.create_task(self._fault(at_s, kind)) for at_s, kind in faults]
            drain = asyncio.create_task(self._drain(drains_at_s)) if drains_at_s is not None else None
            done, late = await asyncio.wait(asking, timeout=LONGEST_S)
            if late:
                raise Violation(f"{len(late)} clients have no answer after {LONGEST_S:g} s")
            for task in (*done, *failing):
                await task
            if drain is not None:
                await drain
            else:
                await self._check_serves()
            await asyncio.sleep(SETTLE_S)
            self._state.check_idle()
            if len(asyncio.all_tasks()) > before + TASKS_OF_ENGINE * (self.runtime.gauges()["models_loaded"] - 1):
                raise Violation(f"tasks are left: {sorted(map(_task_name, asyncio.all_tasks()))}")
            looking.cancel()
        self.books.check_ledger(self.ledger.file)

    async def _look_at_keys(self, keys: Keyring) -> None:
        """As the thread of ``Keyring.watched``."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.loop.run_in_executor(None, keys.reload_if_changed)

    def _defaults(self) -> CallerLimits:
        """The server's own limits, which hold where there are no keys."""
        return CallerLimits() if self.plan.has_keys else CallerLimits(**self.plan.limits.get("ann", {}))

    def limits_of(self, holder: str) -> list[CallerLimits]:
        """All that a holder has had."""
        return [self._defaults()] if self.key_file is None else self.key_file.limits_seen.get(holder, [CallerLimits()])

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
        self, template: Template, manner: Manner, holder: str, headers: dict[str, str] | None = None, key: str = ""
    ) -> Answer:
        self.report.requests += 1
        key = key or self.key(holder)
        answer = await ask(
            self.app,
            self.loop,
            template.path,
            template.fields(self.report.requests),
            key=key,
            manner=manner,
            headers=headers or {},
            address=ADDRESSES[holder],
        )
        answer.holder, answer.key = holder, key
        self._check_account(template, answer)
        return answer

    def key(self, holder: str) -> str:
        """The newest that the holder has been given; empty where the server has no keys."""
        return "" if self.key_file is None else self.key_file.key(holder)

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
                self.books.clock_set()
                self.loop.wall_offset_s += self.rng.choice([-86400.0, -10.0, 10.0, 3600.0, 86400.0])
            case "disk full":
                await self._full_disk()
            case "swap":
                await self._swap()
            case _ if self.key_file is not None and kind.startswith("keys "):
                holder = self.rng.choice(("ann", "bob"))
                self.key_file.edit(kind.removeprefix("keys "), holder, limits_of(self.rng), self.rng)
                if self.rng.random() < 0.3:
                    self.reloads.run()  # as SIGHUP does

    async def _full_disk(self) -> None:
        """Nothing can be written for a while; what is there can be read."""
        store = self.runtime.serving.continuing
        self.had_full_disk = True
        self._full_disks += 1
        await store._run(lambda: store._connected().execute("PRAGMA query_only = 1"))
        await asyncio.sleep(1.5)
        self._full_disks -= 1
        self._full_until_s = self.loop.time()
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
                raise Violation(f"the model could not be changed: {shown(answer)}")

    async def _drain(self, at_s: float) -> None:
        """As ``Server.shutdown``."""
        await asyncio.sleep(at_s)
        self.report.faults["drain"] += 1
        self.is_drained = True
        self.runtime.serving.admission.close("The server is shutting down.")
        await asyncio.sleep(self.plan.settings.drain_s)
        self._is_ended = True
        await self.runtime.end()

    async def _check_serves(self) -> None:
        """After all of it the server answers as if nothing had been."""
        tries = 100  # the engine's longest wait for its next start, and some more
        while tries:
            answer = await self.ask(TEMPLATES[0], Manner(), "admin")
            if answer.status == 200 or TOO_LARGE in answer.body:
                self._check(TEMPLATES[0], Manner(), answer)
                return
            await asyncio.sleep(1.0)
            tries = tries - 1 if not self._start_faults else 100  # each of those makes it wait once more
        raise Violation(f"the server serves no more: {shown(answer)}")


def _task_name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", str(task))
