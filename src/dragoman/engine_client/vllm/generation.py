"""One sequence on one vLLM server: what is sent, and the events of what comes back.

A sequence that another server has begun continues from its tokens, which become a part of the prompt, where the next
token depends on the tokens alone; so with the plugin, whose random numbers follow from a token's position. Otherwise
the sequence is computed again from its beginning, and its tokens are compared with those that were delivered: where its
draws can be repeated, because the client gave the seed or may continue the text later, since vLLM's random numbers do
not follow from a token's position; where penalties count the tokens of the output; and with the plugin where mirostat
has a state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.core.events import EngineEvent, PromptEvent, TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.engine import sampling
from dragoman.engine_client.event_stream import EventStream
from dragoman.engine_client.recovery import InFlightRequest
from dragoman.engine_client.vllm.http import Answer, HttpFailure
from dragoman.engine_client.vllm.protocol import (
    GENERATE,
    Choice,
    EventReader,
    GenerateBody,
    WholeAnswer,
    error_message,
)
from dragoman.engine_client.vllm.translation import (
    cache_salt,
    counts_output,
    end_reason,
    plugin_params,
    prompt_logprob_params,
    prompt_logprobs,
    sampling_params,
    seed_after,
    token_logprobs,
    uses_plugin,
)
from dragoman.engine_client.vllm.upstream import Upstream

BUSY = (429, 503)
"""Statuses that say nothing about the request: the server, or a proxy before it, has no room for it now."""

Deliver = Callable[["InFlight", list[EngineEvent]], None]


class InFlight(InFlightRequest):
    """A request, its delivered events, and the tasks of its sequences. ``grammar_states``: of its sequences, after the
    delivered tokens, where it has a grammar."""

    def __init__(self, request: EngineRequest, stream: EventStream) -> None:
        super().__init__(request)
        self.stream = stream
        self.tasks: list[asyncio.Task[None]] = []
        self.grammar_states: list[sampling.GrammarState] = []


class Refused(DragomanError):
    """The server refuses the request, and would refuse it again."""


def must_begin_again(request: EngineRequest, *, by_plugin: bool) -> bool:
    """Return whether a sequence cannot continue from its tokens on another server."""
    sampling = request.sampling
    if by_plugin:
        return sampling.mirostat_mode != 0 and sampling.temperature != 0
    is_reproducible = request.seeded or request.resumable
    return counts_output(sampling) or (is_reproducible and sampling.temperature != 0)


async def prompt_event(upstream: Upstream, request: EngineRequest) -> PromptEvent:
    """Return the log-probabilities of a request's prompt. Raises Refused, HttpFailure."""
    assert request.logprobs is not None
    body = GenerateBody(
        request_id=f"{request.request_id}-prompt",
        token_ids=request.prompt,
        sampling_params=prompt_logprob_params(request.logprobs),
        model=upstream.traits.model,
        cache_salt=cache_salt(request.cache_salt),
        priority=-request.priority,
    )
    async with upstream.http.send("POST", GENERATE, msgspec.json.encode(body)) as answer:
        content = await answer.read()
    _check_status(answer, content)
    try:
        own, top = prompt_logprobs(
            msgspec.json.decode(content, type=WholeAnswer).prompt_logprobs or (), request.prompt, request.logprobs
        )
    except ValueError as error:
        raise Refused(f"its answer is not as expected: {error}") from None
    return PromptEvent(request.request_id, logprobs=own, top=top)


async def stream_sequence(upstream: Upstream, running: InFlight, index: int, deliver: Deliver, hang_s: float) -> None:
    """Compute a sequence from where it stands to its end, and deliver its events.

    ``hang_s``: longest silence after the first token. Raises Refused, and HttpFailure where the stream is lost.
    """
    request, done = running.request, len(running.generated[index])
    by_plugin = uses_plugin(request, upstream.traits)
    replayed = done if must_begin_again(request, by_plugin=by_plugin) else 0
    kept = done - replayed
    seed, name = request.seeds[index], f"{request.request_id}-{index}-{done}"
    if by_plugin:
        params = plugin_params(request, index, kept, name)
    else:
        params = sampling_params(request, seed_after(seed, kept) if kept else seed, kept)
    body = GenerateBody(
        request_id=name,
        token_ids=request.prompt + tuple(running.generated[index][:kept]),
        sampling_params=params,
        model=upstream.traits.model,
        stream=True,
        cache_salt=cache_salt(request.cache_salt),
        priority=-request.priority,
    )
    position = delivered = kept
    timeout_s: float | None = None
    events = EventReader()
    async with upstream.http.send("POST", GENERATE, msgspec.json.encode(body)) as answer:
        if answer.status != 200:
            _check_status(answer, await answer.read(hang_s))
        while data := await answer.read_some(timeout_s):
            new: list[EngineEvent] = [] if running.prompt_seen else [PromptEvent(request.request_id)]
            try:
                for choice in _choices(events, data):
                    timeout_s = hang_s
                    found = _token_events(running, index, position, choice, upstream.traits.vocab_size)
                    position += len(found)
                    new += found
                    if found and found[-1].finish is not None:
                        break
                    if choice.finish_reason is not None:
                        _explain_end(choice.finish_reason, position)
            finally:
                if position > delivered:
                    deliver(running, new)
                    delivered = position
            if running.finished[index]:
                return
            await _until_read(running.stream)
    raise HttpFailure("the stream ended before the sequence")


def _check_status(answer: Answer, content: bytes) -> None:
    """Raise for an answer that is an error: Refused where the request is the reason, HttpFailure otherwise."""
    if answer.status != 200:
        message = error_message(content)
        if 400 <= answer.status < 500 and answer.status not in (408, 429):
            raise Refused(message)
        again_s = answer.retry_after_s if answer.status in BUSY else None
        raise HttpFailure(f"it answers with status {answer.status}: {message}", again_s=again_s)


def _choices(events: EventReader, data: bytes) -> Iterator[Choice]:
    """Yield the choices in a piece of a stream. Raises Refused and HttpFailure for errors in it."""
    try:
        for event in events.feed(data):
            if event.error is not None:
                if 400 <= event.error.code < 500:
                    raise Refused(event.error.message)
                raise HttpFailure(f"it ended a stream with the error: {event.error.message}")
            yield from event.choices
    except ValueError as error:
        raise HttpFailure(f"its stream is not as expected: {error}") from None


def _token_events(running: InFlight, index: int, position: int, choice: Choice, vocab_size: int) -> list[TokenEvent]:
    """Return the events of a choice's tokens, the first at ``position``, up to one that ends the sequence.

    Raises Refused where a token that was delivered before is another now, is none of the vocabulary, has no
    log-probability, or the grammar does not allow one.
    """
    request, before = running.request, running.generated[index]
    content = None if choice.logprobs is None else choice.logprobs.content
    found = []
    for offset, token_id in enumerate(choice.token_ids or ()):
        place = position + offset
        if not 0 <= token_id < vocab_size:
            raise Refused(f"it chose token {str(token_id)[:20]}, and its vocabulary has {vocab_size}")
        if place < len(before) and before[place] != token_id:
            raise Refused(f"it computes another token {place} of a stream than the server that began it")
        wire = content[offset] if content is not None and offset < len(content) else None
        if wire is None and request.logprobs is not None:
            raise Refused(f"it tells no log-probability of token {place}")
        logprob, top = token_logprobs(wire, request.logprobs)
        is_complete = place >= len(before) and _follow(running, index, token_id)
        finish = end_reason(request, place, token_id, is_complete)
        found.append(TokenEvent(request.request_id, index, place, token_id, finish, logprob, top))
        if finish is not None:
            break
    return found


def _follow(running: InFlight, index: int, token_id: int) -> bool:
    """Advance in the sequence's grammar, where it has one. Returns whether nothing can follow. Raises Refused."""
    if not running.grammar_states:
        return False
    state = running.grammar_states[index]
    is_complete = state.push(token_id)
    if state.error:
        raise Refused(f"it chose token {token_id}, which the grammar does not allow: {state.error}")
    return is_complete


def _explain_end(reason: str, position: int) -> None:
    """Raise for a stream that the server ended where the request does not."""
    if reason in ("abort", "error"):
        raise HttpFailure(f"it ended a stream with '{reason}'")
    raise Refused(f"it ended a stream after {position} tokens with '{reason}', where the request does not end")


async def _until_read(stream: EventStream) -> None:
    """Wait while the client is far behind in reading: the server's stream is then not read either."""
    if stream.is_behind:
        is_read = asyncio.Event()
        stream.when_read(is_read.set)
        await is_read.wait()
