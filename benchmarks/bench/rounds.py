"""The order of measurements: rounds, precisions, servers, rows, with a measurement of the machine before and after
each."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.bench import machine
from benchmarks.bench.bars import bar
from benchmarks.bench.report import OURS, Sample
from benchmarks.bench.servers import Ours, Running, started
from benchmarks.bench.workloads import Effort, Failed, Unit, Workload
from benchmarks.load import Prompts
from dragoman.models import describe
from dragoman.models.limits import Limits, Machine, Shape, shape_of
from dragoman.models.settings import Precision

START_ROW = "start"
CONTEXT = 4096
"""More than any row asks for, and what other servers are given as well: tables of positions take memory too."""
GREATEST_DRIFT = 1.15
"""A figure is measured anew, once, when the memory's bandwidth has changed by more beside it."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured of one model."""

    model: Path
    precisions: tuple[Precision, ...]
    rows: tuple[Workload, ...]
    start: bool = False


class _Figure(NamedTuple):
    """What was measured, what the machine allowed meanwhile, what was to be reached of that, and how far the memory's
    bandwidth moved."""

    value: float
    limit: float
    bar: float | None
    drift: float


class Rounds:
    """Measures cases, round by round. ``until`` is on the clock of ``time.monotonic``: nothing is begun after it.

    ``seen`` is called with every sample as soon as it is there.
    """

    def __init__(
        self, ours: Ours, others: Sequence[Running], effort: Effort, until: float, seen: Callable[[Sample], None]
    ) -> None:
        self._ours, self._others, self._effort = ours, others, effort
        self._until, self._seen = until, seen
        self.left_out = 0
        """Rows that time was too short for."""

    def run(self, cases: Sequence[Case], rounds: int) -> None:
        for number in range(rounds):
            for case in cases:
                for precision in case.precisions:
                    self._one(case, precision, number)

    def _one(self, case: Case, precision: Precision, number: int) -> None:
        fitting = _fitting(case)
        if not fitting and not case.start:
            return
        described = describe(case.model)
        shape = shape_of(described, precision)
        context = ("--max-context", str(min(described.spec.context, CONTEXT)))
        if not self._late(0):
            # A first start packs the weights, which takes time and memory of its own, and a later one may have to read
            # what the system has dropped from its cache meanwhile. It is not counted.
            self._ours.start_s(case.model, precision, context)
        if case.start and not self._late(1):
            self._seen(self._start(case, precision, context, number))
        for options, rows in _by_options(fitting):
            if self._late(len(rows)):
                continue
            # Weights that are still moved into huge pages would take bandwidth from the first rows.
            with started(self._ours, case.model, precision, (*context, "--weights-memory", "copy", *options)) as server:
                servers = [server, *self._others]
                for each in servers:
                    asyncio.run(each.load.run([_prompts(case.model, f"warm {precision}", str(number)).make(64)], 8, 1))
                for row in rows:
                    if self._late(1):
                        continue
                    # Who goes first changes from round to round.
                    for each in servers[:: 1 if number % 2 == 0 else -1]:
                        if each is server or row.peers:
                            self._seen(self._sample(case, row, shape, each, number))

    def _machine_now(self) -> Machine:
        return machine.measured(in_a_hurry=self._effort.in_a_hurry)

    def _late(self, rows: int) -> bool:
        late = time.monotonic() > self._until
        self.left_out += rows if late else 0
        return late

    def _sample(self, case: Case, row: Workload, shape: Shape, server: Running, number: int) -> Sample:
        """The row, as often as it asks for; each time beside what the machine gave just before and just after."""
        foreign, before = machine.foreign_cores(), self._machine_now()
        looks, figures = [before], list[_Figure]()
        failure = ""
        try:
            for turn in range(row.times):
                figures.append(self._once(case, row, shape, server, f"{number} {turn}", looks))
        except Failed as error:
            figures, failure = [], str(error)
        return Sample(
            model=case.model.name,
            precision=shape.precision,
            row=row.name,
            title=row.title,
            unit=row.unit,
            server=server.name,
            round=number,
            values=tuple(figure.value for figure in figures),
            limits=tuple(figure.limit for figure in figures),
            machine=machine.between(looks),
            bars=tuple(figure.bar for figure in figures if figure.bar is not None),
            foreign_cores=foreign,
            failure=failure,
        )

    def _once(
        self, case: Case, row: Workload, shape: Shape, server: Running, which: str, looks: list[Machine]
    ) -> _Figure:
        """A figure, and another one where the bandwidth drifted beside it; what is kept is where it drifted less.

        Not so for memory in use, which owes nothing to bandwidth, and grows with everything that is asked. ``looks``
        ends with the one just before, and gets those that follow. Raises Failed.
        """
        found = self._asked(case, row, shape, server, which, looks)
        if row.unit is Unit.SIZE or found.drift <= GREATEST_DRIFT:
            return found
        again = self._asked(case, row, shape, server, f"{which} again", looks)
        return min(found, again, key=lambda each: each.drift)

    def _asked(
        self, case: Case, row: Workload, shape: Shape, server: Running, which: str, looks: list[Machine]
    ) -> _Figure:
        prompts = _prompts(case.model, f"{row.name} {shape.precision}", which)
        value = asyncio.run(row.measure(server.load, prompts, self._effort))
        if row.unit is Unit.SIZE and server.pid is not None:
            value = machine.memory_bytes(server.pid) / 1e9
        assert value is not None, "output of more than one token takes time"
        looks.append(self._machine_now())
        before, after = looks[-2:]
        drift = max(before.bytes_per_s, after.bytes_per_s) / min(before.bytes_per_s, after.bytes_per_s)
        limit = row.limit(Limits(shape, machine.between([before, after])))
        ours = server.name == OURS
        wanted = bar(case.model.name, row.name, shape.precision, row.unit, limit) if ours else None
        return _Figure(value, limit, wanted, drift)

    def _start(self, case: Case, precision: Precision, options: Sequence[str], number: int) -> Sample:
        foreign, beside = machine.foreign_cores(), self._machine_now()
        values = [self._ours.start_s(case.model, precision, options) for _ in range(self._effort.starts)]
        wanted = bar(case.model.name, START_ROW, precision, Unit.TIME, None)
        return Sample(
            model=case.model.name,
            precision=precision,
            row=START_ROW,
            title="start to first token, packed weights cached",
            unit=Unit.TIME,
            server=OURS,
            round=number,
            values=tuple(values),
            machine=beside,
            bars=() if wanted is None else (wanted,) * len(values),
            foreign_cores=foreign,
        )


def _by_options(rows: Sequence[Workload]) -> Iterator[tuple[tuple[str, ...], list[Workload]]]:
    """Rows that are asked of the same server, in order."""
    for options, group in itertools.groupby(rows, key=lambda row: row.options):
        yield options, list(group)


def _fitting(case: Case) -> list[Workload]:
    """Those whose requests fit the model's context, and with images where it sees any."""
    spec = describe(case.model).spec
    return [row for row in case.rows if row.tokens <= spec.context and (spec.vision is not None or not row.sees)]


def _prompts(model: Path, row: str, which: str) -> Prompts:
    """The same for every server of a round, and for none of another round or precision (which ``row`` names): another
    server stays up all the while, and its prefix cache must not know them."""
    return Prompts(model, f"{row} {which}")


def line(sample: Sample) -> str:
    """A sample for whoever watches."""
    who = f"{sample.model} {sample.precision} {sample.row} ({sample.server}, round {sample.round + 1})"
    if sample.failure:
        return f"{who}: failed: {sample.failure}"
    values = " ".join(f"{value:.4g}" for value in sample.values)
    part = ""
    if sample.limits:
        limits = " ".join(f"{limit:.4g}" for limit in sample.limits)
        part = f", limit {limits}, {100 * statistics.median(sample.fractions):.0f} %"
    beside = (
        f"{sample.machine.bytes_per_s / 1e9:.0f} GB/s, at best {sample.machine.best_bytes_per_s / 1e9:.0f}, "
        f"{sample.foreign_cores:.1f} cores busy"
    )
    return f"{who}: {values} {sample.unit}{part} ({beside})"
