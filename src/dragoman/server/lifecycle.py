"""The server's life: the engine first, then the port; at the end the port first, then the engine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from dragoman.core.observer import Observer
from dragoman.dialects import made_dialects
from dragoman.dialects.wire import Dialect
from dragoman.engine.launch import Launched
from dragoman.engine.messages import WorkerSettings
from dragoman.server.address import address_of, bound
from dragoman.server.app import create_app
from dragoman.server.connection import connection_class
from dragoman.server.continuing import IN_MEMORY
from dragoman.server.figures import figures_listener, serve_figures
from dragoman.server.hosting import chosen_dialect
from dragoman.server.keys import Keyring
from dragoman.server.opening import NO_ADAPTERS, ONE_MODEL, House, open_house
from dragoman.server.rotation import Progress
from dragoman.server.settings import AdapterSettings, CatalogSettings, ContinueSettings, ServerSettings
from dragoman.server.sockets import SocketConnection, socket_paths

Opened = Callable[[House, str], None]
"""Called once the port is open, with what serves and its address, ``http://host:port``."""

FIRST_ANSWER_S = 1.0
"""A start is left to itself for so long, once the port is open: first answers do not wait for what is only tidy."""

GOODBYE_S = 5.0
"""What still runs after the drain is told to end, and has this long to say so to its clients."""


NO_KEYS = Keyring()


def until_told(serving: Coroutine[object, object, None]) -> int:
    """What ``serve`` returns, in an event loop of its own. Returns the exit code, 0."""
    factory = uvicorn.Config(_nothing, loop="auto").get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serving)
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
    observers: Sequence[Observer] = (),
    progress: Progress = lambda stage, share: None,
    opened: Opened | None = None,
    launched: Launched | None = None,
) -> None:
    """Serve a model until SIGTERM or SIGINT; then answer what is running for ``drain_s`` seconds. A second signal ends
    it at once.

    ``worker`` says what the engine loads, ``folder`` holds the tokenizer and the chat template. Raises ModelError when
    the model cannot be loaded, DragomanError when the address cannot be listened on. ``catalog`` says what else may be
    loaded later, ``adapters`` which adapters; ``progress`` is told how far the loading of the first model is;
    ``launched`` is the process of its engine, where that waits already.
    """
    dialects = made_dialects() if dialects is None else dialects
    # Bound before the engine starts, so that a taken port is known at once; but nobody can connect before it listens.
    with contextlib.closing(bound(settings.host, settings.port)) as listener:
        figures = figures_listener(settings, dialects)
        async with open_house(
            settings,
            worker,
            folder,
            catalog=catalog,
            adapters=adapters,
            continuing=continuing,
            progress=progress,
            launched=launched,
        ) as house:
            house.metrics.observers.extend(observers)
            server = Server(settings, house, opened, dialects=dialects, keys=keys)
            async with serve_figures(figures, house, settings):
                await server.serve(sockets=[listener])


class Server(uvicorn.Server):
    """uvicorn with our connections, our end, and our exit code."""

    def __init__(
        self,
        settings: ServerSettings,
        house: House,
        opened: Opened | None = None,
        *,
        dialects: Sequence[Dialect] | None = None,
        keys: Keyring = NO_KEYS,
    ) -> None:
        dialects = made_dialects() if dialects is None else dialects
        app = create_app(
            house.serving,
            settings,
            metrics=house.metrics,
            ready=house.not_ready,
            ended=lambda: self._ended,
            dialects=dialects,
            keys=keys,
        )
        config = uvicorn.Config(
            app,
            http=connection_class(settings, chosen_dialect(dialects, settings).render_error, socket_paths(dialects)),
            ws=SocketConnection,
            ws_max_size=settings.max_message_bytes,
            ws_ping_timeout=settings.write_timeout_s,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]
            timeout_graceful_shutdown=settings.drain_s + GOODBYE_S,  # type: ignore[arg-type]
        )
        super().__init__(config)
        self._settings = settings
        self._house = house
        self._opened = opened
        self._ended = False
        house.metrics.watch(lambda: {"connections": len(self.server_state.connections)}, dict)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What lives now lives for ever: the collector need not look at it again and again while streams run. What does
        # not is looked for later, for it takes 50 ms.
        gc.freeze()
        asyncio.get_running_loop().call_later(FIRST_ANSWER_S, _settle)
        if self._opened is not None and sockets:
            self._opened(self._house, address_of(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._house.serving.admission.close("The server is shutting down.")
        deadline = asyncio.create_task(self._end_after(self._settings.drain_s))
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()

    async def _end_after(self, drain_s: float) -> None:
        """Time is up: without the engine every unfinished answer ends with an error."""
        await asyncio.sleep(drain_s)
        self._ended = True
        await self._house.end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again at the end, and so end a graceful shutdown by a signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _settle() -> None:
    """What first answers need not wait for.

    The collector of garbage may have been off. NumPy looks through large bodies. The C library keeps what reading the
    tokenizer took and freed: 12 MB for 128,000 tokens.
    """
    # In a thread that ends with it: one of the loop's own would stay.
    threading.Thread(target=importlib.import_module, args=("numpy",), name="numpy", daemon=True).start()
    gc.enable()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


async def _nothing(scope: object, receive: object, send: object) -> None:
    """uvicorn's configuration chooses the event loop; for that it wants an application."""
