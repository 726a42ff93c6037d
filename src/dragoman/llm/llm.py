"""The ``LLM`` class: a model inside a Python program, without HTTP. docs/python.md is its manual."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar, Unpack

import msgspec

from dragoman.core.errors import EngineUnavailable, ShuttingDown
from dragoman.core.events import GenerationResult
from dragoman.core.request import GenerationRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects.tools import PLAIN, MessageShape
from dragoman.llm.in_process import ScoreRequest, numbered
from dragoman.llm.loop_thread import CLOSED
from dragoman.llm.outputs import OutputDelta, RequestOutput, ScoreOutput, request_output
from dragoman.llm.prompts import (
    ChatOptions,
    Message,
    Prompt,
    check_adapter,
    checked_chat,
    checked_text,
    core_prompt,
    is_conversation,
    listed_conversations,
    listed_params,
    listed_prompts,
    token_ids,
)
from dragoman.llm.running import check_placement, close_forgotten, start_model
from dragoman.llm.sampling_params import MAX_TOP, InvalidParams, SamplingParams, plain
from dragoman.models.topology import place

T = TypeVar("T")
Opened = TypeVar("Opened", bound="LLM")

CLOSED_MEANWHILE = (
    "The model was closed before the request was finished, by another thread or because the program ends: wait for "
    "what generates first (executor.shutdown() for executors)."
)


class _Jobs(NamedTuple):
    """A checked batch: the arguments, and the request of each prompt."""

    prompts: Sequence[Any]
    params: Sequence[SamplingParams]
    shapes: Sequence[MessageShape]
    requests: Sequence[GenerationRequest]

    def outputs(self, results: Sequence[GenerationResult]) -> list[RequestOutput]:
        return [
            request_output(prompt, result, params, shape)
            for prompt, result, params, shape in zip(self.prompts, results, self.params, self.shapes, strict=True)
        ]


class LLM:
    """A loaded model. It generates in separate processes; ``close`` ends them, as does the end of a ``with`` block.

    Any thread may call any method, also while another one waits. Methods whose names begin with ``a`` are the same for
    asyncio. Errors derive from ``DragomanError``: ``BadRequest`` for what can never be served, ``EngineUnavailable``
    after ``close``.

    Attributes:
        card: facts about the model: name, context, size of the vocabulary.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        threads: int | None = None,
        cpus: str | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
        **options: Any,
    ) -> None:
        """Load a model and wait until it can generate.

        ``model``: a folder in Hugging Face layout, a GGUF file or a hub id; None: the small embedded model.
        ``threads``: that compute; by default one for each physical core that is not an efficiency core. ``cpus``: the
        processors that they may use, such as ``"0-15,32"``; by default one of each of those cores. ``chat_template``: a
        file in place of the model's own. ``adapters``: LoRA adapters in PEFT's format by name, each a folder or a hub
        id. ``options``: those of ``dragoman serve`` about model and schedule, such as ``precision="int8"``,
        ``max_context=4096``, ``revision``.

        Raises ModelError for a model that cannot be loaded, InvalidParams for options that cannot be.
        """
        threads = plain(threads)
        check_placement(threads, cpus)
        self._running = start_model(model, place(threads, cpus), chat_template, adapters or {}, options)
        self.card: ModelCard = self._running.model.card
        self._numbers = itertools.count(1)
        self._finalizer = weakref.finalize(self, close_forgotten, self._running)
        self._finalizer.atexit = False  # the model is closed earlier then, by itself

    @classmethod
    async def aopen(cls, model: str | os.PathLike[str] | None = None, **options: Any) -> Self:
        """Load a model without blocking the event loop; arguments as of the class. Cancelled, it is closed once it is
        loaded."""
        opening = _Opening(lambda: cls(model, **options))
        try:
            return await asyncio.to_thread(opening.run)
        except asyncio.CancelledError:
            opening.leave()
            raise

    # Texts from prompts ----------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Continue one prompt or a batch of them; the outputs are in their order.

        ``prompts``: texts, or lists of token ids. ``sampling_params``: for all, or one for each. ``adapter``: the name
        of a loaded one. Each prompt is a separate request, with the seed that is given: its text does
        not depend on the others. The first that fails ends the batch and is raised.
        """
        jobs = self._prompt_jobs(prompts, sampling_params, adapter)
        return jobs.outputs(self._run(self._running.model.generate(jobs.requests)))

    async def agenerate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Generate as ``generate`` does, for asyncio."""
        jobs = self._prompt_jobs(prompts, sampling_params, adapter)
        return jobs.outputs(await self._wait_for(self._running.model.generate(jobs.requests)))

    # Answers to conversations ----------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Sequence[Message] | Iterable[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation or a batch of them, rendered by the model's chat template.

        ``messages``: in OpenAI's form; for models that see also with parts ``{"type": "image", "image": …}``: a
        ``pathlib.Path``, bytes, or an image of Pillow.

        ``options``: ``tools``, ``tool_choice``, ``parallel_tool_calls``,
        ``separate_reasoning``, ``add_generation_prompt``, ``continue_final_message`` and ``chat_template_kwargs``, as
        in a request to the server.
        """
        jobs = self._chat_jobs(messages, sampling_params, adapter, options)
        return jobs.outputs(self._run(self._running.model.generate(jobs.requests)))

    async def achat(
        self,
        messages: Sequence[Message] | Iterable[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer as ``chat`` does, for asyncio."""
        jobs = self._chat_jobs(messages, sampling_params, adapter, options)
        return jobs.outputs(await self._wait_for(self._running.model.generate(jobs.requests)))

    # Texts as they come ----------------------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> Generator[OutputDelta, None, None]:
        """Continue one prompt, or answer one conversation, piece by piece. Closing the iterator ends the generation.

        ``options``: those of ``chat``, of a conversation.
        """
        return self._pull(self._deltas(prompt, sampling_params, adapter, options))

    def astream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[OutputDelta, None]:
        """Stream as ``stream`` does, for asyncio."""
        return self._apull(self._deltas(prompt, sampling_params, adapter, options))

    # Scores of given texts -------------------------------------------------------------------------------------------

    def score(
        self,
        texts: str | Sequence[int] | Iterable[str | Sequence[int]],
        prompts: Prompt | Sequence[Prompt] | None = None,
        *,
        top_logprobs: int = 0,
        adapter: str | None = None,
    ) -> list[ScoreOutput]:
        """Return how likely the model finds one text or each of a batch, token by token.

        ``prompts``: prompts of the texts, one for all or one for each; without it a text is scored alone, and its first
        token has no log-probability. Prompt and text become tokens each by itself. ``top_logprobs``: alternatives that
        are reported with each token.
        """
        return self._run(self._running.model.score(self._score_requests(texts, prompts, top_logprobs, adapter)))

    async def ascore(
        self,
        texts: str | Sequence[int] | Iterable[str | Sequence[int]],
        prompts: Prompt | Sequence[Prompt] | None = None,
        *,
        top_logprobs: int = 0,
        adapter: str | None = None,
    ) -> list[ScoreOutput]:
        """Score as ``score`` does, for asyncio."""
        requests = self._score_requests(texts, prompts, top_logprobs, adapter)
        return await self._wait_for(self._running.model.score(requests))

    # Tokens ----------------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text. ``add_special_tokens``: also those that the model puts around a prompt."""
        return self._run(self._running.model.tokenize(checked_text(text, "text"), add_special_tokens))

    async def atokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return what ``tokenize`` does, for asyncio."""
        return await self._wait_for(self._running.model.tokenize(checked_text(text, "text"), add_special_tokens))

    def detokenize(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        return self._run(self._running.model.detokenize(token_ids(ids, "ids"), skip_special_tokens))

    async def adetokenize(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Return what ``detokenize`` does, for asyncio."""
        return await self._wait_for(self._running.model.detokenize(token_ids(ids, "ids"), skip_special_tokens))

    # The end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the model's processes. Calls that wait in other threads fail with ShuttingDown. Idempotent."""
        self._finalizer.detach()
        self._running.close()

    async def aclose(self) -> None:
        """Close as ``close`` does, for asyncio."""
        await asyncio.to_thread(self.close)

    def __reduce__(self) -> str:
        raise TypeError("an LLM cannot be copied, nor sent to another process: open one there")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<LLM {self.card.name}{'' if self._running.is_open else ', closed'}>"

    # Requests --------------------------------------------------------------------------------------------------------

    def _prompt_jobs(
        self,
        given: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: str | None,
    ) -> _Jobs:
        check_adapter(adapter)
        prompts = listed_prompts(given)
        params = listed_params(sampling_params, len(prompts))
        requests = []
        for i, each in enumerate(zip(prompts, params, strict=True)):
            with numbered(i, len(prompts)):
                requests.append(self._prompt_request(*each, adapter))
        return _Jobs(prompts, params, [PLAIN] * len(prompts), requests)

    def _chat_jobs(
        self,
        given: Sequence[Message] | Iterable[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: str | None,
        options: ChatOptions,
    ) -> _Jobs:
        check_adapter(adapter)
        conversations = listed_conversations(given)
        params = listed_params(sampling_params, len(conversations))
        made = []
        for i, each in enumerate(zip(conversations, params, strict=True)):
            with numbered(i, len(conversations)):
                made.append(self._chat_request(*each, adapter, options))
        return _Jobs(conversations, params, [shape for _, shape in made], [request for request, _ in made])

    def _prompt_request(self, prompt: Prompt, params: SamplingParams, adapter: str | None) -> GenerationRequest:
        return params.request(self._next_id(), core_prompt(prompt), adapter=adapter)

    def _chat_request(
        self, messages: Sequence[Message], params: SamplingParams, adapter: str | None, options: ChatOptions
    ) -> tuple[GenerationRequest, MessageShape]:
        chat = checked_chat(messages, options, params, self.card)
        request = params.request(self._next_id(), chat.prompt, max_tokens=None, adapter=adapter)
        plan = chat.plan
        request = msgspec.structs.replace(
            request, constraint_behind_reasoning=plan.behind_reasoning, shown_tokens=plan.shown_tokens
        )
        if plan.constraint is not None:
            request = msgspec.structs.replace(request, constraint=plan.constraint, constraint_param="tools")
        return request, plan.shape

    def _deltas(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None,
        adapter: str | None,
        options: ChatOptions,
    ) -> AsyncGenerator[OutputDelta, None]:
        check_adapter(adapter)
        params = listed_params(sampling_params, 1)[0]
        if is_conversation(prompt):
            request, shape = self._chat_request(prompt, params, adapter, options)  # type: ignore[arg-type]
        else:
            if options:
                raise InvalidParams(f"'{min(options)}' goes with messages.", param=min(options))
            prompts = listed_prompts(prompt)  # type: ignore[arg-type]
            if len(prompts) != 1:
                raise InvalidParams("One prompt is streamed at a time.", param="prompt")
            request, shape = self._prompt_request(prompts[0], params, adapter), PLAIN
        return self._running.model.stream(request, params, shape)

    def _score_requests(
        self,
        texts: str | Sequence[int] | Iterable[str | Sequence[int]],
        prompts: Prompt | Sequence[Prompt] | None,
        top_logprobs: int,
        adapter: str | None,
    ) -> list[ScoreRequest]:
        check_adapter(adapter)
        listed = listed_prompts(texts)
        before: list[Prompt] | list[None] = [None] * len(listed)
        if prompts is not None:
            before = listed_prompts(prompts)
            before = before * len(listed) if len(before) == 1 else before
            if len(before) != len(listed):
                message = f"'prompts' are {len(before)} for {len(listed)} texts: give one for all, or one for each."
                raise InvalidParams(message, param="prompts")
        top_logprobs = plain(top_logprobs)
        if type(top_logprobs) is not int or not 0 <= top_logprobs <= MAX_TOP:
            raise InvalidParams(f"'top_logprobs' is from 0 to {MAX_TOP}, not {top_logprobs!r}.", param="top_logprobs")
        return [
            ScoreRequest(request_id=self._next_id(), text=text, prompt=prompt, top=top_logprobs, adapter=adapter)  # type: ignore[arg-type]
            for text, prompt in zip(listed, before, strict=True)
        ]

    def _next_id(self) -> str:
        return f"llm-{next(self._numbers)}"

    # The loop --------------------------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._until_closed(work):
            return self._running.thread.run(work)

    async def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        with self._until_closed(work):
            return await self._running.thread.wait_for(work)

    @contextlib.contextmanager
    def _until_closed(self, work: Coroutine[Any, Any, object]) -> Iterator[None]:
        """Raise EngineUnavailable where the model is closed, and ShuttingDown where that ends the block."""
        if self._running.is_own and not self._running.is_open:
            work.close()
            raise EngineUnavailable(CLOSED)
        try:
            yield
        except (EngineUnavailable, asyncio.CancelledError) as error:
            if self._running.is_open or not self._running.is_own or _is_of_caller(error):
                raise
            raise ShuttingDown(CLOSED_MEANWHILE) from None

    def _pull(self, deltas: AsyncGenerator[OutputDelta, None]) -> Generator[OutputDelta, None, None]:
        try:
            while (delta := self._run(_next(deltas))) is not None:
                yield delta
        finally:
            # Not waited for: the garbage collector may close it, in any thread.
            self._running.thread.start(deltas.aclose())

    async def _apull(self, deltas: AsyncGenerator[OutputDelta, None]) -> AsyncGenerator[OutputDelta, None]:
        try:
            while (delta := await self._wait_for(_next(deltas))) is not None:
                yield delta
        finally:
            self._running.thread.start(deltas.aclose())


class _Opening(Generic[Opened]):
    """A model that a thread opens for a task, which may be cancelled meanwhile: it is closed then."""

    def __init__(self, make: Callable[[], Opened]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._llm: Opened | None = None
        self._is_left = False

    def run(self) -> Opened:
        llm = self._make()
        with self._lock:
            self._llm, is_left = llm, self._is_left
        if is_left:
            llm.close()
        return llm

    def leave(self) -> None:
        """Have the model closed, now or once it is open, without waiting for that."""
        with self._lock:
            self._is_left, llm = True, self._llm
        if llm is not None:
            threading.Thread(target=llm.close, name="closes an LLM").start()


def _is_of_caller(error: BaseException) -> bool:
    """Return whether it is the caller's own task that was cancelled."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0


async def _next(deltas: AsyncGenerator[OutputDelta, None]) -> OutputDelta | None:
    """Return the next delta; None after the last."""
    return await anext(deltas, None)
