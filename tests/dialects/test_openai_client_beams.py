"""The ``openai`` package as a witness: beam searches by the names that other engines give their fields."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from stub_runtime import TOKENIZER
from witness import BOTH, chat, complete, text


def texts(answer: Any) -> list[str]:
    return [c.text if hasattr(c, "text") else c.message.content for c in answer.choices]


def scores(answer: Any) -> list[float]:
    return [choice.score for choice in answer.choices]


@BOTH
@pytest.mark.parametrize("fields", [{"num_beams": 4}, {"num_beams": 4, "use_beam_search": True}], ids=str)
def test_the_best_of_what_was_searched_come_first(client: openai.OpenAI, ask: Any, fields: Any) -> None:
    answer = ask(client, n=3, temperature=0, extra_body=fields)
    assert scores(answer) == sorted(scores(answer), reverse=True)
    assert len(set(texts(answer))) == 3
    assert text(ask(client, temperature=0, extra_body=fields)) == texts(answer)[0]
    assert not hasattr(ask(client).choices[0], "score")


def test_it_is_as_wide_as_best_of_or_n(client: openai.OpenAI) -> None:
    search = {"use_beam_search": True}
    assert texts(complete(client, "x", n=2, extra_body=search)) == texts(
        complete(client, "x", n=2, extra_body={"num_beams": 2})
    )
    assert texts(complete(client, "x", n=2, best_of=5, extra_body=search)) == texts(
        complete(client, "x", n=2, extra_body={"num_beams": 5})
    )


@BOTH
def test_a_stream_brings_the_same_choices_at_its_end(client: openai.OpenAI, ask: Any) -> None:
    whole = ask(client, n=2, extra_body={"num_beams": 3})
    streamed, ends = ["", ""], {}
    for chunk in ask(client, n=2, extra_body={"num_beams": 3}, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += (choice.text if hasattr(choice, "text") else choice.delta.content) or ""
            if choice.finish_reason is not None:
                ends[choice.index] = choice.score
    assert streamed == texts(whole)
    assert [ends[0], ends[1]] == scores(whole)


@BOTH
@pytest.mark.parametrize("kind", ["sampling", "stochastic"])
def test_what_is_drawn_is_drawn_again_by_its_seed(client: openai.OpenAI, ask: Any, kind: str) -> None:
    fields = {"num_beams": 3, "beam_search_type": kind}
    options = {"n": 3, "temperature": 1.5, "top_p": 0.9}
    first = texts(ask(client, seed=5, **options, extra_body=fields))
    assert first == texts(ask(client, seed=5, **options, extra_body=fields))
    assert first != texts(ask(client, seed=6, **options, extra_body=fields))


def test_a_length_penalty_chooses_between_short_and_long(client: openai.OpenAI) -> None:
    """With half of all tokens an end, every length is found."""
    stops = list(range(0, TOKENIZER.vocab_size, 16))[:256]
    lengths = []
    for penalty in (-4.0, 4.0):
        fields = {"num_beams": 8, "length_penalty": penalty, "early_stopping": "never", "stop_token_ids": stops}
        answer = complete(client, "x", logprobs=0, extra_body=fields)
        lengths.append(len(answer.choices[0].logprobs.tokens))
    assert lengths[0] < lengths[1]


@pytest.mark.parametrize("prompts", [["a", "b"], ["a", "b", "c"]])
def test_prompts_are_searched_for_each(client: openai.OpenAI, prompts: list[str]) -> None:
    together = texts(complete(client, prompts, n=2, extra_body={"num_beams": 3}))
    assert together == [
        one for prompt in prompts for one in texts(complete(client, prompt, n=2, extra_body={"num_beams": 3}))
    ]


@BOTH
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"num_beams": 2, "n": 3}, "n"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 32}, "num_beams"),
        ({"use_beam_search": True, "n": 40}, "n"),
        ({"num_beams": 4, "use_beam_search": False}, "num_beams"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"beam_search_type": "sampling", "num_beams": 1}, "beam_search_type"),
        ({"beam_normalization": "after"}, "beam_normalization"),
        ({"num_beams": 4, "early_stopping": "always"}, "early_stopping"),
        ({"num_beams": 4, "beam_search_type": "stochastic", "length_penalty": 0.5}, "length_penalty"),
        ({"num_beams": 4, "temperature": 0.7}, "temperature"),
        ({"num_beams": 4, "top_p": 0.5}, "top_p"),
        ({"num_beams": 4, "beam_search_type": "sampling", "temperature": 0}, "temperature"),
        ({"num_beams": 4, "mirostat_mode": 2}, "mirostat_mode"),
        ({"num_beams": 4, "typical_p": 0.5}, "typical_p"),
        ({"num_beams": 4, "xtc_probability": 0.5}, "xtc_probability"),
        ({"num_beams": 4, "forced_output_tokens": [5]}, "forced_output_tokens"),
        ({"num_beams": 4, "stop": ["x"]}, "stop"),
    ],
    ids=str,
)
def test_what_contradicts_a_search_is_refused_by_name(client: openai.OpenAI, ask: Any, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, extra_body=fields)
    assert error.value.param == param


def test_best_of_is_the_width_or_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, "x", best_of=3, extra_body={"num_beams": 4})
    assert error.value.param == "best_of"
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, "x", max_tokens=0, echo=True, extra_body={"num_beams": 4})
    assert error.value.param == "max_tokens"


def test_a_search_under_a_schema(client: openai.OpenAI) -> None:
    """One text may be several hypotheses, of other tokens."""
    fields = {"num_beams": 16, "guided_choice": ["left", "right"], "ignore_eos": False}
    assert set(texts(chat(client, n=16, extra_body=fields, max_tokens=12))) == {"left", "right"}
