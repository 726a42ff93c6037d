"""Worker program that tests grammars, run as a separate process by ``process``.

llguidance limits its work, but not all of it: a divisor of seven digits or an object of thousands of optional
properties takes seconds, and a deep recursion may end the process. So each grammar is first built here, compiled,
and followed along random texts; one that is slow or fails never reaches the engine. This happens in a child of the
process, whose crash costs nothing: the vocabulary is shared, and the next child is a fork away.

Uses the frames of ``sandbox``. The setup is ``{"time_s": …, "memory_bytes": …, "vocabulary": {...}}``; a request
``{"constraint": …}`` (as msgspec writes it) is answered by ``{"grammar": text}`` or by ``{"error": …, "kind": …}``,
with the ``"place"`` of the part that is refused. A cancelled test ends at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from dragoman.child_process import die_with_parent
from dragoman.core.constraint import AfterReasoning, Constraint, JsonSchema, Lark
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.lark import grammar_of
from dragoman.grammar.matching import Matching
from dragoman.text.confinement import confine
from dragoman.text.sandbox_child import address_space_bytes, greet, limit, receive, send

NICE = 5
_POLL_S = 0.05
_CLOCK_FACTOR = 10.0
"""Factor of a test's limit by the clock, while other processes use the processor."""
WALKS = 4
STEPS = 48
WALK_S = 0.3
PARTS_S = 0.2
"""Of a constraint that is refused, its parts are looked at for no longer."""
SLOW_STEP_S = 0.02
"""Three slower steps are too many: every request in the batch waits for them."""


def answer(constraint: Any, matching: Matching) -> dict[str, str]:
    """Return the answer to one request: of a constraint that is refused for one of its parts, that part's answer and
    its place."""
    parsed = msgspec.convert(constraint, Constraint | AfterReasoning)
    found = _tested(parsed, matching)
    whole = parsed.answer if isinstance(parsed, AfterReasoning) else parsed
    if "error" in found and isinstance(whole, Lark):
        end = time.thread_time() + PARTS_S
        for place, schema in whole.parts:
            alone = _tested(JsonSchema(schema, whole.one_line, whole.is_open), matching, walks=False)
            if "error" in alone:
                return {**alone, "place": place}
            if time.thread_time() > end:
                break
    return found


def _tested(parsed: Constraint | AfterReasoning, matching: Matching, *, walks: bool = True) -> dict[str, str]:
    """Return the grammar of a constraint, or why it is refused."""
    try:
        # A random walk through the free text would not reach the answer after it.
        alone = grammar_of(parsed.answer if isinstance(parsed, AfterReasoning) else parsed)
        problem = matching.problem(alone) or (_walk(matching, alone) if walks else "")
        grammar = grammar_of(parsed) if isinstance(parsed, AfterReasoning) else alone
        if problem := problem or matching.problem(grammar):
            return {"kind": "unsupported", "error": problem}
        return {"grammar": grammar}
    except UnsupportedFeature as error:
        return {"kind": "unsupported", "error": error.message}
    except BadRequest as error:
        return {"kind": "bad", "error": error.message}
    except RecursionError:
        return {"kind": "unsupported", "error": "it is nested too deeply"}


def _walk(matching: Matching, grammar: str) -> str:
    """Generate at random for a while. Return the problem; empty if there was none."""
    rng = random.Random(0)
    first = matching.matcher(grammar)
    times: list[float] = []
    end = time.monotonic() + WALK_S
    for _ in range(WALKS):
        matcher = first.copy()
        for _ in range(STEPS):
            started = time.thread_time()
            allowed = matcher.allowed()
            if matcher.error:
                return matcher.error
            if not len(allowed):
                return "it reaches a point where no text can follow"
            ended = matcher.push(int(rng.choice(allowed)))
            times.append(time.thread_time() - started)
            if ended or time.monotonic() > end:
                break
    if len(times) >= 3 and sorted(times)[-3] > SLOW_STEP_S:
        return "it takes too long to find the tokens that it allows"
    return ""


def main() -> None:
    """Serve the socket until the other end closes it."""
    connection = greet()
    setup = receive(connection)
    table = setup["vocabulary"]
    vocabulary = Vocabulary(
        tokens=tuple(token.encode("latin-1") for token in table["tokens"]),
        special_ids=tuple(table["special_ids"]),
        end_ids=tuple(table["end_ids"]),
    )
    matching = Matching(vocabulary)
    limited = _limit(setup["memory_bytes"])
    send(connection, {"confined": (*limited, *confine(may_have_children=True))})
    while True:
        request = receive(connection)
        if "constraint" not in request:
            continue  # cancelled after the answer was sent
        work = partial(answer, request["constraint"], matching)
        result = in_child(work, setup["time_s"], connection)
        if result["kind"] == "crash":
            # Perhaps caused by something else: a grammar's own fault repeats.
            again = in_child(work, setup["time_s"], connection)
            result = _MEMORY if again == result else again
        send(connection, result)


_MEMORY = {"kind": "memory", "error": "it took too much memory, or was nested too deeply"}


def in_child(work: Callable[[], dict[str, str]], time_s: float, connection: socket.socket) -> dict[str, str]:
    """Return the result of ``work`` in a child, with ``time_s`` of processor time, and on a busy machine longer by the
    clock.

    Other kinds of results: time, memory, crash (how), lost (the child's end says nothing about the work), cancelled
    (``connection`` has something to read).
    """
    reading, writing = os.pipe()
    parent_pid = os.getpid()
    try:
        child = os.fork()
    except OSError as error:  # no memory, or no more processes
        os.close(reading)
        os.close(writing)
        return {"kind": "lost", "error": f"its process cannot be started: {error.strerror}"}
    if not child:
        # The child must never return from here: the code after this belongs to the parent.
        with contextlib.suppress(BaseException):
            die_with_parent(parent_pid)
            confine()
            signal.setitimer(signal.ITIMER_PROF, time_s)  # its signal ends a process without a handler
            data = json.dumps({"kind": "", **work()}).encode()
            while data:
                data = data[os.write(writing, data) :]
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + _CLOCK_FACTOR * time_s
    data = b""
    ended_for = ""
    found: tuple[int, resource.struct_rusage] | None = None
    """How the child ended and what it used, once that is known."""
    while not ended_for:
        ready = select.select([reading, connection.fileno()], [], [], _POLL_S)[0]
        if reading in ready:
            part = os.read(reading, 1 << 16)
            if not part:
                break
            data += part
        elif ready:
            ended_for = "cancelled"
        elif time.monotonic() > deadline:
            ended_for = "time"
        elif found is None:
            pid, status, used = os.wait4(child, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                ended_for = "lost"
            elif pid:
                found = status, used
    if ended_for and found is None:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    status, used = found or os.wait4(child, 0)[1:]
    if ended_for == "cancelled":
        return {"kind": "cancelled", "error": "it was cancelled"}
    if not status:
        return dict(json.loads(data)) if data else _MEMORY
    out_of_time = {"kind": "time", "error": f"it took more than {time_s:g} s"}
    if os.WTERMSIG(status) == signal.SIGPROF:
        return out_of_time
    if os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGTERM):
        if ended_for == "time" and used.ru_utime + used.ru_stime >= 0.5 * time_s:
            return out_of_time
        return {"kind": "lost", "error": "its process was stopped, killed, or got no processor"}
    return {"kind": "crash", "error": f"killed by signal {os.WTERMSIG(status)}"}


def _limit(memory_bytes: int) -> tuple[str, ...]:
    """Set the limits: ``memory_bytes`` more than the process has now, and low priority. Returns those in force."""
    os.nice(NICE)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        # Where the scheduler groups processes by session, niceness has no effect within a session of one process.
        file.write(str(NICE))
    return limit(address_space_bytes() + memory_bytes)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError):
        main()
