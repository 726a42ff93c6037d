"""Scheduler: decides which sequences run in the next step. No I/O, no clock: state in, decision out.

``block_tables`` manages the memory of sequences; the scheduler decides which sequences get any.

Policy:

1. Waiting sequences are admitted while there is a row, memory for all their tokens, and a share left of the step's
   token budget. Callers are served in the order of the service they have had (``fair_queue``); of one caller's
   sequences the higher priority is first, then the earlier. Other callers may overtake a sequence that finds no memory
   by at most ``OVERTAKE`` of service, so no caller starves. Sequences of a running beam search are exempt from that.
2. Running sequences are preempted for a waiting one: those of the same caller and lower priority, background ones for
   a foreground one, and, where a caller has more rows than another one would have with one more, the youngest of the
   caller that has had most service. For a caller's first row that happens at once, for further ones when it is
   ``MARGIN`` of service behind; but no sequence is preempted for fairness before it has drawn ``QUANTUM`` tokens, and
   a sixteenth of what it has to compute again, since it was admitted. So at most a bounded part of work is repeated.
3. Running sequences that enter a new block, or write into a shared one, get a block. When none is left, the last
   sequence of the caller that has had most service is preempted: it frees its blocks and waits to be computed again.
4. Every sequence with one token to compute runs; prefill chunks fill the rest of the token budget. Callers divide it
   so that the step serves each alike, its decode rows counted; a prompt that is longer than its caller's part leaves
   half of the rest to the prompts after it, so that a short one does not wait for a long one. While several callers
   are active, a caller with a queue fills its steps less, so another one's first token does not wait for a long step.
   A text that is pooled takes its tokens from the same budget; an encoder's (``whole_texts``) all in one step.
5. Without prompts to compute, drafts fill a small step. They get no separate block.
6. Deferrable requests run while no other one waits or runs (``deferral``), and leave others all room to wait.

In layers where no token sees more than a window of positions, a sequence has the blocks of its window and of the next
step: blocks before the window are freed, and new ones allocated, as it continues. Layers of one window are a group that
has separate blocks (``block_group``). A cached prefix serves a sequence if the blocks that its first token to compute
sees are cached in each group. A sequence is admitted where all groups have memory, and preempted in all at once.

The encoder's input of an encoder-decoder model has separate blocks, which its sequences share. It is encoded whole,
in the step in which the first of them starts, and takes its tokens from that step's budget; one that is longer than
the budget starts with no other prompt.

Where layers keep a state, a running sequence has a slot for it, and a cached prefix serves a sequence up to its last
snapshot (``state_slots``). A sequence waits for the next snapshot that another one is going to make of its prefix.

A sequence waits until the embeddings of those images of its prompt are there that it has to compute (``images``). A
step with decode rows computes either a part of an image or prompts, in turn.

A sequence whose next block is being computed by another one waits until it can share it: many requests with one new
prefix compute it once. The sequences of one request (``n``) wait for the first of them and fork from it.

The sequences of a beam search (``beams``) each compute their newest token, in the same step or not, and then wait for
the others: all of them together decide which continue. While one of them waits for memory, those that have finished
their part are preempted first.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from dragoman.core.errors import Overloaded
from dragoman.core.events import BeamStep
from dragoman.core.service import PROMPT_COST
from dragoman.engine.block_group import BlockGroup, groups_for, longest_sequence
from dragoman.engine.block_tables import BlockTables
from dragoman.engine.deferral import Deferral
from dragoman.engine.encoder import EncoderInputs, input_blocks
from dragoman.engine.fair_queue import FairQueue, Share
from dragoman.engine.images import ImageEncoder
from dragoman.engine.preemption import is_any_replaceable, memory_order, preemptable_for, replaceable_for, spare_rows
from dragoman.engine.prefill import CONTENTION_STEPS, PrefillPlan, contended_budget, divide
from dragoman.engine.runner import Runner
from dragoman.engine.schedule import Schedule, cut_chunks
from dragoman.engine.sequence import Sequence, SequenceGroup, Status
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation.drafts import Drafts
from dragoman.engine.state_slots import slots_for

OVERTAKE = 4096.0
"""Service other callers may get before a caller whose next sequence finds no memory."""
MOST_BLOCKED = 4
"""Number of callers whose next sequence finds no memory, after which a step starts no other."""

_by_order = attrgetter("order")


class Scheduler:
    """Owns all unfinished sequences and their cache."""

    def __init__(self, runner: Runner, settings: SchedulerSettings | None = None) -> None:
        settings = settings or SchedulerSettings()
        self.settings = settings
        self.step_tokens = min(runner.max_tokens, settings.step_tokens or runner.max_tokens)
        self.max_logit_rows = runner.max_logit_rows
        # Every running sequence can then decode in every step, so rows need not alternate.
        self.capacity = min(runner.max_sequences, runner.max_logit_rows, self.step_tokens)
        if settings.max_running is not None:
            self.capacity = min(self.capacity, settings.max_running)
        self.capacity = min(self.capacity, runner.num_states or self.capacity)
        self.max_unfinished = self.capacity + settings.max_waiting
        self.unfinished = 0
        block_groups = groups_for(runner, self.step_tokens)
        self.cache = block_groups[0].cache
        self.groups: dict[str, SequenceGroup] = {}
        self._deferral = Deferral(self.stop_all, self.continue_all)
        self.waiting: FairQueue[Sequence] = FairQueue()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._contention_steps = 0
        """Remaining steps for which several callers still count as active."""
        self.max_length = longest_sequence(block_groups, runner.max_context)
        self.whole_texts = not runner.causal
        prefix_cache = settings.prefix_cache and runner.causal
        self.inputs = EncoderInputs(self.cache, shared=settings.prefix_cache)
        draft_rows = min(settings.speculation, self.step_tokens, self.max_logit_rows)
        self.tables = BlockTables(
            block_groups,
            self.inputs,
            rows=self.capacity,
            width=self.cache.blocks_for(self.max_length + 1),
            encoder_width=input_blocks(runner, self.cache),
            prefix_cache=prefix_cache,
            states=slots_for(runner.num_states, self.cache, self.capacity, draft_rows, prefix_cache),
        )
        needed, shared = self.tables.images_needed, settings.prefix_cache
        self.images = ImageEncoder(runner.tower, runner.image_cache_bytes, needed, shared=shared)
        self.drafts = Drafts(
            self.tables, rows=draft_rows, block_size=self.cache.block_size, sources=settings.draft_sources
        )

    # Adding and finishing --------------------------------------------------------------------------------------------

    def add(self, group: SequenceGroup) -> None:
        """Queue a request's sequences. Raises Overloaded when more than ``max_unfinished`` would be unfinished."""
        unfinished = group.unfinished
        others = self.unfinished - self._deferral.unfinished
        if others + len(unfinished) > self.max_unfinished and not group.request.deferrable:
            raise Overloaded(f"{others} sequences are already waiting or running; try again later")
        self.unfinished += len(unfinished)
        self.groups[group.request_id] = group
        self.images.groups += group.images is not None
        self._deferral.add(group)
        share = self.waiting.share_of(group.request)
        share.unfinished += len(unfinished)
        for sequence in group.sequences:
            sequence.share = share
        if group.request.service:
            self.waiting.add_past_service(share, group.request.service)
        for sequence in group.beams or unfinished:
            if sequence.num_generated or group.beams:
                self._wait(sequence)
        self._choose_leader(group)

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence in any state. The last of its group removes the group."""
        if sequence.status is Status.RUNNING:
            # Its caller gets back the charge for tokens that were not computed.
            sequence.share.charge(-PROMPT_COST * min(sequence.reserved, max(0, sequence.remaining - 1)))
            self._stop(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
            self.images.release(sequence)
        self.drafts.end(sequence)
        sequence.status = Status.FINISHED
        self.unfinished -= 1
        sequence.share.unfinished -= 1
        group = sequence.group
        if group.unfinished:
            self._choose_leader(group)
        else:
            self.groups.pop(group.request_id, None)
            self.images.groups -= group.images is not None
        self._deferral.finish(group)

    def _choose_leader(self, group: SequenceGroup) -> None:
        """Queue one sequence without generated tokens to compute the prompt; the others wait until they can fork.

        The sequences of a beam search fork at every token: see ``branch``.
        """
        if group.search is not None:
            return
        fresh = [s for s in group.unfinished if s.num_generated == 0]
        if fresh and all(s.status is Status.PENDING for s in fresh):
            self._wait(fresh[0])

    def _wait(self, sequence: Sequence, *, is_new: bool = True) -> None:
        if sequence.group.is_paused or sequence.group.is_held:
            sequence.status = Status.PAUSED
            return
        sequence.status = Status.WAITING
        self.waiting.push(sequence, is_new=is_new)

    def pause(self, group: SequenceGroup) -> None:
        """Stop computing a request until ``resume``. Its blocks stay cached until others need the memory.

        Does nothing for a beam search.
        """
        if group.is_paused or group.search is not None:
            return
        group.is_paused = True
        self.stop_all(group)

    def resume(self, group: SequenceGroup) -> None:
        """Continue a paused request."""
        group.is_paused = False
        self.continue_all(group)

    def stop_all(self, group: SequenceGroup) -> None:
        """Stop all sequences of a request that is paused or held."""
        for sequence in group.unfinished:
            if sequence.status is Status.RUNNING:
                self._stop(sequence)
            elif sequence.status is Status.WAITING:
                self.waiting.remove(sequence)
                self.images.release(sequence)
            else:
                continue
            sequence.status = Status.PAUSED

    def continue_all(self, group: SequenceGroup) -> None:
        """Queue all sequences of a request that is neither paused nor held any more."""
        for sequence in group.unfinished:
            if sequence.status is Status.PAUSED:
                self._wait(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self._deferral.has_held)

    # The decision ----------------------------------------------------------------------------------------------------

    def schedule(self) -> Schedule:
        """Decide the next step. Afterwards the caller runs it and reports with ``tables.mark_computed``."""
        self._deferral.review(self.running, self.waiting)
        contended = self.waiting.has_several_callers()
        self._contention_steps = CONTENTION_STEPS if contended else max(0, self._contention_steps - 1)
        if self.waiting:
            self._admit()
        self.images.choose(self.waiting, self.tables.must_wait)
        for group in self.tables.groups:
            self._grow(group)
        schedule = self._select()
        self.inputs.begin_step()
        return schedule

    def _admit(self) -> None:
        self.waiting.charge_past_service()
        plan = PrefillPlan(self.running, self._prompt_budget)
        most_rows = spare_rows(self.running)
        is_replaceable = is_any_replaceable(self.running, self.waiting)
        is_searching = any(each.group.search is not None for each in self.running)
        if len(self.running) >= self.capacity and not (most_rows or is_replaceable):
            return
        turns = [(share, 0) for share in self.waiting.by_rank()]
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
                most_rows = spare_rows(self.running)
            if not is_admitted:
                if len(self.running) < self.capacity:
                    blocked += 1
                    own = (share.is_background, share.rank[1] + OVERTAKE)
                    limit = own if limit is None else min(limit, own)
                continue
            if self.tables.begin_load(sequence, spare=len(self.running)):
                turns.insert(0, (share, index))  # it waits in the queue, and those after it may run
                continue
            # Sequences preempted for it are now before it in the queue, where they are of the same share and as urgent.
            self.waiting.pop(share, share.waiting.index(sequence, index))
            self.tables.allocate(sequence)
            self._charge(sequence, to_encode)
            self._run(sequence)
            plan.add(sequence, to_encode)
            most_rows = max(most_rows, (share.running - 1) / share.weight)
            if index < len(share.waiting):
                turns.append((share, index))
                if len(turns) > 1:
                    turns.sort(key=_by_rank)

    def _next_of(self, share: Share[Sequence], index: int, *, may_start: bool) -> int:
        """Return the index of the share's first sequence from ``index`` on that may run now; else the queue's length.

        A sequence of a running search always may: the others of the search keep their rows and memory until it has
        run. ``may_start``: others may too.
        """
        waiting = share.waiting
        while index < len(waiting):
            sequence = waiting[index]
            may = may_start or sequence.group.is_in_running_search
            if may and not (self.tables.must_wait(sequence) or self.images.must_wait(sequence)):
                return index
            index += 1
        return index

    def _charge(self, sequence: Sequence, to_encode: int) -> None:
        """Charge the computation that admitting a sequence causes, except tokens that were charged before."""
        known = max(sequence.computed, sequence.charged)
        sequence.reserved = max(0, len(sequence.token_ids) - 1 - known)
        sequence.charged = max(known, len(sequence.token_ids))
        sequence.share.charge(PROMPT_COST * (sequence.reserved + to_encode))

    def _prompt_budget(self, decodes: int) -> int:
        """Return the number of prompt tokens that a step computes in addition to so many decode rows."""
        budget = self.step_tokens - decodes
        if decodes and self.images.takes_turn:
            return 0
        return min(budget, self.settings.mixed_prefill_tokens) if decodes else budget

    def _make_room(self, sequence: Sequence) -> bool:
        while len(self.running) >= self.capacity or not self._fits(sequence):
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """Return the running sequence to preempt for a waiting one, which needs a row, memory or both."""
        replaced = replaceable_for(sequence, self.running)
        if replaced is not None:
            return replaced
        preemptable = preemptable_for(sequence.share, self.running)
        has_row = len(self.running) < self.capacity  # then it needs memory, and there must be enough
        if preemptable and has_row and not self.tables.fits(sequence, freed=preemptable):
            return None
        return preemptable[-1] if preemptable else None

    def _fits(self, sequence: Sequence) -> bool:
        """Return whether there is memory for it, and one block more for each running sequence, which may grow soon."""
        return self.tables.fits(sequence, spare=len(self.running))

    def _run(self, sequence: Sequence) -> None:
        """Start a sequence whose blocks are allocated; a row must be free."""
        self.tables.attach(sequence)
        self.images.start(sequence)
        sequence.status = Status.RUNNING
        sequence.share.running += 1
        sequence.began_at = len(sequence.token_ids)
        sequence.started_at = sequence.computed
        insort(self.running, sequence, key=_by_order)

    def _stop(self, sequence: Sequence) -> None:
        """Stop a running sequence and free everything it has."""
        self.running.remove(sequence)
        sequence.share.running -= 1
        sequence.charged = max(sequence.charged, sequence.computed)
        self.images.release(sequence)
        self.tables.detach(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        is_decided = not sequence.remaining
        self._stop(sequence)
        if is_decided:
            # Its possible next tokens are known. It is computed again when it continues.
            sequence.status = Status.PENDING
        else:
            self._wait(sequence, is_new=False)

    def _grow(self, group: BlockGroup) -> None:
        group.free_out_of_window(self.running)
        line = list(self.running)
        if group.cache.available < len(line):
            line = memory_order(line)
        index = 0
        while index < len(line):
            sequence = line[index]
            while group.needs_block(sequence) and sequence.remaining and self._give_block(sequence, group, line):
                pass
            index += 1

    def _give_block(self, sequence: Sequence, group: BlockGroup, line: list[Sequence]) -> bool:
        """Give it a private block for the next token, for which the last in ``line``, itself included, are preempted.
        Returns whether it still runs."""
        if group.keeps_last_block(sequence):
            return True
        while not group.cache.available:
            victim = line.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        group.add_block(sequence)
        return True

    def _select(self) -> Schedule:
        # Neighbours with the same adapter read its weights once. Without adapters the order is unchanged.
        decodes = [s for s in self.running if s.remaining == 1 and s.group.pooled is None]
        if any(s.group.adapter is not None for s in decodes):
            decodes.sort(key=attrgetter("adapter_slot"))
        for each in decodes:
            each.share.counter += each.share.token_cost
        encodes = self.inputs.to_encode()
        copies, state_copies = self.tables.take_copies(), self.tables.take_state_copies()
        if len(decodes) == len(self.running):
            self.drafts.fill(decodes)
            self.images.takes_turn = False
            return Schedule(decodes, [], copies, encodes, state_copies, [], self.images.target)
        prefills = [s for s in self.running if s.remaining > 1 or (s.remaining and s.group.pooled is not None)]
        budget = self._prompt_budget(len(decodes)) - sum(len(s.group.request.encoder_input) for s in encodes)
        if decodes and self._contention_steps and budget > 0:
            budget = contended_budget(prefills, budget)
        logit_rows = self.max_logit_rows - len(self.running)  # in addition to one for each sequence
        parts = divide(prefills, decodes, budget)
        room = self.step_tokens - len(decodes)
        chunks, pooled = cut_chunks(parts, budget, logit_rows, whole_texts=self.whole_texts, room=room)
        for chunk in chunks + pooled:
            self.tables.add_chunk(chunk.sequence, chunk.length)
            if chunk.is_last:
                chunk.sequence.share.counter += chunk.sequence.share.token_cost
        sees = self.images.turn(has_both=bool(decodes and chunks))
        return Schedule(decodes, chunks, copies, encodes, state_copies, pooled, sees)

    # Results ---------------------------------------------------------------------------------------------------------

    def record_draft(self, sequence: Sequence, accepted: int) -> None:
        """Record that the first ``accepted`` tokens of the sequence's draft were drawn."""
        self.drafts.record(sequence, accepted)
        sequence.share.counter += accepted * sequence.share.token_cost

    def fork(self, leader: Sequence) -> list[Sequence]:
        """Start the pending sequences of a group whose prompt ``leader`` has computed. Return those that run now.

        They share all of the leader's blocks. Those without a free row wait; they find the prompt in the cache.
        """
        forks = []
        for sequence in leader.group.sequences:
            if sequence.status is not Status.PENDING:
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
        """Apply a step of a beam search: every text that continues gets a sequence.

        The first continuation of a text keeps its sequence and its blocks. Further ones take the sequences that
        became free, and share the blocks up to the first that either writes to. Blocks of dropped texts are freed.
        """
        continuing = [token for token in step.tokens if token.finish is None]
        parents = [group.beams[token.parent] for token in continuing]
        for sequence in group.beams:
            if sequence not in parents:
                self._make_pending(sequence)
        free = [s for s in group.sequences if s not in parents]
        beams: list[Sequence] = []
        for parent in parents:
            if parent not in beams:
                beams.append(parent)
                continue
            beams.append(free.pop(0))
            self._fork_beam(parent, beams[-1])
        for sequence, token in zip(beams, continuing, strict=True):
            sequence.append_token(token.token_id)
            if sequence.status is Status.PENDING:
                self._wait(sequence)
        group.beams = beams

    def _make_pending(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        sequence.status = Status.PENDING

    def _fork_beam(self, parent: Sequence, sequence: Sequence) -> None:
        """Fork a sequence from its parent. It stays pending where the parent is not in memory, or there is no row."""
        sequence.copy_from(parent)
        if parent.status is not Status.RUNNING or not self.tables.free_rows:
            return
        self.tables.share(parent, sequence)
        self._run(sequence)


def _by_rank(turn: tuple[Share[Sequence], int]) -> tuple[bool, float]:
    return turn[0].rank
