"""The cost of a batch to interactive requests: the time between their tokens, without a batch and while one runs.

    python benchmarks/batches.py [--lines 2000] [--rounds 4] [-- OPTIONS OF dragoman serve]

Starts a server. Streamed requests are sent in turn without a batch and beside a full one, which is cancelled in
between, so that slow changes of the machine touch both alike. Printed are median and 95th percentile of the time
between two tokens, and of the time to the first one. The goal: with the batch the 95th percentile between tokens is at
most 1.1 times that without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import httpx

QUESTION = {"max_tokens": 96, "ignore_eos": True, "stream": True, "temperature": 1.0, "seed": 1}
WORK = {"max_tokens": 400, "ignore_eos": True, "temperature": 1.0}
REST_S = 0.3
"""Between two requests, in which the batch goes on."""


@contextmanager
def served(port: int, *options: str) -> Iterator[str]:
    """Yield the address of a server that is ready."""
    command = [sys.executable, "-m", "dragoman", "serve", "--port", str(port), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait()


class Times:
    """Seconds between tokens, and to first tokens."""

    def __init__(self) -> None:
        self.between: list[float] = []
        self.first: list[float] = []

    def ask(self, client: httpx.Client, number: int) -> None:
        """Send one request, and add its times."""
        began = time.perf_counter()
        last = 0.0
        body = {"prompt": f"{number} Once upon a time", **QUESTION}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.perf_counter()
                if last:
                    self.between.append(now - last)
                else:
                    self.first.append(now - began)
                last = now

    def shown(self) -> str:
        between, first = statistics.median(self.between), statistics.median(self.first)
        return (
            f"between tokens {1e3 * between:6.2f} ms, p95 {1e3 * p95_s(self.between):6.2f} ms; "
            f"first token {1e3 * first:6.1f} ms, p95 {1e3 * p95_s(self.first):6.1f} ms"
        )


def p95_s(times_s: Sequence[float]) -> float:
    return statistics.quantiles(times_s, n=20)[-1]


def begin_batch(client: httpx.Client, lines: int) -> str:
    """Begin a batch, and return its id when some of it is done."""
    content = "\n".join(
        json.dumps(
            {
                "custom_id": f"c{i}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"prompt": f"{i} Tell me", **WORK},
            }
        )
        for i in range(lines)
    )
    file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    id: str = client.post("/v1/batches", json=body).json()["id"]
    while not client.get(f"/v1/batches/{id}").json()["request_counts"]["completed"]:
        time.sleep(0.05)
    return id


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=12, help="in each half of a round")
    parser.add_argument("options", nargs="*")
    given = parser.parse_args(arguments)
    without, beside = Times(), Times()
    with (
        tempfile.TemporaryDirectory() as state,
        served(given.port, "--state-dir", state, *given.options) as url,
        httpx.Client(base_url=url, timeout=600) as client,
    ):
        for round in range(given.rounds):
            for times in (without, beside):
                id = begin_batch(client, given.lines) if times is beside else ""
                for number in range(given.requests):
                    times.ask(client, 1000 * round + number)
                    time.sleep(REST_S)
                if id:
                    counts = client.post(f"/v1/batches/{id}/cancel").json()["request_counts"]
                    print(f"round {round}: the batch has done {counts['completed']} of {counts['total']} lines")
                    while client.get(f"/v1/batches/{id}").json()["status"] != "cancelled":
                        time.sleep(0.1)
    print(f"without a batch: {without.shown()}")
    print(f"beside a batch:  {beside.shown()}")
    print(f"p95 between tokens: {p95_s(beside.between) / p95_s(without.between):.2f} times")
    print(f"p95 of the first token: {p95_s(beside.first) / p95_s(without.first):.2f} times")


if __name__ == "__main__":
    main()
