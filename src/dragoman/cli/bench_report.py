"""The report of ``dragoman bench --html``: each load's figures in charts, beside what the machine allows."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from html import escape

import msgspec

import dragoman
from dragoman import kernels
from dragoman.cli import console
from dragoman.cli.bench import Load, print_measurements, target_of
from dragoman.cli.html_page import Series, chart, page, paragraphs, table, write_page
from dragoman.cli.machine_speed import between, measured
from dragoman.cli.measurement import Summary
from dragoman.cli.session import LocalSession, RemoteSession
from dragoman.cli.settings import BenchSettings, MachineSettings
from dragoman.models import ModelDescription, ModelSettings, describe, parameter_count
from dragoman.models.limits import MULTIPLIED_AS, Limits, Machine, Shape, shape_of
from dragoman.models.topology import Placement


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a load gave, and the machine's speed around it; None where that was not measured."""

    load: Load
    found: Summary
    machine: Machine | None = None


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. ``shape``: what its limits follow from; None for a server, or where they are not known.

    ``notes``: sentences about it.
    """

    name: str
    shape: Shape | None = None
    notes: tuple[str, ...] = ()

    @property
    def look(self) -> Callable[[], Machine] | None:
        """Return what measures the machine's speed; None where nothing follows from it."""
        shape = self.shape
        return None if shape is None else lambda: measured(("bfloat16", MULTIPLIED_AS[shape.precision]))


def own_subject(described: ModelDescription, settings: ModelSettings, placement: Placement) -> Subject:
    """Return the model that the command loads itself."""
    precision = described.precision(settings.precision)
    name = f"{described.source.name}, {precision}"
    size = f"{console.count(parameter_count(described.spec))} parameters, {described.spec.architecture}"
    if described.encoder is not None:
        return Subject(name=name, notes=(size, "The limits of encoder-decoder models are not known."))
    kernels.set_threads(placement.threads)
    shape = shape_of(described, precision)
    weights = f"{console.size(shape.resident_bytes)} of weights, {console.size(shape.kv_bytes)} for each cached token"
    if shape.state_bytes:
        weights += f", {console.size(shape.state_bytes)} for each sequence's state"
    return Subject(name=name, shape=shape, notes=(f"{size}; {weights}.",))


def described_subject(model: str | None, settings: ModelSettings, machine: MachineSettings) -> Subject:
    """Return the model that the command's own engine loads. Raises ModelError."""
    described = describe(model, **settings.describing)
    return own_subject(described, settings, machine.placement())


async def bench_with_report(
    session: LocalSession | RemoteSession, settings: BenchSettings, subject: Subject | None
) -> None:
    """Measure and print, and write the report to ``settings.html``. ``subject``: what it says of the model; None: of a
    server.

    Raises DragomanError where the report cannot be written, before anything is measured.
    """
    assert settings.html is not None
    write_page(settings.html, "")
    if subject is None:
        where = f" at {session.address}" if isinstance(session, RemoteSession) else ""
        subject = Subject(name=session.model + where)
    measurements: list[Measured] = []
    look = subject.look
    before = None if look is None else look()

    def done(load: Load, found: Summary) -> None:
        nonlocal before
        after = None if look is None else look()
        machine = None if before is None or after is None else between((before, after))
        measurements.append(Measured(load=load, found=found, machine=machine))
        before = after

    await print_measurements(target_of(session), settings, done)
    write_page(settings.html, report(subject, measurements))
    console.notes().print(f"Written: {settings.html}", markup=False)


def report(subject: Subject, measurements: Sequence[Measured]) -> str:
    """Return the page. Names and messages from elsewhere are escaped."""
    return page(f"Speed of {subject.name}", _parts(subject, measurements))


def _parts(subject: Subject, measurements: Sequence[Measured]) -> Iterator[str]:
    yield f"<h1>{escape(f'Speed of {subject.name}')}</h1>"
    yield paragraphs((*_machine(measurements), *subject.notes, _meaning(subject)))
    loads = [each.load for each in measurements]
    labels = [f"{load.streams} × {load.prompt_tokens}" for load in loads]
    limits = [Limits(subject.shape, m.machine) if subject.shape and m.machine else None for m in measurements]
    found = [each.found for each in measurements]

    def limit(value: Callable[[Limits, Load], float], name: str) -> Series | None:
        pairs = zip(limits, loads, strict=True)
        values = [None if each is None else value(each, load) for each, load in pairs]
        return None if all(each is None for each in values) else Series(name, values)

    most, least = "at most", "at least"
    total = limit(lambda each, load: each.tokens_per_s(load.streams, load.prompt_tokens, load.output_tokens), most)
    first = limit(lambda each, load: 1e3 * each.first_token_s(load.prompt_tokens), least)

    def step_s(each: Limits, load: Load) -> float:
        return each.step_s(load.streams, load.prompt_tokens + load.output_tokens // 2)

    between = limit(lambda each, load: 1e3 * step_s(each, load), least)
    one = limit(lambda each, load: 1 / step_s(each, load), most)
    rates = [Series("measured", [each.tokens_per_s for each in found])]
    yield chart("Tokens per second, all streams", "tokens/s", labels, rates, total)
    times = [Series("median", [f.ttft_p50_ms for f in found]), Series("99 %", [f.ttft_p99_ms for f in found])]
    yield chart("Time to the first token", "ms", labels, times, first)
    times = [Series("median", [f.itl_p50_ms for f in found]), Series("99 %", [f.itl_p99_ms for f in found])]
    yield chart("Time between tokens", "ms", labels, times, between)
    rates = [Series("measured", [each.stream_tokens_per_s for each in found])]
    yield chart("Tokens per second of one stream among them", "tokens/s", labels, rates, one)
    yield "<h2>Figures</h2>"
    rows = (
        _row(each, None if total is None else total.values[index], None if one is None else one.values[index])
        for index, each in enumerate(measurements)
    )
    yield table(_HEADINGS, rows, numbers=True)
    yield paragraphs(
        f"{each.failed} of {each.requests} requests failed: {error}" for each in found for error in each.errors
    )


_HEADINGS = (
    "Streams × prompt + output",
    "Tokens/s",
    "of the limit",
    "First token, ms",
    "99 %",
    "Between, ms",
    "99 %",
    "One stream",
    "of the limit",
    "GB/s",
    "Failed",
)


def _machine(measurements: Sequence[Measured]) -> Iterator[str]:
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    yield f"Dragoman {dragoman.__version__}, {now}, {platform.platform()}."
    machines = [each.machine for each in measurements if each.machine is not None]
    if machines:
        speeds = sorted(each.bytes_per_s for each in machines)
        rates = ", ".join(f"{rate / 1e12:.2f} TOP/s in {name}" for name, rate in machines[0].operations_per_s.items())
        ends = dict.fromkeys(console.size(each) for each in (speeds[0], speeds[-1]))
        yield f"Memory read at {' to '.join(ends)} a second, {rates}; kernels for {kernels.instruction_set()}."


def _meaning(subject: Subject) -> str:
    loads = "Labels are streams × tokens of a prompt."
    if subject.shape is None:
        return loads
    return (
        f"{loads} A limit is the time to read the weights that a step needs, or to multiply by them, whichever is "
        "longer, at the speeds measured around the load; HTTP and choosing tokens are not in it. Accepted drafts make "
        "several tokens in a step, and may exceed it (--speculation 0 is without)."
    )


def _row(each: Measured, most: float | None, most_of_one: float | None) -> tuple[str, ...]:
    load, found = each.load, each.found
    return (
        f"{load.streams} × {load.prompt_tokens} + {load.output_tokens}",
        f"{found.tokens_per_s:,.1f}",
        _share(found.tokens_per_s, most),
        *(_number(value, 0) for value in (found.ttft_p50_ms, found.ttft_p99_ms)),
        *(_number(value, 2) for value in (found.itl_p50_ms, found.itl_p99_ms)),
        _number(found.stream_tokens_per_s, 1),
        _share(found.stream_tokens_per_s, most_of_one),
        "-" if each.machine is None else f"{each.machine.bytes_per_s / 1e9:.1f}",
        f"{found.failed} of {found.requests}",
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None, most: float | None) -> str:
    return "-" if value is None or not most else f"{100 * value / most:.0f} %"
