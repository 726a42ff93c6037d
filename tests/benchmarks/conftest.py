"""The benchmarks are no part of the package: they are found from the folder of the project."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
