"""Servers on the stub model: one without any process or socket, for tests in milliseconds, and one with both."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
import pytest
import uvicorn
from plain_model import plain_folder

from dragoman.core.events import EngineEvent, FinishEvent, FinishReason
from dragoman.core.explanation import EngineExplanation
from dragoman.core.pooling import PoolingInfo
from dragoman.core.request import EngineRequest
from dragoman.core.serving import ModelCard
from dragoman.core.vocabulary import Vocabulary
from dragoman.dialects import made_dialects
from dragoman.dialects.api import Dialect
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.messages import LoadModel, StubModel, WorkerSettings
from dragoman.engine.sampling.grammar_state import Grammars
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.stub import StubRunner
from dragoman.grammar.matching import Matching
from dragoman.models import AdapterInfo
from dragoman.server import lifecycle
from dragoman.server.accounts import Accounts
from dragoman.server.address import listening
from dragoman.server.app import NO_PAGES, create_app
from dragoman.server.body_budget import BodyBudget
from dragoman.server.connections import Connections
from dragoman.server.idempotency import KeptAnswers
from dragoman.server.keys import Keyring
from dragoman.server.lifecycle import ANYONE, NO_KEYS, Server, certificates_of, metrics_of
from dragoman.server.metrics import Metrics
from dragoman.server.settings import BrowserSettings, NetworkSettings, ServerSettings
from dragoman.serving.admission import Admission
from dragoman.serving.batch_store import OFF as NO_FILES
from dragoman.serving.model import ServedModel
from dragoman.serving.model_loader import NO_SAMPLING
from dragoman.serving.runtime import NO_ADAPTERS, ONE_MODEL, Runtime, start_runtime
from dragoman.serving.serving import EngineServing
from dragoman.serving.settings import (
    AdapterSettings,
    BatchSettings,
    CatalogSettings,
    ContinueSettings,
    SamplingSettings,
)
from dragoman.text import ChatTemplate, Tokenizer
from dragoman.text.template_names import template_names
from dragoman.text.tool_calls import reasoning_of, tool_calls_of

# Each engine learns its vocabulary, and each model the names in its template: 11 ms, thousands of times, always of the
# same vocabulary and template. Engines and models of this file do that once.
matching_of = functools.cache(Matching)
names_of = functools.cache(template_names)

QUIET_LOCALLAB = LocalLabSettings(locallab_rate_limit=0)
"""No caller is limited: LocalLab would refuse the eleventh request of a second, though ten were another test's."""
DIALECTS = made_dialects({"locallab": QUIET_LOCALLAB})
"""All dialects, which tests share."""

FOLDER = plain_folder()
TOKENIZER = Tokenizer.load(FOLDER)
STUB = StubModel(vocab_size=TOKENIZER.vocab_size, max_context=256, num_blocks=64)
LONG = msgspec.structs.replace(STUB, max_context=200_000, num_blocks=32_768)
"""Has room for answers that do not end before a test does, however long its processes stand still."""

QUICK = ServerSettings(
    port=0,
    name="stub",
    alias=("other", "org/name"),
    header_timeout_s=60.0,
    body_timeout_s=60.0,
    write_timeout_s=60.0,
    keep_alive_s=60.0,
    linger_s=5.0,
    max_waiting=64,
    drain_s=0.5,
)
"""A server that ends soon, and waits for a client that stands still with all other processes of a busy machine."""
HURRIED = msgspec.structs.replace(QUICK, header_timeout_s=0.3, body_timeout_s=0.3, write_timeout_s=0.4)
"""Waits for no client longer than a test can wait for the end of that."""


class LocalStream:
    """One request's events, as ``engine_client.client.EventStream`` gives them."""

    def __init__(self, engine: LocalEngine, request: EngineRequest) -> None:
        self.events: deque[EngineEvent] = deque()
        self.open = set(range(len(request.seeds)))
        self.arrived = asyncio.Event()
        self._engine, self._request_id = engine, request.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EngineEvent:
        while not self.events:
            if not self.open:
                raise StopAsyncIteration
            self.arrived.clear()
            await self.arrived.wait()
        return self.events.popleft()

    async def aclose(self) -> None:
        self._engine.cancel(self._request_id)


class LocalGrammars(Grammars):
    """Grammars whose vocabulary may have been learned for another engine."""

    def _learn(self, vocabulary: Vocabulary) -> Matching:
        self._compiled.clear()
        return matching_of(vocabulary)


class LocalEngine:
    """``EngineClient`` without a process: steps are taken by a task of the test's own loop, while ``free`` is set."""

    def __init__(self, stub: StubModel = STUB, settings: SchedulerSettings | None = None) -> None:
        self.engine = Engine(StubRunner(stub), settings)
        self.engine._grammars = LocalGrammars()
        self.streams: dict[str, LocalStream] = {}
        self.requests: list[EngineRequest] = []
        self.cancelled: list[tuple[str, int | None]] = []
        self.free = asyncio.Event()
        self.free.set()
        self._work = asyncio.Event()

    @property
    def adapters(self) -> dict[str, AdapterInfo]:
        return self.engine.adapters.infos()

    @property
    def free_blocks(self) -> int:
        check_integrity(self.engine.scheduler)
        return self.engine.scheduler.cache.available

    async def load_adapter(self, name: str, source: str, *, replace: bool = False) -> AdapterInfo:
        if replace and name in self.adapters:
            self.engine.unload_adapter(name)
        return self.engine.load_adapter(name, source)

    async def unload_adapter(self, name: str) -> None:
        self.engine.unload_adapter(name)

    def submit(self, request: EngineRequest) -> LocalStream:
        self.requests.append(request)
        stream = self.streams[request.request_id] = LocalStream(self, request)
        self.engine.submit(request)
        self._work.set()
        return stream

    async def explain(self, request: EngineRequest) -> EngineExplanation:
        return self.engine.explain(request)

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        stream = self.streams.get(request_id)
        if stream is None:
            return
        self.cancelled.append((request_id, sequence))
        self.engine.cancel(request_id, sequence)
        for index in sorted(stream.open if sequence is None else {sequence} & stream.open):
            self.deliver(FinishEvent(request_id, index, FinishReason.CANCELLED))

    def deliver(self, event: EngineEvent) -> None:
        stream = self.streams.get(event.request_id)
        if stream is None:
            return
        finish = getattr(event, "finish", None)
        stream.events.append(event)
        stream.arrived.set()
        if finish is not None:
            stream.open.discard(event.sequence)
            if not stream.open:
                del self.streams[event.request_id]

    async def run(self) -> None:
        while True:
            await self.free.wait()
            if self.engine.has_work:
                for event in self.engine.step().events:
                    self.deliver(event)
                await asyncio.sleep(0)
            else:
                self._work.clear()
                await self._work.wait()


class LocalServer(msgspec.Struct, frozen=True):
    """A server without a socket: ``client`` speaks to the application directly."""

    engine: LocalEngine
    serving: EngineServing
    metrics: Metrics
    client: httpx.AsyncClient


def local_model(settings: ServerSettings, stub: StubModel, template: ChatTemplate) -> ServedModel:
    names = names_of(template.source)
    card = ModelCard(
        name=settings.name or "stub",
        created=1,
        context_tokens=stub.max_context,
        vocab_size=stub.vocab_size,
        hidden_size=stub.hidden_size,
        precision="float32",
        fingerprint="fingerprint",
        has_chat_template=template.available,
        has_fill_tokens=True,
        template_variables=names.variables,
        template_members=names.members,
        tool_calls=tool_calls_of(template, TOKENIZER),
        reasoning=reasoning_of(template, TOKENIZER),
        pooling=PoolingInfo(kind="last", width=stub.hidden_size),
    )
    return ServedModel(
        card=card,
        tokenizer=TOKENIZER,
        template=template,
        context_tokens=stub.max_context,
        vocab_size=stub.vocab_size,
        eos_ids=TOKENIZER.eos_ids,
        aliases=settings.alias,
    )


@asynccontextmanager
async def local_server(
    template: ChatTemplate,
    settings: ServerSettings = QUICK,
    stub: StubModel = STUB,
    *,
    dialects: Sequence[Dialect] = DIALECTS,
    keys: Keyring = NO_KEYS,
    accounts: Accounts | None = None,
    browsers: BrowserSettings = NO_PAGES,
    kept_answers: KeptAnswers | None = None,
    bodies: BodyBudget | None = None,
) -> AsyncIterator[LocalServer]:
    engine, metrics, accounts = LocalEngine(stub), Metrics(), accounts or Accounts()
    accounts.watch(metrics)
    model = local_model(settings, stub, template)
    engine.engine.set_vocabulary(model.vocabulary)
    serving = EngineServing(
        engine,
        model,
        metrics.observers,
        admission=Admission(settings.max_waiting),
        timeout_s=settings.generation_timeout_s,
        queue_s=settings.max_queue_s,
        check_prompt=accounts.check_prompt,
        open_schemas=settings.open_schemas,
        unknown_models=settings.unknown_models,
    )
    app = create_app(
        serving,
        settings,
        metrics=metrics,
        dialects=dialects,
        keys=keys,
        accounts=accounts,
        browsers=browsers,
        kept_answers=kept_answers,
        bodies=bodies,
    )
    stepping = asyncio.create_task(engine.run())
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
        yield LocalServer(engine, serving, metrics, client)
    stepping.cancel()
    serving.close()


class RunningServer:
    """A real server in a thread of its own, with a real engine process."""

    def __init__(self, runtime: Runtime, server: Server, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.runtime, self.server, self.loop, self.port = runtime, server, loop, port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def connections(self) -> Connections:
        """The places of its connections."""
        protocol: Any = self.server.config.http_protocol_class
        found: Connections = protocol.context.connections
        return found

    @property
    def bodies(self) -> BodyBudget:
        """What all bodies together take."""
        protocol: Any = self.server.config.http_protocol_class
        found: BodyBudget = protocol.context.bodies
        return found

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", self.port))
        return connection

    @contextmanager
    def engine_stopped(self) -> Iterator[None]:
        """Meanwhile no request gets a token, however long the test takes."""
        pid = self.runtime.engine.health().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def tasks(self) -> int:
        """Tasks of the server's loop, but for the one that counts."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(60)


@contextmanager
def running_server(
    settings: ServerSettings = QUICK,
    stub: StubModel | LoadModel = STUB,
    folder: Path = FOLDER,
    *,
    dialects: Sequence[Dialect] = DIALECTS,
    keys: Keyring = NO_KEYS,
    browsers: BrowserSettings = NO_PAGES,
    catalog: CatalogSettings = ONE_MODEL,
    adapters: AdapterSettings = NO_ADAPTERS,
    accounts: Accounts | None = None,
    network: NetworkSettings = ANYONE,
    sampling: SamplingSettings = NO_SAMPLING,
    kept_answers: KeptAnswers | None = None,
    batches: BatchSettings = NO_FILES,
    state: Path | None = None,
) -> Iterator[RunningServer]:
    opened = threading.Event()
    accounts = accounts or Accounts()
    box: list[RunningServer] = []
    failure: list[BaseException] = []

    async def live() -> None:
        with listening(settings, network) as listener:
            worker = WorkerSettings(model=stub)
            opening = start_runtime(
                settings,
                worker,
                folder,
                catalog=catalog,
                adapters=adapters,
                sampling=sampling,
                check_prompt=accounts.check_prompt,
                continuing=ContinueSettings(continue_store="memory", state_dir=None if state is None else str(state)),
                batches=batches,
            )
            async with opening as runtime, accounts.opened(runtime):
                server = Server(
                    settings,
                    runtime,
                    lambda *_: opened.set(),
                    metrics=metrics_of(runtime, accounts),
                    accounts=accounts,
                    dialects=dialects,
                    keys=keys,
                    network=network,
                    browsers=browsers,
                    certificates=certificates_of(network),
                    kept_answers=kept_answers,
                )
                port = 0 if network.uds else listener.getsockname()[1]
                box.append(RunningServer(runtime, server, asyncio.get_running_loop(), port))
                await server.serve(sockets=[listener])

    def run() -> None:
        try:
            # The loop that the product runs on.
            factory = uvicorn.Config(create_app, loop="auto").get_loop_factory()
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(live())
        except BaseException as error:
            failure.append(error)
            opened.set()

    # A server looks for garbage a second after its start. What other tests left, open files too, is not to go then, for
    # some tests count what is open.
    gc.collect()
    thread = threading.Thread(target=run)
    with pytest.MonkeyPatch.context() as patch:
        # And what a server does a second after its start is not to begin in the middle of a test that counts threads.
        patch.setattr(lifecycle, "FIRST_ANSWER_S", 0.0)
        thread.start()
        assert opened.wait(120)
    if failure:
        raise failure[0]
    try:
        yield box[0]
    finally:
        box[0].server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        assert not failure, repr(failure)
