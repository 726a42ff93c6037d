"""Running worlds: one, or many in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator

from dragoman.engine.messages import StubModel
from dragoman.engine.settings import SchedulerSettings
from dragoman.server.settings import ServerSettings
from tests.simulation.answers import Violation
from tests.simulation.books import Used
from tests.simulation.clients import Manner
from tests.simulation.plan import Plan, plan_of
from tests.simulation.references import REFERENCES, USED
from tests.simulation.sessions import SESSION, SOCKET
from tests.simulation.workload import Template, comparable, usage_of
from tests.simulation.world import TEMPLATES, Report, World


def prepare(plan: Plan) -> None:
    """Compute the references that the plan's clients may need, in a world without faults."""
    missing = [
        t
        for t in (*TEMPLATES, SESSION, SOCKET)
        if (t.number, plan.stub.max_context, plan.stub.period) not in REFERENCES
    ]
    if missing:
        _Quiet(plan, missing).run()


class _Quiet(World):
    """Asks one request after the other, and keeps the answers."""

    def __init__(self, plan: Plan, asked: list[Template]) -> None:
        stub = StubModel(
            vocab_size=plan.stub.vocab_size,
            max_context=plan.stub.max_context,
            num_blocks=256,
            max_sequences=32,
            max_logit_rows=64,
            period=plan.stub.period,
        )
        super().__init__(
            Plan(
                seed=-1,
                stub=stub,
                scheduler=SchedulerSettings(prefix_cache=False, speculation=0),
                settings=ServerSettings(port=0, name="stub", access_log=False),
                step_s=0.001,
                clients=1,
                has_keys=False,
                faults=[],
                drains_at_s=None,
                poison=False,
            )
        )
        self._asked = asked

    async def _client(self, number: int) -> None:
        for template in self._asked:
            answer = await self.ask(template, Manner(), "ann")
            key = (template.number, self.plan.stub.max_context, self.plan.stub.period)
            REFERENCES[key] = (answer.status, comparable(answer))
            USED[key] = used = self.books.by_request.get(answer.headers["x-request-id"], Used())
            if (told := usage_of(answer)) and told != (used.prompt, used.generated):
                raise Violation(f"the usage of template {template.number} is {told}, counted were {used}")

    async def _check_serves(self) -> None:
        pass


def simulate(seed: int) -> Report:
    """One world. Raises Violation."""
    plan = plan_of(seed)
    prepare(plan)
    return World(plan).run()


def one(seed: int) -> tuple[int, Report | None, str]:
    try:
        return seed, simulate(seed), ""
    except Violation as error:
        return seed, None, str(error)


def reports(seeds: range, jobs: int) -> Iterator[tuple[int, Report | None, str]]:
    """Of all seeds, in any order."""
    if jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=10)


def many(seeds: range, jobs: int, most_failures: int) -> int:
    started, failures, requests, simulated_s = time.monotonic(), 0, 0, 0.0
    outcomes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    done = 0
    with contextlib.closing(reports(seeds, jobs)) as found:
        for seed, report, error in found:
            done += 1
            if report is None:
                failures += 1
                print(f"python -m tests.simulation --seed {seed}   # {error[:600]}", flush=True)
                if failures >= most_failures:
                    break
            else:
                outcomes += report.outcomes
                faults += report.faults
                requests += report.requests
                simulated_s += report.virtual_s
            if done % 1000 == 0:
                print(f"{done} worlds, {failures} failures, {time.monotonic() - started:.0f} s", flush=True)
    seconds = time.monotonic() - started
    print(f"{done} worlds, {requests} requests, {simulated_s / 3600:.1f} hours simulated in {seconds:.0f} s")
    print(f"answers: {dict(outcomes.most_common())}")
    print(f"faults: {dict(faults.most_common())}")
    print(f"{failures} worlds broke a promise")
    return int(failures > 0)
