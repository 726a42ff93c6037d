"""The engine's process computes on the processors of its settings, as far as the system allows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PLACE = """
import json, logging, os, sys
from dragoman import kernels
from dragoman.engine.messages import StubModel, WorkerSettings
from dragoman.engine.worker import place_threads

logging.basicConfig(stream=sys.stderr)
place_threads(WorkerSettings(model=StubModel(), **json.loads(sys.argv[1])))
tied = [sorted(os.sched_getaffinity(int(each))) for each in os.listdir("/proc/self/task")]
print(json.dumps({"threads": kernels.threads(), "tied": tied}))
"""


def placed(**settings: object) -> tuple[dict[str, object], str]:
    done = subprocess.run(
        [sys.executable, "-c", PLACE, json.dumps(settings)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # NumPy's library would start threads of its own
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_all_threads_are_tied_to_the_processors() -> None:
    one = min(os.sched_getaffinity(0))
    found, said = placed(threads=3, processors=[one])
    assert found == {"threads": 3, "tied": [[one]] * 3}
    assert said == ""


def test_a_processor_that_is_gone_costs_speed_alone() -> None:
    found, said = placed(threads=2, processors=[4095])
    assert found == {"threads": 2, "tied": [sorted(os.sched_getaffinity(0))] * 2}
    assert "cannot be tied to its processors" in said


def test_a_refusal_to_spread_memory_is_logged() -> None:
    _, said = placed(threads=1, nodes=[700, 701])
    assert "does not spread memory" in said
