"""Files changed at random by a seed, without atheris: a moment of it is in ``make test``, and with sanitizers."""

from __future__ import annotations

import random
import sys
import time

from tests.fuzz.readers import READERS


def run_mutations(name: str, count: int, seed: int = 0) -> list[str]:
    """What came out of a reader that may not, with the input's place in the row: another run finds it again."""
    reader = READERS[name]
    seeds = list(reader.seeds())
    found = []
    for number in range(count):
        rng = random.Random(f"{name} {seed} {number}")
        data = reader.mutate(rng.choice(seeds), rng)
        started = time.monotonic()
        try:
            reader.read(data)
        except BaseException as error:  # a panic of the tokenizers library is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            found.append(f"{name}, seed {seed}, number {number}: {error!r:.300} for {data[:2000]!r}")
        if (took := time.monotonic() - started) > 2:
            found.append(f"{name}, seed {seed}, number {number}: {took:.1f} s for {data[:2000]!r}")
    return found


if __name__ == "__main__":
    print(*run_mutations(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0), sep="\n")
