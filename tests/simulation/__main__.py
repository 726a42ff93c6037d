"""Run simulated worlds: ``python -m tests.simulation --seed 17`` one of them, ``--seeds 20000`` those up to there.

Each seed is a world of its own: settings, clients, faults, all drawn from it. A seed that breaks a promise prints the
line that runs it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback

from tests.simulation.answers import Violation
from tests.simulation.runs import many, simulate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="this world alone, and what happened in it")
    parser.add_argument("--seeds", type=int, default=300, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--most-failures", type=int, default=20, help="stop after so many")
    options = parser.parse_args()
    if options.seed is not None:
        try:
            report = simulate(options.seed)
        except Violation as error:
            traceback.print_exception(error)
            return 1
        print("\n".join(report.trace))
        print(dict(report.outcomes), dict(report.faults), f"{report.steps} steps, {report.virtual_s:.1f} s simulated")
        return 0
    return many(range(options.first, options.first + options.seeds), options.jobs, options.most_failures)


if __name__ == "__main__":
    sys.exit(main())
