"""A model in memory with its engine's process and its text processing, and the loader of such models."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import msgspec

import dragoman
from dragoman.core.capsule import Environment
from dragoman.core.catalog import CatalogEntry, FileProgress, ModelDetails, ModelState
from dragoman.core.observer import Observers
from dragoman.core.sampling_defaults import SamplingDefaults
from dragoman.core.serving import ModelCard
from dragoman.engine.block_events import BlockEvent
from dragoman.engine.messages import EngineInfo, EngineStats, LoadDraft, LoadHead, LoadModel, WorkerSettings
from dragoman.engine.worker_settings import without_draft_memory
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.connection import Spawn
from dragoman.engine_client.health import State
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.models import MemoryPlan, ModelDescription, ModelSettings, describe, plan
from dragoman.models.generation_config import AUTO, NONE, read_generation_config
from dragoman.models.memory import available_memory
from dragoman.models.memory_share import ENGINE_BYTES, plan_within
from dragoman.serving.adapter_registry import AdapterRegistry
from dragoman.serving.admission import Admission
from dragoman.serving.downloads import download
from dragoman.serving.draft_vocabulary import draft_vocabulary
from dragoman.serving.engine_request import output_tokens
from dragoman.serving.image_prompts import image_info
from dragoman.serving.image_reader import ImageReader
from dragoman.serving.model import ServedModel
from dragoman.serving.model_details import details_of
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.pool_loader import ModelMemory, Progress
from dragoman.serving.recorder import Recorder
from dragoman.serving.resume_store import SqliteResumeStore
from dragoman.serving.serving import NOT_RECORDED, CheckPrompt, EngineServing
from dragoman.serving.settings import SamplingSettings, ServingSettings
from dragoman.serving.shared_streams import SharingEngine
from dragoman.serving.worker_pool import WorkerPools
from dragoman.text import ChatTemplate, Tokenizer
from dragoman.text.tool_calls import reasoning_of, tool_calls_of

log = logging.getLogger("dragoman.server")

NO_SAMPLING = SamplingSettings()

TEXT_BYTES, TEXT_FACTOR = 32 << 20, 10
"""What a model takes in the server's process: a template's process, and a tokenizer of so many times its file."""

Step = Callable[[EngineStats, EngineStats, float], None]
"""Called for every step of an engine, with its counts before and after, and the seconds that dispatching its tokens
took."""

Engine = EngineClient | VllmClient
OnBlocks = Callable[[EngineClient, int, list[BlockEvent] | None], None]
"""Called with an engine, the tokens of one of its blocks, and the events of its prefix cache; None: it is empty."""


class LoadedModel:
    """An engine that can generate, and its serving. Its counts are added to the ``past`` ones when it is closed."""

    def __init__(
        self,
        source: ModelSource,
        engine: Engine,
        info: EngineInfo,
        template: ChatTemplate,
        serving: EngineServing,
        past: dict[str, float],
        past_drafts: Counter[tuple[str, str]],
        adapter_slots: int = 0,
    ) -> None:
        """``adapter_slots``: how many adapters fit into its memory at one time."""
        self._adapter_slots = adapter_slots
        self.engine = engine
        self.info = info
        self.serving = serving
        self._template = template
        self._past, self._past_drafts = past, past_drafts
        card = serving.model(None)
        self._entry = CatalogEntry(
            id=source.name,
            aliases=tuple(dict.fromkeys((*source.aliases, *(each.name for each in serving.models())))),
            title=card.name,
            state=ModelState.LOADED,
            progress=1.0,
            architecture=info.model.architecture,
            precision=info.model.precision,
            parameters=info.model.parameter_count,
            context_tokens=card.context_tokens,
            size_bytes=source.size_bytes,
            modified=source.modified,
            memory_bytes=info.model.weight_bytes,
        )

    @property
    def entry(self) -> CatalogEntry:
        return self._entry

    @property
    def pid(self) -> int | None:
        return self.engine.health().pid

    def serves(self, name: str) -> bool:
        return any(name in (card.name, f"{card.name}:latest") for card in self.serving.models())

    def set_threads(self, threads: int) -> None:
        if isinstance(self.engine, EngineClient):
            self.engine.set_threads(threads)

    def not_ready(self) -> str:
        """Return why the engine cannot run requests now; empty when it can."""
        health = self.engine.health()
        return health.message or ("" if health.state is State.READY else f"the engine is {health.state}")

    def gauges(self) -> dict[str, float]:
        """Return the state of the engine, by the names of the metrics."""
        stats = self.engine.stats()
        if not stats.blocks:  # before the first step of a process
            stats = msgspec.structs.replace(stats, blocks=self.info.num_blocks, free_blocks=self.info.num_blocks)
        return {
            "sequences_running": stats.running,
            "sequences_waiting": stats.waiting,
            "engine_seconds_since_step": self.engine.seconds_since_step,
            "kv_blocks": stats.blocks,
            "kv_tokens": stats.blocks * self.info.block_size,
            "kv_blocks_free": stats.free_blocks,
            "kv_blocks_used": stats.blocks - stats.free_blocks,
            "kv_blocks_cached": stats.cached_blocks,
            "image_cache_bytes": stats.image_cache_bytes,
            "disk_cache_records": stats.disk_records,
            "disk_cache_bytes": stats.disk_bytes,
            "adapter_slots": self._adapter_slots,
        }

    def counters(self) -> dict[str, float]:
        """Return the engine's counts, by the names of the metrics."""
        stats = self.engine.stats()
        return {
            "engine_restarts": stats.restarts,
            "engine_steps": stats.steps,
            "engine_busy_seconds": stats.busy_s,
            "engine_read_bytes": stats.read_bytes,
            "engine_generated_tokens": stats.generated_tokens,
            "preemptions": stats.preemptions,
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "images_encoded": stats.encoded_images,
            "images_found": stats.found_images,
            "image_seconds": stats.image_s,
            "disk_cache_read_records": stats.disk_read_blocks,
            "disk_cache_read_bytes": stats.disk_read_bytes,
            "disk_cache_written_bytes": stats.disk_written_bytes,
            "disk_cache_damaged": stats.disk_damaged,
            "disk_cache_dropped": stats.disk_dropped,
        }

    def draft_tokens(self) -> Counter[tuple[str, str]]:
        """Return the tokens of the engine's drafts, by source and by whether they were ``accepted`` or ``rejected``."""
        stats, found = self.engine.stats(), Counter[tuple[str, str]]()
        for source, drafted in stats.drafted.items():
            found[source, "accepted"] = accepted = stats.accepted.get(source, 0)
            found[source, "rejected"] = drafted - accepted
        return found

    async def close(self) -> None:
        for name, count in self.counters().items():
            self._past[name] = self._past.get(name, 0.0) + count
        self._past_drafts.update(self.draft_tokens())
        await self.engine.close()
        self.serving.close()
        self._template.close()


class ModelLoader:
    """Loads models, all with the settings of the first: ``worker``, with its tokenizer's files in ``folder``."""

    def __init__(
        self,
        settings: ServingSettings,
        worker: WorkerSettings,
        folder: Path,
        observers: Observers,
        admission: Admission,
        continuing: SqliteResumeStore,
        adapters: AdapterRegistry,
        on_step: Step,
        pools: WorkerPools,
        check_prompt: CheckPrompt,
        sampling: SamplingSettings = NO_SAMPLING,
        prespawned: PrespawnedWorker | None = None,
        spawn: Spawn | None = None,
        recorder: Recorder = NOT_RECORDED,
        on_failed: Callable[[Engine, str], None] | None = None,
        remote: VllmClient | None = None,
        on_blocks: OnBlocks | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """``adapters``: those of the start belong to the first model, and are loaded with it. ``sampling``: the
        operator's values for requests that leave it open. ``prespawned``: the first model's process; ``spawn``
        starts all others. ``on_failed`` is called with an engine that has failed for good, and why. ``remote``: the
        engine of the first model, where that runs elsewhere. ``memory_bytes``: the operator's budget for the server and
        all models.

        Raises DragomanError for settings that cannot be."""
        self._on_failed, self._on_blocks = on_failed, on_blocks
        self._recorder = recorder
        self._remote = remote
        self._prespawned = prespawned
        self._spawn = spawn
        self._settings, self._worker, self._folder = settings, worker, folder
        self._adapters = adapters
        self._observers, self._admission, self._continuing = observers, admission, continuing
        self._on_step = on_step
        self._pools = pools
        self._images = ImageReader(pools, settings.image_hosts)
        self._check_prompt = check_prompt
        self._sampling = sampling
        self._past: dict[str, float] = {}
        self.past_drafts: Counter[tuple[str, str]] = Counter()
        """As ``LoadedModel.draft_tokens``, of engines that were closed."""
        self._memory_bytes = memory_bytes
        self._machine_bytes = available_memory()
        self._has_begun = False
        """Whether the first model was loaded: that gets what the machine has, unless the operator sets a budget."""
        self._planned: dict[str, ModelMemory] = {}
        self._details: dict[str, ModelDetails] = {}

    def close(self) -> None:
        """End the processes that all models share."""
        self._images.close()

    @property
    def past(self) -> Mapping[str, float]:
        """Return the counts of engines that were closed, by the names of the metrics."""
        return self._past

    async def measure(self, work: Callable[[], None]) -> None:
        """Run ``work``, which measures the memory of processes, in a thread."""
        await self._pools.models.run(work)

    async def memory_of(self, source: ModelSource) -> ModelMemory:
        """Return the memory of a model as it is planned: with a budget of the operator's, within that; otherwise each
        as if it were alone, with as many keys and values."""
        if source.name not in self._planned:
            self._planned[source.name] = await self._pools.ask_hub(lambda: self._plan(source), loads=True)
        return self._planned[source.name]

    def _plan(self, source: ModelSource) -> ModelMemory:
        model = self._worker.model
        if not isinstance(model, LoadModel) or self._remote is not None:
            return ModelMemory(0, 0)
        settings = self._settings_for(source, model)
        described = describe(source.source, **settings.describing)
        found = self._planned_settings(source, described, settings)[1]
        text_bytes = TEXT_BYTES + TEXT_FACTOR * _tokenizer_bytes(described.tokenizer_folder)
        draft = self._draft_of(source)
        serving_bytes = (
            found.total_bytes
            + (0 if draft is None else draft.nbytes)
            + self._adapter_bytes(found)
            + ENGINE_BYTES
            + text_bytes
        )
        return ModelMemory(serving_bytes, serving_bytes + found.loading_bytes)

    def _draft_of(self, source: ModelSource) -> LoadDraft | LoadHead | None:
        """Return what drafts for a model: the first model has a draft model or a head, if any has."""
        model = self._worker.model
        return self._worker.draft if isinstance(model, LoadModel) and model.source == source.source else None

    def _planned_settings(
        self, source: ModelSource, described: ModelDescription, settings: ModelSettings
    ) -> tuple[ModelSettings, MemoryPlan]:
        """Return a model's settings with its share of the memory. Raises ModelError."""
        draft = self._draft_of(source)
        if self._memory_bytes is not None:
            return plan_within(described, settings, without_draft_memory(self._memory_bytes, draft))
        found = plan(described, settings, available_bytes=without_draft_memory(self._machine_bytes, draft))
        found.require_fit()
        if settings.kv_bytes is None and settings.kv_tokens is None and found.kv_bytes:
            # Otherwise an engine that starts while another runs would take less for them, and keep less for good.
            settings = msgspec.structs.replace(settings, kv_bytes=found.kv_bytes)
        return settings, found

    def _settings_of_plan(self, source: ModelSource, settings: ModelSettings) -> ModelSettings:
        described = describe(source.source, **settings.describing)
        return self._planned_settings(source, described, settings)[0]

    def _adapter_bytes(self, found: MemoryPlan) -> int:
        """Return the room for adapters, where the operator offers any."""
        offered = next(self._adapters.sources(), None)
        return found.adapter_room_bytes if self._memory_bytes is not None and offered is not None else 0

    def _settings_for(self, source: ModelSource, first: LoadModel) -> ModelSettings:
        """Return the first model's settings, without those that belong to that model only."""
        settings = first.settings
        if source.source != first.source:
            settings = msgspec.structs.replace(settings, name=None, revision=None, rope_scaling=None, rope_factor=None)
        return settings

    def _sampling_for(self, settings: ModelSettings | None, folder: Path, *, is_first: bool) -> SamplingDefaults:
        """Return the default sampling parameters of a model. ``settings`` None: without a model's own."""
        if settings is None:
            return SamplingDefaults(server=self._sampling.values)
        # A file that the operator names is the first model's.
        choice = settings.generation_config
        choice = choice if is_first or choice == NONE else AUTO
        own, server = read_generation_config(folder, choice).sampling, self._sampling.values
        if self._remote is not None:
            own = self._remote.honoured_defaults(own, server)
        return SamplingDefaults(model=own, server=server)

    async def details(self, source: ModelSource) -> ModelDetails:
        """Return the details of a model. Raises ModelError."""
        if source.name not in self._details:
            model = self._worker.model
            token = model.settings.token if isinstance(model, LoadModel) else None
            self._details[source.name] = await self._pools.ask_hub(
                lambda: details_of(describe(source.source, token=token))
            )
        return self._details[source.name]

    def download(self, source: ModelSource, ended: Callable[[], None]) -> AsyncGenerator[FileProgress, None]:
        """Bring a model's files to this machine. Raises ModelError, Overloaded."""
        model = self._worker.model
        token = model.settings.token if isinstance(model, LoadModel) else None
        return download(source, token, self._pools.downloads, ended)

    async def open(self, source: ModelSource, progress: Progress) -> LoadedModel:
        """Load a model. Raises ModelError, EngineUnavailable."""
        worker, folder, model = self._worker, self._folder, self._worker.model
        is_first = not isinstance(model, LoadModel) or model.source == source.source
        settings: ModelSettings | None = None
        if isinstance(model, LoadModel):
            settings = self._settings_for(source, model)
            if self._remote is None and (self._has_begun or self._memory_bytes is not None):
                settings = await self._pools.ask_hub(
                    functools.partial(self._settings_of_plan, source, settings), loads=True
                )
            worker = msgspec.structs.replace(worker, model=LoadModel(source=source.source, settings=settings))
            worker = msgspec.structs.replace(worker, draft=self._draft_of(source))
            if not is_first:
                described = await self._pools.ask_hub(
                    lambda: describe(source.source, token=settings.token, rope=settings.rope), loads=True
                )
                folder = described.tokenizer_folder
        self._has_begun = True
        prespawned, self._prespawned = self._prespawned, None
        engine: Engine = self._remote or EngineClient(worker, prespawned, spawn=self._spawn)
        engine.on_loading = progress
        # The process loads weights for as long as the tokenizer takes, or longer. So it gets its settings first, and
        # the template's interpreter starts: reading a tokenizer blocks everything else in this process.
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0)
        template: ChatTemplate | None = None
        try:
            chosen = self._settings.chat_template if is_first else None
            own = None if chosen is None else Path(chosen)
            template = await self._pools.models.run(
                lambda: ChatTemplate.begin(folder, file=own, processes=self._pools.templates.threads)
            )
            order = self._settings.fill_order
            tokenizer = await self._pools.models.run(lambda: Tokenizer.load(folder, order))
            await self._pools.models.run(functools.partial(template.compile, tokenizer.special_tokens))
            info = await starting
            vocabularies = functools.partial(draft_vocabulary, worker.draft, tokenizer, info.vocab_size)
            drafted = await self._pools.models.run(vocabularies)
            # Engines elsewhere know what they can honour when they have started.
            sampling = await self._pools.models.run(lambda: self._sampling_for(settings, folder, is_first=is_first))
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await engine.close()
            if template is not None:
                template.close()
            raise
        served = served_model(source, info, tokenizer, template, sampling)
        if (first := await self._pools.models.run(lambda: served.first_unknown)) is not None:
            log.warning(
                "%s: texts with %r or a later token are refused: its tokenizer has more tokens than the %d that the "
                "model has; is it another model's?",
                *(source.name, tokenizer.token_text(first), info.vocab_size),
            )
        serving = EngineServing(
            SharingEngine(engine) if self._settings.dedup else engine,
            served,
            self._observers,
            admission=self._admission,
            timeout_s=self._settings.generation_timeout_s,
            queue_s=self._settings.max_queue_s,
            continuing=self._continuing,
            adapters=self._adapters,
            pools=self._pools,
            images=self._images,
            check_prompt=self._check_prompt,
            share_prefix_cache=self._worker.scheduler.share_prefix_cache,
            recorder=self._recorder,
            cache_blocks=info.num_blocks,
            open_schemas=self._settings.open_schemas,
            unknown_models=self._settings.unknown_models,
            image_bytes=self._settings.image_bytes,
        )
        if is_first:
            try:
                await serving.adapters.load_first()
            except BaseException:
                await engine.close()
                serving.close()
                template.close()
                raise
        engine.set_vocabulary(lambda: served.vocabulary)
        if drafted is not None and isinstance(engine, EngineClient):
            engine.set_draft_vocabulary(drafted)
        engine.on_step = self._on_step
        if self._on_blocks is not None and isinstance(engine, EngineClient):
            engine.on_blocks = functools.partial(self._on_blocks, engine, info.block_size)
            engine.on_blocks(None)
        if self._on_failed is not None:
            engine.on_failed = functools.partial(self._on_failed, engine)
        made = worker.model
        slots = made.settings.max_adapters if isinstance(made, LoadModel) else made.max_adapters
        return LoadedModel(source, engine, info, template, serving, self._past, self.past_drafts, slots)


def served_model(
    source: ModelSource, info: EngineInfo, tokenizer: Tokenizer, template: ChatTemplate, sampling: SamplingDefaults
) -> ServedModel:
    """Return the engine's model under the names and with the text abilities that it has here."""
    vision = info.model.vision
    template.image_placeholder = "" if vision is None else vision.tags.placeholder
    names = template.names
    encoder, context_tokens = info.model.encoder, info.max_context
    if encoder is not None:
        context_tokens = output_tokens(encoder, context_tokens)
    card = ModelCard(
        name=source.name,
        created=int(time.time()),
        context_tokens=context_tokens,
        encoder_context_tokens=None if encoder is None else encoder.context_tokens,
        vocab_size=info.vocab_size,
        hidden_size=info.model.hidden_size,
        precision=info.model.precision,
        fingerprint=info.model.fingerprint,
        has_chat_template=template.available,
        has_fill_tokens=tokenizer.fill is not None,
        has_bos=tokenizer.bos_id is not None,
        chat_template=template.source,
        bos_token=tokenizer.special_tokens.get("bos_token", ""),
        eos_token=tokenizer.special_tokens.get("eos_token", ""),
        template_variables=names.variables,
        template_members=names.members,
        template_roles=template.roles,
        tool_calls=tool_calls_of(template, tokenizer),
        reasoning=reasoning_of(template, tokenizer),
        sampling=sampling,
        pooling=info.model.pooling,
        generates=info.model.generates,
        images=image_info(vision),
    )
    ends = (*tokenizer.eos_ids, *info.model.eos_token_ids)
    return ServedModel(
        card=card,
        tokenizer=tokenizer,
        template=template,
        context_tokens=context_tokens,
        encoder=encoder,
        vocab_size=info.vocab_size,
        eos_ids=tuple(each for each in dict.fromkeys(ends) if each < info.vocab_size),
        aliases=source.aliases,
        environment=Environment(
            model=source.name,
            fingerprint=info.model.fingerprint,
            weights=info.model.weights,
            kernels=info.model.kernels,
            version=dragoman.__version__,
            precision=info.model.precision,
            kv_precision=info.model.kv_precision,
        ),
        vision=vision,
        parameters=info.model.parameter_count,
        image_tokens=info.step_tokens - info.max_running,
    )


def _tokenizer_bytes(folder: Path) -> int:
    try:
        return (folder / "tokenizer.json").stat().st_size
    except OSError:
        return 0
