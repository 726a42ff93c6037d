"""Which sequences of a step get drafts, how long, and from which source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from dragoman.engine.block_tables import BlockTables
from dragoman.engine.sequence import Sequence
from dragoman.engine.speculation.drafter import Drafter, DraftSource
from dragoman.engine.speculation.forced_text import ForcedText
from dragoman.engine.speculation.lookup import Lookup
from dragoman.engine.speculation.prediction import Prediction
from dragoman.engine.speculation.recent_outputs import RecentOutputsByCaller, RecentOutputsLookup


class Drafts:
    """Makes the drafts of all sequences.

    Attributes:
        rows: rows that a step is filled up to, its sequences' own included.
        drafted: tokens of all drafts, by source. accepted: those that were drawn.
    """

    def __init__(self, tables: BlockTables, *, rows: int, block_size: int, sources: Collection[str]) -> None:
        self.rows = rows
        self.drafted: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self._tables = tables
        self._block_size = block_size
        self._sources = frozenset(sources)
        self._recent = RecentOutputsByCaller()

    def fill(self, sequences: list[Sequence]) -> None:
        """Fill a step that computes one token of each of these sequences, in equal parts.

        A draft stays within the block that its sequence writes to, and within the sequence's maximum length.
        """
        rows = self._tables.draft_room(self.rows - len(sequences))
        for index, sequence in enumerate(sequences):
            if rows <= 0:
                break
            room = -(sequence.computed + 1) % self._block_size
            most = min(-(-rows // (len(sequences) - index)), room, sequence.max_length - len(sequence.token_ids) - 1)
            if most <= 0 or sequence.group.search is not None:
                continue
            self._draft(sequence, most)
            rows -= len(sequence.draft)
            self._tables.add_draft(sequence)

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
