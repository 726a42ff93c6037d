"""Fields of both endpoints that ask for a beam search, and what they come to together."""

from __future__ import annotations

from dragoman.core.errors import BadRequest
from dragoman.core.sampling import MAX_BEAMS, BeamParams
from dragoman.dialects.field import Field, Reading
from dragoman.dialects.field_types import Boolean, Integer, Number, OneOf, String
from dragoman.dialects.openai.sampler_fields import extension

BEAMS: tuple[Field, ...] = (
    Field(
        name="use_beam_search",
        kind=Boolean(),
        becomes="beams",
        note=extension(
            "Searches for the choices together, and returns the best `n` that it finds, each with its `score`. The "
            "search is as wide as `num_beams` says, or else `best_of`, or else `n`."
        ),
    ),
    Field(
        name="num_beams",
        kind=Integer(),
        becomes="beams.num_beams",
        note=extension("Texts that a beam search follows at a time. Above 1 it asks for one; at least `n`."),
    ),
    Field(
        name="beam_search_type",
        kind=String(choices=("deterministic", "sampling", "stochastic")),
        default="deterministic",
        becomes="beams.kind",
        note=extension(
            "The best continuations; some drawn by their probability; or a sample of whole texts without replacement."
        ),
    ),
    Field(
        name="length_penalty",
        kind=Number(),
        default=1.0,
        becomes="beams.length_penalty",
        note=extension("A hypothesis' score is the sum of its log-probabilities, divided by its length to this power."),
    ),
    Field(
        name="early_stopping",
        kind=OneOf((Boolean(), String(choices=("never",)))),
        default=False,
        becomes="beams.early_stopping",
        note=extension(
            "A beam search ends with as many hypotheses as beams (true); when the best text that it follows scores no "
            'better than the last of them (false); or when it could come to no better score any more ("never").'
        ),
    ),
    Field(
        name="beam_normalization",
        kind=String(choices=("before", "after", "both")),
        becomes="beams.pre_normalization, beams.post_normalization",
        convert=lambda when: (when != "after", when != "before"),
        note="Whether a beam search normalizes log-probabilities before penalties and bans change them, after, or "
        "both. Absent: before, and after in a stochastic one. Not OpenAI's.",
    ),
)

_OTHERS = tuple(field for field in BEAMS if field.name not in ("use_beam_search", "num_beams"))


def beams_of(reading: Reading) -> BeamParams | None:
    """The beam search that a body asks for, if any. Raises BadRequest for fields that contradict each other."""
    core = reading.core
    width, wanted = core.get("beams.num_beams"), core.get("beams")
    if wanted is False and (width or 1) > 1:
        raise BadRequest(
            f"'num_beams' ({width}) asks for a beam search, 'use_beam_search' for none.", param="num_beams"
        )
    if not wanted and (width or 1) == 1:
        for field in _OTHERS:
            if reading.values[field.name] != field.default:
                message = f"'{field.name}' belongs to a beam search: ask for one with 'num_beams' or 'use_beam_search'."
                raise BadRequest(message, param=field.name)
        return None
    n, best_of = core.get("n"), core.get("best_of")
    if width is not None and best_of not in (None, width):
        message = f"A beam search makes as many as it has beams: 'best_of' ({best_of}) is not 'num_beams' ({width})."
        raise BadRequest(message, param="best_of")
    width = width or best_of or n
    if width > MAX_BEAMS:
        name = "n" if best_of is None else "best_of"
        raise BadRequest(f"A beam search follows at most {MAX_BEAMS} texts, not '{name}' ({width}).", param=name)
    if n > width:
        raise BadRequest(f"'n' ({n}) is more than the {width} texts that the beam search follows.", param="n")
    search = core.group("beams")
    stochastic = search["kind"] == "stochastic"
    normalized = {"pre_normalization": not stochastic, "post_normalization": stochastic}
    return BeamParams(**normalized | search | {"num_beams": width})
