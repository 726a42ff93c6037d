"""``core.serving.Serving`` over an engine: conversion between text and tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Literal, NamedTuple, Protocol

import msgspec

from dragoman.core.caller import current_caller, is_deferrable
from dragoman.core.catalog import listed, without_tag
from dragoman.core.constraint import opened
from dragoman.core.errors import (
    AdapterNotFound,
    BadRequest,
    Conflict,
    ModelNotFound,
    Overloaded,
    UnsupportedOperation,
)
from dragoman.core.events import (
    GenerationDone,
    GenerationEvent,
    GenerationResult,
    PromptToken,
    Timings,
)
from dragoman.core.explanation import EngineExplanation, Explanation
from dragoman.core.images import ImageInput, ImageTiles
from dragoman.core.observer import Observers, current_request
from dragoman.core.progress import current_progress
from dragoman.core.request import ChatPrompt, EngineRequest, GenerationRequest, Prompt
from dragoman.core.sampling import LogprobParams
from dragoman.core.serving import ModelCard
from dragoman.serving.adapter_registry import AdapterRegistry
from dragoman.serving.adapters import NO_ADAPTERS, AdapterEngine, LoadedAdapters
from dragoman.serving.admission import Admission
from dragoman.serving.batch_store import SqliteBatchStore
from dragoman.serving.catalog import FixedCatalog
from dragoman.serving.checks import check_beams, check_images, check_streamed
from dragoman.serving.collect import best, collect
from dragoman.serving.constraints import ConstraintReader
from dragoman.serving.engine_request import (
    engine_request,
    for_encoder,
    sequences_of,
    tokens_before,
    with_forced_length,
    with_priority,
)
from dragoman.serving.generation_stats import GenerationStats
from dragoman.serving.image_prompts import ImageTiler, ReadPrompt, read_with_images
from dragoman.serving.image_reader import ImageReader, request_of_images, without_images, without_sources
from dragoman.serving.journaled import Events, JournaledEngine
from dragoman.serving.model import ServedModel
from dragoman.serving.output_processor import OutputProcessor, make_output_processors, usage_of
from dragoman.serving.pooled_prompts import read_pooled
from dragoman.serving.prompts import BadWordsReader, PromptReader
from dragoman.serving.reasoning import constraint_of, reasoning_limit, stop_matcher
from dragoman.serving.recorder import Recorder
from dragoman.serving.replay import TOP, Replayer
from dragoman.serving.response_store import SqliteResponseStore
from dragoman.serving.resume_store import SqliteResumeStore
from dragoman.serving.running_generation import RunningGeneration, TimeLimits
from dragoman.serving.settings import WorkSettings
from dragoman.serving.worker_pool import WorkerPools

DEFAULT_MAX_WAITING = 256
MODEL = "x-dragoman-model"
"""The header that names the model which answers, where the request's own is not served."""
SAMPLING = "x-dragoman-sampling"
"""The header of an answer that names the sampling parameters which the request left open, and their values."""

NOT_RECORDED = Recorder()

CheckPrompt = Callable[[int], None]
"""Called with the number of a prompt's tokens before it is handed to the engine. Raises BadRequest or RateLimited where
the running task's caller may not use so many."""


def let_pass(tokens: int) -> None:
    """Let prompts of any length pass, where callers have no limits."""


class Engine(AdapterEngine, Protocol):
    """The part of the engine's client that serving needs."""

    def submit(self, request: EngineRequest) -> Events: ...

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        """End a request, or one of its sequences, with CANCELLED."""

    async def explain(self, request: EngineRequest) -> EngineExplanation:
        """Return what would be done with a request now."""


class _Prepared(NamedTuple):
    """A request with its bad words in tokens, the tokens of its prompt, and the same for the engine."""

    request: GenerationRequest
    prompt: tuple[int, ...]
    submitted: EngineRequest


def unknown_model(name: str, there: Iterable[str]) -> ModelNotFound:
    """Return the error of a request that names none of the models that are there."""
    return ModelNotFound(f"The model '{name[:256]}' does not exist. This server has: {listed(there)}.", param="model")


class EngineServing:
    """Serves one model. ``timeout_s`` bounds every generation, whatever a request asks; ``queue_s`` its wait for the
    first token.

    ``admission``: limits requests; several servings may share one. ``continuing``: the store of saved generations; by
    default in memory, and for a short time. ``responses``: the store of responses, by default in memory. ``adapters``:
    those that may be loaded. ``pools``: threads for long work, by default new ones. ``observers``: notified of all
    generations. ``check_prompt``: see ``CheckPrompt``.
    ``share_prefix_cache``: callers with different keys share cached prefixes. ``recorder``: records generations.
    ``cache_blocks``: blocks of the engine. ``open_schemas``: for requests that leave it open, as in them.
    ``unknown_models``: whether a name that is not served means the default model. ``image_bytes``: of pixels.
    """

    def __init__(
        self,
        engine: Engine,
        model: ServedModel,
        observers: Observers,
        *,
        admission: Admission | None = None,
        timeout_s: float | None = None,
        queue_s: float | None = None,
        continuing: SqliteResumeStore | None = None,
        responses: SqliteResponseStore | None = None,
        adapters: AdapterRegistry = NO_ADAPTERS,
        pools: WorkerPools | None = None,
        images: ImageReader | None = None,
        share_prefix_cache: bool = False,
        check_prompt: CheckPrompt = let_pass,
        recorder: Recorder = NOT_RECORDED,
        cache_blocks: int = 0,
        open_schemas: bool = False,
        unknown_models: Literal["refuse", "default"] = "refuse",
        image_bytes: int = 1 << 30,
    ) -> None:
        self.journaled = JournaledEngine(engine, model.card.fingerprint, cache_blocks)
        self._check_prompt = check_prompt
        self._recorder = recorder
        self._pools = pools or WorkerPools(WorkSettings())
        self._share_prefix_cache = share_prefix_cache
        self._open_schemas = open_schemas
        self._unknown_models = unknown_models
        self.continuing = continuing or SqliteResumeStore()
        self.responses = responses or SqliteResponseStore()
        self.batches = SqliteBatchStore()
        self.admission = admission or Admission(DEFAULT_MAX_WAITING)
        self.catalog = FixedCatalog(model)
        self.adapters = LoadedAdapters(engine, model.card, adapters, self._pools)
        self._engine = engine
        self._model = model
        self._observers = observers
        self._images = images or ImageReader(self._pools)
        self._prompts = PromptReader(model, self._pools)
        self.tiler = ImageTiler(model, self._pools.images, image_bytes)
        self._phrases = BadWordsReader(model, self._pools)
        self._constraints = ConstraintReader(model, self._pools)
        self._timeout_s = timeout_s
        self._queue_s = queue_s

    @asynccontextmanager
    async def lease(self, model: str | None = None, *, wake: bool = True) -> AsyncIterator[None]:
        yield

    def models(self) -> tuple[ModelCard, ...]:
        return (*self._model.cards.values(), *self.adapters.cards.values())

    def model(self, name: str | None) -> ModelCard:
        if name is None:
            return self._model.card
        card = self._card(name) or (self._card(without_tag(name)) if name.endswith(":latest") else None)
        if card is None and self._unknown_models == "default":
            if (observed := current_request.get(None)) is not None:
                observed.answer_headers[MODEL] = self._model.card.name
            return self._model.card
        if card is None:
            raise unknown_model(name, (card.name for card in self.models()))
        return card

    def _card(self, name: str) -> ModelCard | None:
        return self._model.cards.get(name) or self.adapters.find(name)

    def adapter(self, name: str) -> ModelCard:
        return self.adapters.card(name)

    async def tokenize(self, prompt: Prompt, model: str | None = None, *, bounded: bool = True) -> tuple[int, ...]:
        self.model(model)
        if (counted := request_of_images(prompt)) is not None:
            return (await self.prepare(counted)).prompt
        return await self._prompts.read(prompt, bounded=bounded)

    async def tokenize_text(
        self, text: str, model: str | None = None, *, add_special_tokens: bool = True, bounded: bool = True
    ) -> tuple[PromptToken, ...]:
        self.model(model)
        return await self._prompts.tokens(text, add_special_tokens, bounded=bounded)

    async def detokenize(
        self, token_ids: Sequence[int], model: str | None = None, *, skip_special_tokens: bool = False
    ) -> str:
        self.model(model)
        return await self._prompts.text(token_ids, skip_special_tokens)

    async def token_bytes(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        return await self._prompts.token_bytes(token_ids)

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        self.model(model)
        return await self._prompts.rendered(without_sources(prompt))

    async def image_tiles(self, image: ImageInput, model: str | None = None, *, param: str = "messages") -> ImageTiles:
        self.model(model)
        return await self.tiler.tiles(lambda: image, param)

    async def prepare(self, request: GenerationRequest) -> EngineRequest:
        count, logprobs = sequences_of(request)
        request, _ = self._with_adapter(self._with_defaults(request))
        check_beams(request)
        return (await self._prepare(with_forced_length(request), count, logprobs)).submitted

    def close(self) -> None:
        """End the processes that were started for requests."""
        self._constraints.close()

    def replayer(self, *, top: int = TOP) -> Replayer:
        """Return what runs capsules again on this model."""
        return Replayer(self._engine.submit, self._model, self._constraints.read, self._engine.adapters, top=top)

    def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        check_streamed(request)
        return self._generate(request, request.n, request.logprobs)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        count, logprobs = sequences_of(request)
        async with aclosing(self._generate(request, count, logprobs)) as events:
            result = await collect(events)
        if request.best_of is None or count == 1:
            return result
        return best(result, request.n, keep_logprobs=request.logprobs is not None)

    async def explain(self, request: GenerationRequest, *, streamed: bool = False) -> Explanation:
        if streamed:
            check_streamed(request)
        count, logprobs = sequences_of(request)
        request, defaults = self._model.card.sampling.apply(request)
        request, _ = self._with_adapter(request)
        check_beams(request)
        request = with_forced_length(request)
        prepared = await self._prepare(request, count, logprobs)
        submitted = prepared.submitted
        found = await self._engine.explain(submitted)
        if found.error:
            raise BadRequest(found.error)
        count = submitted.num_sequences
        caller, each = current_caller.get(), submitted.max_tokens
        request = msgspec.structs.replace(request, prompt=prepared.request.prompt, images=prepared.request.images)
        images = sum(image.tiles.service for image in submitted.images if image.end > found.cached_tokens)
        estimate = self.admission.estimate(caller, submitted.prompt_tokens, found.cached_tokens, count, each, images)
        text, pieces = await self._prompts.shown(request, prepared.prompt)
        return Explanation(
            request=request,
            defaults=defaults,
            model=request.adapter or self._model.card.name,
            text=text,
            token_ids=prepared.prompt,
            pieces=pieces,
            max_tokens=submitted.max_tokens,
            min_tokens=submitted.min_tokens,
            seeds=submitted.seeds,
            grammar=submitted.grammar,
            engine=found,
            estimate=estimate,
        )

    async def _generate(
        self, request: GenerationRequest, count: int, logprobs: LogprobParams | None
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Yield the events of ``count`` sequences."""
        arrived = asyncio.get_running_loop().time()
        request = self._with_defaults(request)
        stats = GenerationStats(self._observers, without_images(request), count)
        request, adapter = self._with_adapter(request)
        check_beams(request)
        caller = current_caller.get()
        request = with_priority(with_forced_length(request), caller)
        admission, limits = self._admitted_by(request)
        with admission.enter(caller, request_id=request.request_id, sequences=count, limit_s=limits.shorter_s) as place:
            request, prompt, submitted = await self._prepare(request, count, logprobs)
            output_processors, earlier_text = await self._output_processors(request, submitted, count)
            self._check_prompt(submitted.prompt_tokens)  # again: the caller's other requests ran meanwhile
            if (journaled := self.journaled.begin(submitted, adapter)) is not None:
                submitted = journaled.request
            cancel = partial(self._engine.cancel, submitted.request_id)
            images = sum(image.tiles.service for image in submitted.images)
            place.submit(submitted.prompt_tokens + images, submitted.max_tokens, cancel)
            recording = None
            if request.pooling is None:  # a capsule is for what is drawn
                submitted, recording = self._recorder.begin(self._model, request, submitted, adapter)
            report = current_progress.get()
            if report is not None:
                submitted = msgspec.structs.replace(submitted, progress=True)
                report.queued(admission.position(request.request_id) or 1)
            handed_over = perf_counter()
            try:
                events = self.journaled.submit(submitted, journaled)
            except Overloaded as refusal:
                raise admission.turned_away(place, refusal) from None
            generation = RunningGeneration(
                self._model,
                request,
                submitted,
                output_processors,
                adapter=adapter,
                earlier_text=earlier_text,
                place=place,
                admission=admission,
                stats=stats,
                recording=recording,
                report=report,
                arrived=arrived,
                limits=limits,
                cancel=cancel,
            )
            try:
                stats.submit(submitted, request.adapter or self._model.card.name, cancel, handed_over)
                async for event in events:
                    shown = generation.read(event)
                    if shown is not None:
                        yield shown
                    if not generation.running:
                        break
            finally:
                generation.lift_limits()
                await events.aclose()
                seen = stats.leave()
                if recording is not None:
                    recording.end()
            yield GenerationDone(
                usage=usage_of(request, output_processors, tokens_before(request, prompt), generation.cached_tokens),
                timings=Timings(validation_s=seen.validation_s, queue_s=seen.queue_s, inference_s=seen.inference_s),
            )

    def _admitted_by(self, request: GenerationRequest) -> tuple[Admission, TimeLimits]:
        """Return what lets the request in, and how long it may take."""
        if is_deferrable.get():
            # It waits for as long as there is other work: the server's limits of time are not about it.
            return self.admission.deferrable, TimeLimits(request.timeout_s, None)
        limits = [limit for limit in (request.timeout_s, self._timeout_s) if limit is not None]
        return self.admission, TimeLimits(min(limits, default=None), self._queue_s)

    async def _output_processors(
        self, request: GenerationRequest, submitted: EngineRequest, count: int
    ) -> tuple[list[OutputProcessor], str]:
        """Return what makes text of each sequence's tokens, and the text that a continued generation has already."""
        output_processors = make_output_processors(
            self._model,
            count,
            submitted.prompt,
            request.ending,
            request.shown_tokens,
            resumable=request.resumable,
            own_matcher=partial(stop_matcher, self._model, request, submitted.prompt),
        )
        if request.resumed is None:
            return output_processors, ""
        resume = partial(output_processors[0].resume, request.resumed.output)
        return output_processors, await self._pools.text.run(resume)

    async def _prepare(self, request: GenerationRequest, count: int, logprobs: LogprobParams | None) -> _Prepared:
        """Return the request as it goes to the engine: everything that can be refused before that is."""
        request = await self._images.loaded(request, self._model.card, self.tiler.tiles)
        if request.pooling is None and not self._model.card.generates:
            raise UnsupportedOperation(f"The model '{self._model.card.name}' generates no text.", param="model")
        check_images(self._model, request)
        if request.pooling is None:
            prompt, images = await self._prompt(request)
        else:
            images = ()
            pooling, prompt = await read_pooled(self._model, self._prompts, request, request.pooling)
            request = msgspec.structs.replace(request, pooling=pooling)
        request = msgspec.structs.replace(request, sampling=await self._phrases.read(request.sampling))
        if self._open_schemas if request.open_schemas is None else request.open_schemas:
            request = msgspec.structs.replace(request, constraint=opened(request.constraint))
        submitted = engine_request(self._model, request, prompt, count, logprobs, images)
        self._check_prompt(submitted.prompt_tokens)
        constraint = constraint_of(self._model, request, submitted.prompt)
        grammar = await self._constraints.read(constraint, request.constraint_param)
        submitted = msgspec.structs.replace(submitted, grammar=grammar, cache_salt=self._cache_salt(request))
        if request.prediction:
            predicted = await self._prompts.predicted(request.prediction, submitted.max_tokens)
            submitted = msgspec.structs.replace(submitted, prediction=predicted)
        submitted = for_encoder(submitted, self._model.encoder, resumable=request.resumable)
        reasoning = await reasoning_limit(self._model, request, submitted.prompt, self._pools)
        return _Prepared(request, prompt, msgspec.structs.replace(submitted, reasoning=reasoning))

    def _with_defaults(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with the model's or the operator's values for the sampling parameters that it leaves
        open. A header of the answer names them."""
        request, words = self._model.card.sampling.apply(request)
        if words and (observed := current_request.get(None)) is not None:
            observed.answer_headers[SAMPLING] = words
        return request

    def _with_adapter(self, request: GenerationRequest) -> tuple[GenerationRequest, str]:
        """Return the request with its adapter, which it may name as its model too, and the adapter's fingerprint; empty
        without one.

        Raises ModelNotFound, AdapterNotFound, and Conflict where a generation would continue with another one than it
        began with.
        """
        card, fingerprint = self.model(request.model), ""
        if card.base is not None:
            request, fingerprint = msgspec.structs.replace(request, adapter=card.name), card.fingerprint
        elif request.adapter is not None:
            info = self._engine.adapters.get(request.adapter)
            if info is None:
                raise AdapterNotFound(f"The adapter '{request.adapter[:256]}' does not exist.", param="model")
            fingerprint = info.fingerprint
        if request.resumed is not None and request.resumed.adapter != fingerprint:
            raise Conflict("This generation was begun with another adapter, or another version of it.", param="model")
        return request, fingerprint

    def _cache_salt(self, request: GenerationRequest) -> str:
        """Return the salt of the request's blocks: its caller's, and its own.

        Neither a tenant, which is hexadecimal, nor an empty one can be mistaken for a part of the other.
        """
        tenant = "" if self._share_prefix_cache else current_caller.get().tenant
        return f"{tenant}:{request.cache_salt}" if tenant or request.cache_salt else ""

    async def _prompt(self, request: GenerationRequest) -> ReadPrompt:
        if request.resumed is not None:
            for image in request.resumed.images:
                self.tiler.hold(image.tiles)
            return ReadPrompt(request.resumed.prompt, request.resumed.images)
        if request.images:
            return await read_with_images(self._model, self._prompts, request)
        prompt = await self._prompts.read(request.prompt)
        return ReadPrompt(prompt if request.truncate is None else prompt[-request.truncate :])
