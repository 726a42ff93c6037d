"""Who runs in the next step. No I/O, no clock: state in, decision out.

What a sequence has in memory is kept by ``block_tables``; here is decided who has any.

Policy:

1. Waiting sequences are admitted while there is a row, memory for all their tokens, and a share left of the step's
   token budget. Callers take turns by the service that they have had (``fair_queue``); of one caller's sequences the
   higher priority is first, then the earlier. A sequence that finds no memory is overtaken by other callers' until they
   are ``OVERTAKE`` ahead, so everyone's turn comes. What a running beam search waits for is not held up by any of that.
2. Running sequences make room for a waiting one: those of the same caller and lower priority, those in the background
   for one that is not, and, where a caller has more rows than another one would have with one more, the youngest of the
   caller furthest ahead. For a caller's first row that is done at once, for more of them when it is ``MARGIN`` behind;
   but no sequence gives way for fairness before it has drawn ``QUANTUM`` tokens, and a sixteenth of what it has to
   compute again, since it was admitted. So at most a bounded part of all work is done twice.
3. Running sequences that enter a new block, or write into a shared one, get a block. When none is left, the last of the
   caller furthest ahead is preempted: it gives up its blocks and waits to be computed again.
4. Every sequence with one token to compute runs; prefill chunks fill the rest of the token budget. Callers divide it so
   that the step serves each alike, its decode rows counted; a prompt that is longer than its caller's part leaves half
   of what is left to those behind it, so that a short one is not kept waiting by a long one. While several callers are
   about, a caller with a queue fills its steps less, so that another one's first token does not wait for a long step.
5. Where there is no prompt to compute, drafts fill a small step. They get no block of their own.

Where no token sees more than a window of positions, a sequence holds the blocks of its window and of the next step:
those behind it are given back, and others are given for them, as it goes on. A cached prefix then serves a sequence
that finds the blocks of one window before its first token to compute; what lies farther back may be gone.

The encoder's input of an encoder-decoder model has blocks of its own, which its sequences share. It is encoded whole,
in the step in which the first of them starts, and takes its tokens from that step's budget; one that is longer than the
budget starts beside no other prompt.

A sequence whose next block is being computed by another one waits until it can share it: many requests with one new
prefix compute it once. The sequences of one request (``n``) wait for the first of them and fork from it.

The sequences of a beam search (``beams``) each compute their newest token, in the same step or not, and then wait for
the others: all of them together decide which go on. While one of them waits for room, those that have done their part
are the first to make some.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from dragoman.core.errors import Overloaded
from dragoman.core.events import BeamStep
from dragoman.core.service import PROMPT_COST
from dragoman.engine.block_tables import BlockTables
from dragoman.engine.encoder import EncoderInputs
from dragoman.engine.fair_queue import FairQueue, Share
from dragoman.engine.integrity import check_integrity
from dragoman.engine.kv_cache import KVCache
from dragoman.engine.preemption import givers_to, in_order_of_claim, is_any_replaceable, replaceable_for, widest
from dragoman.engine.prefill import COMPANY_STEPS, PrefillPlan, budget_in_company, divided
from dragoman.engine.runner import Runner
from dragoman.engine.sampling.speculation import Lookup
from dragoman.engine.schedule import Chunk, Schedule
from dragoman.engine.sequence import Sequence, SequenceGroup, Status
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.window import Window

OVERTAKE = 4096.0
"""How much service other callers get before one whose next sequence finds no memory."""
MOST_BLOCKED = 4
"""Callers whose next sequence finds no memory, after which a step starts no other."""

_by_order = attrgetter("order")


class Scheduler:
    """Owns all sequences that are not finished, and the cache they live in."""

    def __init__(self, runner: Runner, settings: SchedulerSettings | None = None) -> None:
        settings = settings or SchedulerSettings()
        self.settings = settings
        self.step_tokens = min(runner.max_tokens, settings.step_tokens or runner.max_tokens)
        self.max_logit_rows = runner.max_logit_rows
        self.draft_rows = min(settings.speculation, self.step_tokens, self.max_logit_rows)
        # Every running sequence can then decode in every step, so nobody has to take turns.
        self.capacity = min(runner.max_sequences, runner.max_logit_rows, self.step_tokens)
        if settings.max_running is not None:
            self.capacity = min(self.capacity, settings.max_running)
        self.max_unfinished = self.capacity + settings.max_waiting
        self.unfinished = 0
        self.cache = KVCache(runner.num_blocks, runner.block_size)
        self.groups: dict[str, SequenceGroup] = {}
        self.waiting = FairQueue()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self._steps_in_company = 0
        """Steps for which several callers still count as about."""
        self.window = Window(runner.window, self.step_tokens, runner.block_size)
        self.max_length = self.window.longest(runner.max_context, runner.num_blocks)
        self.inputs = EncoderInputs(self.cache, shared=settings.prefix_cache)
        self.tables = BlockTables(
            self.cache,
            self.inputs,
            self.window,
            rows=self.capacity,
            width=self.cache.blocks_for(self.max_length + 1),
            encoder_width=min(self.cache.blocks_for(runner.encoder_context), runner.num_blocks),
            prefix_cache=settings.prefix_cache,
        )

    # Coming and going ------------------------------------------------------------------------------------------------

    def add(self, group: SequenceGroup) -> None:
        """Queue a request's sequences. Overloaded when more than ``max_unfinished`` would be here."""
        unfinished = group.unfinished
        if self.unfinished + len(unfinished) > self.max_unfinished:
            raise Overloaded(f"{self.unfinished} sequences are waiting or running already; try again later")
        self.unfinished += len(unfinished)
        self.groups[group.request_id] = group
        share = self.waiting.share_of(group.request)
        share.unfinished += len(unfinished)
        for sequence in group.sequences:
            sequence.share = share
        if group.request.service:
            self.waiting.owe(share, group.request.service)
        for sequence in group.beams or unfinished:
            if sequence.num_generated or group.beams:
                self._wait(sequence)
        self._choose_leader(group)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands. The last of its group takes the group along."""
        if sequence.status is Status.RUNNING:
            # What it was charged for and is not computed, nobody has had.
            sequence.share.charge(-PROMPT_COST * min(sequence.reserved, max(0, sequence.remaining - 1)))
            self._stop(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        self.unfinished -= 1
        sequence.share.unfinished -= 1
        group = sequence.group
        if group.unfinished:
            self._choose_leader(group)
        else:
            self.groups.pop(group.request_id, None)

    def _choose_leader(self, group: SequenceGroup) -> None:
        """One sequence without tokens of its own computes the prompt; the others are held until they can fork.

        The sequences of a beam search fork at every token: see ``branch``.
        """
        if group.search is not None:
            return
        fresh = [s for s in group.unfinished if s.num_generated == 0]
        if fresh and all(s.status is Status.HELD for s in fresh):
            self._wait(fresh[0])

    def _wait(self, sequence: Sequence, *, is_new: bool = True) -> None:
        if sequence.group.is_paused:
            sequence.status = Status.PAUSED
            return
        sequence.status = Status.WAITING
        self.waiting.push(sequence, is_new=is_new)

    def pause(self, group: SequenceGroup) -> None:
        """Compute nothing more for a request until ``resume``. Its blocks stay cached while nobody else needs them.

        Does nothing for a beam search.
        """
        if group.is_paused or group.search is not None:
            return
        group.is_paused = True
        for sequence in group.unfinished:
            if sequence.status is Status.RUNNING:
                self._stop(sequence)
            elif sequence.status is Status.WAITING:
                self.waiting.remove(sequence)
            else:
                continue
            sequence.status = Status.PAUSED

    def resume(self, group: SequenceGroup) -> None:
        """Go on with a request that was paused."""
        group.is_paused = False
        for sequence in group.unfinished:
            if sequence.status is Status.PAUSED:
                self._wait(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    # The decision ----------------------------------------------------------------------------------------------------

    def schedule(self) -> Schedule:
        """Decide the next step. Afterwards the caller runs it and reports with ``tables.computed``."""
        self._steps_in_company = COMPANY_STEPS if self.waiting.has_company() else max(0, self._steps_in_company - 1)
        if self.waiting:
            self._admit()
        self._grow()
        schedule = self._select()
        self.inputs.begin_step()
        return schedule

    def _admit(self) -> None:
        self.waiting.settle()
        plan = PrefillPlan(self.running, self._prompt_budget)
        most_rows = widest(self.running)
        is_replaceable = is_any_replaceable(self.running, self.waiting)
        is_searching = any(each.group.search is not None for each in self.running)
        if len(self.running) >= self.capacity and not (most_rows or is_replaceable):
            return
        turns = [(share, 0) for share in self.waiting.in_turn()]
        blocked = 0
        limit: tuple[bool, float] | None = None
        """The rank up to which others may overtake those that found no memory."""
        while turns:
            share, index = turns.pop(0)
            may_start = (
                blocked < MOST_BLOCKED
                and (limit is None or share.rank <= limit)
                and (share.max_running is None or share.running < share.max_running)
            )
            if not (may_start or is_searching):
                continue
            is_full = len(self.running) >= self.capacity
            if is_full and (share.running + 1) / share.weight > most_rows and not is_replaceable:
                continue
            index = self._next_of(share, index, may_start=may_start)
            if index == len(share.waiting) or not plan.has_room_for(share):
                continue
            sequence = share.waiting[index]
            to_encode = self.inputs.tokens_to_encode(sequence)
            if to_encode > plan.budget and not plan.is_empty:
                break
            preemptions = self.preemptions
            is_admitted = self._make_room(sequence)
            if self.preemptions != preemptions:
                plan.review(self.running)
                most_rows = widest(self.running)
            if not is_admitted:
                if len(self.running) < self.capacity:
                    blocked += 1
                    own = (share.is_background, share.rank[1] + OVERTAKE)
                    limit = own if limit is None else min(limit, own)
                continue
            # Those that made room for it wait in front of it now, where they are of its own share and as urgent.
            self.waiting.pop(share, share.waiting.index(sequence, index))
            self.tables.place(sequence)
            self._charge(sequence, to_encode)
            self._run(sequence)
            plan.add(sequence, to_encode)
            most_rows = max(most_rows, (share.running - 1) / share.weight)
            if index < len(share.waiting):
                turns.append((share, index))
                if len(turns) > 1:
                    turns.sort(key=_by_rank)

    def _next_of(self, share: Share, index: int, *, may_start: bool) -> int:
        """Return the place of the share's first sequence from ``index`` on that may run now; its length if none may.

        A sequence of a running search may always: the others of the search keep their rows and memory until it has run.
        ``may_start``: others may too.
        """
        waiting = share.waiting
        while index < len(waiting):
            sequence = waiting[index]
            if (may_start or _searches(sequence)) and not self.tables.must_wait(sequence):
                return index
            index += 1
        return index

    def _charge(self, sequence: Sequence, to_encode: int) -> None:
        """Count what admitting a sequence makes the engine compute, and has not made it compute before."""
        known = max(sequence.computed, sequence.charged)
        sequence.reserved = max(0, len(sequence.token_ids) - 1 - known)
        sequence.charged = max(known, len(sequence.token_ids))
        sequence.share.charge(PROMPT_COST * (sequence.reserved + to_encode))

    def _prompt_budget(self, decodes: int) -> int:
        """Prompt tokens that a step computes beside so many decode rows."""
        budget = self.step_tokens - decodes
        return min(budget, self.settings.mixed_prefill_tokens) if decodes else budget

    def _make_room(self, sequence: Sequence) -> bool:
        while len(self.running) >= self.capacity or not self._fits(sequence):
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """Who makes room for a waiting sequence, which wants a row, memory or both."""
        replaced = replaceable_for(sequence, self.running)
        if replaced is not None:
            return replaced
        givers = givers_to(sequence.share, self.running)
        if givers and len(self.running) < self.capacity:  # it is memory that is wanted, and there has to be enough
            most = self.cache.available + sum(len(each.blocks) for each in givers)
            if self.tables.blocks_needed(sequence) > most:
                return None
        return givers[-1] if givers else None

    def _fits(self, sequence: Sequence) -> bool:
        """Memory for it, and one block more for each running sequence, lest it be preempted at once."""
        return self.tables.blocks_needed(sequence) + len(self.running) <= self.cache.available

    def _run(self, sequence: Sequence) -> None:
        """Its blocks are chosen, and a row is free."""
        self.tables.enter(sequence)
        sequence.status = Status.RUNNING
        sequence.share.running += 1
        sequence.began_at = len(sequence.token_ids)
        sequence.started_at = sequence.computed
        insort(self.running, sequence, key=_by_order)

    def _stop(self, sequence: Sequence) -> None:
        """Take back everything a running sequence has."""
        self.running.remove(sequence)
        sequence.share.running -= 1
        sequence.charged = max(sequence.charged, sequence.computed)
        self.tables.leave(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        is_decided = not sequence.remaining
        self._stop(sequence)
        if is_decided:
            # What it may go on with is known. It is computed again when it does.
            sequence.status = Status.HELD
        else:
            self._wait(sequence, is_new=False)

    def _grow(self) -> None:
        if self.window.positions:
            for sequence in self.running:
                self.tables.slide(sequence)
        line = list(self.running)
        if self.cache.available < len(line):
            line = in_order_of_claim(line)
        index = 0
        while index < len(line):
            sequence = line[index]
            while self.tables.needs_block(sequence) and sequence.remaining and sequence.status is Status.RUNNING:
                self._give_block(sequence, line)
            index += 1

    def _give_block(self, sequence: Sequence, line: list[Sequence]) -> None:
        """A block of its own to write the next token into; the last in line pay for it, itself included."""
        if self.tables.keeps_last_block(sequence):
            return
        while not self.cache.available:
            victim = line.pop()
            self._preempt(victim)
            if victim is sequence:
                return
        self.tables.add_block(sequence)

    def _select(self) -> Schedule:
        # Neighbours that run with one adapter read its weights once. Without any the order stays as it is.
        decodes = [s for s in self.running if s.remaining == 1]
        if any(s.group.adapter is not None for s in decodes):
            decodes.sort(key=attrgetter("adapter_slot"))
        for each in decodes:
            each.share.counter += each.share.token_cost
        encodes = self.inputs.to_encode()
        copies = self.tables.take_copies()
        if len(decodes) == len(self.running):
            self._draft(decodes)
            return Schedule(decodes, [], copies, encodes)
        prefills = [s for s in self.running if s.remaining > 1]
        budget = self._prompt_budget(len(decodes)) - sum(len(s.group.request.encoder_input) for s in encodes)
        if decodes and self._steps_in_company and budget > 0:
            budget = budget_in_company(prefills, budget)
        logit_rows = self.max_logit_rows - len(self.running)  # beyond the one of each sequence
        chunks = []
        for sequence, most in divided(prefills, decodes, budget):
            chunk = self._chunk(sequence, most, logit_rows)
            logit_rows -= max(0, chunk.logit_rows - 1)
            chunks.append(chunk)
            if chunk.is_last:
                sequence.share.counter += sequence.share.token_cost
        return Schedule(decodes, chunks, copies, encodes)

    def _draft(self, sequences: list[Sequence]) -> None:
        """Fill the step with drafts, in fair parts.

        A draft stays within the block that its sequence writes to, and within the length that the sequence may have.
        """
        rows = self.draft_rows - len(sequences)
        for index, sequence in enumerate(sequences):
            if rows <= 0:
                break
            room = -(sequence.computed + 1) % self.cache.block_size
            most = min(-(-rows // (len(sequences) - index)), room, sequence.max_length - len(sequence.token_ids) - 1)
            if most <= 0 or sequence.group.search is not None:
                continue
            if sequence.lookup is None:
                sequence.lookup = Lookup(sequence.max_length + len(sequence.group.request.encoder_input))
            sequence.draft = sequence.lookup.draft(sequence.said, most)
            rows -= len(sequence.draft)

    def _chunk(self, sequence: Sequence, budget: int, logit_rows: int) -> Chunk:
        start = sequence.computed
        end = start + min(sequence.remaining, budget)
        first = last = end
        if sequence.group.wants_prompt_logprobs:
            first = max(start, len(sequence.group.prompt_logprobs) - 1)
            end = max(min(end, first + logit_rows + 1), start + 1)
            first = min(first, end)
            last = max(first, min(end, sequence.prompt_length - 1))
        return Chunk(sequence, end - start, first - start, last - start, end == len(sequence.token_ids))

    # What became of it -----------------------------------------------------------------------------------------------

    def verified(self, sequence: Sequence, accepted: int) -> None:
        """The first ``accepted`` tokens of the sequence's draft came true. The others are written over."""
        assert sequence.lookup is not None
        sequence.lookup.verified(len(sequence.said), len(sequence.draft), accepted)
        self.drafted_tokens += len(sequence.draft)
        self.accepted_tokens += accepted
        sequence.share.counter += accepted * sequence.share.token_cost
        sequence.draft = []

    def fork(self, leader: Sequence) -> list[Sequence]:
        """The held sequences of a group, its prompt computed by ``leader``, that can go on from here beside it.

        They share all of the leader's blocks. Those for which there is no row wait; they find the prompt in the cache.
        """
        forks = []
        for sequence in leader.group.sequences:
            if sequence.status is not Status.HELD:
                continue
            share = sequence.share
            if not self.tables.free_rows or (share.max_running is not None and share.running >= share.max_running):
                self._wait(sequence)
                continue
            self.tables.share(leader, sequence)
            sequence.charged = len(sequence.token_ids)
            share.counter += share.token_cost  # it draws its first token in this step
            sequence.hashes = list(leader.hashes)
            self._run(sequence)
            forks.append(sequence)
        return forks

    def branch(self, group: SequenceGroup, step: BeamStep) -> None:
        """Bring the sequences of a beam search behind a step of it: each text that goes on gets one.

        The first continuation of a text keeps its sequence and its blocks. Those beside it take the sequences that
        became free, and share the blocks up to the first that either writes to. What was given up is free at once.
        """
        going_on = [token for token in step.tokens if token.finish is None]
        parents = [group.beams[token.parent] for token in going_on]
        for sequence in group.beams:
            if sequence not in parents:
                self._hold(sequence)
        free = [s for s in group.sequences if s not in parents]
        beams: list[Sequence] = []
        for parent in parents:
            if parent not in beams:
                beams.append(parent)
                continue
            beams.append(free.pop(0))
            self._fork_beam(parent, beams[-1])
        for sequence, token in zip(beams, going_on, strict=True):
            sequence.go_on(token.token_id)
            if sequence.status is Status.HELD:
                self._wait(sequence)
        group.beams = beams

    def _hold(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        sequence.status = Status.HELD

    def _fork_beam(self, parent: Sequence, sequence: Sequence) -> None:
        """Stays held where the parent is not in memory, or there is no row."""
        sequence.become(parent)
        if parent.status is not Status.RUNNING or not self.tables.free_rows:
            return
        self.tables.share(parent, sequence)
        self._run(sequence)

    def check_integrity(self) -> None:
        """Every promise about memory and membership, walked. AssertionError names the broken one."""
        check_integrity(self)


def _by_rank(turn: tuple[Share, int]) -> tuple[bool, float]:
    return turn[0].rank


def _searches(sequence: Sequence) -> bool:
    """Whether it is one of a beam search that runs already, which cannot go on without it."""
    group = sequence.group
    return group.search is not None and any(each.status is Status.RUNNING for each in group.beams)
