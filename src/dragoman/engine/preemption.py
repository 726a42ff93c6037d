"""Which running sequences make room for others: by priority, by what they can do, and by what their callers have had.

``running`` is always in the order in which sequences run, the most urgent first.
"""

from __future__ import annotations

from operator import attrgetter

from dragoman.engine.fair_queue import FairQueue, Share, head_start
from dragoman.engine.sequence import Sequence, Status

QUANTUM = 16
"""Tokens that a sequence draws before it gives way to another caller."""
MARGIN = 512.0
"""How much service a caller that runs has to be behind another one before it takes a row of it."""

_by_order = attrgetter("order")


def replaceable_for(sequence: Sequence, running: list[Sequence]) -> Sequence | None:
    """Who makes room for a waiting sequence whatever the callers have had: the last in the background, the last of its
    caller's with a lower priority, the last who can do nothing now."""
    if running and running[-1].share.is_background and not sequence.share.is_background:
        return running[-1]
    for last in reversed(running):
        if last.priority >= sequence.priority:
            break
        if last.share is sequence.share:
            return last
    for last in reversed(running):
        if _is_stuck(last) and (last.group is sequence.group or last.order > sequence.order):
            return last
    return None


def is_any_replaceable(running: list[Sequence], waiting: FairQueue) -> bool:
    """Whether ``replaceable_for`` may find anyone for a sequence that waits."""
    if not running:
        return False
    if any(each.group.search is not None for each in running):
        return True
    lowest = running[-1].priority
    return any(share.waiting and share.waiting[0].priority > lowest for share in waiting.shares.values())


def widest(running: list[Sequence]) -> float:
    """Of all callers that run, the most rows, by weight, that one would have with one row less."""
    return max([(each.share.running - 1) / each.share.weight for each in running], default=0.0)


def givers_to(share: Share, running: list[Sequence]) -> list[Sequence]:
    """The sequences of the caller furthest ahead that give way to a sequence of ``share`` for fairness, the youngest
    last: those that have had their turn, of a caller that has more rows than the other would have with one more."""
    rows = (share.running + 1) / share.weight
    counter = share.rank[1] + (MARGIN if share.running else 0.0)
    found: list[Sequence] = []
    for each in running:
        ahead = each.share
        if (
            ahead is not share
            and ahead.is_background == share.is_background
            and (ahead.running - 1) / ahead.weight >= rows
            and ahead.counter - head_start(each.priority) >= counter
            and each.group.search is None
            and _has_had_its_turn(each)
        ):
            found.append(each)
    if not found:
        return []
    furthest = max((each.share for each in found), key=attrgetter("counter"))
    return sorted((each for each in found if each.share is furthest), key=_by_order)


def in_order_of_claim(running: list[Sequence]) -> list[Sequence]:
    """In the order in which they keep their memory: those of the caller furthest ahead are the last, as are those in
    the background."""
    return sorted(running, key=_by_claim)


def _by_claim(sequence: Sequence) -> tuple[bool, float, tuple[int, int, int]]:
    return sequence.share.is_background, sequence.share.counter, sequence.order


def _has_had_its_turn(sequence: Sequence) -> bool:
    """Whether it has drawn enough since it was admitted to give way, or nothing of it has been computed yet."""
    drawn = len(sequence.token_ids) - sequence.began_at
    return drawn >= max(QUANTUM, sequence.computed // 16) or sequence.computed == sequence.started_at


def _is_stuck(sequence: Sequence) -> bool:
    """Whether it has done its part of a step of a beam search, and waits for texts that wait for room."""
    return not sequence.remaining and any(beam.status is Status.WAITING for beam in sequence.group.beams)
