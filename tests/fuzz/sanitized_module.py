"""A plugin of pytest that takes the kernels from ``DRAGOMAN_SANITIZED_MODULE``, not from the package.

The package's own module stays where it is: what is found first is imported.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

NAME = "dragoman.kernels._native"


class SanitizedFinder:
    """Finds the one module, and no other."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The place of the module."""
        if name != NAME:
            return None
        return importlib.util.spec_from_file_location(name, os.environ["DRAGOMAN_SANITIZED_MODULE"])


assert NAME not in sys.modules
sys.meta_path.insert(0, SanitizedFinder)  # type: ignore[arg-type]
