"""The ``openai`` package as a witness: every field at least once, with its effect."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from stub_runtime import STUB, TOKENIZER
from witness import BOTH, EOS, USER, chat, complete, text

# Every field ---------------------------------------------------------------------------------------------------------


@BOTH
def test_seed_decides(client: openai.OpenAI, ask: Any) -> None:
    assert text(ask(client, seed=5)) == text(ask(client, seed=5)) != text(ask(client, seed=6))
    assert text(ask(client, seed=-1)) == text(ask(client, seed=2**64 - 1))


def test_a_drawn_seed_is_in_the_header_and_replays(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="stub", prompt="x", max_tokens=8)
    seed = int(raw.headers["x-dragoman-seed"])
    assert text(complete(client, "x", max_tokens=8, seed=seed, extra_body={"ignore_eos": False})) == text(raw.parse())


@BOTH
def test_n_choices_have_consecutive_seeds(client: openai.OpenAI, ask: Any) -> None:
    answer = ask(client, n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [text(answer, i) for i in range(3)] == [text(ask(client, seed=5 + i)) for i in range(3)]
    assert answer.usage.completion_tokens == 3 * 24


@BOTH
def test_temperature_zero_ignores_the_seed(client: openai.OpenAI, ask: Any) -> None:
    greedy = text(ask(client, temperature=0, seed=1))
    assert greedy == text(ask(client, temperature=0, seed=2))
    assert greedy == text(ask(client, top_p=0.0)) == text(ask(client, extra_body={"top_k": 1}))
    assert greedy == text(ask(client, extra_body={"min_p": 1.0}))
    assert greedy != text(ask(client))


@BOTH
def test_top_k_minus_one_is_off(client: openai.OpenAI, ask: Any) -> None:
    assert text(ask(client, extra_body={"top_k": -1})) == text(ask(client))


@BOTH
def test_logit_bias_forces_and_bans(client: openai.OpenAI, ask: Any) -> None:
    first, second = TOKENIZER.encode(" and")[0], TOKENIZER.encode(" the")[0]
    assert text(ask(client, max_tokens=3, logit_bias={str(first): 100, str(second): 60})) == " and" * 3
    assert text(ask(client, max_tokens=3, logit_bias={str(first): -100, str(second): 60})) == " the" * 3


@BOTH
@pytest.mark.parametrize(
    "penalty", [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"extra_body": {"repetition_penalty": 5.0}}]
)
def test_penalties_stop_repetition(client: openai.OpenAI, ask: Any, penalty: Any) -> None:
    # Forty tokens lifted above all others: among 48 of them some must come twice, closely followed by others.
    lifted = {"temperature": 0, "max_tokens": 48, "logit_bias": {str(i): 60 for i in range(300, 340)}}
    assert text(ask(client, **lifted | penalty)) != text(ask(client, **lifted))


@BOTH
def test_stop_strings_end_the_text(client: openai.OpenAI, ask: Any) -> None:
    plain = text(ask(client))
    stop = plain[10:16]
    for stops in (stop, [stop, "☃"]):
        answer = ask(client, stop=stops)
        assert text(answer) == plain[: plain.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
    kept = ask(client, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert text(kept) == plain[: plain.index(stop)] + stop
    streamed = ask(client, stop=stop, stream=True)
    parts = [c.choices[0].text if ask is complete else c.choices[0].delta.content or "" for c in streamed]
    assert "".join(parts) == plain[: plain.index(stop)]


@BOTH
def test_stop_token_ids_end_the_text(client: openai.OpenAI, ask: Any) -> None:
    forced = TOKENIZER.encode(" and")[0]
    answer = ask(client, logit_bias={str(forced): 100}, extra_body={"stop_token_ids": [forced]})
    assert (text(answer), answer.choices[0].finish_reason) == ("", "stop")


@BOTH
def test_eos_ends_unless_ignored_or_too_early(client: openai.OpenAI, ask: Any) -> None:
    bias = {str(EOS): 100}
    ended = ask(client, logit_bias=bias, extra_body={"ignore_eos": False})
    assert (text(ended), ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("", "stop", 1)
    later = ask(client, logit_bias=bias, extra_body={"ignore_eos": False, "min_tokens": 5})
    assert (later.choices[0].finish_reason, later.usage.completion_tokens) == ("stop", 6)
    ignored = ask(client, logit_bias=bias, max_tokens=4)
    assert (ignored.choices[0].finish_reason, ignored.usage.completion_tokens) == ("length", 4)
    shown = ask(client, logit_bias=bias, max_tokens=2, extra_body={"skip_special_tokens": False})
    assert text(shown) == TOKENIZER.token_text(EOS) * 2


def test_max_tokens_defaults_to_16_for_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="stub", prompt="x", extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_chat_fills_the_context_by_default(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="stub", messages=[USER], extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.total_tokens == STUB.max_context
    named = client.chat.completions.create(model="stub", messages=[USER], max_completion_tokens=7, seed=3)
    assert named.usage is not None
    assert named.usage.completion_tokens <= 7


@BOTH
def test_an_alias_is_answered_under_its_name(client: openai.OpenAI, ask: Any) -> None:
    answer = client.completions.create(model="org/name", prompt="x", max_tokens=1)
    assert answer.model == "org/name"


def test_user_and_priority_do_not_change_the_text(client: openai.OpenAI) -> None:
    plain = text(complete(client))
    assert text(complete(client, user="somebody", extra_body={"priority": 7})) == plain


# Completions only ----------------------------------------------------------------------------------------------------


def test_prompts_of_every_form(client: openai.OpenAI) -> None:
    ids = list(TOKENIZER.encode("Once upon a time"))
    other = list(TOKENIZER.encode("The end"))
    plain = text(complete(client))
    assert text(complete(client, ids)) == plain
    both = complete(client, ["Once upon a time", "The end"], seed=3)
    assert text(both, 0) == plain
    assert text(both, 1) == text(complete(client, "The end", seed=4))
    assert [text(both, i) for i in range(2)] == [text(complete(client, [ids, other]), i) for i in range(2)]
    assert both.usage is not None
    assert both.usage.prompt_tokens == len(ids) + len(other)


def test_a_batch_is_numbered_prompt_by_prompt_and_streams(client: openai.OpenAI) -> None:
    prompts = ["a", "b", "c"]
    whole = complete(client, prompts, n=2)
    assert [choice.index for choice in whole.choices] == list(range(6))
    texts = [""] * 6
    for chunk in complete(client, prompts, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [text(whole, i) for i in range(6)]
    assert text(complete(client, "b", n=2, seed=5)) == texts[2]


def test_an_empty_prompt_starts_at_the_beginning(client: openai.OpenAI) -> None:
    assert text(complete(client, "")) == text(complete(client, [TOKENIZER.bos_id]))


def test_special_tokens_are_added_unless_not_wanted(client: openai.OpenAI) -> None:
    answer = complete(client, "x", extra_body={"add_special_tokens": False})
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(TOKENIZER.encode("x", add_special_tokens=False))


def test_best_of_returns_the_likeliest(client: openai.OpenAI) -> None:
    every = complete(client, n=5, logprobs=0)

    def mean(index: int) -> float:
        logprobs = every.choices[index].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        return sum(logprobs.token_logprobs) / len(logprobs.token_logprobs)

    best = complete(client, best_of=5)
    assert text(best) == text(every, max(range(5), key=mean))
    assert best.choices[0].logprobs is None
    assert best.usage is not None
    assert best.usage.completion_tokens == 5 * 24


def test_echo_precedes_the_text(client: openai.OpenAI) -> None:
    assert text(complete(client, echo=True)) == "Once upon a time" + text(complete(client))
    streamed = complete(client, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Once upon a time" + text(complete(client))


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI) -> None:
    answer = complete(client, echo=True, logprobs=2, max_tokens=0)
    assert text(answer) == "Once upon a time"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == "Once upon a time"
    assert (logprobs.token_logprobs or [0])[0] is None
    assert all(value <= 0 for value in (logprobs.token_logprobs or [])[1:])


def test_logprobs_of_completions(client: openai.OpenAI) -> None:
    answer = complete(client, logprobs=3)
    shape = answer.choices[0].logprobs
    assert shape is not None
    assert shape.tokens is not None
    assert shape.text_offset is not None
    assert shape.token_logprobs is not None
    assert shape.top_logprobs is not None
    assert len(shape.tokens) == len(shape.text_offset) == len(shape.token_logprobs) == len(shape.top_logprobs) == 24
    for token, logprob, top, offset in zip(
        shape.tokens, shape.token_logprobs, shape.top_logprobs, shape.text_offset, strict=True
    ):
        assert top[token] == logprob
        assert 3 <= len(top) <= 4
        assert token.startswith("bytes:") or text(answer).startswith(token, offset)
    streamed = complete(client, logprobs=3, stream=True)
    chunks = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices[0].logprobs]
    assert [token for chunk in chunks for token in chunk.tokens or []] == shape.tokens
    assert [offset for chunk in chunks for offset in chunk.text_offset or []] == shape.text_offset


def test_suffix_fills_the_gap(client: openai.OpenAI) -> None:
    filled = complete(client, "before", suffix="after")
    prompt = TOKENIZER.render_fill("before", "after")
    assert prompt is not None
    assert text(filled) == text(complete(client, list(prompt)))


# Chat only -----------------------------------------------------------------------------------------------------------


def test_messages_decide(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    plain = text(chat(client))
    assert text(chat(client, [{"role": "user", "content": parts}])) == plain
    system = {"role": "system", "content": "Be brief."}
    developer = {"role": "developer", "content": "Be brief."}
    assert text(chat(client, [system, USER])) == text(chat(client, [developer, USER])) != plain


def test_a_whole_conversation_is_taken(client: openai.OpenAI) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
        {"role": "user", "content": "thanks", "name": "ann"},
    ]
    assert text(chat(client, history)) == text(chat(client, history))


def test_logprobs_of_chat(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 24
    raw = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert raw.decode("utf-8", "replace") == text(answer)
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)
    streamed = chat(client, logprobs=True, top_logprobs=2, stream=True)
    chunks = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices[0].logprobs]
    assert [entry for chunk in chunks for entry in chunk.content or []] == logprobs.content


def test_the_last_message_can_be_continued(client: openai.OpenAI) -> None:
    opened = [USER, {"role": "assistant", "content": "Once"}]
    continued = chat(client, opened, extra_body={"continue_final_message": True})
    answered = chat(client, opened)
    assert text(continued) != text(answered)
    assert continued.usage is not None
    assert answered.usage is not None
    assert continued.usage.prompt_tokens < answered.usage.prompt_tokens
    bare = chat(client, extra_body={"add_generation_prompt": False})
    assert bare.usage is not None
    plain = chat(client).usage
    assert plain is not None
    assert bare.usage.prompt_tokens < plain.prompt_tokens


def test_template_variables_are_taken(client: openai.OpenAI) -> None:
    assert text(chat(client, extra_body={"chat_template_kwargs": {"unused": 1}})) == text(chat(client))
