"""Try an installed wheel: every kind of kernel that this processor has, the command, and a generation.

It needs nothing but the wheel and what comes with it, and runs where no checkout is on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys

SEEDED = """
from dragoman import LLM, SamplingParams, __version__
from dragoman.kernels import instruction_set
if __name__ == "__main__":
    with LLM() as llm:
        output = llm.generate(["Once upon a time"], SamplingParams(max_tokens=12, seed=7))[0]
    print(__version__, instruction_set(), repr(output.text))
"""


OFFERED = "from dragoman import kernels; print(*kernels.instruction_sets())"


def main() -> int:
    subprocess.run([sys.executable, "-m", "dragoman", "version"], check=True)
    offered = subprocess.run([sys.executable, "-c", OFFERED], check=True, capture_output=True, text=True).stdout.split()
    for kernels in offered:
        variables = {**os.environ, "DRAGOMAN_KERNELS": kernels}
        doctor = [sys.executable, "-m", "dragoman", "doctor", "--kernels"]
        subprocess.run(doctor, env=variables, check=True, timeout=600)
        subprocess.run([sys.executable, "-c", SEEDED], env=variables, check=True, timeout=600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
