"""The ``openai`` package as a witness: every sampler by its usual name, with its effect, and what is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import openai
import pytest
from stub_runtime import STUB, TOKENIZER
from witness import BOTH, chat, complete, text

from dragoman import kernels
from dragoman.engine.sampling.processors import WATERMARK_KEY

# Forty tokens lifted above all others: what is chosen among them is the sampler's affair.
LIFTED = {str(i): 60 for i in range(300, 340)}


def token_ids(answer: Any) -> list[int]:
    """Of a completion with log-probabilities."""
    spelled = answer.choices[0].logprobs.tokens
    return [TOKENIZER.encode(token)[0] if len(TOKENIZER.encode(token)) == 1 else -1 for token in spelled]


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 0.05},
        {"xtc_probability": 1.0, "xtc_threshold": 0.001},
        {"mirostat_mode": 1, "mirostat_tau": 1.0},
        {"mirostat_mode": 2, "mirostat_tau": 1.0},
        {"watermark": True, "watermark_delta": 20.0},
        {"watermark": True, "watermark_gamma": 0.1},
    ],
    ids=str,
)
def test_samplers_change_the_text_and_stay_reproducible(client: openai.OpenAI, ask: Any, fields: Any) -> None:
    changed = text(ask(client, seed=3, extra_body=fields))
    assert changed == text(ask(client, seed=3, extra_body=fields)) != text(ask(client, seed=3))


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 1.0},
        {"xtc_probability": 0.0, "xtc_threshold": 0.001},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"mirostat_mode": 0, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
        {"no_repeat_ngram_size": 0},
        {"dry_multiplier": 0, "dry_base": 3, "dry_allowed_length": 1, "dry_penalty_last_n": 5},
        {"dry_multiplier": 5, "dry_penalty_last_n": 0},
        {"watermark": False, "watermark_gamma": 0.1, "watermark_delta": 9},
        {"bad_words": [], "bad_word_token_ids": [], "min_total_tokens": 0, "logprobs_mode": "raw"},
    ],
    ids=str,
)
def test_what_is_off_changes_nothing(client: openai.OpenAI, ask: Any, fields: Any) -> None:
    assert text(ask(client, seed=3, extra_body=fields)) == text(ask(client, seed=3))


@BOTH
def test_bad_words_are_not_said_with_or_without_a_space(client: openai.OpenAI, ask: Any) -> None:
    lifted = {str(TOKENIZER.encode(word)[0]): bias for word, bias in ((" and", 100), ("and", 80), (" the", 60))}
    options = {"temperature": 0, "max_tokens": 3, "logit_bias": lifted}
    assert text(ask(client, **options)) == " and" * 3
    for word in ("and", " and"):
        assert text(ask(client, **options, extra_body={"bad_words": [word]})) == " the" * 3
    banned = {"bad_word_token_ids": [TOKENIZER.encode(" and")]}
    assert text(ask(client, **options, extra_body=banned)) == "and" * 3


def test_a_phrase_is_broken_off_at_its_last_token(client: openai.OpenAI) -> None:
    a, b = TOKENIZER.encode(" and")[0], TOKENIZER.encode(" the")[0]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "logit_bias": {str(a): 100, str(b): 60}}
    answer = complete(client, "x", **options, extra_body={"bad_word_token_ids": [[a, a]]})
    assert text(answer) == " and the and the"


@BOTH
def test_no_ngram_is_repeated(client: openai.OpenAI, ask: Any) -> None:
    options = {"temperature": 0, "max_tokens": 38, "logit_bias": LIFTED}
    assert text(ask(client, **options)) != text(ask(client, **options, extra_body={"no_repeat_ngram_size": 1}))
    answer = complete(client, "x", **options, logprobs=0, extra_body={"no_repeat_ngram_size": 1})
    assert len(set(answer.choices[0].logprobs.tokens)) == 38


def test_dry_breaks_a_repetition_off_and_breakers_protect_it(client: openai.OpenAI) -> None:
    word = TOKENIZER.encode(" and")[0]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "logit_bias": {str(word): 40}}
    dry = {"dry_multiplier": 50, "dry_allowed_length": 2}
    assert text(complete(client, "x", **options)) == " and" * 12
    assert text(complete(client, "x", **options, extra_body=dry)) != " and" * 12
    assert text(complete(client, "x", **options, extra_body=dry | {"dry_sequence_breakers": [" and"]})) == " and" * 12
    assert text(complete(client, "x", **options, extra_body=dry | {"dry_sequence_breaker_ids": [word]})) == " and" * 12
    assert text(complete(client, "x", **options, extra_body=dry | {"dry_penalty_last_n": 2})) == " and" * 12


def test_a_watermark_can_be_found(client: openai.OpenAI) -> None:
    options = {"logprobs": 0, "max_tokens": 40, "logit_bias": LIFTED}
    answer = complete(client, "x", **options, extra_body={"watermark": True, "watermark_delta": 10.0})
    ids = token_ids(answer)
    pairs = [(a, b) for a, b in pairwise(ids) if a >= 0 and b >= 0]
    vocab = max(max(ids), 339) + 1
    green = [bool(kernels.green_list(vocab, WATERMARK_KEY, a, 0.5)[b]) for a, b in pairs]
    assert len(green) > 20
    assert sum(green) / len(green) > 0.9


def test_min_total_tokens_counts_the_prompt(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    eos = {str(TOKENIZER.eos_id): 100}
    prompt = [300] * 10
    body = {"min_total_tokens": 14, "ignore_eos": False}
    answer = complete(client, prompt, **options, logit_bias=eos, extra_body=body)
    assert answer.usage.completion_tokens == 5
    body = {"min_total_tokens": 4, "ignore_eos": False}
    assert complete(client, prompt, **options, logit_bias=eos, extra_body=body).usage.completion_tokens == 1


def test_lengths_may_count_the_prompt_or_bend_to_the_context(client: openai.OpenAI) -> None:
    prompt = [300] * 10
    counted = complete(client, prompt, max_tokens=None, extra_body={"max_total_tokens": 14})
    assert (counted.usage.completion_tokens, counted.choices[0].finish_reason) == (4, "length")
    bent = complete(client, prompt, max_tokens=10_000, extra_body={"clamp_to_context": True})
    assert bent.usage.total_tokens == STUB.max_context
    cut = complete(client, prompt, extra_body={"truncate_prompt_tokens": 3})
    assert cut.usage.prompt_tokens == 3


def test_which_tokens_end_a_text_and_which_end_counts(client: openai.OpenAI) -> None:
    forced: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logit_bias": {"300": 100}}
    ends = {"ignore_eos": False, "end_token_ids": [300]}
    assert complete(client, **forced, extra_body=ends).choices[0].finish_reason == "stop"
    assert complete(client, **forced, extra_body={"ignore_eos": False}).choices[0].finish_reason == "length"
    first = complete(client, **forced, extra_body=ends | {"length_first": True})
    assert first.choices[0].finish_reason == "length"


def test_a_stop_string_may_count_at_the_end_of_a_token_only(client: openai.OpenAI) -> None:
    word = TOKENIZER.encode(" the", add_special_tokens=False)
    assert len(word) == 1
    forced: dict[str, Any] = {"temperature": 0, "max_tokens": 2, "logit_bias": {str(word[0]): 100}, "stop": "th"}
    assert complete(client, **forced).choices[0].finish_reason == "stop"
    within = complete(client, **forced, extra_body={"stop_at_token_ends": True})
    assert (text(within), within.choices[0].finish_reason) == (" the the", "length")


def test_forced_output_tokens_are_scored(client: openai.OpenAI) -> None:
    """The log-probabilities are those of the same tokens as a prompt; ends, stops and lengths are left aside."""
    forced = TOKENIZER.encode(" and the other and the")
    body = {"forced_output_tokens": list(forced), "min_tokens": 0}
    prompt = [300, 301, 302]
    answer = complete(
        client, prompt, max_tokens=2, stop=" the", temperature=0, logit_bias={"5": 100}, logprobs=1, extra_body=body
    )
    assert text(answer) == " and the other and the"
    assert answer.choices[0].finish_reason == "length"
    scored = complete(client, [*prompt, *forced], max_tokens=0, echo=True, logprobs=0).choices[0].logprobs
    assert answer.choices[0].logprobs.token_logprobs == pytest.approx(scored.token_logprobs[3:], abs=1e-5)
    ended = complete(client, prompt, extra_body={"forced_output_tokens": [300, TOKENIZER.eos_id]})
    assert ended.choices[0].finish_reason == "stop"


def test_processed_log_probabilities(client: openai.OpenAI) -> None:
    body = {"top_k": 1, "logprobs_mode": "processed"}
    answer = complete(client, "x", logprobs=2, max_tokens=3, extra_body=body).choices[0].logprobs
    assert answer.token_logprobs == [0.0] * 3
    assert sorted(answer.top_logprobs[0].values()) == [-9999.0, 0.0]
    body["logprobs_mode"] = "raw"
    answer = complete(client, "x", logprobs=2, max_tokens=3, extra_body=body).choices[0].logprobs
    assert all(-20 < each < -0.01 for each in answer.token_logprobs)
    (content, *_) = (
        chat(client, logprobs=True, max_tokens=2, extra_body={"top_k": 1, "logprobs_mode": "processed"})
        .choices[0]
        .logprobs.content
    )
    assert math.isclose(content.logprob, 0.0)


@BOTH
@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("mirostat_mode", {"mirostat_mode": 2, "top_k": 5}),
        ("mirostat_mode", {"mirostat_mode": 1, "top_p": 0.5}),
        ("mirostat_mode", {"mirostat_mode": 1, "xtc_probability": 0.5}),
        ("min_total_tokens", {"min_tokens": 1, "min_total_tokens": 1}),
        ("min_total_tokens", {"min_total_tokens": 2000}),
        ("forced_output_tokens", {"forced_output_tokens": [1], "response_format": {"type": "json_object"}}),
        ("forced_output_tokens", {"forced_output_tokens": [2**31 - 1]}),
        ("bad_word_token_ids", {"bad_word_token_ids": [[1, 2**31 - 1]]}),
        ("dry_sequence_breaker_ids", {"dry_sequence_breaker_ids": [2**31 - 1]}),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused_before_generation(
    client: openai.OpenAI, ask: Any, param: str, fields: Any
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, extra_body=fields)
    assert caught.value.param == param
