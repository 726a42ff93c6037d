"""The program that tries out grammars, run as a process of its own by ``process``.

llguidance bounds what it does, but not everything: a divisor of seven digits or an object of thousands of optional
properties takes seconds, and a deep recursion may end the process. So each grammar is made here first, compiled, and
walked for a while along random texts; what is slow or fails here never reaches the engine. That happens in a child of
the process, which may die without any loss: the vocabulary is shared, and the next child a fork away.

Speaks the frames of ``limited_process``. The setup is ``{"time_s": …, "memory_bytes": …, "vocabulary": {...}}``; a
request ``{"constraint": …}`` (as msgspec writes it) is answered by ``{"grammar": text}`` or by ``{"error": …, "kind":
…}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, Reasoned
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.lark import grammar_of
from dragoman.grammar.matching import Matching
from dragoman.text.limited_program import greet, limit, receive, send

NICE = 5
WALKS = 4
STEPS = 48
WALK_S = 0.3
SLOW_STEP_S = 0.02
"""Three steps that take longer are too many: everybody waits for them."""


def answer(constraint: Any, matching: Matching) -> dict[str, str]:
    """The answer to one request."""
    try:
        asked = msgspec.convert(constraint, Constraint | Reasoned)
        # A walk through free text would not come to the answer behind it.
        alone = grammar_of(asked.answer if isinstance(asked, Reasoned) else asked)
        problem = matching.problem(alone) or _walk(matching, alone)
        grammar = grammar_of(asked) if isinstance(asked, Reasoned) else alone
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
    """Generate at random for a while. What went wrong; empty when nothing did."""
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
                return "it comes to a point where nothing can follow"
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
    _limit(setup["memory_bytes"])
    send(connection, {})
    while True:
        request = receive(connection)
        send(connection, in_child(partial(answer, request["constraint"], matching), setup["time_s"]))


def in_child(work: Callable[[], dict[str, str]], time_s: float) -> dict[str, str]:
    """The result of ``work`` in a child, which has ``time_s`` of the processor, and on a busy machine twice as long."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        # Nothing may come back from here: what follows belongs to the parent.
        with contextlib.suppress(BaseException):
            signal.setitimer(signal.ITIMER_PROF, time_s)  # its signal ends a process that does not expect it
            with open(writing, "wb") as file:
                file.write(json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + 2 * time_s
    data = b""
    with open(reading, "rb", buffering=0) as file:
        while select.select([file], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            part = file.read(1 << 16)
            if not part:
                break
            data += part
        else:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not status and data:
        return dict(json.loads(data))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGKILL):
        return {"kind": "time", "error": f"it took more than {time_s:g} s"}
    return {"kind": "memory", "error": "it took too much memory, or was nested too deeply"}


def _limit(memory_bytes: int) -> None:
    """``memory_bytes`` more than the process has now, and little of the processor while others compute."""
    os.nice(NICE)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        # Where sessions share the processor by session, a nice process in one of its own is not nice to anybody.
        file.write(str(NICE))
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limit(now + memory_bytes)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError):
        main()
