"""Helpers are found from the folder of the project, as ``python -m benchmarks.siege`` finds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
