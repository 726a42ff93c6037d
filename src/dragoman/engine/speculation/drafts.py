"""Which sequences of a step get drafts, how long, and from which source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from dragoman.engine.arrays import Float32
from dragoman.engine.block_tables import BlockTables
from dragoman.engine.runner import Runner
from dragoman.engine.schedule import Schedule
from dragoman.engine.sequence import Sequence
from dragoman.engine.speculation.cost_table import CostTable
from dragoman.engine.speculation.draft_head import HeadDrafts, HeadRunner
from dragoman.engine.speculation.draft_model import DraftModel
from dragoman.engine.speculation.drafter import Drafter, DraftSource
from dragoman.engine.speculation.forced_text import ForcedText
from dragoman.engine.speculation.lookup import Lookup
from dragoman.engine.speculation.prediction import Prediction
from dragoman.engine.speculation.recent_outputs import RecentOutputsByCaller, RecentOutputsLookup
from dragoman.models.batch import Batch


class Drafts:
    """Makes the drafts of all sequences.

    Attributes:
        rows: rows that a step is filled up to, its sequences' own included.
        drafted: tokens of all drafts, by source. accepted: those that were drawn.
        model: a smaller model, or a head of the model itself, that drafts for those for whom no other source has
            anything; None: there is none.
        costs: times steps while nothing else is to be done; None where no model or head drafts.
    """

    def __init__(self, tables: BlockTables, *, rows: int, block_size: int, sources: Collection[str]) -> None:
        self.rows = rows
        self.drafted: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self._tables = tables
        self._block_size = block_size
        self._sources = frozenset(sources)
        self._recent = RecentOutputsByCaller()
        self.model: DraftModel | None = None
        self.costs: CostTable | None = None
        self._hidden_rows: Callable[[int], Float32] | None = None
        self._asked: list[tuple[Sequence, int]] = []
        self._running = 0

    @property
    def tried_bytes(self) -> int:
        """What the runner has read in steps that were only timed."""
        return 0 if self.costs is None else self.costs.read_bytes

    def fill(self, sequences: list[Sequence]) -> None:
        """Fill a step that computes one token of each of these sequences, in equal parts.

        A draft stays within the block that its sequence writes to, and within the sequence's maximum length.
        ``add_model_drafts`` follows, just before the step.
        """
        rows = self._tables.draft_room(self.rows - len(sequences))
        self._asked, self._running = [], len(sequences)
        asks_model = self.model is not None and rows >= self.model.least_guesses * len(sequences)
        for index, sequence in enumerate(sequences):
            if rows <= 0:
                break
            room = -(sequence.computed + 1) % self._block_size
            most = min(-(-rows // (len(sequences) - index)), room, sequence.max_length - len(sequence.token_ids) - 1)
            if most <= 0 or sequence.group.search is not None:
                continue
            self._draft(sequence, most)
            if asks_model and not sequence.draft and _is_text(sequence):
                self._asked.append((sequence, most))
                rows -= most
                continue
            rows -= len(sequence.draft)
            self._tables.add_draft(sequence)

    def use_model(self, runner: Runner) -> None:
        """Have a smaller model draft too, unless drafts, or those of models, are turned off."""
        if self.rows and DraftSource.MODEL in self._sources:
            self.model = DraftModel(runner)

    def use_head(self, head: HeadRunner, hidden_rows: Callable[[int], Float32]) -> None:
        """Have a head of the model draft too, unless drafts, or those of heads, are turned off.

        ``hidden_rows`` returns the hidden states of the first rows of the model's last step.
        """
        if self.rows and DraftSource.HEADS in self._sources:
            self.model = HeadDrafts(head)
            self._hidden_rows = hidden_rows

    def plan_costs(self, runner: Runner) -> None:
        """Have steps timed before the first request, where their costs decide about drafts. ``runner``: of the model
        that is drafted for."""
        if self.model is not None:
            self.costs = CostTable(runner, self._tables, self.model)

    def add_model_drafts(self, meanwhile: Callable[[], None] | None) -> Callable[[], None] | None:
        """Compute the draft model's drafts for the step that was filled last, if it was. ``meanwhile`` is called once,
        if anything is computed. Returns what is still to be called."""
        if self.model is None or not self._asked:
            return meanwhile
        asked, self._asked = self._asked, []
        for sequence, owner, draft in self.model.draft(asked, self._running, meanwhile):
            sequence.draft, sequence.drafter = draft, owner
            self._tables.add_draft(sequence)
        return None if self.model.has_computed else meanwhile

    def note_step(self, schedule: Schedule, batch: Batch, seconds: float) -> None:
        """Learn what a step took, and what it computed that a head reads."""
        rows = len(batch.token_ids)
        if self.model is not None and not schedule.chunks:
            self.model.gain.model_costs.note(rows, seconds)
        if self._hidden_rows is not None and isinstance(self.model, HeadDrafts):
            sequences = [*schedule.decodes, *(chunk.sequence for chunk in schedule.chunks)]
            self.model.note(
                [each if each.group.search is None and _is_text(each) else None for each in sequences],
                batch,
                self._hidden_rows(rows),
            )

    def record(self, sequence: Sequence, accepted: int) -> None:
        """Record that the first ``accepted`` tokens of the sequence's draft were drawn. The others are overwritten."""
        drafter, drafted = sequence.drafter, len(sequence.draft)
        assert drafter is not None
        drafter.verified(len(sequence.token_ids), drafted, accepted)
        self.drafted[drafter.source] += drafted
        self.accepted[drafter.source] += accepted
        sequence.draft = []
        self._tables.end_draft(sequence)

    def end(self, sequence: Sequence) -> None:
        """Keep the output of a sequence that has ended for later drafts."""
        if self.model is not None:
            self.model.end(sequence)
        if self.rows and DraftSource.RECENT in self._sources and sequence.group.search is None:
            output = sequence.token_ids[sequence.prompt_length :]
            if output:
                self._recent.of(sequence.group.request.cache_salt).add(output)

    def _draft(self, sequence: Sequence, most: int) -> None:
        """Give a sequence the draft of the first source that has any."""
        if sequence.drafters is None:
            sequence.drafters = self._drafters(sequence)
        for drafter in sequence.drafters:
            draft = drafter.draft(sequence.token_ids, most)
            if draft:
                sequence.draft, sequence.drafter = draft, drafter
                return

    def _drafters(self, sequence: Sequence) -> tuple[Drafter, ...]:
        """Return a sequence's sources, in the order of ``DraftSource``."""
        request, start, found = sequence.group.request, sequence.prompt_length, list[Drafter]()
        if request.prediction and DraftSource.PREDICTION in self._sources:
            found.append(Prediction(request.prediction, start))
        if sequence.grammar_state is not None and DraftSource.GRAMMAR in self._sources:
            found.append(ForcedText(sequence.grammar_state))
        if DraftSource.LOOKUP in self._sources:
            found.append(Lookup(sequence.max_length, request.encoder_input))
        if DraftSource.RECENT in self._sources:
            found.append(RecentOutputsLookup(self._recent.of(request.cache_salt), start))
        return tuple(found)


def _is_text(sequence: Sequence) -> bool:
    """Return whether its token ids are all that its next token depends on: a draft model sees nothing else."""
    group = sequence.group
    return group.embeddings is None and group.images is None and group.encoder is None
