"""What a step's logits become: tokens, log-probabilities and the ends of sequences, as events."""

from __future__ import annotations

import numpy as np

from dragoman import kernels
from dragoman.core.events import (
    BeamStep,
    EngineEvent,
    FinishEvent,
    FinishReason,
    Predictions,
    PromptEvent,
    TokenEvent,
)
from dragoman.core.request import EngineRequest
from dragoman.engine.arrays import Float32
from dragoman.engine.beam_search.step import search
from dragoman.engine.sampling.sampler import Sampler, top_logprobs
from dragoman.engine.schedule import Chunk, Schedule
from dragoman.engine.scheduler import Scheduler
from dragoman.engine.sequence import Sequence, SequenceGroup

_FAILED_ROW = "the model gave no valid distribution for the next token"
_FAILED_VECTOR = "the model gave no valid vector for the text"


class Postprocessor:
    """Records what steps have computed with the scheduler, draws tokens, and keeps the events until they are taken.

    Attributes:
        events: since the last output. beam_steps: of beam searches, since then too.
        step_started_s: when the step that is computed began, by the clock of ``SequenceGroup.arrived_s``.
        prompt_tokens: of prompts that are computed. cached_tokens: those of them that were in the prefix cache.
        generated_tokens: that were drawn.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.events: list[EngineEvent] = []
        self.beam_steps: list[BeamStep] = []
        self.step_started_s = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self._scheduler = scheduler
        self._sampler = Sampler()

    def take(self) -> tuple[list[EngineEvent], list[BeamStep]]:
        """Return the events and the steps of beam searches since the last call."""
        events, self.events = self.events, []
        beam_steps, self.beam_steps = self.beam_steps, []
        return events, beam_steps

    def refuse(self, request: EngineRequest, message: str) -> None:
        """End all sequences of a request that was not queued."""
        for index in range(len(request.seeds)):
            self.events.append(FinishEvent(request.request_id, index, FinishReason.ERROR, message))

    def end(self, sequence: Sequence, finish: FinishReason, message: str = "") -> None:
        """End a sequence that gets no further token."""
        self.events.append(FinishEvent(sequence.group.request_id, sequence.index, finish, message))
        self._scheduler.finish(sequence)

    def note_queue_time(self, group: SequenceGroup) -> float:
        """Record and return the seconds from the group's arrival to the first step that computes for it."""
        if group.queue_s is None:
            group.queue_s = max(0.0, self.step_started_s - group.arrived_s)
        return group.queue_s

    def finish_pooled(self, sequence: Sequence, vector: Float32) -> None:
        """Finish a text without tokens of its own: with its vector."""
        if not np.isfinite(vector).all():
            self.end(sequence, FinishReason.ERROR, _FAILED_VECTOR)
            return
        self._finish_prompt(sequence.group, vector.tobytes())
        self.end(sequence, FinishReason.LENGTH)

    def process(self, schedule: Schedule, logits: Float32) -> None:
        """Record what was computed, and draw the next tokens.

        ``logits``: ``[rows, vocabulary]``, in the order of the schedule: for each decode a row, and one for each token
        of its draft; then for each chunk those of prompt tokens whose log-probabilities are wanted, and its last.
        """
        drawing, rows = self._record_computed(schedule, logits)
        if any(sequence.group.search is not None for sequence in drawing):
            drawing, rows = self._search(drawing, rows, logits)
        place = 0
        while drawing:
            drawing, rows = self._draw(drawing, rows, logits, place)
            place += 1

    def _search(self, drawing: list[Sequence], rows: list[int], logits: Float32) -> tuple[list[Sequence], list[int]]:
        """Advance beam searches. Returns the sequences that draw for themselves, with their rows."""
        found = search(self._scheduler, drawing, rows, logits)
        self.beam_steps += found.steps
        self.events += found.events
        others = [(sequence, row) for sequence, row in zip(drawing, rows, strict=True) if sequence.group.search is None]
        self.generated_tokens += len(drawing) - len(others)
        return [sequence for sequence, _ in others], [row for _, row in others]

    def _draw(
        self, drawing: list[Sequence], rows: list[int], logits: Float32, place: int
    ) -> tuple[list[Sequence], list[int]]:
        """Draw the next token of each sequence from its row of the logits.

        Returns those whose draft has that token at ``place``, with the rows that are valid because of it. They draw
        again, exactly as in the next step: processors and random numbers do not depend on drafts.
        """
        first, end = rows[0], rows[-1] + 1
        logits = logits[first:end] if rows == list(range(first, end)) else logits[rows]
        sampled = self._sampler.sample(logits, drawing)
        continuing: list[Sequence] = []
        continuing_rows: list[int] = []
        for index, (sequence, token_id) in enumerate(zip(drawing, sampled.token_ids, strict=True)):
            grammar_state = sequence.grammar_state
            if token_id < 0:
                self.end(sequence, FinishReason.ERROR, (grammar_state and grammar_state.error) or _FAILED_ROW)
                continue
            sequence.token_ids.append(token_id)
            mirostat = sampled.mirostat.get(index)
            if mirostat is not None:
                sequence.mirostat = mirostat
            finish = sequence.end_reason(token_id, complete=grammar_state is not None and grammar_state.push(token_id))
            draft = sequence.draft
            is_drafted = finish is None and place < len(draft) and draft[place] == token_id
            is_tried = draft and not is_drafted and sequence.drafts_prediction
            self.events.append(
                TokenEvent(
                    sequence.group.request_id,
                    sequence.index,
                    sequence.num_generated - 1,
                    token_id,
                    finish,
                    sampled.logprobs.get(index),
                    sampled.top.get(index, ()),
                    mirostat,
                    predictions=Predictions(place, len(draft) - place) if is_tried else None,
                )
            )
            if is_drafted:
                self._scheduler.tables.mark_computed(sequence, 1)
                continuing.append(sequence)
                continuing_rows.append(rows[index] + 1)
                continue
            if draft:
                self._scheduler.record_draft(sequence, place)
            if finish is not None:
                self._scheduler.finish(sequence)
        self.generated_tokens += len(drawing)
        return continuing, continuing_rows

    def _record_computed(self, schedule: Schedule, logits: Float32) -> tuple[list[Sequence], list[int]]:
        """Record the computed tokens. Returns the sequences that draw a token now, and their rows of the logits."""
        drawing, rows, row = list(schedule.decodes), [], 0
        mark_computed = self._scheduler.tables.mark_computed
        for sequence in schedule.decodes:
            mark_computed(sequence, 1)
            rows.append(row)
            row += 1 + len(sequence.draft)
        for chunk in schedule.chunks:
            self._add_prompt_logprobs(chunk, logits, row)
            mark_computed(chunk.sequence, chunk.length)
            if chunk.sequence.computed >= chunk.sequence.prompt_length:
                self._scheduler.images.release(chunk.sequence)
            row += chunk.logit_rows
            if chunk.is_last:
                drawing.append(chunk.sequence)
                rows.append(row - 1)
        for sequence, row in list(zip(drawing, rows, strict=True)):
            group = sequence.group
            if group.request.pooling is not None:
                place = drawing.index(sequence)
                del drawing[place], rows[place]
                self.finish_pooled(sequence, logits[row, list(group.request.pooling.token_ids)])
                continue
            if not group.prompt_done:
                self._finish_prompt(group)
            if sequence.num_generated or group.search is not None:
                continue
            if group.request.max_tokens == 0:
                for each in group.unfinished:
                    self.end(each, FinishReason.LENGTH)
                place = drawing.index(sequence)
                del drawing[place], rows[place]
                continue
            for fork in self._scheduler.fork(sequence):
                drawing.append(fork)
                rows.append(row)
        return drawing, rows

    def _finish_prompt(self, group: SequenceGroup, vector: bytes = b"") -> None:
        group.prompt_done = True
        queue_s = self.note_queue_time(group)
        cached = group.cached_tokens or 0
        self.prompt_tokens += group.request.prompt_tokens
        self.cached_tokens += cached
        requested = group.request.logprobs
        if requested is None or not requested.prompt:
            self.events.append(PromptEvent(group.request_id, cached, queue_s=queue_s, pooled=vector))
        else:
            logprobs, top = tuple(group.prompt_logprobs), tuple(group.prompt_top)
            self.events.append(PromptEvent(group.request_id, cached, logprobs, top, queue_s))

    def _add_prompt_logprobs(self, chunk: Chunk, logits: Float32, row: int) -> None:
        """Record log-probabilities of the prompt tokens after the chunk's prompt rows, the first of which is
        ``row``."""
        sequence, group = chunk.sequence, chunk.sequence.group
        count = chunk.end_prompt_row - chunk.first_prompt_row
        first = sequence.computed + chunk.first_prompt_row + 1
        known = max(0, len(group.prompt_logprobs) - first)
        if count <= known:
            return
        rows = list(range(row + known, row + count))
        values = kernels.log_softmax_at(logits, rows, sequence.token_ids[first + known : first + count])
        count = len(rows)
        top = top_logprobs(logits, rows, [sequence.top_logprobs] * count, [sequence.keeps_ties] * count)
        group.prompt_logprobs.extend(values.tolist())
        group.prompt_top.extend(top.get(each, ()) for each in rows)
