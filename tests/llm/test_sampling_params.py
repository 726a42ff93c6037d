"""Parameters are checked when they are made, and every one that the core has can be given."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec
import numpy as np
import pytest

from dragoman.core.constraint import Choice, JsonObject, JsonSchema, Lark, Regex
from dragoman.core.errors import BadRequest
from dragoman.core.request import GenerationRequest, TextPrompt
from dragoman.core.sampling import BeamParams, EndingParams, LogprobParams
from dragoman.core.sampling import SamplingParams as CoreSamplingParams
from dragoman.core.sampling_defaults import DEFAULTABLE
from dragoman.llm.sampling_params import InvalidParams, SamplingParams, StructuredOutputsParams

PROMPT = TextPrompt(text="Hi")

OTHER_NAMES = {
    "banned_phrases": "bad_word_token_ids",
    "dry_breaker_ids": "dry_sequence_breaker_ids",
    "forced_tokens": "forced_output_tokens",
    "include_stop": "include_stop_str_in_output",
    "kind": "beam_search_type",
    "pre_normalization": "beam_normalization",
    "post_normalization": "beam_normalization",
    "top": "logprobs",
    "prompt": "prompt_logprobs",
    "mode": "logprobs_mode",
    "seeds": "seed",
    "constraint": "structured_outputs",
    "truncate": "truncate_prompt_tokens",
}
"""Core parameters under the names that programs give them by."""

ELSEWHERE = {
    "request_id", "model", "prompt", "adapter", "resumable", "resumed", "embeddings", "echo", "constraint_param",
    "constraint_behind_reasoning", "eos_after_constraint", "shown_tokens", "sampling", "beams", "ending", "logprobs",
    "unset_sampling", "pooling", "images", "images_param",
}  # fmt: skip
"""Of a request: what follows from call and prompt, is grouped in the structs below, or belongs to wire formats."""

TIES = {"ties"}
"""More alternatives than were asked for, which one wire format promises."""


@pytest.mark.parametrize("struct", [CoreSamplingParams, EndingParams, BeamParams, LogprobParams, GenerationRequest])
def test_every_parameter_of_the_core_can_be_given(struct: type[msgspec.Struct]) -> None:
    left_out = ELSEWHERE if struct is GenerationRequest else TIES
    names = {OTHER_NAMES.get(name, name) for name in struct.__struct_fields__ if name not in left_out}
    assert names <= set(SamplingParams.__struct_fields__)


GIVEN: dict[str, tuple[Any, str, Any]] = {
    "n": (3, "n", 3),
    "best_of": (4, "best_of", 4),
    "seed": (-1, "seeds", (2**64 - 1,)),
    "max_tokens": (5, "ending.max_tokens", 5),
    "max_total_tokens": (50, "ending.max_total_tokens", 50),
    "clamp_to_context": (True, "ending.clamp_to_context", True),
    "min_tokens": (2, "ending.min_tokens", 2),
    "min_total_tokens": (2, "ending.min_total_tokens", 2),
    "length_first": (True, "ending.length_first", True),
    "ignore_eos": (True, "ending.ignore_eos", True),
    "end_token_ids": ([], "ending.end_token_ids", ()),
    "stop": ("a", "ending.stop", ("a",)),
    "stop_token_ids": ([1, 2], "ending.stop_token_ids", (1, 2)),
    "include_stop_str_in_output": (True, "ending.include_stop", True),
    "stop_at_token_ends": (True, "ending.stop_at_token_ends", True),
    "stop_in_answer": (True, "ending.stop_in_answer", True),
    "skip_special_tokens": (False, "ending.skip_special_tokens", False),
    "truncate_prompt_tokens": (7, "truncate", 7),
    "temperature": (0, "sampling.temperature", 0.0),
    "temperature_last": (True, "sampling.temperature_last", True),
    "top_k": (-1, "sampling.top_k", 0),
    "top_p": (0.5, "sampling.top_p", 0.5),
    "min_p": (0.5, "sampling.min_p", 0.5),
    "typical_p": (0.5, "sampling.typical_p", 0.5),
    "xtc_probability": (0.5, "sampling.xtc_probability", 0.5),
    "xtc_threshold": (0.5, "sampling.xtc_threshold", 0.5),
    "mirostat_mode": (2, "sampling.mirostat_mode", 2),
    "mirostat_tau": (3, "sampling.mirostat_tau", 3.0),
    "mirostat_eta": (0.2, "sampling.mirostat_eta", 0.2),
    "repetition_penalty": (1.5, "sampling.repetition_penalty", 1.5),
    "frequency_penalty": (1.5, "sampling.frequency_penalty", 1.5),
    "presence_penalty": (1.5, "sampling.presence_penalty", 1.5),
    "penalty_last_n": (64, "sampling.penalty_last_n", 64),
    "frequency_share": (True, "sampling.frequency_share", True),
    "no_repeat_ngram_size": (3, "sampling.no_repeat_ngram_size", 3),
    "encoder_repetition_penalty": (1.5, "sampling.encoder_repetition_penalty", 1.5),
    "encoder_no_repeat_ngram_size": (3, "sampling.encoder_no_repeat_ngram_size", 3),
    "dry_multiplier": (0.8, "sampling.dry_multiplier", 0.8),
    "dry_base": (2, "sampling.dry_base", 2.0),
    "dry_allowed_length": (3, "sampling.dry_allowed_length", 3),
    "dry_penalty_last_n": (64, "sampling.dry_penalty_last_n", 64),
    "dry_sequence_breakers": (["a"], "sampling.dry_sequence_breakers", ("a",)),
    "dry_sequence_breaker_ids": ([1], "sampling.dry_breaker_ids", (1,)),
    "logit_bias": ({5: -100}, "sampling.logit_bias", {5: -100.0}),
    "bad_words": (["a"], "sampling.bad_words", ("a", " a")),
    "bad_word_token_ids": ([[1, 2]], "sampling.banned_phrases", ((1, 2),)),
    "watermark": (True, "sampling.watermark", True),
    "watermark_gamma": (0.25, "sampling.watermark_gamma", 0.25),
    "watermark_delta": (1, "sampling.watermark_delta", 1.0),
    "forced_output_tokens": ([1, 2], "sampling.forced_tokens", (1, 2)),
    "reasoning_budget": (9, "reasoning_budget", 9),
    "structured_outputs": ({"regex": "a"}, "constraint", Regex("a")),
    "open_schemas": (True, "open_schemas", True),
    "num_beams": (4, "beams.num_beams", 4),
    "beam_search_type": ("sampling", "beams.kind", "sampling"),
    "length_penalty": (0.5, "beams.length_penalty", 0.5),
    "early_stopping": ("never", "beams.early_stopping", "never"),
    "beam_normalization": ("both", "beams.post_normalization", True),
    "logprobs": (3, "logprobs.top", 3),
    "prompt_logprobs": (2, "logprobs.prompt", True),
    "logprobs_mode": ("processed", "logprobs.mode", "processed"),
    "priority": (1, "priority", 1),
    "timeout_s": (2, "timeout_s", 2.0),
    "prediction": ("a", "prediction", "a"),
    "cache_salt": ("a", "cache_salt", "a"),
}
"""For each parameter a value, and what that becomes in the request."""


def test_every_parameter_is_here() -> None:
    assert list(GIVEN) == list(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("name", GIVEN)
def test_each_becomes_a_parameter_of_the_core(name: str) -> None:
    value, path, expected = GIVEN[name]
    more: dict[str, Any] = {}
    if path.startswith("beams."):
        more["num_beams"] = 4
    if name == "logprobs_mode":
        more["logprobs"] = 0
    request = SamplingParams(**more | {name: value}).request("id", PROMPT)
    for part in path.split("."):
        request = getattr(request, part)
    assert request == expected
    assert type(request) is type(expected)


def test_what_is_not_given_is_left_to_the_core() -> None:
    request = SamplingParams().request("id", PROMPT)
    expected = GenerationRequest(
        request_id="id",
        prompt=PROMPT,
        ending=EndingParams(max_tokens=16),
        constraint_param="structured_outputs",
        unset_sampling=DEFAULTABLE,
    )
    assert request == expected
    assert SamplingParams().request("id", PROMPT, max_tokens=None).ending == EndingParams()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temperature": -1}, "'temperature' is -1: expected `float` >= 0.0."),
        ({"temperature": "hot"}, "'temperature' is 'hot': expected `float | None`, got `str`."),
        ({"temperature": math.nan}, "'temperature' is nan"),
        ({"length_penalty": math.inf, "num_beams": 2}, "'length_penalty' is inf: expected a finite number."),
        ({"logit_bias": {1: math.nan}}, "'logit_bias' is {1: nan}: expected a finite number."),
        ({"logit_bias": {"1": 1.0}}, "got `str` as a key."),
        ({"top_k": 2**40}, "'top_k' is 1099511627776: expected `int` <= 2147483647."),
        (
            {"reasoning_budget": 2**64},
            "'reasoning_budget' is 18446744073709551616: expected `int` <= 9223372036854775807.",
        ),
        ({"top_p": 10**400}, "'top_p' is 1000"),
        ({"top_k": 1.5}, "'top_k' is 1.5: expected `int | None`, got `float`."),
        ({"n": 0}, "'n' is 0: expected `int` >= 1."),
        ({"max_tokens": True}, "'max_tokens' is True: expected `int | None`, got `bool`."),
        ({"stop": ""}, "'stop' is '': expected `str` of length >= 1."),
        ({"stop": [""]}, "'stop' is ['']: expected `str` of length >= 1 at [0]."),
        ({"stop_token_ids": ["a"]}, "'stop_token_ids' is ['a']: expected `int`, got `str` at [0]."),
        ({"seed": 2**64}, "'seed' is from"),
        ({"seed": (1, 2)}, "'seed' has 2 seeds for 1 texts."),
        ({"beam_search_type": "x"}, "expected 'deterministic' or 'sampling' or 'stochastic'."),
        ({"early_stopping": "x", "num_beams": 2}, "expected 'never' or `bool`."),
        ({"length_penalty": 2}, "'length_penalty' needs 'num_beams' above 1."),
        ({"n": 3, "num_beams": 2}, "'n' (3) is more than 'num_beams' (2)"),
        ({"n": 3, "best_of": 2}, "'best_of' (2) is less than 'n' (3)."),
        ({"min_tokens": 3, "max_tokens": 2}, "'min_tokens' (3) is more than 'max_tokens' (2)."),
        ({"min_tokens": 3, "min_total_tokens": 2}, "'min_tokens' and 'min_total_tokens' exclude each other."),
        ({"mirostat_mode": 1, "top_p": 0.5}, "'mirostat_mode' and 'top_p' exclude each other."),
        ({"structured_outputs": {}}, "Structured outputs ask for exactly one thing, not none."),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "not 'json' and 'regex'."),
        ({"structured_outputs": {"jsn": {}}}, "unknown field `jsn`"),
        (
            {"structured_outputs": {"regex": "a"}, "forced_output_tokens": [1]},
            "'forced_output_tokens' and 'structured_outputs' exclude each other.",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        SamplingParams(**given)
    assert words in str(caught.value)
    assert caught.value.param in given
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, BadRequest)


def test_what_is_given_is_not_left_to_the_model() -> None:
    request = SamplingParams(temperature=1.0, top_k=-1).request("id", PROMPT)
    assert set(request.unset_sampling) == set(DEFAULTABLE) - {"temperature", "top_k"}


def test_names_that_there_are_not_are_errors() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]


def test_a_changed_copy_is_checked_too() -> None:
    assert msgspec.structs.replace(SamplingParams(), top_p=0.5).top_p == 0.5
    with pytest.raises(InvalidParams, match="top_p"):
        msgspec.structs.replace(SamplingParams(), top_p=2.0)


class Pydantic:
    """As pydantic's models have it."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {"type": "string"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"json": {"type": "string"}}, JsonSchema('{"type":"string"}')),
        ({"json": '{"type": "string"}'}, JsonSchema('{"type": "string"}')),
        ({"json": Pydantic}, JsonSchema('{"type":"string"}')),
        ({"json_object": True}, JsonObject()),
        ({"regex": "a+"}, Regex("a+")),
        ({"choice": ["a", "b"]}, Choice(("a", "b"))),
        ({"grammar": 'start: "a"'}, Lark('start: "a"')),
    ],
)
def test_structured_outputs_are_constraints(given: dict[str, Any], expected: Any) -> None:
    assert StructuredOutputsParams(**given).constraint() == expected


def test_a_schema_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidParams, match="'json' is no JSON Schema"):
        StructuredOutputsParams(json={"enum": [object()]}).constraint()


@pytest.mark.parametrize(
    "given", [{"stop": "\ud800"}, {"stop": ["a", "\ud800"]}, {"cache_salt": "\ud800"}, {"bad_words": ["\ud800"]},
              {"structured_outputs": {"regex": "\ud800"}}, {"structured_outputs": {"json": "\ud800"}}]
)  # fmt: skip
def test_half_a_character_is_refused(given: dict[str, Any]) -> None:
    """It has no bytes, so that it could be sent to no engine."""
    with pytest.raises(InvalidParams, match="not valid Unicode: a lone surrogate"):
        SamplingParams(**given)


def test_a_schema_that_cannot_be_written_is_refused() -> None:
    circular: dict[str, Any] = {}
    circular["not"] = circular
    for schema in (circular, {"const": "\ud800"}):
        with pytest.raises(InvalidParams, match="is no JSON Schema"):
            StructuredOutputsParams(json=schema).constraint()


def test_types_of_other_packages_are_named_as_they_are() -> None:
    with pytest.raises(InvalidParams, match=r"got `collections\.deque`"):
        SamplingParams(stop_token_ids=deque([1]))  # type: ignore[arg-type]


def test_none_is_nothing_where_there_may_be_several() -> None:
    """As in vLLM: ``stop=None``."""
    names = ("stop", "stop_token_ids", "bad_words", "bad_word_token_ids", "logit_bias", "forced_output_tokens")
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams()  # type: ignore[arg-type]
    with pytest.raises(InvalidParams, match="'n' is None"):
        SamplingParams(n=None)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    given: Any = {
        "temperature": np.float32(0.5),
        "top_p": np.float64(0.9),
        "top_k": np.int64(3),
        "max_tokens": np.uint8(4),
        "seed": np.array([5, 6]),
        "n": np.int32(2),
        "ignore_eos": np.bool_(True),
        "stop_token_ids": [np.int64(7), 8],
        "bad_word_token_ids": [np.array([1, 2])],
        "logit_bias": {np.int64(9): np.float32(-1)},
        "structured_outputs": {"json": {"enum": [np.int64(1)]}},
    }
    plain: Any = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "max_tokens": 4,
        "seed": (5, 6),
        "n": 2,
        "ignore_eos": True,
        "stop_token_ids": (7, 8),
        "bad_word_token_ids": ((1, 2),),
        "logit_bias": {9: -1.0},
        "structured_outputs": {"json": {"enum": [1]}},
    }
    params = SamplingParams(**given)
    assert params == SamplingParams(**plain)
    for name, value in plain.items():
        assert name == "structured_outputs" or type(getattr(params, name)) is type(value), name
    for name, value in (("top_k", np.float32(3)), ("n", np.array([1])), ("temperature", np.int64(-1))):
        with pytest.raises(InvalidParams, match=f"'{name}' is"):
            SamplingParams(**{name: value})
