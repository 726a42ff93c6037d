"""``core.serving.Serving`` over an engine: where text meets tokens."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import msgspec

from dragoman.core.errors import (
    AdapterNotFound,
    BadRequest,
    Conflict,
    ContextOverflow,
    GenerationFailed,
    GenerationTimeout,
    ModelNotFound,
)
from dragoman.core.events import (
    EngineEvent,
    FinishReason,
    GenerationDone,
    GenerationEvent,
    GenerationResult,
    PromptEvent,
    PromptToken,
    Timings,
    TokenEvent,
    Usage,
)
from dragoman.core.request import ChatPrompt, EngineRequest, GenerationRequest, Prompt, PromptEmbeddings
from dragoman.core.sampling import MAX_SEED, EndingParams, LogprobParams
from dragoman.core.serving import ModelCard
from dragoman.server.adapter_shelf import AdapterShelf
from dragoman.server.adapters import NO_ADAPTERS, AdapterEngine, LoadedAdapters
from dragoman.server.admission import Admission
from dragoman.server.beams import check_beams
from dragoman.server.catalog import FixedCatalog
from dragoman.server.collect import best, collect
from dragoman.server.constraints import ConstraintReader
from dragoman.server.continuing import SqliteContinueStore
from dragoman.server.echo import prompt_ready
from dragoman.server.encoder import check_kind, for_encoder
from dragoman.server.meter import Meter
from dragoman.server.metrics import Metrics
from dragoman.server.model import ServedModel
from dragoman.server.phrases import PhraseReader
from dragoman.server.prompts import PromptReader
from dragoman.server.reasoning import reasoning_limit
from dragoman.server.transcript import transcripts_of

MAX_LOGPROBS = 2**22
"""Of one prompt's whole answer. They are held in memory until it is complete: some hundred megabytes at most."""

DEFAULT_MAX_WAITING = 256


class Events(Protocol):
    """The events of one request. Closing early cancels it."""

    def __aiter__(self) -> AsyncIterator[EngineEvent]: ...

    async def aclose(self) -> None: ...


class Engine(AdapterEngine, Protocol):
    """What serving needs of the engine's client."""

    def submit(self, request: EngineRequest) -> Events: ...

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        """End a request, or one of its sequences, with CANCELLED."""


class EngineServing:
    """Serves one model. ``timeout_s`` bounds every generation, whatever a request asks.

    ``admission``: who may come in; several servings may share one. ``continuing``: where cut generations are kept; by
    default in memory, and not for long. ``adapters``: those that may be loaded.
    """

    def __init__(
        self,
        engine: Engine,
        model: ServedModel,
        metrics: Metrics,
        *,
        admission: Admission | None = None,
        timeout_s: float | None = None,
        continuing: SqliteContinueStore | None = None,
        adapters: AdapterShelf = NO_ADAPTERS,
    ) -> None:
        self.continuing = continuing or SqliteContinueStore()
        self.admission = admission or Admission(DEFAULT_MAX_WAITING)
        self.catalog = FixedCatalog(model)
        self.adapters = LoadedAdapters(engine, model.card, model.cards, adapters)
        self._engine = engine
        self._model = model
        self._observers = metrics.observers
        self._prompts = PromptReader(model)
        self._phrases = PhraseReader(model)
        self._constraints = ConstraintReader(model)
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        yield

    def models(self) -> tuple[ModelCard, ...]:
        return (*self._model.cards.values(), *self.adapters.cards.values())

    def model(self, name: str | None) -> ModelCard:
        if name is None:
            return self._model.card
        card = self._model.cards.get(name) or self.adapters.find(name)
        if card is None:
            raise ModelNotFound(f"The model '{name[:256]}' does not exist.", param="model")
        return card

    def adapter(self, name: str) -> ModelCard:
        return self.adapters.card(name)

    async def tokenize(self, prompt: Prompt, model: str | None = None, *, bounded: bool = True) -> tuple[int, ...]:
        self.model(model)
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

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        self.model(model)
        return await self._prompts.rendered(prompt)

    def close(self) -> None:
        """End what was started for requests that are over."""
        self._constraints.close()

    def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        if (request.best_of or request.n) != request.n:
            raise BadRequest("'best_of' sequences can only be chosen from when all are finished.", param="best_of")
        return self._generate(request, request.n, request.logprobs)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        count = request.best_of or request.n
        choosing = request.best_of is not None and count > 1
        # The choice is by log-probability, whether or not the client wants to see any.
        logprobs = request.logprobs or (LogprobParams() if choosing else None)
        async with aclosing(self._generate(request, count, logprobs)) as events:
            result = await collect(events)
        return best(result, request.n, keep_logprobs=request.logprobs is not None) if choosing else result

    async def _generate(
        self, request: GenerationRequest, count: int, logprobs: LogprobParams | None
    ) -> AsyncGenerator[GenerationEvent, None]:
        """The events of ``count`` sequences."""
        arrived = asyncio.get_running_loop().time()
        meter = Meter(self._observers, request, count)
        request, adapter = self._with_adapter(request)
        check_beams(request)
        request = _with_forced_length(request)
        with self.admission.enter() as place:
            prompt = await self._prompt(request)
            request = msgspec.structs.replace(request, sampling=await self._phrases.read(request.sampling))
            submitted = self._engine_request(request, prompt, count, logprobs)
            grammar = await self._constraints.read(request.constraint, request.constraint_param)
            submitted = msgspec.structs.replace(submitted, grammar=grammar)
            submitted = for_encoder(submitted, self._model.encoder, resumable=request.resumable)
            reasoning = await reasoning_limit(self._model, request, submitted.prompt)
            submitted = msgspec.structs.replace(submitted, reasoning=reasoning)
            transcripts = transcripts_of(
                self._model, count, submitted.prompt, request.ending, request.shown_tokens, resumable=request.resumable
            )
            earlier_text = ""
            if request.resumed is not None:
                earlier_text = await asyncio.to_thread(transcripts[0].resume, request.resumed.output)
            cached_tokens, running = 0, count
            events = self._engine.submit(submitted)
            meter.submit(submitted)
            deadline = Deadline(arrived, self._limit(request), lambda: self._engine.cancel(request.request_id))
            try:
                async for event in events:
                    if isinstance(event, PromptEvent):
                        place.run()
                        cached_tokens = event.cached_tokens
                        meter.prompt(cached_tokens, event.queue_s)
                        yield prompt_ready(self._model, request, submitted, event, earlier_text, adapter)
                        continue
                    transcript = transcripts[event.sequence]
                    if transcript.finish is not None:
                        # A stop string ended it here; the engine did not know yet.
                        continue
                    if isinstance(event, TokenEvent):
                        meter.token(event.sequence)
                        delta = transcript.push(event)
                        if request.resumable:
                            ids = (event.token_id,)
                            delta = msgspec.structs.replace(delta, token_ids=ids, mirostat=event.mirostat)
                        if event.score is not None:
                            delta = msgspec.structs.replace(delta, score=event.score)
                    else:
                        if place.waits:
                            raise deadline.failure(event.message or "The generation was cancelled.")
                        delta = transcript.stop(deadline.reason(event.finish), deadline.words(event.message))
                    if delta.finish is not None:
                        meter.finish(delta.finish)
                        running -= 1
                        if running and delta.finish is FinishReason.STOP_STRING:
                            self._engine.cancel(request.request_id, event.sequence)
                    yield delta
                    if not running:
                        break
            finally:
                deadline.lift()
                await events.aclose()
                seen = meter.leave()
            made = sum(transcript.num_tokens for transcript in transcripts)
            yield GenerationDone(
                usage=Usage(
                    prompt_tokens=_before(request, prompt), completion_tokens=made, cached_tokens=cached_tokens
                ),
                timings=Timings(validation_s=seen.validation_s, queue_s=seen.queue_s, inference_s=seen.inference_s),
            )

    def _with_adapter(self, request: GenerationRequest) -> tuple[GenerationRequest, str]:
        """The request with the adapter that it runs with, which it may name as its model too, and the fingerprint of
        that; empty without one.

        Raises ModelNotFound, AdapterNotFound, and Conflict where a generation would go on with another one than it
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

    async def _prompt(self, request: GenerationRequest) -> tuple[int, ...]:
        if request.resumed is not None:
            return request.resumed.prompt
        prompt = await self._prompts.read(request.prompt)
        return prompt if request.truncate is None else prompt[-request.truncate :]

    def _engine_request(
        self, request: GenerationRequest, prompt: tuple[int, ...], count: int, logprobs: LogprobParams | None
    ) -> EngineRequest:
        """The request in token ids, its length fitted to the context. Raises BadRequest or ContextOverflow."""
        ending, vocab_size = request.ending, self._model.vocab_size
        sampling = request.sampling
        check_kind(request, self._model.encoder, self._model.context_tokens)
        self._check_ids("logit_bias", sampling.logit_bias)
        self._check_ids("forced_output_tokens", sampling.forced_tokens)
        self._check_ids("dry_sequence_breaker_ids", sampling.dry_breaker_ids)
        for phrase in sampling.banned_phrases:
            self._check_ids("bad_word_token_ids", phrase)
        self._check_ids("stop_token_ids", ending.stop_token_ids)
        self._check_ids("end_token_ids", ending.end_token_ids or ())
        if request.embeddings is not None:
            _check_embeddings(request.embeddings, len(prompt), self._model.card.hidden_size)
        resumed, before = request.resumed, _before(request, prompt)
        earlier = before - len(prompt)
        max_tokens = self._max_tokens(request, len(prompt), earlier)
        min_tokens = max(ending.min_tokens, ending.min_total_tokens - len(prompt))
        if min_tokens > max_tokens and not request.resumable:
            name = "min_total_tokens" if ending.min_total_tokens else "min_tokens"
            message = f"'{name}' ({ending.min_total_tokens or ending.min_tokens}) is more than there is room for: "
            raise BadRequest(f"{message}{len(prompt)} in the prompt and {max_tokens} to generate.", param=name)
        if logprobs is not None:
            # A step of a beam search follows up to num_beams texts, and ends as many.
            computed = count if request.beams is None else 2 * request.beams.num_beams
            _check_logprobs(logprobs, computed * max_tokens, vocab_size)
        return EngineRequest(
            request_id=request.request_id,
            prompt=prompt,
            seeds=_seeds(request.seeds, count) if request.beams is None else _seeds(request.seeds, 1) * count,
            max_tokens=earlier + max_tokens,
            generated=(resumed.output,) if resumed else (),
            mirostat=(resumed.mirostat,) if resumed and sampling.mirostat_mode else (),
            sampling=sampling,
            min_tokens=min_tokens,
            length_first=ending.length_first,
            end_token_ids=self._end_token_ids(ending),
            stop_token_ids=ending.stop_token_ids,
            logprobs=logprobs,
            priority=request.priority,
            embeddings=request.embeddings,
            beams=request.beams,
            adapter=request.adapter,
        )

    def _end_token_ids(self, ending: EndingParams) -> tuple[int, ...]:
        if ending.ignore_eos:
            return ()
        return self._model.eos_ids if ending.end_token_ids is None else ending.end_token_ids

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int, earlier: int) -> int:
        """``earlier``: tokens of the output that earlier calls have generated."""
        ending, context = request.ending, self._model.context_tokens
        asked, encoder = ending.max_tokens, self._model.encoder
        if encoder is not None and prompt_tokens > encoder.context_tokens:
            raise self._prompts.overflow(f"the prompt has {prompt_tokens}", "prompt")
        prompt_tokens = earlier if encoder is not None else prompt_tokens + earlier
        room = context - prompt_tokens
        if ending.max_total_tokens is not None and room > 0 and encoder is None:
            left = min(ending.max_total_tokens, context) - prompt_tokens
            if left <= 0:
                message = f"'max_total_tokens' ({ending.max_total_tokens}) leaves no room behind a prompt of "
                raise BadRequest(f"{message}{prompt_tokens} tokens.", param="max_total_tokens")
            asked = left if asked is None else min(asked, left)
        if asked is not None and ending.clamp_to_context and room > 0:
            asked = min(asked, room)
        if asked is None and room > 0:
            return room
        if encoder is not None and (asked is None or asked > room):
            wanted = earlier + (asked or 1)
            message = f"This model generates at most {context} tokens. However, {wanted} were requested."
            raise ContextOverflow(message, param="max_tokens", max_tokens=asked, context_tokens=context)
        if asked is None or asked > room:
            is_chat = isinstance(request.prompt, ChatPrompt)
            parts = f"{prompt_tokens} in the {'messages' if is_chat else 'prompt'}, {asked or 1} to generate"
            raise ContextOverflow(
                f"This model's maximum context length is {context} tokens. "
                f"However, {prompt_tokens + (asked or 1)} tokens were requested: {parts}.",
                param="messages" if is_chat else "prompt",
                prompt_tokens=prompt_tokens,
                max_tokens=asked,
                context_tokens=context,
            )
        return asked

    def _check_ids(self, param: str, ids: Sequence[int] | dict[int, float]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self._model.vocab_size:
            raise BadRequest(f"'{param}': token ids are from 0 to {self._model.vocab_size - 1}.", param=param)

    def _limit(self, request: GenerationRequest) -> float | None:
        return min((limit for limit in (request.timeout_s, self._timeout_s) if limit is not None), default=None)


class Deadline:
    """Calls ``cancel`` ``limit_s`` seconds after arrival, and says of what follows that it was for want of time."""

    def __init__(self, arrived: float, limit_s: float | None, cancel: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._cancel = cancel
        self._passed = False
        self._timer: asyncio.TimerHandle | None = None
        if limit_s is not None:
            self._timer = asyncio.get_running_loop().call_at(arrived + limit_s, self._pass)

    def lift(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def reason(self, finish: FinishReason) -> FinishReason:
        return FinishReason.TIMEOUT if self._passed and finish is FinishReason.CANCELLED else finish

    def failure(self, message: str) -> GenerationFailed:
        return GenerationTimeout(self.words(message)) if self._passed else GenerationFailed(message)

    def words(self, message: str) -> str:
        return f"The generation did not finish within {self._limit_s:g} seconds." if self._passed else message

    def _pass(self) -> None:
        self._passed = True
        self._cancel()


def _before(request: GenerationRequest, prompt: tuple[int, ...]) -> int:
    """Tokens that are there before the first new one: the prompt's, and those of earlier calls."""
    return len(prompt) + (len(request.resumed.output) if request.resumed else 0)


def _check_logprobs(logprobs: LogprobParams, tokens: int, vocab_size: int) -> None:
    if logprobs.top > vocab_size:
        raise BadRequest(f"The model has only {vocab_size} tokens.", param="logprobs")
    if tokens * (logprobs.most + 1) > MAX_LOGPROBS:
        message = (
            f"{tokens} tokens with {logprobs.most} alternatives each are more than {MAX_LOGPROBS} log-probabilities."
        )
        raise BadRequest(f"{message} Ask for fewer tokens, sequences or alternatives.", param="logprobs")


def _check_embeddings(embeddings: PromptEmbeddings, prompt_tokens: int, hidden_size: int) -> None:
    last, count = embeddings.token_indices[-1], len(embeddings.token_indices)
    if last >= prompt_tokens:
        message = f"'token_index_to_replace' names place {last} of a prompt of {prompt_tokens} tokens."
        raise BadRequest(message, param="token_index_to_replace")
    if len(embeddings.values) != 4 * count * hidden_size:
        message = f"'embedding_to_replace' has {len(embeddings.values) // 4} numbers, not {count} times {hidden_size}."
        raise BadRequest(message, param="embedding_to_replace")


def _with_forced_length(request: GenerationRequest) -> GenerationRequest:
    """Where the output is given, nothing else ends it."""
    forced, ending = request.sampling.forced_tokens, request.ending
    if not forced:
        return request
    shown = EndingParams(
        max_tokens=len(forced), end_token_ids=ending.end_token_ids, skip_special_tokens=ending.skip_special_tokens
    )
    return msgspec.structs.replace(request, ending=shown)


def _seeds(given: tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    """One seed for each sequence: as given, counted up from a single one, or drawn from the operating system."""
    if given is not None and len(given) == count > 1:
        return given
    if given is not None and len(given) != 1:
        raise BadRequest(f"{len(given)} seeds were given for {count} sequences.", param="seed")
    first = secrets.randbits(64) if given is None else given[0]
    return tuple((first + i) & MAX_SEED for i in range(count))
