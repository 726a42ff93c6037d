"""Long messages, as requests with images are: the engine's process reads them between few steps."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from dragoman.core.images import ImageTiles, PlacedImage
from dragoman.core.request import EngineRequest
from dragoman.engine import worker as module
from dragoman.engine.engine import Engine
from dragoman.engine.messages import Cancel, Submit, frame
from dragoman.engine.worker import Worker
from simulation import stub

TILES = ImageTiles.of(
    pixels=bytes(3 << 21), tiles=1, height=1 << 10, width=1 << 11, rows=0, columns=0, image_height=1, image_width=1,
    tokens=1, embeddings=1,
)  # fmt: skip
REQUEST = EngineRequest(
    request_id="ours", prompt=(1, 2), seeds=(1,), max_tokens=2, images=(PlacedImage(start=0, end=1, tiles=TILES),)
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def calls_until_read(pair: tuple[socket.socket, socket.socket]) -> int:
    """How many times the process looks for messages until it has the whole request, which it refuses."""
    ours, theirs = pair
    engine = Engine(stub())
    worker = Worker(theirs, engine)
    sending = threading.Thread(target=ours.sendall, args=(frame(Submit(REQUEST)) + frame(Cancel("other")),))
    sending.start()
    calls = 0
    while not engine.has_work:
        assert worker._receive()
        calls += 1
    sending.join()
    (event,) = engine.output().events
    assert event.request_id == "ours"
    return calls


def test_a_long_message_that_keeps_coming_is_read_at_once(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(module, "_GAP_MS", 60_000)
    assert calls_until_read(pair) == 1


def test_steps_go_on_while_a_long_message_comes(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", -1.0)
    assert calls_until_read(pair) > 5


def test_the_end_of_the_server_is_seen_within_a_message(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    worker = Worker(theirs, Engine(stub()))
    ours.sendall(frame(Submit(REQUEST))[:100])
    ours.close()
    assert not worker._receive()
