"""``--processes N``: the tests are collected once, and forks of the process that did it run them.

Processes that each collect for themselves, as pytest-xdist's do, pay N times for it: 17,000 tests take 12 s of a
processor, and three times as much where nothing is compiled yet. Forks have it all from the start: what is imported,
and what the garbage collector need not look at.

Each fork takes one file after another until none is left, so a fixture of a module is made once, and one of the
session once in each fork. A fork that dies fails the test that it ran and those that its file had left; another takes
its place.

Not for macOS, whose libraries do not bear a fork; there `make test` has pytest-xdist.
"""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

Location = tuple[str, int | None, str]
Message = tuple[str, tuple[Any, ...]]
"""What a fork tells: ``taken`` and the number of a file; ``start``, ``report``, ``finish`` of a test; a ``warning``."""

_CONTEXT = multiprocessing.get_context("fork")


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, metavar="N", help="run the tests in N forks of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks, if there are to be several. What pytest refuses to run it refuses itself."""
    options = session.config.option
    if options.processes < 2 or options.collectonly or options.usepdb or session.testsfailed:
        return None
    _Division(session).run(options.processes)
    return True


class _Fork:
    """A process that runs files of tests, and what is known of it here."""

    def __init__(self, division: _Division, number: int) -> None:
        self.receiver, sender = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(target=_run_files, args=(division, number, sender))
        with warnings.catch_warnings():  # the other threads are those of NumPy's library, which bears it
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            self.process.start()
        sender.close()
        self.left: list[pytest.Item] = []


class _Division:
    """The files of a session, divided among forks."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        self.config = session.config
        self.files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
        self.next_file = _CONTEXT.Value("i", 0)
        self.stopped = _CONTEXT.Event()
        self.temporary = self.config._tmp_path_factory  # type: ignore[attr-defined]
        self.temporary.getbasetemp()

    def take(self) -> int | None:
        """The number of a file that no fork has, or None."""
        with self.next_file.get_lock():
            number = self.next_file.value
            self.next_file.value += 1
        return number if number < len(self.files) else None

    def run(self, processes: int) -> None:
        """Run all files, as pytest's own loop does.

        Raises:
            pytest.Session.Failed, pytest.Session.Interrupted: as there, after the forks have ended.
        """
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # tests of several files come in turn
        numbers = itertools.count()
        forks = [_Fork(self, next(numbers)) for _ in range(min(processes, len(self.files)))]
        try:
            while forks:
                for receiver in wait([fork.receiver for fork in forks]):
                    fork = next(fork for fork in forks if fork.receiver is receiver)
                    try:
                        messages = fork.receiver.recv()
                    except (EOFError, ConnectionResetError):
                        forks.remove(fork)
                        if self._lost(fork):
                            forks.append(_Fork(self, next(numbers)))
                        continue
                    for kind, values in messages:
                        self._told(fork, kind, *values)
                    if self.session.shouldfail or self.session.shouldstop:
                        self.stopped.set()
        finally:
            self.stopped.set()
            for fork in forks:
                fork.process.join(10)
                fork.process.kill()
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)

    def _told(self, fork: _Fork, kind: str, *values: Any) -> None:
        hook = self.config.hook
        if kind == "taken":
            fork.left += self.files[values[0]]
        elif kind == "start":
            hook.pytest_runtest_logstart(nodeid=values[0], location=values[1])
        elif kind == "report":
            hook.pytest_runtest_logreport(
                report=hook.pytest_report_from_serializable(config=self.config, data=values[0])
            )
        elif kind == "finish":
            del fork.left[0]
            hook.pytest_runtest_logfinish(nodeid=values[0], location=values[1])
        else:
            text, category, filename, line, when, nodeid, location = values
            message = warnings.WarningMessage(text, type(category, (Warning,), {}), filename, line)
            hook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
            )

    def _lost(self, fork: _Fork) -> bool:
        """Whether a fork ended before its time. The tests that it had left have failed then."""
        fork.process.join()
        if self.stopped.is_set() or (fork.process.exitcode == 0 and not fork.left):
            return False
        why = f"the process that ran it ended with exit status {fork.process.exitcode}"
        for item in fork.left:
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            self.config.hook.pytest_runtest_logreport(report=report)
            why = f"not run: the process of {fork.left[0].nodeid} ended before"
        return True


class _Reports:
    """In a fork: sends what pytest tells of a test, in one piece when the test is over."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self.config = config
        self.sender = sender
        self.kept: list[Message] = []

    def tell(self, kind: str, *values: Any) -> None:
        self.kept.append((kind, values))

    def send(self) -> None:
        self.sender.send(self.kept)
        self.kept = []

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self.tell("start", nodeid, location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.tell("report", data)

    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> None:
        self.tell("finish", nodeid, location)
        self.send()

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        said = warning_message
        self.tell(
            "warning", str(said.message), said.category.__name__, said.filename, said.lineno, when, nodeid, location
        )


def _run_files(division: _Division, number: int, sender: Connection) -> None:
    """In a fork: run files until none is left or the others stop."""
    config = division.config
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # into files that all forks would share
    capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(reports := _Reports(config, sender))
    reports.kept = []  # warnings from before the fork
    own = division.temporary.getbasetemp() / f"process-{number}"
    own.mkdir()
    division.temporary._basetemp = own
    for item, following in _items(division, reports):
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if division.session.shouldfail or division.session.shouldstop or division.stopped.is_set():
            break
    config.pluginmanager.getplugin("runner").pytest_sessionfinish(division.session)  # takes down what is still set up
    reports.send()


def _items(division: _Division, reports: _Reports) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """The tests of a fork, each with the one that comes after it: fixtures of both are kept in between.

    The next file is taken before the last test of the one before, not earlier: another fork may have time for it.
    """

    def take() -> list[pytest.Item]:
        number = division.take()
        if number is None:
            return []
        reports.tell("taken", number)
        reports.send()
        return division.files[number]

    items = take()
    while items:
        yield from itertools.pairwise(items)
        last, items = items[-1], take()
        yield last, items[0] if items else None
