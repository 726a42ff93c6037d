"""What the engine would do with a request: the sampling steps that act, and how much of its prompt is cached.

Both are read from the engine's own tables: ``processors.PIPELINE``, ``core.sampling.TRUNCATIONS`` and the prefix cache.
Nothing is queued, computed or kept.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from dragoman.core.explanation import EngineExplanation, SamplingStep
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.engine.block_tables import BlockTables
from dragoman.engine.lora_slots import Adapter
from dragoman.engine.prompt_images import PromptImages
from dragoman.engine.sampling.processors import PIPELINE
from dragoman.engine.sequence import SequenceGroup

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
_SHOWN_ITEMS = 16
"""Most items of a parameter that is a list or a map; of longer ones the number is shown."""


def explain(
    request: EngineRequest, tables: BlockTables, adapter: Adapter | None, images: PromptImages | None
) -> EngineExplanation:
    """Return what would be done with a request that the engine's admission has accepted."""
    group = SequenceGroup(request, 0, lambda: (), adapter=adapter, images=images)
    return EngineExplanation(cached_tokens=tables.cached_tokens(group.sequences[0]), steps=tuple(steps_of(request)))


def steps_of(request: EngineRequest) -> Iterator[SamplingStep]:
    """Yield the steps that act on the logits of a request, in the order in which they run."""
    sampling = request.sampling
    if sampling.forced_tokens:
        yield _step("forced_tokens", "The token is given; only its log-probability is computed.", sampling)
        return
    for make in PIPELINE:
        watched = _Watched(request)
        if make(watched) is not None:  # type: ignore[arg-type]  # it has the request's attributes
            shown = {name: value for name, value in watched.read.items() if value != _DEFAULTS.get(name)}
            yield SamplingStep(name=make.__name__, does=_purpose(make), parameters=_shown(shown))
    if request.grammar is not None:
        yield SamplingStep(name="grammar", does="Tokens that the grammar forbids are -inf.")
    search = request.beams
    if search is None and sampling.temperature == 0:
        text = "The most likely token, the lowest id of equals; later steps are skipped."
        yield _step("greedy", text, sampling, "temperature")
        return
    temperature = _step("temperature", _described("temperature"), sampling, "temperature")
    if sampling.temperature not in (0, 1) and not sampling.truncates_first:
        yield temperature
    if sampling.mirostat_mode:
        names = ("mirostat_mode", "mirostat_tau", "mirostat_eta")
        yield _step("mirostat", _described("mirostat_mode"), sampling, *names)
    for name in sampling.truncations:
        more = ("xtc_threshold",) if name == "xtc_probability" else ()
        yield _step(name, _described(name), sampling, name, *more)
    if sampling.truncates_first:
        yield temperature
    if search is not None:
        parameters = _shown(msgspec.structs.asdict(search))
        yield SamplingStep(name="beam_search", does="The best continuations of all beams stay.", parameters=parameters)
        return
    yield _step("draw", "Inverse CDF over the kept tokens, with one random number of seed and position.", sampling)


def _step(name: str, does: str, sampling: SamplingParams, *parameters: str) -> SamplingStep:
    return SamplingStep(name=name, does=does, parameters=_shown({each: getattr(sampling, each) for each in parameters}))


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: f"{len(value)} items" if isinstance(value, tuple | dict) and len(value) > _SHOWN_ITEMS else value
        for name, value in values.items()
    }


class _Watched:
    """A request that records which of its sampling parameters are read."""

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self.read: dict[str, Any] = {}
        self.sampling = _WatchedSampling(request.sampling, self.read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class _WatchedSampling:
    def __init__(self, sampling: SamplingParams, read: dict[str, Any]) -> None:
        self._sampling, self._read = sampling, read

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._sampling, name)
        if name in _DEFAULTS:
            self._read[name] = value
        return value


def _purpose(make: Callable[..., Any]) -> str:
    """Return the first paragraph of a step's docstring, without the words that all of them begin with."""
    first = " ".join((make.__doc__ or "").partition("\n\n")[0].split())
    text = re.sub(r"^Return a processor (that|for) ", "", first)
    return text[:1].upper() + text[1:]


def _described(name: str) -> str:
    """Return the sentence about a sampling parameter in the docstring of ``SamplingParams``; empty: there is none."""
    return _descriptions().get(name, "")


@functools.cache
def _descriptions() -> dict[str, str]:
    found: dict[str, str] = {}
    # Python 3.13 takes the indent off docstrings, earlier ones leave it.
    attributes = inspect.cleandoc(SamplingParams.__doc__ or "").partition("Attributes:\n")[2]
    for entry in re.split(r"\n {4}(?=\S)", "\n" + attributes.rstrip()):
        names, _, text = " ".join(entry.split()).partition(": ")
        for name in names.split(", "):
            found[name] = text[:1].upper() + text[1:]
    return found
