"""Hours of what a server has to bear, against a real one: ``make soak``, or ``--short`` in half a minute.

    kills      the engine is killed 1,000 times under 32 streams of all dialects and kinds of sampling
    overload   three times as many requests as can be served, for ten minutes
    hostile    100,000 malformed requests of every dialect

``--part`` runs one of them, ``--count`` with another number (kills, seconds, requests), ``--seed`` goes on with others.
The exit code is 1 where anything was lost, changed, silent or left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks.under_test import ServerUnderTest, allow_many_descriptors, server_under_test
from tests.soak.hostile import OPTIONS, hostile
from tests.soak.kills import kill_engine
from tests.soak.overload import overload

FULL = {"kills": 1000, "overload": 600, "hostile": 100_000}
SHORT = {"kills": 8, "overload": 8, "hostile": 1500}


async def run(part: str, server: ServerUnderTest, count: int, seed: int) -> list[str]:
    match part:
        case "kills":
            return await kill_engine(server, count, seed)
        case "overload":
            return await overload(server, count)
        case _:
            return await hostile(server, count, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(FULL), help="only this one")
    parser.add_argument("--count", type=int, help="kills, seconds or requests")
    parser.add_argument("--short", action="store_true", help="a few of each")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other moments and requests")
    parser.add_argument("--port", type=int, default=18850, help="where the servers listen")
    options = parser.parse_args()
    allow_many_descriptors()
    failed = 0
    for part in [options.part] if options.part else FULL:
        count = options.count or (SHORT if options.short else FULL)[part]
        more = OPTIONS if part == "hostile" else ()
        with server_under_test(options.port, "--alias", "stub", *more) as server:
            wrong = asyncio.run(run(part, server, count, options.seed))
            for each in wrong[:20]:
                print(f"  WRONG: {each[:1000]}")
            failed += len(wrong)
            if server.process.poll() is not None:
                print("  WRONG: the server has ended")
                failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
