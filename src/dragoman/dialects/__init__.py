"""The wire formats, in order of precedence: where two claim the same bare path, the first has it."""

from __future__ import annotations

from dragoman.dialects import openai
from dragoman.dialects.wire import Dialect

DIALECTS: tuple[Dialect, ...] = (openai.DIALECT,)
