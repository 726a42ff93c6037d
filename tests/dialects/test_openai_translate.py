"""OpenAI's requests in the core's terms: pure functions, no server."""

from __future__ import annotations

from typing import Any

import pytest
from model_cards import card_of

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, TextPrompt, TokenPrompt
from dragoman.core.sampling import EndingParams, LogprobParams, SamplingParams
from dragoman.dialects.openai.fields import CHAT, COMPLETIONS
from dragoman.dialects.openai.translate import chat_request, completion_requests

CARD = card_of(context_tokens=100)


def completions(seed: int = 0, **body: Any) -> tuple[GenerationRequest, ...]:
    return completion_requests(COMPLETIONS.read(body), "cmpl-1", seed)


def chat(*messages: dict[str, Any], seed: int = 0, **body: Any) -> GenerationRequest:
    messages = messages or ({"role": "user", "content": "hi"},)
    return chat_request(CHAT.read({"messages": list(messages), **body}), "chatcmpl-1", seed, CARD)


def rendered(*messages: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    prompt = chat(*messages).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def test_nothing_asked_is_the_cores_default() -> None:
    (request,) = completions(prompt="a")
    assert request.sampling == SamplingParams()
    assert request.ending == EndingParams(max_tokens=16)
    assert (request.n, request.best_of, request.logprobs, request.echo) == (1, None, None, False)
    assert chat().ending == EndingParams()


def test_every_sampling_field_arrives() -> None:
    (request,) = completions(
        prompt="a",
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={"5": 2.5, "6": -100},
    )
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={5: 2.5, 6: -100.0},
    )


def test_every_sampler_arrives() -> None:
    asked: dict[str, Any] = {
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "typical_p": 0.9,
        "no_repeat_ngram_size": 3,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 4,
        "dry_penalty_last_n": 100,
        "watermark": True,
        "watermark_gamma": 0.25,
        "watermark_delta": 1.5,
        "mirostat_tau": 3.0,
        "mirostat_eta": 0.2,
    }
    named = {
        "bad_word_token_ids": [[1, 2]],
        "forced_output_tokens": [7, 8],
        "dry_sequence_breakers": [";"],
        "dry_sequence_breaker_ids": [3],
    }
    becomes = {
        "banned_phrases": ((1, 2),),
        "forced_tokens": (7, 8),
        "dry_sequence_breakers": (";",),
        "dry_breaker_ids": (3,),
    }
    expected = SamplingParams(bad_words=("no", " no"), **asked, **becomes)
    (request,) = completions(prompt="a", bad_words=[" no"], min_total_tokens=9, **asked, **named)
    assert request.sampling == expected == chat(bad_words=["no"], **asked, **named).sampling
    assert request.ending.min_total_tokens == 9
    assert chat(mirostat_mode=2).sampling == SamplingParams(mirostat_mode=2)
    assert chat(logprobs=True, logprobs_mode="processed").logprobs == LogprobParams(mode="processed")


def test_every_ending_field_arrives() -> None:
    (request,) = completions(
        prompt="a",
        max_tokens=9,
        min_tokens=3,
        ignore_eos=True,
        stop_token_ids=[4, 5],
        stop=["x", "y"],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    assert request.ending == EndingParams(
        max_tokens=9,
        min_tokens=3,
        ignore_eos=True,
        stop_token_ids=(4, 5),
        stop=("x", "y"),
        include_stop=True,
        skip_special_tokens=False,
    )


def test_top_k_minus_one_is_off() -> None:
    assert chat(top_k=-1).sampling.top_k == 0


def test_stop_may_be_one_string() -> None:
    assert chat(stop="x").ending.stop == ("x",)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", [TextPrompt(text="a")]),
        ("", [TextPrompt(text="")]),
        (["a", "b"], [TextPrompt(text="a"), TextPrompt(text="b")]),
        ([1, 2], [TokenPrompt(token_ids=(1, 2))]),
        ([[1], [2, 3]], [TokenPrompt(token_ids=(1,)), TokenPrompt(token_ids=(2, 3))]),
    ],
)
def test_prompts_of_every_form(prompt: Any, prompts: list[Any]) -> None:
    assert [request.prompt for request in completions(prompt=prompt)] == prompts


def test_no_prompt_is_the_empty_one() -> None:
    assert completions()[0].prompt == TextPrompt(text="")


def test_add_special_tokens_goes_with_the_text() -> None:
    assert completions(prompt="a", add_special_tokens=False)[0].prompt == TextPrompt(text="a", add_special_tokens=False)


def test_suffix_asks_to_fill_the_gap() -> None:
    assert completions(prompt="a", suffix="b")[0].prompt == FillPrompt(prefix="a", suffix="b")
    assert completions(prompt="a", suffix="")[0].prompt == TextPrompt(text="a")


def test_choice_k_of_all_has_seed_plus_k() -> None:
    requests = completions(seed=2**64 - 1, prompt=["a", "b", "c"], n=2)
    assert [request.seeds for request in requests] == [(2**64 - 1,), (1,), (3,)]
    assert [request.request_id for request in requests] == ["cmpl-1-0", "cmpl-1-1", "cmpl-1-2"]
    best = completions(seed=10, prompt=["a", "b"], n=1, best_of=4)
    assert [request.seeds for request in best] == [(10,), (14,)]


def test_negative_seeds_are_taken_modulo() -> None:
    assert chat(seed=-1).seeds == (2**64 - 1,)


def test_logprobs_of_the_prompt_come_with_echo() -> None:
    assert completions(prompt="a", logprobs=3)[0].logprobs == LogprobParams(top=3)
    assert completions(prompt="a", logprobs=0, echo=True)[0].logprobs == LogprobParams(top=0, prompt=True)
    assert chat(logprobs=True).logprobs == LogprobParams()
    assert chat(logprobs=True, top_logprobs=20).logprobs == LogprobParams(top=20)
    assert chat(logprobs=False).logprobs is None


def test_completions_have_up_to_20_logprobs() -> None:
    assert completions(prompt="a", logprobs=20)[0].logprobs == LogprobParams(top=20)
    with pytest.raises(BadRequest) as raised:
        completions(prompt="a", logprobs=21)
    assert raised.value.param == "logprobs"


def test_both_names_of_max_tokens() -> None:
    assert chat(max_tokens=5).ending.max_tokens == 5
    assert chat(max_completion_tokens=6).ending.max_tokens == 6
    assert chat(max_completion_tokens=6, max_tokens=6).ending.max_tokens == 6


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"suffix": "x", "prompt": ["a"]}, "suffix"),
        ({"suffix": "x", "prompt": "a", "echo": True}, "suffix"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": ["a"] * 1000, "n": 3}, "n"),
    ],
)
def test_impossible_combinations_of_completions(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        completions(**body)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stream_options": {}}, "stream_options"),
        ({"min_tokens": 2, "max_tokens": 1}, "min_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_impossible_combinations_of_chat(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        chat(**body)
    assert raised.value.param == param


def test_continuing_the_last_message_opens_no_turn() -> None:
    prompt = chat(continue_final_message=True).prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)
    prompt = chat(add_generation_prompt=False, chat_template_kwargs={"a": 1}).prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.add_generation_prompt, prompt.template_kwargs) == (False, {"a": 1})


# Messages ------------------------------------------------------------------------------------------------------------


def test_text_parts_are_joined_as_they_are() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert rendered({"role": "user", "content": parts}) == ({"role": "user", "content": "a b"},)


def test_developer_is_system() -> None:
    assert rendered({"role": "developer", "content": "x"})[0]["role"] == "system"


def test_an_empty_answer_may_come_back() -> None:
    assert rendered({"role": "assistant", "content": None}) == ({"role": "assistant", "content": ""},)


def test_names_and_reasoning_reach_the_template() -> None:
    message = {"role": "assistant", "content": "x", "name": "n", "reasoning_content": "r"}
    assert rendered(message) == (message,)


def test_earlier_tool_calls_reach_the_template() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    )
    shown = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
    assert rendered(*history) == ({**history[0], "tool_calls": [shown]}, history[1])


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Köln", "days": [1, {"a": null}]}', {"city": "Köln", "days": [1, {"a": None}]}),
        ("", {}),
        (" \n", {}),
        ('{"city": "Kö', '{"city": "Kö'),
        ('"Köln"', '"Köln"'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_of_earlier_calls_are_objects_for_the_template(arguments: str, shown: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = rendered({"role": "assistant", "content": None, "tool_calls": [call]})[0]
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": shown}


def test_arguments_of_earlier_calls_are_bounded_in_depth() -> None:
    deep = '{"a":' * 40 + "1" + "}" * 40
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": deep}}
    with pytest.raises(BadRequest, match="arguments"):
        rendered({"role": "assistant", "content": None, "tool_calls": [call]})


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "boss", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "video"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "function", "content": "x"}, "messages[0].name"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": 1}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        ("x", "messages[0]"),
    ],
)
def test_wrong_messages_are_named(message: Any, param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        chat(message)
    assert raised.value.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_parts_that_are_not_text_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedFeature) as raised:
        chat({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": kind, kind: {}}]})
    assert raised.value.param == "messages[0].content[1]"
