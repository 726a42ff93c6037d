"""Fields of both endpoints for sampling options that OpenAI has no names for, and the checks of their combinations."""

from __future__ import annotations

from dragoman.core.engine_fields import wire_name
from dragoman.core.errors import BadRequest
from dragoman.core.sampling import MAX_BEAMS, BeamParams, EndingParams, SamplingParams, both_spellings
from dragoman.dialects.field import CoreParams, Field, Reading
from dragoman.dialects.field_types import Boolean, Integer, ListOf, Number, OneOf, String

TOKEN_ID = Integer(0, 2**31 - 1)


def extension(what: str) -> str:
    return f"{what} Not OpenAI's; other engines take it under this name."


SAMPLERS: tuple[Field, ...] = (
    Field(
        name="typical_p",
        kind=Number(),
        default=1.0,
        becomes="sampling.typical_p",
        model_default=True,
        note=extension("Keeps the tokens whose surprise is nearest to the entropy until their probabilities reach it."),
    ),
    Field(
        name="xtc_probability",
        kind=Number(),
        default=0.0,
        becomes="sampling.xtc_probability",
        model_default=True,
        note=extension("How often XTC drops the most likely tokens; 0 is off."),
    ),
    Field(
        name="xtc_threshold",
        kind=Number(),
        default=0.1,
        becomes="sampling.xtc_threshold",
        model_default=True,
        note=extension("Of the tokens at least so likely, if two or more, XTC leaves the least likely; 0 is off."),
    ),
    Field(
        name="mirostat_mode",
        kind=Integer(),
        default=0,
        becomes="sampling.mirostat_mode",
        model_default=True,
        note=extension("1 or 2: the version of mirostat. Not together with `top_k`, `top_p` and their like."),
    ),
    Field(
        name="mirostat_tau",
        kind=Number(maximum=100),
        default=5.0,
        becomes="sampling.mirostat_tau",
        model_default=True,
        note=extension("The surprise that mirostat holds the text at, in bits per token."),
    ),
    Field(
        name="mirostat_eta",
        kind=Number(maximum=1),
        default=0.1,
        becomes="sampling.mirostat_eta",
        model_default=True,
        note=extension("How fast mirostat learns."),
    ),
    Field(
        name="bad_words",
        kind=ListOf(String(minimum=1, maximum=256), maximum=256),
        becomes="sampling.bad_words",
        convert=both_spellings,
        note=extension(
            "Texts that are not generated, with a leading space and without; as the tokens that each is inside of "
            "a text. Other tokens may still spell it."
        ),
    ),
    Field(
        name="bad_word_token_ids",
        kind=ListOf(ListOf(TOKEN_ID, minimum=1, maximum=64), maximum=1024),
        becomes="sampling.banned_phrases",
        note=extension("The same, token by token: the last one of a list is forbidden behind all before it."),
    ),
    Field(
        name="no_repeat_ngram_size",
        kind=Integer(),
        default=0,
        becomes="sampling.no_repeat_ngram_size",
        model_default=True,
        note=extension("No n tokens in a row occur twice in prompt and output; 0 is off."),
    ),
    Field(
        name="dry_multiplier",
        kind=Number(maximum=1000),
        default=0.0,
        becomes="sampling.dry_multiplier",
        note=extension("Penalty of DRY for going on with a repetition of the allowed length; 0 is off."),
    ),
    Field(
        name="dry_base",
        kind=Number(maximum=100),
        default=1.75,
        becomes="sampling.dry_base",
        note=extension("What the penalty is multiplied by for each token that the repetition is longer."),
    ),
    Field(
        name="dry_allowed_length",
        kind=Integer(),
        default=2,
        becomes="sampling.dry_allowed_length",
        note=extension("Shorter repetitions cost nothing."),
    ),
    Field(
        name="dry_penalty_last_n",
        kind=Integer(),
        default=-1,
        becomes="sampling.dry_penalty_last_n",
        note=extension("The newest tokens in which DRY looks; -1 is all of prompt and output, 0 is off."),
    ),
    Field(
        name="dry_sequence_breakers",
        kind=ListOf(String(minimum=1, maximum=64), maximum=64),
        becomes="sampling.dry_sequence_breakers",
        note=extension(
            'Texts that no repetition reaches across, by the last token of each. Absent: `\\n`, `:`, `"`, `*`.'
        ),
    ),
    Field(
        name="dry_sequence_breaker_ids",
        kind=ListOf(TOKEN_ID, maximum=1024),
        becomes="sampling.dry_breaker_ids",
        note=extension("More breakers, as token ids."),
    ),
    Field(
        name="watermark",
        kind=Boolean(),
        default=False,
        becomes="sampling.watermark",
        note=extension("Favours a list of tokens that the token before decides (Kirchenbauer et al. 2023)."),
    ),
    Field(
        name="watermark_gamma",
        kind=Number(),
        default=0.5,
        becomes="sampling.watermark_gamma",
        note=extension("The share of the vocabulary on that list."),
    ),
    Field(
        name="watermark_delta",
        kind=Number(0, 100),
        default=2.0,
        becomes="sampling.watermark_delta",
        note=extension("What is added to the logits of that list."),
    ),
    Field(
        name="min_total_tokens",
        kind=Integer(),
        default=0,
        becomes="ending.min_total_tokens",
        note=extension("As `min_tokens`, the prompt's tokens included. Not together with it."),
    ),
    Field(
        name="max_total_tokens",
        kind=Integer(),
        becomes="ending.max_total_tokens",
        note=extension("Most tokens of prompt and output together; more than the context holds is what it holds."),
    ),
    Field(
        name="clamp_to_context",
        kind=Boolean(),
        default=False,
        becomes="ending.clamp_to_context",
        note=extension("A `max_tokens` that the context has no room for is cut to the room, not refused."),
    ),
    Field(
        name="frequency_share",
        kind=Boolean(),
        default=False,
        becomes="sampling.frequency_share",
        note=extension("`frequency_penalty` is multiplied by a token's share of prompt and output, not by its count."),
    ),
    Field(
        name="penalty_last_n",
        kind=Integer(),
        default=-1,
        becomes="sampling.penalty_last_n",
        note=extension("How many newest tokens of prompt and output the penalties look at; -1: all, 0: none."),
    ),
    Field(
        name="temperature_last",
        kind=Boolean(),
        default=False,
        becomes="sampling.temperature_last",
        note=extension("The temperature follows the truncations, as in llama.cpp."),
    ),
    Field(
        name="truncate_prompt_tokens",
        kind=Integer(1, 2**31 - 1),
        becomes="truncate",
        note=extension("Only so many tokens from the end of the prompt are kept."),
    ),
    Field(
        name="end_token_ids",
        kind=ListOf(TOKEN_ID, maximum=1024),
        becomes="ending.end_token_ids",
        note=extension("End-of-sequence tokens in place of the model's; an empty list: none."),
    ),
    Field(
        name="length_first",
        kind=Boolean(),
        default=False,
        becomes="ending.length_first",
        note=extension("A last allowed token that ends the text in another way too ends it by `length`."),
    ),
    Field(
        name="stop_at_token_ends",
        kind=Boolean(),
        default=False,
        becomes="ending.stop_at_token_ends",
        note=extension("A stop string counts only where it ends with a token."),
    ),
    Field(
        name="stop_in_answer",
        kind=Boolean(),
        default=False,
        becomes="ending.stop_in_answer",
        note=extension("Stop strings count in a chat's answer only, neither in its reasoning nor in calls of tools."),
    ),
    Field(
        name="forced_output_tokens",
        kind=ListOf(TOKEN_ID, minimum=1, maximum=2**20),
        becomes="sampling.forced_tokens",
        note=extension(
            "The output is exactly these tokens, for the sake of their log-probabilities; what else is said about "
            "sampling, ends and lengths is left aside."
        ),
    ),
    Field(
        name="logprobs_mode",
        kind=String(choices=("raw", "processed")),
        default="raw",
        becomes="logprobs.mode",
        note=extension("Log-probabilities of the model's own logits, or of what the token was drawn from."),
    ),
)


def choosing_and_ending(
    core: CoreParams, constraint_param: str, *, resumable: bool = False
) -> tuple[SamplingParams, EndingParams]:
    """Return the sampling and ending parameters of a body. Raises BadRequest for fields that contradict each other.

    ``constraint_param``: the field that constrains the text; empty where none does. ``resumable``: the lengths asked
    for are those of one call among several.
    """
    sampling, ending = core.sampling(), core.ending()
    if sampling.mirostat_mode and sampling.truncations:
        other = sampling.truncations[0]
        raise BadRequest(f"'mirostat_mode' and '{other}' exclude each other.", param="mirostat_mode")
    if sampling.forced_tokens and constraint_param:
        message = f"'forced_output_tokens' and '{constraint_param}' exclude each other."
        raise BadRequest(message, param="forced_output_tokens")
    if ending.min_tokens and ending.min_total_tokens:
        raise BadRequest("'min_tokens' and 'min_total_tokens' exclude each other.", param="min_total_tokens")
    if ending.max_tokens is not None and ending.min_tokens > ending.max_tokens and not resumable:
        most = wire_name("ending.max_tokens")
        message = f"'min_tokens' ({ending.min_tokens}) is more than '{most}' ({ending.max_tokens})."
        raise BadRequest(message, param="min_tokens")
    return sampling, ending


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
    """Return the beam search of a body, if any. Raises BadRequest for fields that contradict each other."""
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
