"""Invariants of the scheduler: checks of memory and membership."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from dragoman.engine.scheduler import Scheduler
from dragoman.engine.sequence import Status


def check_integrity(scheduler: Scheduler) -> None:
    """Check all invariants of memory and membership. AssertionError names the broken one."""
    for block_group in scheduler.tables.groups:
        block_group.check_integrity(scheduler.running)
    if scheduler.tables.states is not None:
        scheduler.tables.states.check_integrity(scheduler.running)
    waiting = list(scheduler.waiting)
    assert len(waiting) == len(scheduler.waiting), "the queue's length is wrong"
    queues = [(share.waiting, Status.WAITING) for share in scheduler.waiting.shares.values()]
    for sequences, status in ((scheduler.running, Status.RUNNING), *queues):
        assert sequences == sorted(sequences, key=attrgetter("order")), f"{status.name} is out of order"
        assert all(s.status is status for s in sequences), f"a sequence in the {status.name} list has another status"
    assert len(scheduler.running) <= scheduler.capacity, "more sequences run than have rows"
    groups = scheduler.groups.values()
    members = [s for group in groups for s in group.unfinished]
    running_of = Counter(id(s.share) for s in scheduler.running)
    members_of = Counter(id(s.share) for s in members)
    shares = scheduler.waiting.shares.values()
    for share in shares:
        assert share.running == running_of[id(share)], f"{share.key} miscounts its running"
        assert all(s.share is share for s in share.waiting), f"{share.key} has another share's sequence"
        assert share.unfinished == members_of[id(share)], f"{share.key} has lost sequences"
    assert members_of.keys() <= {id(share) for share in shares}, "a share is lost"
    tables = scheduler.tables
    rows = [s.row for s in scheduler.running] + tables.free_rows
    assert sorted(rows) == list(range(scheduler.capacity)), "a table row has two owners or none"
    assert scheduler.unfinished == len(members), "sequences are lost"
    listed = {id(s) for s in scheduler.running} | {id(s) for s in waiting}
    for group in groups:
        group.check_integrity(listed)
    computing: Counter[bytes] = Counter()
    for s in scheduler.running:
        row = tables.encoder_blocks[s.row]
        assert row.tolist() == s.encoder_blocks + [-1] * (len(row) - len(s.encoder_blocks)), "an encoder row is wrong"
        assert s.encoded is (s.group.encoder is not None), "a sequence runs without its encoder input encoded"
        computing.update(s.hashes[s.computed // scheduler.cache.block_size :])
    assert computing == tables.computing, "the counts of blocks being computed are wrong"
