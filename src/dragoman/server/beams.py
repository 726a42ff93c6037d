"""What a beam search does not go together with, said before generation and by name."""

from __future__ import annotations

import math

from dragoman.core.errors import BadRequest
from dragoman.core.request import GenerationRequest
from dragoman.core.sampling import MAX_BEAMS, BeamParams

WIRE_NAMES = {"forced_tokens": "forced_output_tokens"}
"""Where a sampling parameter has another name on the wire."""


def check_beams(request: GenerationRequest) -> None:
    """Raises BadRequest for what contradicts the request's beam search; nothing, where it asks for none."""
    beams = request.beams
    if beams is None:
        return
    if not 1 <= beams.num_beams <= MAX_BEAMS:
        raise BadRequest(f"'num_beams' is from 1 to {MAX_BEAMS}.", param="num_beams")
    if request.n > beams.num_beams:
        message = f"'n' ({request.n}) is more than 'num_beams' ({beams.num_beams}): there are no more hypotheses."
        raise BadRequest(message, param="n")
    for name in beams.excludes(request.sampling):
        name = WIRE_NAMES.get(name, name)
        raise BadRequest(f"'{name}' and a {beams.kind} beam search exclude each other.", param=name)
    if request.best_of is not None:
        raise BadRequest("'best_of' and a beam search exclude each other.", param="best_of")
    if request.seeds is not None and len(request.seeds) > 1:
        raise BadRequest("A beam search has one seed.", param="seed")
    if request.ending.stop:
        message = "'stop' and a beam search exclude each other; 'stop_token_ids' are tokens that end a text."
        raise BadRequest(message, param="stop")
    if request.ending.max_tokens == 0:
        raise BadRequest("A beam search needs 'max_tokens' of 1 at least.", param="max_tokens")
    _check_scores(beams)


def _check_scores(beams: BeamParams) -> None:
    if not math.isfinite(beams.length_penalty):
        raise BadRequest("'length_penalty' is a finite number.", param="length_penalty")
    if beams.kind == "stochastic" and beams.length_penalty != 1:
        message = "'length_penalty' and a stochastic beam search exclude each other: it orders texts as it draws them."
        raise BadRequest(message, param="length_penalty")
    if beams.kind == "stochastic" and beams.early_stopping == "never":
        message = "'early_stopping' of a stochastic beam search is true or false: it ends when all its texts have."
        raise BadRequest(message, param="early_stopping")
    if not (beams.pre_normalization or beams.post_normalization):
        message = "Log-probabilities of a beam search are normalized before the steps that change them, after, or both."
        raise BadRequest(message, param="pre_normalization")
