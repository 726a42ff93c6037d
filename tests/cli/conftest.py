"""Lets the tests of the command line use the hub of the models' tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
