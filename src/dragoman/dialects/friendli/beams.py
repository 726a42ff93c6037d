"""Friendli's fields about beam search, and what they do not go together with."""

from __future__ import annotations

from dragoman.core.errors import BadRequest
from dragoman.core.sampling import BeamParams, EndingParams, SamplingParams
from dragoman.dialects.field import Reading

# Where the wire has another name for what the core calls so.
_NAMES = {"forced_tokens": "forced_output_tokens"}


def beams_of(reading: Reading, sampling: SamplingParams, ending: EndingParams) -> BeamParams | None:
    """The search that a body asks for; without ``num_beams`` none, whatever the others say. Raises BadRequest."""
    search, values = reading.core.group("beams"), reading.values
    if "num_beams" not in search:
        return None
    for name, asked in (("n", values["n"] > 1), ("stream", values["stream"]), ("stop", bool(ending.stop))):
        if asked:
            raise BadRequest(f"'num_beams' and '{name}' exclude each other.", param=name)
    if not search["pre_normalization"] and not search["post_normalization"]:
        message = "'beam_compat_no_post_normalization' needs 'beam_compat_pre_normalization'."
        raise BadRequest(message, param="beam_compat_no_post_normalization")
    beams = BeamParams(**search)
    if beams.kind == "stochastic" and beams.length_penalty != 1:
        raise BadRequest("'length_penalty' has no meaning for a stochastic search.", param="length_penalty")
    if excluded := (*_excluded_truncations(beams, sampling), *beams.excludes(sampling)):
        name = _NAMES.get(excluded[0], excluded[0])
        kind = values["beam_search_type"]
        raise BadRequest(f"'{name}' does not go together with the beam search {kind}.", param=name)
    return beams


def _excluded_truncations(beams: BeamParams, sampling: SamplingParams) -> tuple[str, ...]:
    """A search that draws nothing has no use for a temperature, greedy ones included."""
    return ("temperature",) if beams.kind == "deterministic" and sampling.temperature != 1 else ()
