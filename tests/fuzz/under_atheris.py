"""One reader under atheris, in a process of its own: ``python -m tests.fuzz.under_atheris NAME <libFuzzer's options>``.

A folder among the options is a corpus that grows; a file is an input to run again.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dragoman.models", "dragoman.text"]):
    from tests.fuzz.readers import FOLDER, READERS


def main() -> None:
    os.environ["DRAGOMAN_CACHE"] = str(FOLDER / "cache")
    reader = READERS[sys.argv.pop(1)]
    corpora = [Path(argument) for argument in sys.argv[1:] if Path(argument).is_dir()]
    for number, seed in enumerate(reader.seeds()):
        for corpus in corpora[:1]:
            (corpus / f"seed-{number}").write_bytes(seed)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        # libFuzzer's own changes follow what comparisons in the code look for; ours keep what the parser wants.
        changed = atheris.Mutate(data, max_size) if rng.random() < 0.3 else reader.mutate(data, rng)
        return changed if len(changed) <= max_size else data

    def read(data: bytes) -> None:
        try:
            reader.read(data)
        except Exception:
            raise
        except BaseException as error:  # a panic of the tokenizers library, which atheris lets pass
            raise RuntimeError(f"panic: {error}") from error

    atheris.Setup(sys.argv, read, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
