"""A model for a single program: its engine and the serving layer, with a bound on concurrent work."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import msgspec

from dragoman.core.caller import MAX_PRIORITY, Caller, CallerLimits, current_caller
from dragoman.core.errors import DragomanError, UnsupportedFeature
from dragoman.core.events import GenerationDone, GenerationResult, PromptReady, TextDelta
from dragoman.core.request import GenerationRequest, TextPrompt, TokenPrompt
from dragoman.core.sampling import EndingParams, LogprobParams, SamplingParams
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.tools import MessageShape
from dragoman.llm.outputs import DeltaMaker, OutputDelta, ScoreOutput, score_output
from dragoman.llm.prompts import Prompt, core_prompt
from dragoman.llm.sampling_params import InvalidParams
from dragoman.llm.sampling_params import SamplingParams as PublicSamplingParams
from dragoman.serving.runtime import Runtime

PROGRAM = Caller(limits=CallerLimits(max_priority=MAX_PRIORITY))
"""The caller of all requests, which may set any priority: the process is its own."""

AHEAD = 2
"""The number of sequences of batches in the engine, as a multiple of the number computed at a time: the next ones
are ready when others end, and a batch of any length takes no more memory than its results."""


@contextmanager
def numbered(i: int, count: int) -> Iterator[None]:
    """Have errors say which of ``count`` prompts they are about."""
    try:
        yield
    except DragomanError as error:
        if count > 1:
            error.add_note(f"This is about number {i} of the batch, counted from 0.")
        raise


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One text to score, after a prompt where there is one, with so many alternatives for each token."""

    request_id: str
    text: str | Sequence[int]
    prompt: Prompt | None
    top: int
    adapter: str | None


class InProcessModel:
    """All methods belong to the event loop of ``runtime``."""

    def __init__(self, runtime: Runtime) -> None:
        self._serving: Serving = runtime.serving
        self._slots = Slots(AHEAD * runtime.info.max_running)

    @property
    def card(self) -> ModelCard:
        return self._serving.model(None)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Return all results in the order of the requests. The first that fails ends the others and is raised."""
        results: list[GenerationResult | None] = [None] * len(requests)

        async def work(i: int) -> None:
            async with self._slots.taken(_num_sequences(requests[i])):
                results[i] = await self._serving.generate(requests[i])

        await self._all(len(requests), work)
        return [result for result in results if result is not None]

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Return the scores in the order of the requests, as ``generate`` returns results."""
        scores: list[ScoreOutput | None] = [None] * len(requests)

        async def work(i: int) -> None:
            async with self._slots.taken(1):
                scores[i] = await self._score(requests[i])

        await self._all(len(requests), work)
        return [score for score in scores if score is not None]

    async def stream(
        self, request: GenerationRequest, params: PublicSamplingParams, shape: MessageShape
    ) -> AsyncGenerator[OutputDelta, None]:
        """Yield the deltas of one request, the counts in the last one. Closing early cancels the request."""
        current_caller.set(PROGRAM)
        maker: DeltaMaker | None = None
        last: OutputDelta | None = None
        async with aclosing(self._serving.stream(request)) as events:
            async for event in events:
                match event:
                    case PromptReady():
                        maker = DeltaMaker(event.seeds, params, shape, event.reasoning_begun)
                    case TextDelta():
                        assert maker is not None
                        delta = maker.delta(event)
                        if not maker.unfinished:
                            last = delta
                        elif delta.text or delta.token_ids or delta.reasoning or delta.finish_reason:
                            yield delta
                    case GenerationDone():
                        assert last is not None
                        yield msgspec.structs.replace(last, usage=event.usage)

    async def tokenize(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        if not text and not add_special_tokens:
            return ()
        return await self._serving.tokenize(TextPrompt(text=text, add_special_tokens=add_special_tokens), bounded=False)

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        return await self._serving.detokenize(token_ids, skip_special_tokens=skip_special_tokens)

    async def _all(self, count: int, work: Any) -> None:
        """Run ``work`` for all numbers below ``count``, at most as many at a time as there are slots."""
        numbers = iter(range(count))

        async def work_on() -> None:
            current_caller.set(PROGRAM)
            for i in numbers:
                with numbered(i, count):
                    await work(i)

        tasks = [asyncio.create_task(work_on()) for _ in range(min(count, self._slots.total))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _score(self, asked: ScoreRequest) -> ScoreOutput:
        logprobs = LogprobParams(top=asked.top, prompt=True)
        request = GenerationRequest(
            request_id=asked.request_id,
            prompt=core_prompt(asked.text),
            adapter=asked.adapter,
            ending=EndingParams(max_tokens=0),
            logprobs=logprobs,
        )
        has_encoder = self.card.encoder_context_tokens is not None
        if asked.prompt is None:
            if has_encoder:
                message = "An encoder-decoder model scores what follows a prompt: give 'prompts'."
                raise UnsupportedFeature(message, param="prompts")
            result = await self._serving.generate(request)
            return score_output(asked.text, result.prompt.tokens, result.usage)
        text = await self._token_ids(asked.text)
        if not text:
            raise InvalidParams("There is nothing to score in an empty text.", param="texts")
        prompt = core_prompt(asked.prompt)
        if has_encoder:
            # The decoder's input is not the prompt: its tokens are forced.
            forced = SamplingParams(forced_tokens=text)
            request = msgspec.structs.replace(
                request, prompt=prompt, sampling=forced, logprobs=LogprobParams(top=asked.top)
            )
            result = await self._serving.generate(request)
            return score_output(asked.text, result.generations[0].tokens, result.usage)
        before = await self._serving.tokenize(prompt)
        request = msgspec.structs.replace(request, prompt=TokenPrompt(token_ids=before + text))
        result = await self._serving.generate(request)
        return score_output(asked.text, result.prompt.tokens[len(before) :], result.usage)

    async def _token_ids(self, text: str | Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a text that continues another one: without those that begin a text."""
        if isinstance(text, str):
            return await self.tokenize(text, add_special_tokens=False)
        prompt = core_prompt(text)
        assert isinstance(prompt, TokenPrompt)
        return prompt.token_ids


class Slots:
    """A bound on the sum of weights of concurrent work; waiters are served in their order."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, weight: int) -> AsyncIterator[None]:
        """Hold ``weight`` slots, or all of them where there are fewer. Waits until they are free."""
        weight = min(weight, self.total)
        if self._waiting or self._free < weight:
            await self._wait(weight)
        else:
            self._free -= weight
        try:
            yield
        finally:
            self._free += weight
            self._wake()

    async def _wait(self, weight: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = deque(each for each in self._waiting if each[1] is not turn)
            else:  # it has them already
                self._free += weight
            self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting and self._free >= self._waiting[0][0]:
            weight, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._free -= weight
                turn.set_result(None)


def _num_sequences(request: GenerationRequest) -> int:
    return max(request.best_of or request.n, request.beams.num_beams if request.beams else 0)
