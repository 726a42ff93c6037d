"""A crowd before ``/generate_stream``, a third of which vanishes in the middle of its stream.

``make crowds`` sends it round after round against a real engine; the tests send it once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path

CLIENTS = 200
PERMITS = 128
OVERLOADED = {"error": "Model is overloaded", "error_type": "overloaded"}


async def crowd(port: int, clients: int, tokens: int, seed: int) -> Counter[str]:
    """How the streams of so many clients at once ended: ``whole``, ``vanished`` or ``overloaded``."""
    chance = random.Random(seed)
    leaving = [i % 3 == 0 for i in range(clients)]
    chance.shuffle(leaving)
    patience = [chance.randrange(1, 8) if leaves else None for leaves in leaving]
    return Counter(await asyncio.gather(*(_client(port, tokens, seed + i, patience[i]) for i in range(clients))))


async def _client(port: int, tokens: int, seed: int, patience: int | None) -> str:
    """One stream, left after ``patience`` events."""
    parameters = {"max_new_tokens": tokens, "do_sample": True, "seed": seed, "details": True}
    body = json.dumps({"inputs": f"Client {seed} says:", "parameters": parameters}).encode()
    head = "POST /generate_stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        assert (await reader.readline()).split()[1] == b"200"
        count = 0
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                assert event == OVERLOADED, event
                return "overloaded"
            count += 1
            assert event["index"] == count
            if count == patience:
                # No goodbye: what was sent and not read makes the peer's next write fail.
                writer.transport.abort()
                return "vanished"
            if event["generated_text"] is not None:
                assert event["details"]["generated_tokens"] == count
                return "whole"
        raise AssertionError("the stream ended without its last event")
    finally:
        writer.close()


def main(rounds: int) -> None:
    """Round after round, and after each one nothing may be left of it."""
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "server")]
    from native import soaked
    from sockets import Left

    with soaked() as server:
        for i in range(rounds):
            with Left(server):
                print(i + 1, dict(asyncio.run(crowd(server.port, CLIENTS, 64, 1000 * i))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
