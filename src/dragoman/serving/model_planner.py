"""The settings of each model, and the memory that it takes, before it is loaded."""

from __future__ import annotations

import msgspec

from dragoman.engine.messages import LoadDraft, LoadHead, LoadModel, WorkerSettings
from dragoman.engine.worker_settings import without_draft_memory
from dragoman.models import MemoryPlan, ModelDescription, ModelSettings, describe, plan
from dragoman.models.memory import available_memory
from dragoman.models.memory_share import ENGINE_BYTES, plan_within, tokenizer_bytes
from dragoman.serving.adapter_registry import AdapterRegistry
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.pool_loader import ModelMemory

TEXT_BYTES = 32 << 20
"""What a model takes in the server beside its tokenizer: a template's process."""
GROWN_BYTES = 128 << 20
"""By how much the server's memory may exceed ``SERVER_BYTES``: measured 90 MB after some models of 150,000 tokens."""


class ModelPlanner:
    """Plans models that share a machine, all with the settings of the first one, ``first``. Its methods read the files
    of models, or download them: they are called in a thread."""

    def __init__(self, first: WorkerSettings, adapters: AdapterRegistry, memory_bytes: int | None) -> None:
        """``memory_bytes``: the operator's budget for the server and all models."""
        self._first = first
        self._adapters = adapters
        self._memory_bytes = memory_bytes
        self._machine_bytes = available_memory()
        self._has_begun = False

    def begin(self) -> None:
        """The first model is loaded now: it gets what the machine has, unless the operator sets a budget."""
        self._has_begun = True

    def is_first(self, source: ModelSource) -> bool:
        """Return whether this is the model of the start. Models that are no files have no others beside them."""
        model = self._first.model
        return not isinstance(model, LoadModel) or model.source == source.source

    def memory_of(self, source: ModelSource) -> ModelMemory:
        """Return the memory of a model: with a budget of the operator's, within that; otherwise each as if it were
        alone, with as many keys and values. Raises ModelError."""
        settings = self.settings_of(source)
        if settings is None:
            return ModelMemory(0, 0)
        described = describe(source.source, **settings.describing)
        found = self._planned(source, described, settings)[1]
        draft = self._draft_of(source)
        serving_bytes = (
            found.total_bytes
            + (0 if draft is None else draft.nbytes)
            + self._adapter_bytes(found)
            + _around_bytes(described)
        )
        # As in the plan: what is needed for packing is free again when there are buffers for steps.
        loading_bytes = max(0, found.loading_bytes - found.activation_bytes)
        return ModelMemory(serving_bytes, serving_bytes + loading_bytes)

    def settings_of(self, source: ModelSource) -> ModelSettings | None:
        """Return the first model's settings, without those that belong to that model only; None: a model that is no
        files has none."""
        model = self._first.model
        if not isinstance(model, LoadModel):
            return None
        if model.source == source.source:
            return model.settings
        return msgspec.structs.replace(model.settings, name=None, revision=None, rope_scaling=None, rope_factor=None)

    def worker_of(self, source: ModelSource, *, plans: bool) -> WorkerSettings:
        """Return the settings of a model's process. ``plans``: it shares this machine's memory. Raises ModelError."""
        settings = self.settings_of(source)
        if settings is None:
            return self._first
        if plans and (self._has_begun or self._memory_bytes is not None):
            described = describe(source.source, **settings.describing)
            settings = self._planned(source, described, settings)[0]
        model = LoadModel(source=source.source, settings=settings)
        # What the first one could take at the start is no limit for those that come after it.
        available = None if self._has_begun else self._first.available_bytes
        draft = self._draft_of(source)
        return msgspec.structs.replace(self._first, model=model, draft=draft, available_bytes=available)

    def _draft_of(self, source: ModelSource) -> LoadDraft | LoadHead | None:
        """Return what drafts for a model: the first model has a draft model or a head, if any has."""
        model = self._first.model
        return self._first.draft if isinstance(model, LoadModel) and model.source == source.source else None

    def _planned(
        self, source: ModelSource, described: ModelDescription, settings: ModelSettings
    ) -> tuple[ModelSettings, MemoryPlan]:
        """Return a model's settings with its share of the memory. Raises ModelError."""
        draft = self._draft_of(source)
        if self._memory_bytes is not None:
            return plan_within(described, settings, without_draft_memory(self._memory_bytes, draft))
        # A model that fills the memory has to fit in again after another one, with all that comes with it, and if it
        # can in a server that has grown. A tenth stays free. One that is too large is at least served as the first.
        around = _around_bytes(described)
        left = without_draft_memory(self._machine_bytes, draft)
        for taken in (around + GROWN_BYTES, around + GROWN_BYTES // 2, around, 0):
            found = plan(described, settings, available_bytes=max(0, left - taken * 10 // 9))
            if found.refusal is None:
                break
        found.require_fit()
        if settings.kv_bytes is None and settings.kv_tokens is None and found.kv_bytes:
            # Otherwise an engine that starts while another runs would take less for them, and keep less for good.
            settings = msgspec.structs.replace(settings, kv_bytes=found.kv_bytes)
        return settings, found

    def _adapter_bytes(self, found: MemoryPlan) -> int:
        """Return the room for adapters, where the operator offers any."""
        offered = next(self._adapters.sources(), None)
        return found.adapter_room_bytes if self._memory_bytes is not None and offered is not None else 0


def _around_bytes(described: ModelDescription) -> int:
    """Return what a model takes in addition to its plan: its process, and its text in the server's."""
    return ENGINE_BYTES + TEXT_BYTES + tokenizer_bytes(described.tokenizer_folder)
