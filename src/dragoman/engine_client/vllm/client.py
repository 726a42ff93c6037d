"""The engine as serving sees it, over vLLM servers: submit requests and read their events, across their crashes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec

from dragoman.core.errors import SHUTTING_DOWN, BadRequest, EngineUnavailable, ModelError, ShuttingDown
from dragoman.core.events import EngineEvent, FinishEvent, FinishReason, PromptEvent
from dragoman.core.explanation import EngineExplanation
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import Vocabulary
from dragoman.engine.messages import EngineInfo, EngineStats
from dragoman.engine_client.backpressure import check_room, most_unread
from dragoman.engine_client.event_stream import EventStream
from dragoman.engine_client.health import Health, State
from dragoman.engine_client.restarts import PATIENCE_S
from dragoman.engine_client.vllm.generation import InFlight, Refused, prompt_event, stream_sequence
from dragoman.engine_client.vllm.grammars import FollowedGrammars
from dragoman.engine_client.vllm.http import HttpFailure
from dragoman.engine_client.vllm.model import RemoteModel
from dragoman.engine_client.vllm.settings import Address
from dragoman.engine_client.vllm.tenant_limits import TenantLimits
from dragoman.engine_client.vllm.translation import Abilities, Traits, check, honoured_defaults
from dragoman.engine_client.vllm.upstream import Upstream
from dragoman.models import AdapterInfo, ModelInfo

log = logging.getLogger(__name__)

MOST_LOSSES = 3
"""Failures of a sequence without a token in between before it is failed: it may be what kills the servers."""
RETRY_S = 0.2
LONGEST_RETRY_S = 10.0
STEP_S = 0.05
"""Interval of the steps that observers are told: vLLM's own are not known here."""
MAX_UNFINISHED = 4096
"""Most unfinished sequences for each server. vLLM itself has no limit."""
NO_ADAPTERS_HERE = "adapters are not supported by the engine of this server, vLLM"


class VllmClient:
    """Runs requests on vLLM servers, each sequence on the one that has fewest of them.

    Where a server is lost, its sequences continue on another, or on the same when it is back: ``generation`` says how.
    All methods must be called from one event loop.
    """

    def __init__(
        self,
        addresses: tuple[Address, ...],
        model: RemoteModel,
        *,
        api_key: str | None = None,
        max_context: int | None = None,
        hang_s: float = 60.0,
        give_up_s: float = 0.0,
        has_priorities: bool = False,
    ) -> None:
        """``has_priorities``: the servers run requests by priority. ``hang_s``: a stream is lost that is silent for so
        long after its first token. ``give_up_s``: when no server could be used for so long, the engine has failed; 0:
        never."""
        self._model = model
        self._max_context = max_context
        self._hang_s, self._give_up_s = hang_s, give_up_s
        self._upstreams = [Upstream(address, model, api_key, self._on_change) for address in addresses]
        self._has_priorities = has_priorities
        self._abilities: Abilities | None = None
        self._grammars = FollowedGrammars()
        self._state = State.STARTING
        self._message = ""
        self._info: EngineInfo | None = None
        self._requests: dict[str, InFlight] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._usable = asyncio.Event()
        self._tenants = TenantLimits()
        self._down_since = 0.0
        self._stats = EngineStats()
        self._counts: dict[str, float] = dict.fromkeys(("prompt_tokens", "generated_tokens", "steps", "busy_s"), 0.0)
        self._restarts = 0
        self._step: asyncio.TimerHandle | None = None
        self._step_began = 0.0
        self._last_event_s = 0.0
        self.on_step: Callable[[EngineStats, EngineStats, float], None] | None = None
        """Called at intervals while tokens come: the counters before and after, and 0."""
        self.on_loading: Callable[[str, float], None] | None = None
        """Never called: the servers have loaded their model."""
        self.on_failed: Callable[[str], None] | None = None
        """Called with the reason when the engine has FAILED."""

    # Lifecycle --------------------------------------------------------------------------------------------------------

    async def start(self) -> EngineInfo:
        """Ask all servers what they are. Raises ModelError for one that is unsuitable or cannot be reached."""
        try:
            await asyncio.gather(*(upstream.open() for upstream in self._upstreams))
            first, *others = self._upstreams
            for other in others:
                if differing := _differing(first.traits, other.traits):
                    message = f"the servers at {first.address} and {other.address} differ: {differing}"
                    raise ModelError(f"--engine: {message}")
        except BaseException:
            await self.close()
            raise
        self._abilities = Abilities(
            traits=first.traits,
            eos_ids=frozenset(self._model.eos_token_ids),
            has_priorities=self._has_priorities,
        )
        self._info = self._describe()
        self._state = State.READY
        self._usable.set()
        self._tasks = [asyncio.create_task(upstream.watch()) for upstream in self._upstreams]
        self._tasks.append(asyncio.create_task(self._watch_outage()))
        return self._info

    def _describe(self) -> EngineInfo:
        traits, model = self._upstreams[0].traits, self._model
        context = min(upstream.traits.context_tokens for upstream in self._upstreams)
        if self._max_context is not None:
            context = min(context, self._max_context)
        figures = [upstream.figures for upstream in self._upstreams]
        identity = f"vllm {traits.version} {traits.root} {model.digest} {traits.plugin}".rstrip()
        return EngineInfo(
            model=ModelInfo(
                name=model.name,
                architecture=model.architecture,
                precision=model.dtype,
                kv_precision="auto",
                context_tokens=context,
                vocab_size=traits.vocab_size,
                hidden_size=model.hidden_size,
                eos_token_ids=model.eos_token_ids,
                bos_token_id=model.bos_token_id,
                parameter_count=0,
                weight_bytes=0,
                fingerprint=hashlib.blake2b(identity.encode(), digest_size=8).hexdigest(),
                tokenizer_folder=str(model.folder),
            ),
            vocab_size=traits.vocab_size,
            max_context=context,
            block_size=max(each.block_size for each in figures) or 1,
            num_blocks=sum(each.blocks for each in figures),
            max_running=MAX_UNFINISHED * len(figures),
            max_unfinished=MAX_UNFINISHED * len(figures),
            step_tokens=context,
            load_s=1.0,
        )

    async def close(self) -> None:
        """Cancel everything on the servers. Unfinished requests end with an error."""
        self._state = State.CLOSED
        if self._step is not None:
            self._step.cancel()
        running = [task for request in self._requests.values() for task in request.tasks]
        for task in (*self._tasks, *running):
            task.cancel()
        await asyncio.gather(*self._tasks, *running, return_exceptions=True)
        for request in list(self._requests.values()):
            self._deliver(request, request.failure_events(SHUTTING_DOWN))
        for upstream in self._upstreams:
            upstream.http.close()

    def _on_change(self, upstream: Upstream, reason: str | None) -> None:
        """Note that a server was lost, for a reason, or is back."""
        waiting = sum(len(request.open_sequences) for request in self._requests.values())
        usable = [each for each in self._upstreams if each.is_ready]
        if reason is not None:
            self._restarts += 1
            then = f"{len(usable)} others continue" if usable else "restarting is its operator's"
            log.error("the vLLM server at %s is lost: %s; %s, %d streams", upstream.address, reason, then, waiting)
            if not usable:
                self._usable.clear()
                self._state, self._message = State.RESTARTING, f"no vLLM server can be used ({reason})"
                self._down_since = self._now()
            return
        down_s = self._now() - upstream.down_since
        log.info("the vLLM server at %s is back after %.1f s, %d streams continue", upstream.address, down_s, waiting)
        if self._state is State.RESTARTING:
            self._state, self._message = State.READY, ""
            self._usable.set()

    async def _watch_outage(self) -> None:
        """Fail for good when no server could be used for too long."""
        while self._give_up_s:
            await asyncio.sleep(min(1.0, self._give_up_s / 4))
            if self._state is State.RESTARTING and self._now() - self._down_since >= self._give_up_s:
                self._state = State.FAILED
                self._message = f"the engine has been down for {self._give_up_s:g} s: {self._message}"
                log.error("%s; giving up", self._message)
                for request in list(self._requests.values()):
                    self._end(request, request.failure_events(self._message))
                if self.on_failed is not None:
                    self.on_failed(self._message)
                return

    # Requests --------------------------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> EventStream:
        """Submit a request and return the stream of its events.

        Raises UnsupportedFeature: vLLM cannot honour a parameter. EngineUnavailable: not started, failed, closed, or
        without a server for some seconds. Overloaded: too many sequences are unfinished. BadRequest: the id is in use.
        """
        if self._state is State.CLOSED:
            raise ShuttingDown
        if self._info is None or self._abilities is None or self._state not in (State.READY, State.RESTARTING):
            raise EngineUnavailable(self._message or f"the engine is {self._state}")
        if self._state is State.RESTARTING and self._now() - self._down_since > PATIENCE_S:
            raise EngineUnavailable(self._message, retry_after_s=PATIENCE_S)
        if request.request_id in self._requests:
            raise BadRequest(f"request id {request.request_id!r} is already in use")
        if request.deferrable and not self._has_priorities:
            request = msgspec.structs.replace(request, priority=0)
        self._check(request, self._abilities)
        check_room(request, self._requests.values(), self._info)
        running = InFlight(request, EventStream(lambda: self.cancel(request.request_id), most_unread(request)))
        self._requests[request.request_id] = running
        if not self._stats.running and not self._stats.waiting:
            self._last_event_s = self._now()
        running.tasks = [asyncio.create_task(self._run(running))]
        return running.stream

    async def explain(self, request: EngineRequest) -> EngineExplanation:
        """Return why a request would be refused, if it would be. vLLM tells neither its steps nor what its cache holds.

        Raises EngineUnavailable.
        """
        if self._abilities is None or self._state is not State.READY:
            raise EngineUnavailable(self._message or f"the engine is {self._state}")
        try:
            self._check(request, self._abilities)
        except BadRequest as refusal:
            return EngineExplanation(error=refusal.message)
        return EngineExplanation()

    def _check(self, request: EngineRequest, abilities: Abilities) -> None:
        """Raise UnsupportedFeature for what the servers cannot honour."""
        follows = request.grammar is None or not abilities.traits.plugin
        check(request, abilities, "" if follows else self._grammars.problem(abilities.traits.grammars))

    def set_vocabulary(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Set the vocabulary of all grammars, for the servers' plugins; asked for with the first grammar."""
        self._grammars.set_vocabulary(vocabulary)

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        """End a request, or one of its sequences, with CANCELLED. Finished or unknown ones are ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return
        ends = [index for index in request.open_sequences if sequence is None or index == sequence]
        self._end(request, [FinishEvent(request_id, index, FinishReason.CANCELLED) for index in ends])

    def _end(self, request: InFlight, events: list[EngineEvent]) -> None:
        """Deliver the last events of sequences, and stop reading what servers still send for them."""
        self._deliver(request, events)
        if request.is_over:
            for task in request.tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    async def _run(self, request: InFlight) -> None:
        """Compute a request: the log-probabilities of its prompt, where it asks for them, then its sequences."""
        logprobs = request.request.logprobs
        if request.request.grammar is not None:
            try:
                request.grammar_states = await self._grammars.states(request.request)
            except BadRequest as error:
                self._fail(request, None, error.message)
                return
            except Exception as error:
                log.exception("request %s: its grammar", request.request.request_id)
                self._fail(request, None, f"the grammar cannot be followed ({type(error).__name__})")
                return
        if logprobs is not None and logprobs.prompt:
            event = await self._on_some_server(request, None)
            if event is None:
                return
            self._deliver(request, [event])
        if request.request.max_tokens == 0:
            self._deliver(request, [PromptEvent(request.request_id)])
            ends = [FinishEvent(request.request_id, i, FinishReason.LENGTH) for i in request.open_sequences]
            self._deliver(request, list(ends))
            return
        request.tasks += [asyncio.create_task(self._run_sequence(request, i)) for i in request.open_sequences]

    async def _run_sequence(self, request: InFlight, index: int) -> None:
        await self._on_some_server(request, index)

    async def _on_some_server(self, request: InFlight, index: int | None) -> PromptEvent | None:
        """Run a sequence to its end, or with None the prompt, on one server after the other.

        Returns the prompt's event; None where the request has failed, or was a sequence.
        """
        losses, refused_since = 0, 0.0
        while True:
            await self._tenants.acquire(request.request)
            try:
                upstream = await self._least_loaded()
            except BaseException:
                self._tenants.release(request.request)
                raise
            before = 0 if index is None else len(request.generated[index])
            upstream.running += 1
            try:
                if index is None:
                    return await prompt_event(upstream, request.request)
                await stream_sequence(upstream, request, index, self._deliver, self._hang_s)
                return None
            except Refused as error:
                self._fail(request, index, f"the vLLM server at {upstream.address}: {error.message}")
                return None
            except HttpFailure as error:
                lost = error
            except Exception as error:
                log.exception(
                    "request %s: an answer of the vLLM server at %s", request.request.request_id, upstream.address
                )
                kind = type(error).__name__
                self._fail(
                    request, index, f"the answer of the vLLM server at {upstream.address} cannot be used ({kind})"
                )
                return None
            finally:
                upstream.running -= 1
                self._tenants.release(request.request)
            if index is not None and len(request.generated[index]) > before:
                losses, refused_since = 0, 0.0
            if lost.again_s is not None:
                if not refused_since:
                    refused_since = self._now()
                    log.warning("the vLLM server at %s takes no request: %s; it is asked again", upstream.address, lost)
                if self._now() - refused_since > self._hang_s:
                    self._fail(request, index, f"vLLM has taken no request for {self._hang_s:g} s ({lost.message})")
                    return None
                await asyncio.sleep(min(max(lost.again_s, RETRY_S), LONGEST_RETRY_S))
                continue
            losses += lost.was_connected
            log.warning("a stream of the vLLM server at %s was lost: %s; it continues", upstream.address, lost.message)
            if losses >= MOST_LOSSES:
                self._fail(request, index, f"computing this request on vLLM failed {losses} times ({lost.message})")
                return None
            await upstream.confirm()
            await asyncio.sleep(RETRY_S if upstream.is_ready else 0.0)

    def _fail(self, request: InFlight, index: int | None, message: str) -> None:
        """End one sequence with an error, or all of them."""
        log.error("request %s: %s", request.request_id, message)
        ends = request.failure_events(message)
        self._end(request, [end for end in ends if index is None or getattr(end, "sequence", index) == index])

    async def _least_loaded(self) -> Upstream:
        """Return the server with the fewest sequences of this client, when there is one that can be used."""
        while True:
            await self._usable.wait()
            ready = [upstream for upstream in self._upstreams if upstream.is_ready]
            if ready:
                return min(ready, key=lambda upstream: upstream.running)
            await asyncio.sleep(0)

    def _deliver(self, request: InFlight, events: list[EngineEvent]) -> None:
        """Record a request's new events, and put them into its stream."""
        new = [event for event in events if request.accept(event)]
        if not new:
            return
        self._last_event_s = self._now()
        request.stream.deliver(new, request.is_over)
        request.stream.wake()
        for event in new:
            if isinstance(event, PromptEvent):
                self._counts["prompt_tokens"] += request.request.prompt_tokens
            elif not isinstance(event, FinishEvent):
                self._counts["generated_tokens"] += 1
        if request.is_over:
            self._requests.pop(request.request_id, None)
        if self._step is None and self._state is not State.CLOSED:
            self._step_began = self._now()
            self._step = asyncio.get_running_loop().call_later(STEP_S, self._end_step)

    # Figures ---------------------------------------------------------------------------------------------------------

    def _end_step(self) -> None:
        """Tell the observers what was computed since the last step."""
        self._step = None
        before = self._stats
        self._counts["steps"] += 1
        self._counts["busy_s"] += self._now() - self._step_began
        after = self._stats = self.stats()
        if self.on_step is not None:
            self.on_step(before, after, 0.0)

    def stats(self) -> EngineStats:
        """Return the gauges, of the servers where these say them, and the counters of this client."""
        figures = [upstream.figures for upstream in self._upstreams if upstream.is_ready]
        open_sequences = sum(len(request.open_sequences) for request in self._requests.values())
        running = sum(
            bool(request.generated[index]) for request in self._requests.values() for index in request.open_sequences
        )
        blocks = sum(each.blocks for each in figures)
        return EngineStats(
            running=running,
            waiting=open_sequences - running,
            blocks=blocks,
            free_blocks=blocks - sum(each.used_blocks for each in figures),
            preemptions=int(sum(each.values.get("num_preemptions_total", 0) for each in figures)),
            steps=int(self._counts["steps"]),
            prompt_tokens=int(self._counts["prompt_tokens"]),
            generated_tokens=int(self._counts["generated_tokens"]),
            busy_s=self._counts["busy_s"],
            forward_s=self._counts["busy_s"],
            restarts=self._restarts,
        )

    def honoured_defaults(self, model: Mapping[str, float], server: Mapping[str, float]) -> dict[str, float]:
        """Return the model's recommendations for sampling without those that vLLM cannot honour, which are logged."""
        if self._abilities is not None and self._abilities.traits.plugin:
            return dict(model)
        kept = honoured_defaults(model, server)
        for name in model.keys() - kept.keys() - server.keys():
            log.warning("the model recommends %s=%g, which vLLM cannot honour: left out", name, model[name])
        return kept

    def servers(self) -> list[str]:
        """Return each server's address and versions."""
        return [f"{each.address} ({_versions(each.traits)})" for each in self._upstreams]

    def health(self) -> Health:
        return Health(self._state, self._message)

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the last token of an engine that has work; 0 without work."""
        return self._now() - self._last_event_s if self._requests and self._last_event_s else 0.0

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # Adapters --------------------------------------------------------------------------------------------------------

    @property
    def adapters(self) -> dict[str, AdapterInfo]:
        """Return none: adapters are not supported."""
        return {}

    async def load_adapter(self, name: str, source: str, *, replace: bool = False) -> AdapterInfo:
        """Raise ModelError: adapters are not supported."""
        self._refuse_adapter()

    async def unload_adapter(self, name: str) -> None:
        """Raise ModelError: adapters are not supported."""
        self._refuse_adapter()

    @staticmethod
    def _refuse_adapter() -> NoReturn:
        raise ModelError(NO_ADAPTERS_HERE)


def _versions(traits: Traits) -> str:
    plugin = f", dragoman-vllm {traits.plugin}" if traits.plugin else ""
    return f"vLLM {traits.version}{plugin}"


def _differing(first: Traits, other: Traits) -> str:
    """Return how two servers differ in what requests depend on; empty where they do not."""
    for name in ("model", "vocab_size", "context_tokens", "logprob_mode", "max_logprobs", "plugin", "grammars"):
        ours, theirs = getattr(first, name), getattr(other, name)
        if ours != theirs:
            return f"{name.replace('_', ' ')} is {ours or 'none'} and {theirs or 'none'}"
    return ""
