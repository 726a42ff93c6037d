"""Many clients at once, each doing something at random, while the engine is killed now and then: nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter

import msgspec
import pytest
from sockets import Left, request_of, serves
from stub_runtime import QUICK, STUB, running_server

SECONDS = 4.0
CROWD = 24
HI = [{"role": "user", "content": "hi"}]


def some_request(rng: random.Random) -> bytes:
    body: dict[str, object] = {
        "prompt": rng.choice(["a", ["a", "b", "c"], [5, 6, 7], "word " * 50, "x" * 3000, ""]),
        "max_tokens": rng.choice([1, 5, 50, 200]),
        "n": rng.choice([1, 1, 2, 5]),
        "stream": rng.random() < 0.6,
        "ignore_eos": True,
    }
    if rng.random() < 0.2:
        body["logprobs"] = 3
    if rng.random() < 0.2:
        body["stop"] = ["e", "ab"]
    if rng.random() < 0.1:
        body["temperature"] = "hot"
    if rng.random() < 0.3:
        del body["prompt"]
        body.pop("logprobs", None)
        return request_of({**body, "messages": HI}, "/v1/chat/completions", close=False)
    return request_of(body, close=False)


def rude_client(port: int, rng: random.Random, end: float, seen: Counter[str]) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.settimeout(0.6)
            if rng.random() < 0.1:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", port))
            data = some_request(rng) * rng.choice([1, 1, 1, 3])
            connection.sendall(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])
            if rng.random() < 0.1:  # leave by reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            for _ in range(rng.choice([0, 0, 1, 2, 10, 1000])):
                answer = connection.recv(rng.choice([1, 100, 65536]))
                if not answer:
                    break
                if answer.startswith(b"HTTP/1.1 "):
                    seen[answer[9:12].decode()] += 1
        time.sleep(rng.random() * rng.choice([0, 0.02]))


@pytest.mark.parametrize("kills", [0, 3])
def test_a_rude_crowd_leaves_nothing(kills: int) -> None:
    limits = msgspec.structs.replace(QUICK, max_connections=CROWD - 8, max_waiting=6)
    with running_server(limits, msgspec.structs.replace(STUB, step_s=0.001)) as server, Left(server):
        end = time.monotonic() + SECONDS
        seen: Counter[str] = Counter()
        crowd = [
            threading.Thread(target=rude_client, args=(server.port, random.Random(i), end, seen)) for i in range(CROWD)
        ]
        for client in crowd:
            client.start()
        for _ in range(kills):
            time.sleep(SECONDS / (kills + 1))
            pid = server.runtime.engine.health().pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        for client in crowd:
            client.join()
        serves(server)
        assert {"200", "400"} <= set(seen) <= {"200", "400", "408", "429", "503"}, json.dumps(seen)
