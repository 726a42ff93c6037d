"""The rows of the table: the requests of each row to a server, and the limit of the machine for it.

All requests are greedy and take their full length. Rows are measured with drafts turned off, except the one that is
about them: random weights soon repeat themselves, and figures with drafts then say nothing about a step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import StrEnum

import msgspec

from benchmarks.load import Load, Prompts
from dragoman.cli.measurement import StreamRecord
from dragoman.models.limits import Limits

PLAIN = ("--speculation", "0")
DRAFTING: tuple[str, ...] = ()


class Unit(StrEnum):
    """More tokens are better, seconds and bytes are better when less."""

    RATE = "tokens/s"
    TIME = "s"
    SIZE = "GB"


class Failed(Exception):
    """A server did not do what was asked; the message says which request, and what it answered."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How often each is asked within one round. ``waves``: requests of each stream, where there are many;
    ``in_a_hurry``: looks at the machine are too short to say much."""

    singles: int = 5
    firsts: int = 5
    long_firsts: int = 3
    waves: int = 2
    starts: int = 3
    prefixed: int = 64
    in_a_hurry: bool = False


SHORT = Effort(singles=3, firsts=1, long_firsts=1, waves=1, starts=1, prefixed=16)


Measure = Callable[[Load, Prompts, Effort], Coroutine[None, None, float | None]]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """``measure`` gives a value in ``unit``, or none where what counts is the memory that the server then holds.

    Attributes:
        name: for ``--only``.
        times: how often it is measured in a round, with a look at the machine before and after each.
        options: of the server that it is asked of.
        peers: whether other servers can do the same.
        tokens: most tokens of prompt and output that one request has.
        sees: it is asked of models that see images alone.
    """

    name: str
    title: str
    unit: Unit
    limit: Callable[[Limits], float]
    measure: Measure
    times: int = 1
    options: tuple[str, ...] = PLAIN
    peers: bool = True
    tokens: int = 256
    sees: bool = False


def fraction(unit: Unit, value: float, limit: float) -> float:
    """Which part of the limit a value reaches: 1 is all that the machine allows."""
    return value / limit if unit is Unit.RATE else limit / value


def checked(records: list[StreamRecord], tokens: int) -> list[StreamRecord]:
    """The records, each of which brought ``tokens``. Raises Failed otherwise: less work is no better speed."""
    for record in records:
        if not record.succeeded:
            raise Failed(record.error or "no text arrived")
        if record.tokens != tokens:
            raise Failed(f"{record.tokens} tokens came of the {tokens} that were asked for")
    return records


async def _one_stream(load: Load, prompts: Prompts, effort: Effort) -> float | None:
    [record] = checked([await load.time(prompts.make(128), 128)], 128)
    return record.decode_tokens_per_s


EDITED, EVERY = 384, 12
"""Tokens of the text that is edited, and how far apart its changed ones are."""


async def _edit(load: Load, prompts: Prompts, effort: Effort) -> float | None:
    """The output is given, token by token: random weights would quote nothing. Every draft is computed and compared as
    if the model had chosen what follows."""
    prompt = prompts.ids(EDITED)
    others = prompts.ids(EDITED)
    edited = [others[i] if i % EVERY == EVERY - 1 else token for i, token in enumerate(prompt)]
    [record] = checked([await load.time(prompt, len(edited), forced_output_tokens=edited)], len(edited))
    return record.decode_tokens_per_s


def _first_token(tokens: int) -> Measure:
    async def measure(load: Load, prompts: Prompts, effort: Effort) -> float | None:
        return checked([await load.time(prompts.make(tokens), 2)], 2)[0].first_token_s

    return measure


IMAGE = (1024, 768)
QUESTION, QUESTION_TOKENS = "What is this?", 16
"""Tokens of the question, and of what a chat puts around it."""


async def _image(load: Load, prompts: Prompts, effort: Effort) -> float | None:
    """Each image is another one: what servers keep of images is of no use."""
    seed = f"{prompts.ids(8)}"
    return checked([await load.time_image(*IMAGE, QUESTION, 2, seed)], 2)[0].first_token_s


def _streams(streams: int) -> Measure:
    async def measure(load: Load, prompts: Prompts, effort: Effort) -> float | None:
        texts = [prompts.make(128) for _ in range(effort.waves * streams)]
        records, wall_s = await load.run(texts, 128, streams)
        return sum(record.tokens for record in checked(records, 128)) / wall_s

    return measure


SHARED, OWN, AT_ONCE = 1024, 32, 8


async def _shared_prefix(load: Load, prompts: Prompts, effort: Effort) -> float | None:
    texts = prompts.with_shared_prefix(SHARED, OWN, effort.prefixed)
    records, wall_s = await load.run(texts, 16, AT_ONCE)
    checked(records, 16)
    return wall_s


async def _eight_long(load: Load, prompts: Prompts, effort: Effort) -> float | None:
    """Asked for their memory, which the caller looks at."""
    records, _ = await load.run([prompts.make(896) for _ in range(8)], 128, 8)
    checked(records, 128)
    return None


def _after_prompt(tokens: int, times: int) -> Workload:
    return Workload(
        name=f"first-{tokens}",
        title=f"first token after {tokens:,} tokens",
        unit=Unit.TIME,
        limit=lambda limits: limits.first_token_s(tokens),
        measure=_first_token(tokens),
        times=times,
        tokens=tokens + 2,
    )


def _at_once(streams: int) -> Workload:
    return Workload(
        name=f"{streams}-streams",
        title=f"{streams} streams, 128 + 128 tokens",
        unit=Unit.RATE,
        limit=lambda limits: limits.tokens_per_s(streams, 128, 128),
        measure=_streams(streams),
    )


def workloads(effort: Effort) -> tuple[Workload, ...]:
    """All rows that are asked of a running server, in the order of the table."""
    return (
        Workload(
            name="memory",
            title="memory, 8 streams of 1,024 tokens",
            unit=Unit.SIZE,
            limit=lambda limits: limits.memory_bytes(8, 1024) / 1e9,
            measure=_eight_long,
            peers=False,
            tokens=1024,
        ),
        Workload(
            name="one-stream",
            title="one stream",
            unit=Unit.RATE,
            limit=lambda limits: limits.decode_tokens_per_s(128 + 64),
            measure=_one_stream,
            times=effort.singles,
        ),
        _after_prompt(512, effort.firsts),
        _after_prompt(2048, effort.long_firsts),
        Workload(
            name="image",
            title=f"first token after an image of {IMAGE[0]:,} x {IMAGE[1]:,}",
            unit=Unit.TIME,
            limit=lambda limits: limits.first_token_of_image_s(*IMAGE, QUESTION_TOKENS),
            measure=_image,
            times=effort.long_firsts,
            tokens=2048,
            sees=True,
        ),
        _at_once(8),
        _at_once(32),
        Workload(
            name="prefix",
            title=f"{effort.prefixed} requests, {SHARED:,} shared + {OWN} own tokens, 16 out, {AT_ONCE} at a time",
            unit=Unit.TIME,
            limit=lambda limits: limits.shared_prefix_s(effort.prefixed, AT_ONCE, SHARED, OWN, 16),
            measure=_shared_prefix,
            tokens=1100,
        ),
        Workload(
            name="repeating",
            title="one stream that repeats its prompt but for every 12th token",
            unit=Unit.RATE,
            limit=lambda limits: limits.decode_tokens_per_s(EDITED + EDITED // 2),
            measure=_edit,
            times=effort.singles,
            options=DRAFTING,
            peers=False,
            tokens=2 * EDITED,
        ),
    )
