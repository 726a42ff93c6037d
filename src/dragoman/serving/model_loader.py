"""The loader of models: each with its engine's process, its tokenizer, its template and its serving."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import dragoman
from dragoman.core.capsule import Environment
from dragoman.core.catalog import FileProgress, ModelDetails
from dragoman.core.freed_memory import return_freed_memory
from dragoman.core.observer import Observers
from dragoman.core.sampling_defaults import SamplingDefaults
from dragoman.core.serving import ModelCard
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.block_events import BlockEvent
from dragoman.engine.messages import EngineInfo, EngineStats, LoadModel, WorkerSettings
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.connection import Spawn
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.models import describe
from dragoman.models.generation_config import AUTO, NONE, read_generation_config
from dragoman.serving.adapter_registry import AdapterRegistry
from dragoman.serving.admission import Admission
from dragoman.serving.downloads import download
from dragoman.serving.draft_vocabulary import draft_vocabulary
from dragoman.serving.engine_request import output_tokens
from dragoman.serving.image_prompts import image_info
from dragoman.serving.image_reader import ImageReader
from dragoman.serving.loaded_model import Engine, LoadedModel
from dragoman.serving.model import ServedModel
from dragoman.serving.model_details import details_of
from dragoman.serving.model_planner import ModelPlanner
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

Step = Callable[[EngineStats, EngineStats, float], None]
"""Called for every step of an engine, with its counts before and after, and the seconds that dispatching its tokens
took."""

OnBlocks = Callable[[EngineClient, int, list[BlockEvent] | None], None]
"""Called with an engine, the tokens of one of its blocks, and the events of its prefix cache; None: it is empty."""


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
        self._planner = ModelPlanner(worker, adapters, memory_bytes)
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
        """Run ``work``, which measures the memory of processes, in a thread: without what the C library keeps of models
        that have left, 30 MB for a tokenizer of 150,000 tokens."""

        def measure() -> None:
            return_freed_memory()
            work()

        await self._pools.models.run(measure)

    async def memory_of(self, source: ModelSource) -> ModelMemory:
        """Return the planned memory of a model; nothing where its engine runs elsewhere. Raises ModelError."""
        if self._remote is not None:
            return ModelMemory(0, 0)
        if source.name not in self._planned:
            self._planned[source.name] = await self._pools.ask_hub(lambda: self._planner.memory_of(source), loads=True)
        return self._planned[source.name]

    def _sampling_for(self, worker: WorkerSettings, folder: Path, *, is_first: bool) -> SamplingDefaults:
        """Return the default sampling parameters of a model, with its own where it has files."""
        if not isinstance(worker.model, LoadModel):
            return SamplingDefaults(server=self._sampling.values)
        # A file that the operator names is the first model's.
        choice = worker.model.settings.generation_config
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
        is_first = self._planner.is_first(source)
        plans = self._remote is None
        worker = await self._pools.ask_hub(lambda: self._planner.worker_of(source, plans=plans), loads=True)
        folder = self._folder if is_first else await self._text_folder(worker)
        self._planner.begin()
        prespawned, self._prespawned = self._prespawned, None
        engine: Engine = self._remote or EngineClient(worker, prespawned, spawn=self._spawn)
        engine.on_loading = progress
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(engine.close)
            # The process loads weights for as long as the tokenizer takes, or longer. So it gets its settings first,
            # and the template's interpreter starts: reading a tokenizer blocks everything else in this process.
            starting = asyncio.create_task(engine.start())
            undo.push_async_callback(_given_up, starting)
            await asyncio.sleep(0)
            tokenizer, template = await self._text(folder, undo, is_first=is_first)
            info = await starting
            vocabularies = functools.partial(draft_vocabulary, worker.draft, tokenizer, info.vocab_size)
            drafted = await self._pools.models.run(vocabularies)
            # Engines elsewhere know what they can honour when they have started.
            sampling = await self._pools.models.run(lambda: self._sampling_for(worker, folder, is_first=is_first))
            served = served_model(source, info, tokenizer, template, sampling)
            await self._warn_of_unknown_tokens(source, served)
            serving = self._serving(engine, served, info)
            undo.callback(serving.close)
            if is_first:
                await serving.adapters.load_first()
            undo.pop_all()
        self._connect(engine, info, served, drafted)
        slots = worker.model.adapter_slots
        return LoadedModel(source, engine, info, template, serving, self._past, self.past_drafts, slots)

    async def _text_folder(self, worker: WorkerSettings) -> Path:
        """Return the folder of a model's tokenizer. Raises ModelError."""
        model = worker.model
        assert isinstance(model, LoadModel)
        rope = model.settings.rope
        described = await self._pools.ask_hub(
            lambda: describe(model.source, token=model.settings.token, rope=rope), loads=True
        )
        return described.tokenizer_folder

    async def _text(
        self, folder: Path, undo: contextlib.AsyncExitStack, *, is_first: bool
    ) -> tuple[Tokenizer, ChatTemplate]:
        """Read a model's tokenizer and template; ``undo`` closes the latter. Raises ModelError."""
        chosen = self._settings.chat_template if is_first else None
        own = None if chosen is None else Path(chosen)
        processes = self._pools.templates.threads
        template = await self._pools.models.run(lambda: ChatTemplate.begin(folder, file=own, processes=processes))
        undo.callback(template.close)
        order = self._settings.fill_order
        tokenizer = await self._pools.models.run(lambda: Tokenizer.load(folder, order))
        await self._pools.models.run(functools.partial(template.compile, tokenizer.special_tokens))
        return tokenizer, template

    async def _warn_of_unknown_tokens(self, source: ModelSource, served: ServedModel) -> None:
        if (first := await self._pools.models.run(lambda: served.first_unknown)) is not None:
            log.warning(
                "%s: texts with %r or a later token are refused: its tokenizer has more tokens than the %d that the "
                "model has; is it another model's?",
                *(source.name, served.tokenizer.token_text(first), served.vocab_size),
            )

    def _serving(self, engine: Engine, served: ServedModel, info: EngineInfo) -> EngineServing:
        return EngineServing(
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

    def _connect(self, engine: Engine, info: EngineInfo, served: ServedModel, drafted: DraftVocabulary | None) -> None:
        """Give a running engine what it asks for and reports to."""
        engine.set_vocabulary(lambda: served.vocabulary)
        engine.on_step = self._on_step
        if self._on_failed is not None:
            engine.on_failed = functools.partial(self._on_failed, engine)
        if not isinstance(engine, EngineClient):
            return
        if drafted is not None:
            engine.set_draft_vocabulary(drafted)
        if self._on_blocks is not None:
            engine.on_blocks = functools.partial(self._on_blocks, engine, info.block_size)
            engine.on_blocks(None)


async def _given_up(starting: asyncio.Task[EngineInfo]) -> None:
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


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
