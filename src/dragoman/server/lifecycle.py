"""The server's start and end: the engine first, then the port; at the end the port first, then the engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp

from dragoman.core.errors import SHUTTING_DOWN, DragomanError
from dragoman.core.freed_memory import return_freed_memory, return_freed_memory_soon, return_large_blocks
from dragoman.core.observer import Observer
from dragoman.core.third_party import import_numpy
from dragoman.dialects import made_dialects
from dragoman.dialects.api import Dialect
from dragoman.engine.messages import WorkerSettings
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.server.accounts import Accounts
from dragoman.server.address import address_of, listening
from dragoman.server.app import NO_PAGES, create_app
from dragoman.server.app_context import chosen_dialect, named_in_metrics
from dragoman.server.batch_runner import BatchRunner
from dragoman.server.body import most_image_body
from dragoman.server.body_budget import BodyBudget
from dragoman.server.connection import Connection
from dragoman.server.connection_context import connection_context
from dragoman.server.connections import Connections
from dragoman.server.cors import check_dialects
from dragoman.server.idempotency import KeptAnswers
from dragoman.server.keys import Keyring
from dragoman.server.kv_events import NO_EVENTS, published_blocks
from dragoman.server.listener import ListeningServer, configuration
from dragoman.server.metrics import Metrics
from dragoman.server.metrics_listener import metrics_socket, serve_figures
from dragoman.server.middleware import RequestLog
from dragoman.server.open_files import allow_connections
from dragoman.server.relay import RelayMiddleware, read_secret, state_of
from dragoman.server.settings import (
    BrowserSettings,
    IdempotencySettings,
    KvEventSettings,
    NetworkSettings,
    ServerSettings,
)
from dragoman.server.signals import Reloads, notify
from dragoman.server.sockets import socket_paths
from dragoman.server.tls import Certificates
from dragoman.serving.batch_store import OFF as NO_FILES
from dragoman.serving.model_loader import NO_SAMPLING
from dragoman.serving.pool_loader import Progress
from dragoman.serving.recorder import Recorder
from dragoman.serving.response_store import IN_MEMORY as RESPONSES_IN_MEMORY
from dragoman.serving.resume_store import IN_MEMORY
from dragoman.serving.runtime import NO_ADAPTERS, ONE_MODEL, USUAL_WORK, Runtime, start_runtime
from dragoman.serving.serving import NOT_RECORDED
from dragoman.serving.settings import (
    AdapterSettings,
    BatchSettings,
    CatalogSettings,
    ContinueSettings,
    ResponseSettings,
    SamplingSettings,
    WorkSettings,
)

log = logging.getLogger("dragoman.server")

Opened = Callable[["Server", str], None]
"""Called once the port is open, with the server and its address, ``http://host:port`` or ``unix:/path``."""

FIRST_ANSWER_S = 1.0
"""Seconds after the port is open before cleaning up: first answers do not wait for that."""

TICK_S = 0.1
"""Seconds between two looks at the answers that are finished before the port closes."""

NO_KEYS = Keyring()
ANYONE = NetworkSettings()
SHORT_KEPT = IdempotencySettings()

DELAY_IN_KUBERNETES_S = 5.0
"""Seconds of serving after SIGTERM in Kubernetes, where the endpoint is removed concurrently: requests still arrive
for some seconds."""


NO_ENGINE = 69
"""The exit code of a server whose engine could not be started for ``engine_give_up_s`` (EX_UNAVAILABLE)."""


def run_until_signal(serving: Coroutine[object, object, None]) -> int:
    """Run ``serve`` in a new event loop and return the exit code: 0, NO_ENGINE, or after a second signal what shells
    have for a command that it ended."""
    # uvicorn's logging configuration is left out: the existing one stays.
    factory = uvicorn.Config(_nothing, loop="auto", log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(serving)
        except EngineGivenUp:
            return NO_ENGINE
        except EndedAtOnce as end:
            return 128 + end.signal
    return 0


async def serve(
    settings: ServerSettings,
    worker: WorkerSettings,
    folder: Path,
    *,
    dialects: Sequence[Dialect] | None = None,
    keys: Keyring = NO_KEYS,
    catalog: CatalogSettings = ONE_MODEL,
    adapters: AdapterSettings = NO_ADAPTERS,
    continuing: ContinueSettings = IN_MEMORY,
    responses: ResponseSettings = RESPONSES_IN_MEMORY,
    batches: BatchSettings = NO_FILES,
    network: NetworkSettings = ANYONE,
    work: WorkSettings = USUAL_WORK,
    sampling: SamplingSettings = NO_SAMPLING,
    accounts: Accounts | None = None,
    browsers: BrowserSettings = NO_PAGES,
    observers: Sequence[Observer] = (),
    progress: Progress = lambda stage, share: None,
    opened: Opened | None = None,
    prespawned: PrespawnedWorker | None = None,
    reloads: Reloads | None = None,
    recorder: Recorder = NOT_RECORDED,
    remote: VllmClient | None = None,
    kv_events: KvEventSettings = NO_EVENTS,
    idempotency: IdempotencySettings = SHORT_KEPT,
) -> None:
    """Serve a model until SIGTERM or SIGINT; then continue for ``shutdown_delay_s`` seconds (not after SIGINT), and
    finish running requests for ``drain_s`` seconds, in which others are answered with 503 (after SIGINT the port is
    closed). A second signal ends it at once, with EndedAtOnce.

    ``worker`` says what the engine loads, ``folder`` holds the tokenizer and the chat template. Raises ModelError when
    the model cannot be loaded, DragomanError when the address cannot be listened on. ``catalog`` says what else may be
    loaded later, ``adapters`` which adapters, ``network`` how clients reach the server, ``sampling`` the defaults of
    sampling parameters; ``progress`` is called with the progress of the first model's load; ``prespawned`` is its
    engine's process, where that is started already; ``reloads`` are run on SIGHUP; ``kv_events``: whether events of the
    prefix cache are published; ``accounts``: the use of callers, by default of this run alone; ``idempotency``: which
    answers are kept under an Idempotency-Key; ``recorder`` records generations; ``remote``: the engine, where the model
    runs elsewhere.
    """
    accounts = accounts or Accounts()
    reloads = reloads or Reloads()
    dialects = made_dialects() if dialects is None else dialects
    # An unknown name, or what is no origin, ends the start before the model is loaded.
    named_in_metrics(dialects, settings)
    check_dialects(dialects)
    # Bound before the engine starts, so that a taken port is known at once; but no client can connect before it
    # listens.
    if keys.has_file:
        reloads.add("API keys", keys.reload)
    worker = msgspec.structs.replace(worker, report_blocks=kv_events.kv_events)
    with (
        reloads.on_hangup(),
        keys.watched(),
        listening(settings, network) as listener,
        published_blocks(kv_events) as blocks,
    ):
        certificates = certificates_of(network)
        if certificates is not None:
            reloads.add("TLS certificates", certificates.reload)
        possible, reserve = allow_connections(settings.max_connections, network.reserved_connections)
        settings = msgspec.structs.replace(settings, max_connections=possible)
        network = msgspec.structs.replace(network, reserved_connections=reserve)
        figures = metrics_socket(settings, dialects, listener)
        async with (
            start_runtime(
                settings,
                worker,
                folder,
                catalog=catalog,
                adapters=adapters,
                continuing=continuing,
                responses=responses,
                batches=batches,
                work=work,
                sampling=sampling,
                check_prompt=accounts.check_prompt,
                progress=progress,
                prespawned=prespawned,
                recorder=recorder,
                remote=remote,
                on_blocks=None if blocks is None else blocks.on_blocks,
            ) as runtime,
            accounts.opened(runtime),
        ):
            metrics = metrics_of(runtime, accounts)
            metrics.watch(dict, recorder.counters)
            if blocks is not None:
                blocks.watch(metrics)
            runtime.observers.add(*observers)
            server = Server(
                settings,
                runtime,
                opened,
                metrics=metrics,
                accounts=accounts,
                dialects=dialects,
                keys=keys,
                network=network,
                browsers=browsers,
                certificates=certificates,
                kept_answers=KeptAnswers(idempotency),
            )
            async with serve_figures(figures, runtime.serving, metrics, settings, keys=keys, browsers=browsers):
                await server.serve(sockets=[listener])
            if runtime.failure:
                raise EngineGivenUp
            if server.second_signal:
                raise EndedAtOnce(server.second_signal)


def metrics_of(runtime: Runtime, accounts: Accounts) -> Metrics:
    """Return the metrics of the runtime, and count the use of callers there."""
    metrics = Metrics(runtime.observers)
    accounts.watch(metrics)
    metrics.watch_runtime(runtime)
    return metrics


class EngineGivenUp(Exception):
    """The server ended because its engine cannot be started any more."""


class EndedAtOnce(Exception):
    """The server ended at a second signal, whatever was unfinished."""

    def __init__(self, signal: int) -> None:
        self.signal = signal


def certificates_of(network: NetworkSettings) -> Certificates | None:
    """Return the certificate that the settings name; None without one. Raises DragomanError."""
    if network.tls_cert is None:
        if network.tls_key is not None or network.tls_key_password_file is not None:
            raise DragomanError("--tls-key needs --tls-cert, the certificate that it belongs to")
        return None
    if network.cluster_secret_file is not None:
        raise DragomanError("--tls-cert is the ingress's: a server of a cluster speaks plain HTTP with its ingress")
    return Certificates(network.tls_cert, network.tls_key, network.tls_key_password_file)


class Server(ListeningServer):
    """uvicorn's server with our connections, shutdown and exit code.

    Attributes:
        second_signal: the one that ended it at once; 0: there was none.
    """

    def __init__(
        self,
        settings: ServerSettings,
        runtime: Runtime,
        opened: Opened | None = None,
        *,
        metrics: Metrics,
        accounts: Accounts,
        dialects: Sequence[Dialect] | None = None,
        keys: Keyring = NO_KEYS,
        network: NetworkSettings = ANYONE,
        certificates: Certificates | None = None,
        browsers: BrowserSettings = NO_PAGES,
        kept_answers: KeptAnswers | None = None,
    ) -> None:
        dialects = made_dialects() if dialects is None else dialects
        self.kept_answers = kept_answers or KeptAnswers()
        connections = Connections(
            settings.max_connections, network.reserved_connections, network.max_connections_per_client
        )
        bodies = BodyBudget(
            max(network.max_buffered_bytes, settings.max_body_bytes),
            max(settings.image_bytes // 4, most_image_body(settings)),
            return_freed_memory_soon,
        )
        app = create_app(
            runtime.serving,
            settings,
            metrics=metrics,
            ready=runtime.not_ready,
            ended=lambda: self._ended,
            failure=lambda: runtime.failure,
            dialects=dialects,
            keys=keys,
            pools=runtime.pools,
            bodies=bodies,
            accounts=accounts,
            browsers=browsers,
            kept_answers=self.kept_answers,
        )
        context = connection_context(
            settings,
            chosen_dialect(dialects, settings).render_error,
            socket_paths(dialects),
            is_ending=lambda: runtime.is_ending,
            network=network,
            connections=connections,
            bodies=bodies,
            requests=RequestLog(metrics, writes_lines=settings.access_log),
        )
        self._batches = BatchRunner(app, runtime.serving, dialects, max_line_bytes=settings.max_body_bytes)
        config = configuration(relayed(app, network, runtime), context, settings)
        super().__init__(config, certificates=certificates, backlog=network.backlog)
        self._settings = settings
        self.runtime, self.metrics = runtime, metrics
        self._opened, self._ended = opened, False
        self._dialects, self._services = dialects, contextlib.AsyncExitStack()
        runtime.on_failed = self._stop_without_engine
        self._delay_s = shutdown_delay_s(settings)
        self._keeps_port = True
        self.second_signal = 0
        self._how_to_stop = "a second signal stops now"
        metrics.watch(
            lambda: {"connections": len(connections), "body_bytes": bodies.used},
            lambda: {
                "connections_dropped": connections.dropped,
                "connections_refused": connections.refused,
                "bodies_refused": bodies.refused,
            },
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for dialect in self._dialects:
            if dialect.service is not None:
                await self._services.enter_async_context(dialect.service(self.runtime.serving))
        await self._services.enter_async_context(self._batches)
        # Objects that live now live until the end: the collector need not scan them again and again while streams run.
        # Garbage is collected later, for that takes 50 ms.
        gc.freeze()
        asyncio.get_running_loop().call_later(FIRST_ANSWER_S, _post_start_cleanup)
        if self._opened is not None and sockets:
            self._opened(self, address_of(sockets[0], "http" if self.certificates is None else "https"))
        notify("READY=1")

    async def _serve_on(self) -> None:
        """Serve for the delay in which load balancers learn that the server ends."""
        notify("STOPPING=1")
        self.runtime.is_ending = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.announce_end()
        clock = asyncio.get_running_loop().time
        end, ticks = clock() + self._delay_s, 0
        if self._delay_s:
            text = "shutting down: not ready any more, requests are still served for %g s; %s"
            log.info(text, self._delay_s, self._how_to_stop)
        while clock() < end and not self.force_exit:
            await asyncio.sleep(0.1)
            await self.on_tick(ticks)
            ticks += 1

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve_on()
        admission = self.runtime.serving.admission
        admission.close(SHUTTING_DOWN)
        await self._services.aclose()
        self.kept_answers.close()
        unfinished = admission.waiting + admission.running
        if unfinished and not self.force_exit:
            answers = f"{unfinished} answer{'s' if unfinished > 1 else ''}"
            log.info("finishing %s, up to %g s; %s", answers, self._settings.drain_s, self._how_to_stop)
        else:
            log.info("shutting down")
        tasks = [asyncio.create_task(self._end_after(self._settings.drain_s))]
        if unfinished and self._keeps_port:
            tasks.append(asyncio.create_task(self._close_port_after_answers(self.servers)))
            self.servers, sockets = [], []
        try:
            await super().shutdown(sockets)
        finally:
            for task in tasks:
                task.cancel()

    async def _close_port_after_answers(self, listeners: Sequence[Any]) -> None:
        """Answer at the port, health checks and all else with 503, until the running answers are finished: a prober
        that is refused a connection does not know whether it has to wait or to raise an alarm."""
        admission = self.runtime.serving.admission
        try:
            while admission.waiting + admission.running and not self.force_exit:
                await asyncio.sleep(TICK_S)
        finally:
            for listener in listeners:
                listener.close()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.shutdown()

    async def _end_after(self, drain_s: float) -> None:
        """End every unfinished answer with an error, by ending the engine, when the time is up."""
        await asyncio.sleep(drain_s)
        self._ended = True
        admission = self.runtime.serving.admission
        if cut := admission.waiting + admission.running:
            log.warning("%g s are over: %d answers are cut off", drain_s, cut)
        await self.runtime.end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        if self.force_exit:
            self.second_signal = sig
        self.should_exit = self.runtime.is_ending = True
        if sig == signal.SIGINT:  # a user at a terminal is waiting
            self._delay_s, self._how_to_stop = 0.0, "Ctrl-C again stops now"
            self._keeps_port = False

    def _stop_without_engine(self) -> None:
        """End the server because it cannot serve any more; its supervisor restarts it."""
        self._delay_s, self.should_exit = 0.0, True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals here: uvicorn would raise the signal again at the end, and so end a graceful shutdown by a
        signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def relayed(app: ASGIApp, network: NetworkSettings, runtime: Runtime) -> ASGIApp:
    """Return the application as its cluster's ingress sees it; as it is where the server belongs to none.

    Raises DragomanError where the secret cannot be read.
    """
    if network.cluster_secret_file is None:
        return app
    secret = read_secret(network.cluster_secret_file)
    return RelayMiddleware(app, secret, functools.partial(state_of, runtime))


def shutdown_delay_s(settings: ServerSettings) -> float:
    """Return the seconds for which requests are served after the first SIGTERM."""
    if settings.shutdown_delay_s is not None:
        return settings.shutdown_delay_s
    return DELAY_IN_KUBERNETES_S if os.environ.get("KUBERNETES_SERVICE_HOST") else 0.0


LARGE_BLOCK_BYTES = 1 << 20  # which return to the system when free
GARBAGE_THRESHOLDS = (20_000, 20, 50)
"""Of the cyclic collector. Live objects are frozen: the usual thresholds (700, 10, 10) would scan all that a crowd of
connections holds every 70,000 objects, a fifth of the server's time at 3 x capacity."""


def _post_start_cleanup() -> None:
    """Do the work of a start that first answers need not wait for.

    The garbage collector may have been off. NumPy is for the check of large bodies, the windows are for rate limits.
    The C library keeps the memory that reading the tokenizer freed: 12 MB for 128,000 tokens.
    """
    # In a thread that ends with this work: one of the loop's own would stay.
    with contextlib.suppress(RuntimeError):  # where no more threads can be started, they are imported when needed
        threading.Thread(target=_import_late, name="imports", daemon=True).start()
    gc.enable()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    return_large_blocks(LARGE_BLOCK_BYTES)
    return_freed_memory()


def _import_late() -> None:
    import_numpy()
    importlib.import_module("dragoman.core.rate_windows")


async def _nothing(scope: object, receive: object, send: object) -> None:
    """Stand in for the application, which uvicorn's configuration wants in order to choose the event loop."""
