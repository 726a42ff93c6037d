"""Sampling parameters of Python programs: how tokens are chosen and when a text ends, checked on construction.

Names are vLLM's where it has one, else those of the server's OpenAI dialect; docs/generation.md has the meanings.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from dragoman.core.constraint import Choice, Constraint, JsonObject, JsonSchema, Lark, Regex
from dragoman.core.errors import BadRequest
from dragoman.core.request import GenerationRequest, Prompt
from dragoman.core.sampling import (
    MAX_COUNT,
    MAX_INTEGER,
    MAX_SEED,
    BeamParams,
    EndingParams,
    LogprobParams,
    both_spellings,
    within,
)
from dragoman.core.sampling import SamplingParams as CoreSamplingParams
from dragoman.core.sampling_defaults import DEFAULTABLE

MAX_SEQUENCES = 2048
"""Sequences of one request."""
MAX_TOP = 1024
"""Most alternatives for one token."""
PROMPT_MAX_TOKENS = 16
"""Most tokens after a prompt without ``max_tokens``, as in OpenAI's completions and in vLLM."""

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
TokenIds = tuple[Count, ...]
Text = Annotated[str, Meta(min_length=1)]
Texts = tuple[Text, ...]


class InvalidParams(BadRequest, ValueError):
    """A value that its parameter does not take, or several that exclude each other. ``param`` names the parameter."""


class StructuredOutputsParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, forbid_unknown_fields=True
):
    """A constraint on a text: exactly one of these.

    Attributes:
        json: a JSON Schema, as a dict, as its text, or as a class with ``model_json_schema()`` (pydantic's).
        json_object: any JSON object.
        regex: a pattern that the text matches from its first character to its last.
        choice: the text is one of these.
        grammar: a grammar in Lark's notation or in GBNF.
    """

    json: Any = None
    json_object: bool = False
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        asked = [name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)]
        if len(asked) != 1:
            found = " and ".join(f"'{name}'" for name in asked) or "none"
            message = f"Structured outputs ask for exactly one thing, not {found}."
            raise InvalidParams(message, param="structured_outputs")

    def constraint(self) -> Constraint:
        """Return the constraint as the core's type."""
        if self.json is not None:
            return JsonSchema(_schema_text(self.json))
        if self.json_object:
            return JsonObject()
        if self.regex is not None:
            return Regex(self.regex)
        if self.choice is not None:
            return Choice(self.choice)
        assert self.grammar is not None
        return Lark(self.grammar)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """All options of a request other than its prompt.

    Sampling parameters that are None have the value that the model's makers recommend (docs/sampling.md), or else the
    one that has no effect.

    Raises InvalidParams, which is a ValueError, for values that cannot be; lists become tuples.

    Attributes:
        n: texts for each prompt. best_of: make so many, and return the ``n`` with the highest mean log-probability.
        seed: text i uses (seed + i) mod 2**64; a sequence: one for each text; None: drawn, and reported with the text.
        max_tokens: most tokens of a text; None: 16 after a prompt, and as many as the context holds in a chat.
        max_total_tokens: most tokens of prompt and text together.
        clamp_to_context: a ``max_tokens`` that the context has no room for is cut to the room, not refused.
        min_tokens: while there are fewer, the text does not end by itself. min_total_tokens: the prompt's included.
        length_first: the last token allowed ends a text by its length, even if it would also end it in another way.
        ignore_eos: the model's end-of-sequence tokens end nothing. end_token_ids: those that do, in place of them.
        stop: texts that end the generation; a single one may be given as it is. stop_token_ids: tokens that do.
        include_stop_str_in_output: what ended the text stays in it.
        stop_at_token_ends: a stop text counts only where a token ends.
        stop_in_answer: stop texts count in a chat's answer only, neither in its reasoning nor in calls of tools.
        skip_special_tokens: special tokens have no text.
        truncate_prompt_tokens: only so many tokens from the end of the prompt are kept.
        temperature: logits are divided by it; 0 takes the most likely token. temperature_last: after the truncations.
        top_k: keep the k most likely tokens; 0 and -1 are off. top_p, min_p, typical_p: see docs/generation.md.
        xtc_probability, xtc_threshold: how often XTC drops the most likely tokens, and how likely these are.
        mirostat_mode, mirostat_tau, mirostat_eta: hold the text at a surprise, in place of the truncations above.
        repetition_penalty, frequency_penalty, presence_penalty: make tokens that were used less likely.
        penalty_last_n: so many newest tokens count for these; -1: all.
        frequency_share: the frequency penalty counts a token's share of prompt and output.
        no_repeat_ngram_size: no n tokens in a row occur twice; 0 is off.
        encoder_repetition_penalty, encoder_no_repeat_ngram_size: the same over an encoder's input.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers,
            dry_sequence_breaker_ids: a penalty for continuing a repetition.
        logit_bias: values added to the logits of tokens, by token id.
        bad_words: texts that are not generated, with a leading space and without. bad_word_token_ids: the same as
            tokens: the last one of each is forbidden after the others.
        watermark, watermark_gamma, watermark_delta: mark the text with a watermark that can be detected.
        forced_output_tokens: the output is exactly these tokens; only their log-probabilities are computed.
        reasoning_budget: most tokens of the reasoning block that a text may begin with.
        structured_outputs: a constraint on the text.
        open_schemas: objects may have properties that their JSON Schema does not name, where it does not say otherwise.
        num_beams: above 1, search for the ``n`` best texts, following so many at a time.
        beam_search_type, length_penalty, early_stopping, beam_normalization: how.
        logprobs: report each token's log-probability, and those of so many alternatives. prompt_logprobs: the prompt's.
        logprobs_mode: of the model's logits, or of the distribution that the token was drawn from.
        priority: higher runs first.
        timeout_s: seconds for the request once it has started; the text generated by then is the result.
        prediction: a text that the generated one repeats much of: tokens come faster where it is right.
        cache_salt: share computed prefixes only with requests that give the same.
    """

    n: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1
    best_of: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] | None = None
    seed: int | tuple[int, ...] | None = None
    max_tokens: Annotated[int, within("ending.max_tokens")] | None = None
    max_total_tokens: Annotated[int, within("ending.max_total_tokens")] | None = None
    clamp_to_context: bool = False
    min_tokens: Annotated[int, within("ending.min_tokens")] = 0
    min_total_tokens: Annotated[int, within("ending.min_total_tokens")] = 0
    length_first: bool = False
    ignore_eos: bool = False
    end_token_ids: TokenIds | None = None
    stop: Text | Texts = ()
    stop_token_ids: TokenIds = ()
    include_stop_str_in_output: bool = False
    stop_at_token_ends: bool = False
    stop_in_answer: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Positive | None = None
    temperature: Annotated[float, within("sampling.temperature", maximum=100)] | None = None
    temperature_last: bool = False
    top_k: Annotated[int, Meta(ge=-1, le=MAX_COUNT)] | None = None
    top_p: Annotated[float, within("sampling.top_p")] | None = None
    min_p: Annotated[float, within("sampling.min_p")] | None = None
    typical_p: Annotated[float, within("sampling.typical_p")] | None = None
    xtc_probability: Annotated[float, within("sampling.xtc_probability")] | None = None
    xtc_threshold: Annotated[float, within("sampling.xtc_threshold")] | None = None
    mirostat_mode: Annotated[int, within("sampling.mirostat_mode")] | None = None
    mirostat_tau: Annotated[float, within("sampling.mirostat_tau", maximum=100)] | None = None
    mirostat_eta: Annotated[float, within("sampling.mirostat_eta", maximum=1)] | None = None
    repetition_penalty: Annotated[float, within("sampling.repetition_penalty", maximum=100)] | None = None
    frequency_penalty: Annotated[float, within("sampling.frequency_penalty", minimum=-100, maximum=100)] = 0.0
    presence_penalty: Annotated[float, within("sampling.presence_penalty", minimum=-100, maximum=100)] = 0.0
    penalty_last_n: Annotated[int, within("sampling.penalty_last_n")] = -1
    frequency_share: bool = False
    no_repeat_ngram_size: Annotated[int, within("sampling.no_repeat_ngram_size")] | None = None
    encoder_repetition_penalty: Annotated[float, within("sampling.encoder_repetition_penalty", maximum=100)] = 1.0
    encoder_no_repeat_ngram_size: Annotated[int, within("sampling.encoder_no_repeat_ngram_size")] = 0
    dry_multiplier: Annotated[float, within("sampling.dry_multiplier", maximum=1000)] = 0.0
    dry_base: Annotated[float, within("sampling.dry_base", maximum=100)] = 1.75
    dry_allowed_length: Annotated[int, within("sampling.dry_allowed_length")] = 2
    dry_penalty_last_n: Annotated[int, within("sampling.dry_penalty_last_n")] = -1
    dry_sequence_breakers: Texts = CoreSamplingParams().dry_sequence_breakers
    dry_sequence_breaker_ids: TokenIds = ()
    logit_bias: dict[Count, float] = {}
    bad_words: Texts = ()
    bad_word_token_ids: tuple[Annotated[TokenIds, Meta(min_length=1)], ...] = ()
    watermark: bool = False
    watermark_gamma: Annotated[float, within("sampling.watermark_gamma")] = 0.5
    watermark_delta: Annotated[float, within("sampling.watermark_delta", minimum=0, maximum=100)] = 2.0
    forced_output_tokens: TokenIds = ()
    reasoning_budget: Positive | None = None
    structured_outputs: StructuredOutputsParams | None = None
    open_schemas: bool = False
    num_beams: Annotated[int, within("beams.num_beams")] = 1
    beam_search_type: Literal["deterministic", "sampling", "stochastic"] = "deterministic"
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    beam_normalization: Literal["before", "after", "both"] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    prediction: str = ""
    cache_salt: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_seeds()
        self._check_lengths()
        self._check_exclusions()

    @property
    def num_sequences(self) -> int:
        """Sequences of one prompt that are computed at a time."""
        return max(self.best_of or self.n, self.num_beams)

    def request(
        self, request_id: str, prompt: Prompt, *, max_tokens: int | None = PROMPT_MAX_TOKENS, adapter: str | None = None
    ) -> GenerationRequest:
        """Return the request for one prompt. ``max_tokens``: the default where these parameters have none."""
        return GenerationRequest(
            request_id=request_id,
            prompt=prompt,
            adapter=adapter,
            n=self.n,
            best_of=self.best_of if self.best_of != self.n else None,
            seeds=self._seeds(),
            sampling=self._sampling(),
            unset_sampling=self._unset_sampling(),
            beams=self._beams(),
            ending=self._ending(max_tokens),
            logprobs=self._logprobs(),
            constraint=None if self.structured_outputs is None else self.structured_outputs.constraint(),
            constraint_param="structured_outputs",
            open_schemas=self.open_schemas or None,
            reasoning_budget=self.reasoning_budget,
            truncate=self.truncate_prompt_tokens,
            priority=self.priority,
            timeout_s=self.timeout_s,
            prediction=self.prediction,
            cache_salt=self.cache_salt,
        )

    # Combinations of parameters --------------------------------------------------------------------------------------

    def _check_seeds(self) -> None:
        seeds = (self.seed,) if isinstance(self.seed, int) else self.seed or ()
        if any(not -(2**63) <= seed <= MAX_SEED for seed in seeds):
            raise InvalidParams(f"'seed' is from {-(2**63)} to {MAX_SEED}.", param="seed")
        wanted = self.best_of or self.n
        if isinstance(self.seed, tuple) and len(seeds) != wanted:
            raise InvalidParams(f"'seed' has {len(seeds)} seeds for {wanted} texts.", param="seed")

    def _check_lengths(self) -> None:
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidParams(f"'best_of' ({self.best_of}) is less than 'n' ({self.n}).", param="best_of")
        if self.min_tokens and self.min_total_tokens:
            raise _exclusion("min_tokens", "min_total_tokens")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            message = f"'min_tokens' ({self.min_tokens}) is more than 'max_tokens' ({self.max_tokens})."
            raise InvalidParams(message, param="min_tokens")

    def _check_exclusions(self) -> None:
        if self.mirostat_mode and (others := self._sampling().truncations):
            raise _exclusion("mirostat_mode", others[0])
        if self.forced_output_tokens and self.structured_outputs is not None:
            raise _exclusion("forced_output_tokens", "structured_outputs")
        if self.num_beams == 1:
            defaults = _defaults(SamplingParams)
            for name in ("beam_search_type", "length_penalty", "early_stopping", "beam_normalization"):
                if getattr(self, name) != defaults[name]:
                    raise InvalidParams(f"'{name}' needs 'num_beams' above 1.", param=name)
        elif self.n > self.num_beams:
            message = f"'n' ({self.n}) is more than 'num_beams' ({self.num_beams}): a search finds no more texts."
            raise InvalidParams(message, param="n")

    # The same as the core states it ----------------------------------------------------------------------------------

    def _seeds(self) -> tuple[int, ...] | None:
        if self.seed is None:
            return None
        seeds = (self.seed,) if isinstance(self.seed, int) else self.seed
        return tuple(seed & MAX_SEED for seed in seeds)

    def _unset_sampling(self) -> tuple[str, ...]:
        return tuple(name for name in DEFAULTABLE if getattr(self, name) is None)

    def _sampling(self) -> CoreSamplingParams:
        names = set(CoreSamplingParams.__struct_fields__).intersection(self.__struct_fields__)
        given = {name: getattr(self, name) for name in names.difference(self._unset_sampling())}
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)
        given |= {
            "bad_words": both_spellings(self.bad_words),
            "banned_phrases": self.bad_word_token_ids,
            "dry_breaker_ids": self.dry_sequence_breaker_ids,
            "forced_tokens": self.forced_output_tokens,
        }
        return CoreSamplingParams(**given)

    def _ending(self, max_tokens: int | None) -> EndingParams:
        given = {name: getattr(self, name) for name in EndingParams.__struct_fields__ if hasattr(self, name)}
        given |= {
            "max_tokens": max_tokens if self.max_tokens is None else self.max_tokens,
            "include_stop": self.include_stop_str_in_output,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop,
        }
        return EndingParams(**given)

    def _beams(self) -> BeamParams | None:
        if self.num_beams == 1:
            return None
        normalization = self.beam_normalization or ("after" if self.beam_search_type == "stochastic" else "before")
        return BeamParams(
            num_beams=self.num_beams,
            kind=self.beam_search_type,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            pre_normalization=normalization != "after",
            post_normalization=normalization != "before",
        )

    def _logprobs(self) -> LogprobParams | None:
        asked = [top for top in (self.logprobs, self.prompt_logprobs) if top is not None]
        if not asked:
            return None
        return LogprobParams(top=max(asked), prompt=self.prompt_logprobs is not None, mode=self.logprobs_mode)


def _exclusion(first: str, second: str) -> InvalidParams:
    return InvalidParams(f"'{first}' and '{second}' exclude each other.", param=first)


@functools.cache
def _types(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


@functools.cache
def _defaults(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(struct)
    }


def check_fields(params: msgspec.Struct) -> None:
    """Check each field against its type, which msgspec does only when it decodes. Lists become tuples, NumPy's scalars
    Python's numbers, and None nothing where there may be several."""
    defaults = _defaults(type(params))
    for name, wanted in _types(type(params)).items():
        value = getattr(params, name)
        if value is defaults[name]:
            continue
        if value is None and isinstance(defaults[name], tuple | dict):  # as in vLLM
            msgspec.structs.force_setattr(params, name, defaults[name])
            continue
        try:
            checked = msgspec.convert(value if wanted is Any else plain(value), wanted)
        except (msgspec.ValidationError, OverflowError) as error:
            if isinstance(error.__cause__, InvalidParams):
                raise error.__cause__ from None
            raise InvalidParams(f"'{name}' is {_shown(value)}: {_reason(error, wanted)}.", param=name) from None
        for text in (checked,) if isinstance(checked, str) else checked if isinstance(checked, tuple) else ():
            check_unicode(text, name)
        numbers = checked.values() if isinstance(checked, dict) else (checked,)
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise InvalidParams(f"'{name}' is {_shown(value)}: expected a finite number.", param=name)
        if isinstance(checked, int) and checked > MAX_INTEGER and name != "seed":
            raise InvalidParams(f"'{name}' is {_shown(value)}: expected `int` <= {MAX_INTEGER}.", param=name)
        msgspec.structs.force_setattr(params, name, checked)


def plain(value: Any) -> Any:
    """Return the scalars and arrays of NumPy, PyTorch and the like in a value as Python's numbers and lists."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {_plain_number(key): plain(each) for key, each in value.items()}
    return _plain_number(value)


def _plain_number(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def check_unicode(text: object, name: str) -> None:
    """Raise InvalidParams for a text with half a character, which has no bytes. Other values pass."""
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"'{name}' is not valid Unicode: a lone surrogate at character {error.start}."
            raise InvalidParams(message, param=name) from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _reason(error: Exception, wanted: Any) -> str:
    """Return msgspec's message in Python's terms; msgspec's are JSON's types and paths."""
    literals = [kind for kind in (wanted, *get_args(wanted)) if get_origin(kind) is Literal]
    if literals and "enum" in str(error):
        choices = [repr(choice) for kind in literals for choice in get_args(kind)]
        others = [f"`{kind.__name__}`" for kind in get_args(wanted) if kind is bool]
        return f"expected {' or '.join(choices + others)}"
    message = re.sub(r" - at `\$(.+)`$", r" at \1", str(error).replace(" - at `key` in `$`", " as a key"))
    for json, python in (("null", "None"), ("array", "list"), ("object", "dict")):
        message = re.sub(rf"\b{json}\b", python, message, flags=re.IGNORECASE)
    return message[:1].lower() + message[1:]


def _schema_text(schema: Any) -> str:
    """Return the schema as JSON. Raises InvalidParams where it cannot be encoded; the rest is checked before
    generation."""
    if isinstance(schema, str):
        return schema
    make = getattr(schema, "model_json_schema", None)
    try:
        return msgspec.json.encode(schema if make is None else make()).decode()
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidParams(f"'json' is no JSON Schema: {error}.", param="structured_outputs") from None
