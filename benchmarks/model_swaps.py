#!/usr/bin/env python3
"""Ask three models in turn of a server whose memory has room for two, and check what it promises about that.

    python -m benchmarks.model_swaps                                 # 500 requests, 12 at a time
    python -m benchmarks.model_swaps --requests 5000 --at-a-time 32

Every request must get its model's own tokens, none may be lost, loads must stay few, and the memory of all the server's
processes together (PSS, read from outside every 50 ms) within the budget. Then the engine of one model is killed while
another streams: the stream must not change, and the first must answer again. Prints the figures as JSON; exit code 1
where a promise does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

BUILTIN = Path(__file__).parents[1] / "builtin"
MODELS = ("first", "second", "third")
BUDGET = 560 << 20
KV_BYTES = 64 << 20
PATIENCE_S = 300.0


class MemoryWatch(threading.Thread):
    """Reads the memory of a process and its children until it is stopped. ``most_bytes``: the highest sum."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.most_bytes = 0
        self.looks = 0
        self.ended = threading.Event()
        self._process = psutil.Process(pid)

    def run(self) -> None:
        while not self.ended.wait(0.05):
            total = 0
            for each in (self._process, *self._process.children(recursive=True)):
                try:
                    rollup = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
                except OSError:
                    continue  # it has ended meanwhile
                total += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
            self.most_bytes = max(self.most_bytes, total)
            self.looks += 1


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Yield the address and the process id of a server that offers the models."""
    for name in MODELS:
        shutil.copytree(BUILTIN, folder / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dragoman", "serve", str(folder / MODELS[0]), "--name", MODELS[0]]
    command += [f"--offer={name}={folder / name}" for name in MODELS[1:]]
    command += ["--no-offer-cached", "--memory-bytes", str(BUDGET), "--kv-bytes", str(KV_BYTES), "--port", str(port)]
    command += ["--max-waiting", "4096", "--state-dir", str(folder / "state"), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENCE_S
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.05)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def ask(client: httpx.Client, model: str, seed: int, max_tokens: int = 16) -> tuple[str, str]:
    """Return the model that answered, and its text. Raises httpx.HTTPStatusError."""
    body = {"model": model, "prompt": f"Number {seed}", "max_tokens": max_tokens, "ignore_eos": True, "seed": seed}
    answer = client.post("/v1/completions", json=body)
    answer.raise_for_status()
    return answer.json()["model"], answer.json()["choices"][0]["text"]


def counted(client: httpx.Client, name: str) -> int:
    lines = client.get("/metrics").text.splitlines()
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"dragoman_{name}")))


def swaps(client: httpx.Client, requests: int, at_a_time: int, seed: int) -> dict[str, Any]:
    """Send requests for models in turn and at random, and return what came of it."""
    expected = [ask(client, MODELS[0], number)[1] for number in range(8)]
    draw = random.Random(seed)
    names = [MODELS[number % 3] if draw.random() < 0.5 else draw.choice(MODELS) for number in range(requests)]

    def one(number: int) -> str:
        try:
            model, text = ask(client, names[number], number % 8)
        except (httpx.HTTPError, KeyError) as error:
            return f"{type(error).__name__}: {error}"
        return "" if (model, text) == (names[number], expected[number % 8]) else f"{names[number]}: {model} {text!r}"

    started = time.monotonic()
    with ThreadPoolExecutor(at_a_time) as pool:
        faults = [fault for fault in pool.map(one, range(requests)) if fault]
    return {
        "requests": requests,
        "lost": len(faults),
        "faults": faults[:3],
        "loads": counted(client, "model_loads"),
        "changes_of_model": sum(a != b for a, b in itertools.pairwise(names)),
        "seconds": round(time.monotonic() - started, 2),
    }


def killed(client: httpx.Client, tokens: int) -> dict[str, Any]:
    """Kill one model's engine while another streams, and return what came of it."""
    name, other = MODELS[0], MODELS[1]
    ask(client, other, 0)
    ask(client, name, 0)
    expected = ask(client, other, 1, tokens)[1]
    pid = next(each["pid"] for each in client.get("/resident-models").json()["models"] if each["id"] == name)
    body = {"model": other, "prompt": "Number 1", "max_tokens": tokens, "ignore_eos": True, "seed": 1, "stream": True}
    text, is_killed = "", False
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                if not is_killed:
                    os.kill(pid, signal.SIGKILL)
                    is_killed = True
    again = ask(client, name, 0)
    return {"same_tokens": text == expected, "answers_again": again[0] == name, "engine_restarts": restarts(client)}


def restarts(client: httpx.Client) -> int:
    return counted(client, "engine_restarts")


def measure(requests: int, at_a_time: int, *, tokens: int = 400, seed: int = 1) -> dict[str, Any]:
    """Return the figures of one run."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (url, pid):
        watch = MemoryWatch(pid)
        watch.start()
        limits = httpx.Limits(max_connections=at_a_time + 2)
        with httpx.Client(base_url=url, timeout=PATIENCE_S, limits=limits) as client:
            found = swaps(client, requests, at_a_time, seed)
            found["models"] = [
                {key: each[key] for key in ("id", "planned_bytes", "measured_bytes")}
                for each in client.get("/resident-models").json()["models"]
            ]
            found["killed"] = killed(client, tokens)
        watch.ended.set()
        watch.join()
    return found | {"budget_bytes": BUDGET, "most_bytes": watch.most_bytes, "looks": watch.looks}


def kept(found: dict[str, Any]) -> bool:
    """Return whether what was measured is what is promised: of many requests, at most one in eight loads a
    model."""
    is_few = found["loads"] <= max(12, found["requests"] // 8)
    after_kill = found["killed"]["same_tokens"] and found["killed"]["answers_again"]
    return not found["lost"] and is_few and after_kill and found["most_bytes"] <= found["budget_bytes"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--at-a-time", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found = measure(asked.requests, asked.at_a_time, seed=asked.seed)
    print(json.dumps(found, indent=2))
    return 0 if kept(found) else 1


if __name__ == "__main__":
    sys.exit(main())
