"""The runtime started from settings: the first model, and the pool in which other models may replace it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from dragoman.core.adapters import Adapters
from dragoman.core.caller import current_caller
from dragoman.core.catalog import CatalogEntry, may_have_loaded
from dragoman.core.errors import EngineUnavailable, ModelNotFound
from dragoman.core.events import GenerationEvent, GenerationResult, PromptToken
from dragoman.core.explanation import Explanation
from dragoman.core.images import ImageInput, ImageTiles
from dragoman.core.observer import ObservedStep, Observers
from dragoman.core.request import ChatPrompt, EngineRequest, GenerationRequest, Prompt
from dragoman.core.serving import ModelCard
from dragoman.core.user_folders import expand_user, unreadable, unusable
from dragoman.engine.messages import EngineInfo, EngineStats, LoadModel, WorkerSettings
from dragoman.engine_client.connection import Spawn
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.models.source import source_name
from dragoman.serving.adapter_registry import AdapterRegistry
from dragoman.serving.admission import Admission
from dragoman.serving.batch_store import OFF as NO_FILES
from dragoman.serving.batch_store import SqliteBatchStore
from dragoman.serving.loaded_model import Engine, LoadedModel
from dragoman.serving.memory_budget import MemoryBudget
from dragoman.serving.model_loader import NO_SAMPLING, ModelLoader, OnBlocks, Step
from dragoman.serving.model_pool import ModelPool
from dragoman.serving.model_registry import ModelRegistry, ModelSource, missing_offers, model_source
from dragoman.serving.pool_loader import Progress
from dragoman.serving.prefix_names import CachedPrefixes
from dragoman.serving.recorder import Recorder
from dragoman.serving.replay import TOP, Replayer
from dragoman.serving.response_store import IN_MEMORY as RESPONSES_IN_MEMORY
from dragoman.serving.response_store import SqliteResponseStore
from dragoman.serving.resume_store import IN_MEMORY, SqliteResumeStore
from dragoman.serving.serving import NOT_RECORDED, CheckPrompt, EngineServing, let_pass, unknown_model
from dragoman.serving.settings import (
    AdapterSettings,
    BatchSettings,
    CatalogSettings,
    ContinueSettings,
    ResponseSettings,
    SamplingSettings,
    ServingSettings,
    WorkSettings,
)
from dragoman.serving.worker_pool import WorkerPools, start_threads

log = logging.getLogger("dragoman.server")

ONE_MODEL = CatalogSettings(fixed_model=True)
NO_ADAPTERS = AdapterSettings()
USUAL_WORK = WorkSettings()
OWN_THREADS = 2
RESPONSES_FILE = "responses.sqlite3"


class ActiveModel:
    """Forwards everything to the model that the running request began with, or else to the current one."""

    def __init__(
        self,
        model_pool: ModelPool[LoadedModel],
        admission: Admission,
        continuing: SqliteResumeStore,
        responses: SqliteResponseStore,
        batches: SqliteBatchStore,
    ) -> None:
        self.catalog = model_pool
        self.admission = admission
        self.continuing = continuing
        self.responses = responses
        self.batches = batches

    def lease(self, model: str | None = None, *, wake: bool = True) -> AbstractAsyncContextManager[None]:
        return self.catalog.lease(model, wake=wake)

    @property
    def adapters(self) -> Adapters:
        return self._serving.adapters

    @property
    def prefixes(self) -> CachedPrefixes:
        """Return the names of the prefixes that the current model's engine holds."""
        return self._serving.journaled.prefixes

    def models(self) -> tuple[ModelCard, ...]:
        """Return the cards of the running request's model or the current one, then those of the others in memory."""
        try:
            first = [self.catalog.loaded()]
        except EngineUnavailable:
            first = []
        others = [each for each in self.catalog.all_loaded if each not in first]
        found: dict[str, ModelCard] = {}
        for card in (card for each in (*first, *others) for card in each.serving.models()):
            found.setdefault(card.name, card)
        return tuple(found.values())

    def model(self, name: str | None) -> ModelCard:
        if name is not None and not self.catalog.is_leased:
            # Nothing is generated: every model in memory can be described.
            for loaded in self.catalog.all_loaded:
                if loaded.serves(name):
                    return loaded.serving.model(name)
        try:
            return self._serving.model(name)
        except ModelNotFound:  # it lists the names of one model alone
            raise unknown_model(name or "", self._names()) from None

    def _names(self) -> list[str]:
        """Return the names of the models in memory, and of those that the caller may have loaded by naming them."""
        names = [card.name for card in self.models()]
        if may_have_loaded(self.catalog, current_caller.get().scopes):
            names += [each.id for each in self.catalog.entries() if not {each.id, *each.aliases} & set(names)]
        return names

    def adapter(self, name: str) -> ModelCard:
        return self._serving.adapter(name)

    async def tokenize(self, prompt: Prompt, model: str | None = None, *, bounded: bool = True) -> tuple[int, ...]:
        return await self._serving.tokenize(prompt, model, bounded=bounded)

    async def tokenize_text(
        self, text: str, model: str | None = None, *, add_special_tokens: bool = True, bounded: bool = True
    ) -> tuple[PromptToken, ...]:
        return await self._serving.tokenize_text(text, model, add_special_tokens=add_special_tokens, bounded=bounded)

    async def detokenize(
        self, token_ids: Sequence[int], model: str | None = None, *, skip_special_tokens: bool = False
    ) -> str:
        return await self._serving.detokenize(token_ids, model, skip_special_tokens=skip_special_tokens)

    async def token_bytes(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        return await self._serving.token_bytes(token_ids)

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        return await self._serving.render(prompt, model)

    async def image_tiles(self, image: ImageInput, model: str | None = None, *, param: str = "messages") -> ImageTiles:
        return await self._serving.image_tiles(image, model, param=param)

    async def explain(self, request: GenerationRequest, *, streamed: bool = False) -> Explanation:
        return await self._serving.explain(request, streamed=streamed)

    def replayer(self, *, top: int = TOP) -> Replayer:
        """Return what runs capsules again on the current model."""
        return self._serving.replayer(top=top)

    async def prepare(self, request: GenerationRequest) -> EngineRequest:
        return await self._serving.prepare(request)

    def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        return self._serving.stream(request)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        return await self._serving.generate(request)

    @property
    def _serving(self) -> EngineServing:
        return self.catalog.loaded().serving


class Runtime:
    """The parts that serve requests.

    Attributes:
        serving: for all requests. observers: notified of all generations and steps. pools: threads for long work.
        is_ending: the server is stopping; readiness reports that before the port closes.
        failure: why the engine cannot run any more, and the server ends; empty: it can. on_failed: called then.
    """

    def __init__(
        self,
        model_pool: ModelPool[LoadedModel],
        loader: ModelLoader,
        serving: ActiveModel,
        observers: Observers,
        pools: WorkerPools,
    ) -> None:
        self.serving = serving
        self.observers = observers
        self.is_ending = False
        self.pools = pools
        self.failure = ""
        self.on_failed: Callable[[], None] | None = None
        self._model_pool, self._loader = model_pool, loader

    def fail(self, reason: str) -> None:
        """Note that the engine cannot run any more."""
        self.failure = reason
        if self.on_failed is not None:
            self.on_failed()

    @property
    def engine(self) -> Engine:
        """Return the engine of the current model. Raises EngineUnavailable where there is none."""
        return self._model_pool.loaded().engine

    @property
    def info(self) -> EngineInfo:
        """Return the engine information of the current model. Raises EngineUnavailable where there is none."""
        return self._model_pool.loaded().info

    def not_ready(self) -> str:
        """Return why requests cannot be served now; empty when they can."""
        if self.is_ending or not self.serving.admission.is_open:
            return "the server is shutting down"
        if self._model_pool.newest is None and self._model_pool.asleep is not None:
            return ""  # the next request wakes it
        try:
            return self._model_pool.loaded().not_ready()
        except EngineUnavailable as error:
            return error.message

    async def end(self) -> None:
        """End all engines. Every unfinished answer ends with an error."""
        await self._model_pool.close()

    def gauges(self) -> dict[str, float]:
        """Return the state of admission and of all models in memory together, by the names of the metrics."""
        admission = self.serving.admission
        own: dict[str, float] = {
            "models_loaded": len(self._model_pool.all_loaded),
            "requests_waiting": admission.waiting,
            "requests_running": admission.running,
            "engine_ready": not self.not_ready(),
        }
        sums: dict[str, float] = {}
        for loaded in self._model_pool.all_loaded:
            _add(sums, loaded.gauges())
        if sums:
            own["kv_cache_usage"] = sums["kv_blocks_used"] / sums["kv_blocks"] if sums["kv_blocks"] else 0.0
        return own | sums

    def counters(self) -> dict[str, float]:
        """Return the counts of all models that are or were in memory, by the names of the metrics."""
        pool = self._model_pool
        sums = {"model_loads": float(pool.loads), "model_evictions": float(pool.evictions), **self._loader.past}
        for loaded in self._model_pool.all_loaded:
            _add(sums, loaded.counters())
        return sums

    def draft_tokens(self) -> Mapping[tuple[str, ...], float]:
        """Return the tokens of drafts by source and result, of all models that are or were in memory."""
        counts = [loaded.draft_tokens() for loaded in self._model_pool.all_loaded]
        return {(source, result): count for (source, result), count in sum(counts, self._loader.past_drafts).items()}


@asynccontextmanager
async def start_runtime(
    settings: ServingSettings,
    worker: WorkerSettings,
    folder: Path,
    *,
    catalog: CatalogSettings = ONE_MODEL,
    adapters: AdapterSettings = NO_ADAPTERS,
    continuing: ContinueSettings = IN_MEMORY,
    responses: ResponseSettings = RESPONSES_IN_MEMORY,
    batches: BatchSettings = NO_FILES,
    work: WorkSettings = USUAL_WORK,
    sampling: SamplingSettings = NO_SAMPLING,
    check_prompt: CheckPrompt = let_pass,
    progress: Progress = lambda stage, share: None,
    prespawned: PrespawnedWorker | None = None,
    spawn: Spawn | None = None,
    recorder: Recorder | None = None,
    remote: VllmClient | None = None,
    on_blocks: OnBlocks | None = None,
) -> AsyncIterator[Runtime]:
    """Load the first model and wait until it can generate. ``worker`` says what its engine loads, ``folder`` holds the
    tokenizer's and the chat template's files; ``progress`` is called with the progress. ``prespawned``: the process of
    its engine, where that is started already; ``spawn`` starts all others. ``sampling``: for requests that leave it
    open. ``check_prompt``: see ``CheckPrompt``. ``recorder``: records the generations of all models. ``remote``: the
    engine, where the model runs elsewhere. ``on_blocks``: see ``OnBlocks``; ``worker`` asks for these events.

    ``batches``: the store of files and batches, in the folder of ``continuing``.

    Leaving ends every engine; unfinished requests then fail. Raises ModelError, and DragomanError where a store cannot
    be used.
    """
    observers = Observers()
    admission = Admission(settings.max_waiting)
    kept = SqliteResumeStore(continuing)
    stored = SqliteResponseStore(responses, continuing.folder / RESPONSES_FILE)
    batch_store = SqliteBatchStore(batches, continuing.folder)
    pools = WorkerPools(work)

    def on_failed(engine: Engine, reason: str) -> None:
        # The model before this one may still finish answers: without its engine these fail, and the server continues.
        newest = model_pool.newest
        if newest is not None and newest.engine is engine:
            runtime.fail(reason)

    first = _first_source(settings, worker)
    lora = AdapterRegistry(
        adapters,
        allow_downloads=catalog.offer_downloads,
        token=_hub_token(worker),
        model_names=lambda: _names_in(model_pool.entries()),
    )
    loader = ModelLoader(
        settings,
        worker,
        folder,
        observers,
        admission,
        kept,
        lora,
        on_step=_tells_steps(admission, observers),
        pools=pools,
        check_prompt=check_prompt,
        sampling=sampling,
        prespawned=prespawned,
        spawn=spawn,
        on_failed=on_failed,
        recorder=recorder or NOT_RECORDED,
        remote=remote,
        on_blocks=on_blocks,
        memory_bytes=catalog.memory_bytes,
    )
    model_pool = ModelPool(
        ModelRegistry(catalog, first),
        loader,
        max_waiting=settings.max_waiting,
        budget=MemoryBudget(catalog.memory_bytes),
        idle_s=None if catalog.fixed_model else catalog.idle_unload_s,
        pins=catalog.pin,
        threads=worker.threads,
    )
    lora.check_first()
    if "disk" in (continuing.continue_store, responses.responses_store, batches.files_store):
        _warn_of_unusable(continuing.folder)
    for offer in missing_offers(catalog):
        log.warning("--offer %s: No such file or directory; it cannot be loaded until it is there", offer)
    _warn_of_unreadable("--models-folder", catalog.models_folder)
    _warn_of_unreadable("--adapters-folder", adapters.adapters_folder)
    # Started at once, so that the number of threads does not grow with requests.
    pools.start()
    with _own_threads():
        async with AsyncExitStack() as closing:  # the last one first
            closing.callback(pools.close)
            for store in (stored, kept, batch_store):
                closing.push_async_callback(store.close)
            closing.callback(loader.close)
            closing.push_async_callback(model_pool.close)
            for store in (kept, stored, batch_store):
                await store.open()
            await model_pool.begin(first, progress)
            serving = ActiveModel(model_pool, admission, kept, stored, batch_store)
            runtime = Runtime(model_pool, loader, serving, observers, pools)
            yield runtime


def _tells_steps(admission: Admission, observers: Observers) -> Step:
    """Return what takes the counts of an engine before and after a step."""

    def on_step(before: EngineStats, after: EngineStats, dispatch_s: float) -> None:
        admission.rate.observe(before, after)
        if observers.step:
            step = _step(before, after, dispatch_s)
            for tell in observers.step:
                tell(step)

    return on_step


def _names_in(entries: Iterable[CatalogEntry]) -> Iterator[str]:
    for entry in entries:
        yield entry.id
        yield from entry.aliases


def _warn_of_unusable(state_folder: Path) -> None:
    if reason := unusable(state_folder):
        log.warning("responses, files and cut generations cannot be kept: %s; --state-dir names a folder", reason)


def _warn_of_unreadable(option: str, folder: str | None) -> None:
    if folder is not None and (reason := unreadable(expand_user(folder))):
        log.warning("%s %s: %s; nothing is offered from there until it can be read", option, folder, reason)


def _first_source(settings: ServingSettings, worker: WorkerSettings) -> ModelSource:
    """Return the source of the first model, under the name and the aliases that the operator gives it."""
    if isinstance(worker.model, LoadModel):
        source = worker.model.source
        return model_source(settings.name or source_name(source), source, settings.alias)
    return ModelSource(name=settings.name or "stub", source=None, aliases=settings.alias)


def _hub_token(worker: WorkerSettings) -> str | None:
    return worker.model.settings.token if isinstance(worker.model, LoadModel) else None


@contextmanager
def _own_threads() -> Iterator[None]:
    """Give the loop its own threads, for what the server itself waits for, such as the ends of processes, and no
    client's work."""
    with ThreadPoolExecutor(OWN_THREADS, thread_name_prefix="dragoman-own") as executor:
        start_threads(executor, OWN_THREADS)
        asyncio.get_running_loop().set_default_executor(executor)
        yield


def _add(sums: dict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0) + value


def _step(before: EngineStats, after: EngineStats, dispatch_s: float) -> ObservedStep:
    """Return the step between two counts."""
    return ObservedStep(
        seconds=after.busy_s - before.busy_s,
        forward_s=after.forward_s - before.forward_s,
        dispatch_s=dispatch_s,
        running=after.running,
        waiting=after.waiting,
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        generated_tokens=after.generated_tokens - before.generated_tokens,
        drafted_tokens=after.drafted_tokens - before.drafted_tokens,
        accepted_tokens=after.accepted_tokens - before.accepted_tokens,
    )
