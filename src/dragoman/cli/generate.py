"""``dragoman generate``: the continuation of one text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncGenerator

from dragoman.cli.plain_text import show, write
from dragoman.cli.session import Delta, Session
from dragoman.cli.settings import SamplingSettings
from dragoman.cli.standard_input import read_standard_input
from dragoman.core.constraint import Constraint
from dragoman.llm.loop_thread import LoopThread


def read_prompt(argument: str) -> str:
    """Return the argument itself, or standard input for ``-``."""
    return read_standard_input() if argument == "-" else argument


def continue_text(
    session: Session,
    prompt: str,
    options: SamplingSettings,
    loop: LoopThread,
    constraint: Constraint | None = None,
) -> None:
    """Write the continuation to standard output as it comes. Raises the errors of ``core.errors``."""
    write_answer(session.complete(prompt, options, constraint), loop)


def write_answer(deltas: AsyncGenerator[Delta, None], loop: LoopThread) -> None:
    """Write an answer to standard output as it comes. Raises the errors of ``core.errors``."""

    async def stream() -> None:
        async with contextlib.aclosing(deltas):
            async for delta in deltas:
                show(delta.text)

    try:
        loop.run(stream())
        write("\n")
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). Python would report an error again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
