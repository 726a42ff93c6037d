"""The engine in one process: requests in, one output per step. A step is schedule, run, sample, postprocess."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dragoman import kernels
from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.events import (
    FinishEvent,
    FinishReason,
)
from dragoman.core.explanation import EngineExplanation
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import Vocabulary
from dragoman.engine import admission
from dragoman.engine.batch import build_batch, second_text_rows
from dragoman.engine.beam_search.step import results
from dragoman.engine.block_recorder import BlockRecorder
from dragoman.engine.disk_cache import close_disk, disk_stats, open_disk
from dragoman.engine.encoder import encode
from dragoman.engine.explain import explain
from dragoman.engine.lora_slots import Adapter, Adapters
from dragoman.engine.messages import EngineStats, StepOutput
from dragoman.engine.postprocessor import Postprocessor
from dragoman.engine.progress import PromptProgress
from dragoman.engine.prompt_images import images_of
from dragoman.engine.runner import Runner
from dragoman.engine.sampling.grammar_state import CompiledRequest, Grammars
from dragoman.engine.sampling.processors import processors_for
from dragoman.engine.schedule import Schedule
from dragoman.engine.scheduler import Scheduler
from dragoman.engine.sequence import Sequence, SequenceGroup, Status
from dragoman.engine.settings import SchedulerSettings
from dragoman.models import AdapterInfo
from dragoman.models.batch import Batch

_PATIENCE_S = 0.005
"""Maximum time a step without other work waits for a grammar, or for the disk. Messages wait as long."""
_PROMPT_ROWS = 32
"""Tokens of a step from which on its time says how long prompts take."""


class Engine:
    """Runs requests on a ``Runner``. Not thread-safe. Call ``step`` while ``has_work``."""

    def __init__(self, runner: Runner, settings: SchedulerSettings | None = None) -> None:
        self.runner = runner
        self.scheduler = Scheduler(runner, settings)
        self.postprocessor = Postprocessor(self.scheduler)
        self.adapters = Adapters(runner)
        self._grammars = Grammars()
        self._pending_adapters: dict[str, Adapter] = {}
        """Adapters of requests that wait for their grammar."""
        self._was_interrupted = False
        self._arrivals = 0
        self._progress = PromptProgress()
        self._steps = 0
        self._busy_s = 0.0
        self._forward_s = 0.0

    def open_disk(
        self, path: Path, limit_bytes: int | None, fingerprint: str, *, label: str = "", compares: bool = True
    ) -> None:
        """Keep prefixes on disk too, from before the first request on. Nothing waits for the disk."""
        open_disk(self.scheduler, self.runner, path, limit_bytes, fingerprint, label, compares)

    def close(self) -> None:
        """Write what is left to be kept on disk, for a second at most. No step follows."""
        close_disk(self.scheduler, self.runner)

    def report_blocks(self) -> None:
        """Add the events of the prefix cache to all outputs from now on."""
        cache = self.scheduler.cache
        self.scheduler.tables.events = events = BlockRecorder(cache.block_size)
        cache.on_removed.append(events.removed)

    # Requests --------------------------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. One that cannot be served gets FinishEvents with the reason, in the next output."""
        try:
            if request.request_id in self.scheduler.groups or request.request_id in self._grammars:
                raise BadRequest(f"request id {request.request_id!r} is already in use")
            admission.check(request, self.runner, self.scheduler.step_tokens, self.scheduler.capacity)
            adapter = None if request.adapter is None else self.adapters[request.adapter]
            if request.grammar is None:
                self._admit(CompiledRequest(request), adapter)
                return
            self._grammars.prepare(request)
            if adapter is not None:
                self._pending_adapters[request.request_id] = adapter
        except DragomanError as error:
            self.postprocessor.refuse(request, error.message)

    def explain(self, request: EngineRequest) -> EngineExplanation:
        """Return what would be done with a request now, which is not queued."""
        try:
            admission.check(request, self.runner, self.scheduler.step_tokens, self.scheduler.capacity)
            adapter = None if request.adapter is None else self.adapters[request.adapter]
        except DragomanError as error:
            return EngineExplanation(error=error.message)
        return explain(request, self.scheduler.tables, adapter, images_of(request, self.runner.tower))

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary of grammars; before the first request that has one."""
        self._grammars.set_vocabulary(vocabulary)

    def load_adapter(self, name: str, source: str) -> AdapterInfo:
        """Read the adapter in a folder, synchronously. Raises ModelError, and Conflict where there is no free slot."""
        self.free_unused_adapters()
        return self.adapters.load(name, source)

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter for later requests; those that run with it finish. Raises AdapterNotFound."""
        self.adapters.unload(name)
        self.free_unused_adapters()

    def free_unused_adapters(self) -> None:
        """Free the slots of unloaded adapters whose last sequence is finished."""
        if self.adapters.has_unloading:
            running = [group.adapter for group in self.scheduler.groups.values()]
            self.adapters.free_unused([*running, *self._pending_adapters.values()])

    def _admit(self, prepared: CompiledRequest, adapter: Adapter | None) -> None:
        request = prepared.request
        self._arrivals += 1
        group = SequenceGroup(
            request,
            self._arrivals,
            lambda: processors_for(request),
            prepared.grammar_states,
            adapter,
            images_of(request, self.runner.tower),
        )
        group.arrived_s = time.perf_counter()
        for index in prepared.cancelled:
            for sequence in group.cancel(index):
                sequence.status = Status.FINISHED
        if group.search is not None and group.search.is_over:
            self.postprocessor.events += results(group)
            return
        for sequence in group.unfinished if group.search is None else ():
            if sequence.num_generated >= request.max_tokens > 0:
                sequence.status = Status.FINISHED
                self.postprocessor.events.append(FinishEvent(request.request_id, sequence.index, FinishReason.LENGTH))
        if group.unfinished:
            self.scheduler.add(group)
            if request.progress:
                self._progress.add(group)

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        """Cancel a request or one of its sequences; unknown ones are ignored. No event follows."""
        self._grammars.cancel(request_id, sequence)
        if request_id not in self._grammars:
            self._pending_adapters.pop(request_id, None)
        group = self.scheduler.groups.get(request_id)
        for each in group.cancel(sequence) if group is not None else ():
            self.scheduler.finish(each)

    def pause(self, request_id: str) -> None:
        """Stop computing a request until ``resume``; unknown ones are ignored."""
        group = self.scheduler.groups.get(request_id)
        if group is not None:
            self.scheduler.pause(group)

    def resume(self, request_id: str) -> None:
        """Continue a paused request; unknown ones are ignored."""
        group = self.scheduler.groups.get(request_id)
        if group is not None:
            self.scheduler.resume(group)

    # The step --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self.postprocessor.events) or bool(self._grammars)

    def step(self) -> StepOutput:
        """Schedule and run one step; return its output."""
        return self.run(self.schedule())

    def schedule(self) -> Schedule:
        """Return the schedule of the next step. Requests whose grammars have become ready take part."""
        idle = not (self.scheduler.has_work or self.postprocessor.events)
        for prepared in self._grammars.ready(_PATIENCE_S if idle else 0.0):
            if prepared.error:
                self.postprocessor.refuse(prepared.request, prepared.error)
            else:
                self._admit(prepared, self._pending_adapters.get(prepared.request.request_id))
            self._pending_adapters.pop(prepared.request.request_id, None)
        self.free_unused_adapters()
        disk = self.scheduler.tables.disk
        if disk is None:
            return self.scheduler.schedule()
        disk.finish()
        schedule = self.scheduler.schedule()
        disk.store.is_busy = bool(self.scheduler.running)
        if not self.scheduler.running and not self.postprocessor.events and disk.is_reading:
            disk.store.wait(_PATIENCE_S)
        return schedule

    def run(
        self, schedule: Schedule, meanwhile: Callable[[], None] | None = None, interrupt: int | None = None
    ) -> StepOutput:
        """Compute a schedule. Exceptions of the runner pass through, and the engine is unusable afterwards.

        ``meanwhile`` is called once: by any thread and during the computation, where there is something to compute.
        ``interrupt``: a file descriptor. A step of deferrable requests ends without a result when it becomes readable,
        so that a request that comes then does not wait for the step. The step after such a one is computed whole.
        """
        if self._was_interrupted or self.scheduler.tables.states is not None or not schedule.is_deferrable:
            interrupt = None
        self._was_interrupted = False
        self.postprocessor.step_started_s = started = time.perf_counter()
        for chunk in (*schedule.chunks, *schedule.pooled):
            self.postprocessor.note_queue_time(chunk.sequence.group)
        for group, copies in schedule.copies.items():
            sources, targets = np.array(copies, np.int32).T.copy()
            self.runner.copy_blocks(sources, targets, group)
        if schedule.state_copies:
            sources, targets = np.array(schedule.state_copies, np.int32).T.copy()
            self.runner.copy_states(sources, targets)
        if schedule.sees is not None:
            if meanwhile is not None:
                meanwhile()
                meanwhile = None
            self._see(schedule.sees, bool(schedule.decodes))
        if schedule.encodes:
            tables = self.scheduler.tables.encoder_blocks
            encode(schedule.encodes, self.scheduler.inputs, self.runner, tables)
        if schedule.decodes or schedule.chunks:
            meanwhile = self.scheduler.drafts.add_model_drafts(meanwhile)
            batch = self._batch(schedule)
            forward_started = time.perf_counter()
            try:
                logits = self.runner.run(batch, meanwhile, interrupt)
            except kernels.Interrupted:
                self._was_interrupted = True
                schedule.withdraw()
                return self.output()
            forward_s = time.perf_counter() - forward_started
            self._forward_s += forward_s
            if len(batch.token_ids) >= _PROMPT_ROWS:
                self.scheduler.images.note_prompt(forward_s, len(batch.token_ids))
                if self.scheduler.tables.disk is not None:
                    self.scheduler.tables.disk.store.note_prompt(forward_s, len(batch.token_ids))
            self.postprocessor.process(schedule, logits)
            self.scheduler.drafts.note_step(schedule, batch, time.perf_counter() - forward_started)
            self._steps += 1
        elif meanwhile is not None:
            meanwhile()
        if schedule.pooled:
            self._pool(schedule, interrupt)
        self.postprocessor.events += self._progress.events(self.scheduler.waiting)
        self._busy_s += time.perf_counter() - started
        return self.output()

    def _batch(self, schedule: Schedule) -> Batch:
        tables, size = self.scheduler.tables, self.runner.block_size
        has_states = tables.states is not None
        return build_batch(schedule, tables.blocks, tables.encoder_blocks, block_size=size, has_states=has_states)

    def _see(self, sequence: Sequence, is_awaited: bool) -> None:
        """Compute a part of an image of a waiting sequence. ``is_awaited``: the step has decode rows."""
        self.postprocessor.note_queue_time(sequence.group)
        tokens = self.scheduler.settings.mixed_prefill_tokens if is_awaited else None
        if message := self.scheduler.images.run(tokens):
            for each in sequence.group.unfinished:
                self.postprocessor.end(each, FinishReason.ERROR, message)

    def _pool(self, schedule: Schedule, interrupt: int | None) -> None:
        """Compute the scheduled texts whose hidden states are pooled; those that are complete are finished."""
        tables = self.scheduler.tables
        chunks = schedule._replace(decodes=[], chunks=schedule.pooled)
        batch = self._batch(chunks)
        started = time.perf_counter()
        try:
            hidden = self.runner.pool(batch, second_text_rows(schedule.pooled), interrupt)
        except kernels.Interrupted:
            self._was_interrupted = True
            return
        self._forward_s += time.perf_counter() - started
        self._steps += 1
        row = 0
        for chunk in schedule.pooled:
            sequence, group = chunk.sequence, chunk.sequence.group
            assert group.pooled is not None
            group.pooled.add(hidden[row : row + chunk.logit_rows])
            row += chunk.logit_rows
            tables.mark_computed(sequence, chunk.length)
            if not sequence.remaining:
                self.postprocessor.finish_pooled(sequence, self.runner.project(group.pooled.vector))

    def output(self) -> StepOutput:
        """Return all events since the last output."""
        events, beam_steps = self.postprocessor.take()
        blocks = self.scheduler.tables.events
        return StepOutput(events, self._stats(), beam_steps, [] if blocks is None else blocks.take())

    def _stats(self) -> EngineStats:
        scheduler, free = self.scheduler, self.scheduler.tables.free_blocks
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks=scheduler.cache.num_blocks,
            free_blocks=free,
            cached_blocks=min(scheduler.cache.cached, free),
            steps=self._steps,
            prompt_tokens=self.postprocessor.prompt_tokens,
            cached_tokens=self.postprocessor.cached_tokens,
            generated_tokens=self.postprocessor.generated_tokens,
            preemptions=scheduler.preemptions,
            drafted=dict(scheduler.drafts.drafted),
            accepted=dict(scheduler.drafts.accepted),
            busy_s=self._busy_s,
            forward_s=self._forward_s,
            read_bytes=self.runner.read_bytes - self.scheduler.drafts.tried_bytes,
            **scheduler.images.stats(),
            **disk_stats(scheduler),
        )
