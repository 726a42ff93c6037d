"""Parameters of sampling, and of the end of a sequence. Meanings and order are in ``docs/generation.md``."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

MAX_SEED = 2**64 - 1
MAX_BEAMS = 31
MAX_FLOAT32 = 3.4e38
MAX_COUNT = 2**31 - 1
MAX_INTEGER = 2**63 - 1
"""Larger numbers, but for seeds, cannot be sent to the engine's process."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Allowed values of a number; infinity is not one. ``above`` is an exclusive lower bound."""

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None

    def includes(self, value: float) -> bool:
        """Return whether the value is in the range; NaN never is."""
        return (
            -math.inf < value < math.inf
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
        )

    def words(self) -> str:
        """What is included: ``from 0 to 1``, ``above 0``."""
        words = [] if self.above is None else [f"above {self.above:g}"]
        if self.minimum is not None:
            words.append(f"{self.minimum:g} or more" if self.maximum is None else f"from {self.minimum:g}")
        if self.maximum is not None:
            words.append(f"to {self.maximum:g}" if self.minimum is not None else f"at most {self.maximum:g}")
        return (" and " if self.minimum is None else " ").join(words) or "a finite number"


_SHARE = Range(minimum=0, maximum=1)
_COUNT = Range(minimum=0, maximum=MAX_COUNT)
_FACTOR = Range(above=0)
_BITS = Range(minimum=0, maximum=1000)
"""With an eta above 2 mirostat's state oscillates, but it must stay finite."""

RANGES = {
    "sampling.temperature": Range(minimum=0, maximum=MAX_FLOAT32),
    "sampling.top_k": _COUNT,
    "sampling.top_p": _SHARE,
    "sampling.min_p": _SHARE,
    "sampling.typical_p": Range(above=0, maximum=1),
    "sampling.xtc_probability": _SHARE,
    "sampling.xtc_threshold": _SHARE,
    "sampling.mirostat_mode": Range(minimum=0, maximum=2),
    "sampling.mirostat_tau": _BITS,
    "sampling.mirostat_eta": _BITS,
    "sampling.repetition_penalty": _FACTOR,
    "sampling.frequency_penalty": Range(),
    "sampling.presence_penalty": Range(),
    "sampling.penalty_last_n": Range(minimum=-1, maximum=MAX_COUNT),
    "sampling.no_repeat_ngram_size": _COUNT,
    "sampling.encoder_repetition_penalty": _FACTOR,
    "sampling.encoder_no_repeat_ngram_size": _COUNT,
    "sampling.dry_multiplier": Range(minimum=0),
    "sampling.dry_base": Range(minimum=1),
    "sampling.dry_allowed_length": Range(minimum=1, maximum=MAX_COUNT),
    "sampling.dry_penalty_last_n": Range(minimum=-1, maximum=MAX_COUNT),
    "sampling.watermark_gamma": _SHARE,
    "sampling.watermark_delta": Range(minimum=-1000, maximum=1000),
    "ending.max_tokens": _COUNT,
    "ending.max_total_tokens": Range(minimum=1, maximum=MAX_COUNT),
    "ending.min_tokens": _COUNT,
    "ending.min_total_tokens": _COUNT,
    "beams.num_beams": Range(minimum=1, maximum=MAX_BEAMS),
    "beams.length_penalty": Range(),
}
"""Ranges that the engine accepts, for every number that a request can set. Dialects narrow them."""


def within(
    parameter: str, *, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> msgspec.Meta:
    """Return the bounds that a parameter has in ``RANGES``, or narrower ones, for the annotation of a struct's field.

    Raises ValueError for a bound that is outside of them.
    """
    core = RANGES[parameter]
    lows = [low for low in (core.minimum, core.above) if low is not None]
    if any(bound is not None and not core.includes(bound) for bound in (minimum, maximum)) or (
        above is not None and (above < max(lows, default=above) or not -math.inf < above < math.inf)
    ):
        raise ValueError(f"'{parameter}' has no such values in the core")
    if minimum is None and above is None:
        minimum, above = core.minimum, core.above
    bounds = {"ge": minimum, "gt": above, "le": core.maximum if maximum is None else maximum}
    given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    return msgspec.Meta(**given)


TRUNCATIONS = ("top_k", "top_p", "min_p", "typical_p", "xtc_probability")
"""The parameters that ask for a truncation, in the order in which they run; their defaults ask for none.

Each is a column of ``kernels.sample`` under the same name, but for XTC's, which is the threshold where XTC happens.
"""

SEARCH_TRUNCATIONS = ("top_k", "top_p", "min_p")
"""Those that a beam search that draws goes together with."""

_OF_SAMPLING = tuple(
    (target.removeprefix("sampling."), range) for target, range in RANGES.items() if target.startswith("sampling.")
)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of drawing a token. The defaults change nothing: plain sampling from the model's distribution.

    Attributes:
        temperature: logits are divided by it; 0 is greedy.
        temperature_last: after the truncations, which then see the probabilities at temperature 1, as in llama.cpp.
            Mirostat follows the temperature in any case.
        top_k: keep the k most likely tokens, ties stay; 0 is off.
        top_p: keep the smallest set whose mass reaches p; 1 is off.
        min_p: drop tokens less likely than min_p times the most likely one; 0 is off.
        typical_p: keep the tokens whose surprise is nearest to the entropy until their mass reaches p; 1 is off.
        xtc_probability, xtc_threshold: with this probability, where two tokens or more are at least as likely as the
            threshold, drop all of these but the least likely; either 0 is off.
        mirostat_mode: 1 or 2: keep the surprise of the text near ``mirostat_tau`` bits a token, adapting with
            the rate ``mirostat_eta``. Instead of top-k to XTC, not together with them. 0 is off.
        repetition_penalty: each distinct id of prompt and output once: logit > 0 is divided, else multiplied; 1 is off.
        frequency_penalty: subtracted per occurrence among generated tokens.
        frequency_share: multiply it by the token's share of prompt and output together instead, as TGI does.
        presence_penalty: subtracted once for each id among generated tokens.
        penalty_last_n: number of newest tokens of prompt and output that the repetition, frequency and presence
            penalties look at; -1: all, 0: none.
        logit_bias: added to the logit of each given token id.
        bad_words: texts that may not be generated; the tokens of each become one of the ``banned_phrases``.
        banned_phrases: the last token of each is forbidden when the generated tokens end in all before it.
        no_repeat_ngram_size: no n consecutive tokens occur twice in prompt and output; 0 is off. Neither this nor the
            repetition penalty uses an encoder's input.
        encoder_repetition_penalty: the repetition penalty over the distinct ids of an encoder's input; 1 is off.
        encoder_no_repeat_ngram_size: no n consecutive tokens of an encoder's input occur in the output; 0 is off.
        dry_multiplier, dry_base, dry_allowed_length: a token that would extend a repetition of n tokens
            loses multiplier * base ** (n - allowed_length), n >= allowed_length; a multiplier of 0 is off.
        dry_penalty_last_n: number of newest tokens searched for repetitions; -1: all, 0 is off.
        dry_sequence_breakers: texts that end a repetition; the last token of each is in
            ``dry_breaker_ids``.
        watermark: favour a list of tokens that follows from the previous token; ``watermark_gamma`` is its share of the
            vocabulary, ``watermark_delta`` is added to its logits.
        forced_tokens: the output is exactly these tokens, whatever else is set; only log-probabilities are computed.
    """

    temperature: float = 1.0
    temperature_last: bool = False
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    frequency_share: bool = False
    presence_penalty: float = 0.0
    penalty_last_n: int = -1
    logit_bias: dict[int, float] = {}
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    bad_words: tuple[str, ...] = ()
    banned_phrases: tuple[tuple[int, ...], ...] = ()
    no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    encoder_no_repeat_ngram_size: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    dry_breaker_ids: tuple[int, ...] = ()
    watermark: bool = False
    watermark_gamma: float = 0.5
    watermark_delta: float = 2.0
    forced_tokens: tuple[int, ...] = ()

    @property
    def truncations(self) -> tuple[str, ...]:
        """Names of the active truncations, in the order of ``TRUNCATIONS``."""
        return tuple(
            name
            for name in TRUNCATIONS
            if (self.has_xtc if name == "xtc_probability" else getattr(self, name) != _DEFAULTS[name])
        )

    @property
    def out_of_range(self) -> tuple[str, ...]:
        """Names of the parameters whose value is not in its range."""
        found = [name for name, range in _OF_SAMPLING if not range.includes(getattr(self, name))]
        if not all(bias < math.inf for bias in self.logit_bias.values()):
            found.append("logit_bias")
        return tuple(found)

    @property
    def has_penalties(self) -> bool:
        """Whether one of the penalties is on that ``penalty_last_n`` limits."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)

    @property
    def truncates_first(self) -> bool:
        """Whether truncations run before the temperature changes probabilities."""
        return self.temperature_last and self.temperature not in (0, 1) and bool(self.truncations)

    @property
    def about_encoder(self) -> tuple[str, ...]:
        """Names of the active parameters about an encoder's input."""
        requested = {
            "encoder_repetition_penalty": self.encoder_repetition_penalty != 1,
            "encoder_no_repeat_ngram": self.encoder_no_repeat_ngram_size > 0,
        }
        return tuple(name for name, is_on in requested.items() if is_on)

    @property
    def has_xtc(self) -> bool:
        return self.xtc_probability > 0 and self.xtc_threshold > 0


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}


class BeamParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Beam search instead of independent sequences: ``n`` of the hypotheses it finds are returned, best first.

    A hypothesis' score is the sum of its tokens' log-probabilities, divided by (number of tokens) ** length_penalty.

    Attributes:
        num_beams: number of live texts, and of finished hypotheses that are kept.
        kind: ``deterministic``: always the best continuations. ``sampling``: continuations drawn without replacement by
            their accumulated probability, of which the best stay live (transformers' ``do_sample``). ``stochastic``:
            a sample of whole texts without replacement (Kool et al. 2019, Gumbel-top-k), without length penalty.
        length_penalty: above 0 prefers long hypotheses, below 0 short ones; 0 is the plain sum.
        early_stopping: True: end when there are ``num_beams`` hypotheses. False: end when the best live text,
            cut here, would not be among them. "never": end when it cannot get among them any more.
        pre_normalization, post_normalization: whether log-probabilities are normalized before the processing steps,
            after them, or both; at least one of them.
    """

    num_beams: int
    kind: Literal["deterministic", "sampling", "stochastic"] = "deterministic"
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    pre_normalization: bool = True
    post_normalization: bool = False

    def fault(self) -> tuple[str, str] | None:
        """Return an invalid parameter and the reason; None where all are valid."""
        if not RANGES["beams.num_beams"].includes(self.num_beams):
            return "num_beams", f"'num_beams' must be from 1 to {MAX_BEAMS}."
        if not RANGES["beams.length_penalty"].includes(self.length_penalty):
            return "length_penalty", "'length_penalty' must be a finite number."
        if self.kind == "stochastic" and self.length_penalty != 1:
            why = "'length_penalty' does not go with a stochastic beam search, which orders texts as it draws them."
            return "length_penalty", why
        if self.kind == "stochastic" and self.early_stopping == "never":
            why = "'early_stopping' of a stochastic beam search must be true or false: it ends when all its texts have."
            return "early_stopping", why
        if not (self.pre_normalization or self.post_normalization):
            why = "A beam search needs 'pre_normalization', 'post_normalization', or both."
            return "pre_normalization", why
        return None

    def excludes(self, sampling: SamplingParams) -> tuple[str, ...]:
        """Return the names of active sampling parameters that cannot be combined with this search."""
        draws = self.kind != "deterministic"
        allowed = SEARCH_TRUNCATIONS if draws else ()
        requested = {
            "temperature": sampling.temperature == 0 if draws else sampling.temperature not in (0, 1),
            **{name: name not in allowed for name in sampling.truncations},
            "mirostat_mode": sampling.mirostat_mode != 0,
            "temperature_last": sampling.truncates_first,
            "forced_tokens": bool(sampling.forced_tokens),
        }
        return tuple(name for name, is_on in requested.items() if is_on)


def both_spellings(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return each word without and with a leading space: most tokenizers begin these with different tokens."""
    return tuple(
        dict.fromkeys(spelling for word in words for spelling in (word.lstrip(" ") or word, " " + word.lstrip(" ")))
    )


class EndingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions that end a sequence.

    Attributes:
        max_tokens: maximum tokens to generate; None: as many as the context has room for. 0 generates nothing.
        max_total_tokens: maximum tokens of prompt and output together; values above the context mean the context.
        clamp_to_context: a ``max_tokens`` that does not fit in the context is reduced, not refused.
        length_first: a token that is both the last allowed and another kind of end ends with LENGTH.
        min_tokens: every EOS id is forbidden before so many tokens. min_total_tokens: the same, counting the prompt.
        ignore_eos: EOS ids are ordinary tokens.
        end_token_ids: the EOS ids of this request; None: the model's.
        stop_token_ids: ids that end the sequence (``FinishReason.STOP_TOKEN``).
        stop: strings that end the sequence wherever they appear in the decoded text.
        include_stop: the matched stop string stays in the text.
        stop_at_token_ends: a stop string counts only if it ends where a token ends.
        stop_in_answer: stop strings count in a chat's answer only, neither in a reasoning block nor in calls of tools.
        skip_special_tokens: special tokens (EOS too) have no text.
    """

    max_tokens: int | None = None
    max_total_tokens: int | None = None
    clamp_to_context: bool = False
    length_first: bool = False
    min_tokens: int = 0
    min_total_tokens: int = 0
    ignore_eos: bool = False
    end_token_ids: tuple[int, ...] | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_at_token_ends: bool = False
    stop_in_answer: bool = False
    skip_special_tokens: bool = True


MAX_TIES = 64


class LogprobParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which log-probabilities to report.

    Attributes:
        mode: ``raw``: log-softmax of the model's own logits; ``processed``: of what the token was drawn from, after all
            steps that ran. Those of the prompt are always raw.
        top: number of alternatives in addition to the chosen token.
        ties: alternatives as likely as the last of them are reported too, at most ``MAX_TIES``, the lowest ids.
        prompt: report those of the prompt's tokens too (the first has none).
    """

    top: int = 0
    ties: bool = False
    prompt: bool = False
    mode: Literal["raw", "processed"] = "raw"

    @property
    def most(self) -> int:
        """Maximum number of alternatives of one token."""
        return self.top + (MAX_TIES if self.ties and self.top else 0)
