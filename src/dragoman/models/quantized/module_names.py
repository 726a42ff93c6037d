"""Which modules a config means: by whole names, by parts of names, and by patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.core.errors import ModelError

# A pattern from a file must not keep a matcher busy: it tries every way to share a name among a pattern's repetitions.
_MOST_PATTERNS = 64
_MOST_REPETITIONS = 4
_LONGEST_PATTERN = 2000
_ESCAPED = re.compile(r"\\.|\[\^?\]?[^\]]*\]")
_REPETITION = re.compile(r"[*+{]")
_LAYER = re.compile(r"\.\d+\.")


def in_layers(module: str) -> bool:
    """Whether a module is one of a layer's: methods that name none leave out what is outside."""
    return bool(_LAYER.search(module))


def compile_patterns(patterns: Sequence[str], where: str) -> list[re.Pattern[str]]:
    """Regular expressions from a config. Raises ModelError on one that is none, or that could take forever."""
    if len(patterns) > _MOST_PATTERNS:
        raise ModelError(f"{where} has {len(patterns)} patterns; at most {_MOST_PATTERNS} are read")
    return [_compile(pattern, where) for pattern in patterns]


def _compile(pattern: str, where: str) -> re.Pattern[str]:
    plain = _ESCAPED.sub("x", pattern)
    slow = re.search(r"\)[*+{]", plain) or len(_REPETITION.findall(plain)) > _MOST_REPETITIONS
    if slow or len(pattern) > _LONGEST_PATTERN:
        raise ModelError(f"{where}: the pattern {pattern[:80]!r} could take forever to match")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(f"{where}: {pattern[:80]!r} is not a regular expression: {error}") from None


def is_kept(module: str, kept: Sequence[str]) -> bool:
    """Whether a module is among those not converted: named itself, or by what its name begins, ends or goes on with.

    ``lm_head``, ``model.layers.0``, ``mlp.gate``, but not ``mlp.gate`` for ``mlp.gate_proj``.
    """
    name = f".{module}."
    return any(f".{key.strip('.')}." in name for key in kept if key.strip("."))
