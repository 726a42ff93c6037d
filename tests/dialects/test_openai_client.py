"""The ``openai`` package as a witness: every field at least once and with its effect, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from stub_house import STUB, TOKENIZER, RunningServer

USER: Any = {"role": "user", "content": "hello"}
EOS = TOKENIZER.eos_ids[0]
LONG: dict[str, Any] = {"seed": 3, "max_tokens": 24, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any = "Once upon a time", **fields: Any) -> Completion:
    fields = LONG | fields
    fields["extra_body"] = LONG["extra_body"] | fields["extra_body"]
    return client.completions.create(model="stub", prompt=prompt, **fields)


def chat(client: openai.OpenAI, messages: Any = (USER,), **fields: Any) -> ChatCompletion:
    fields = LONG | fields
    fields["extra_body"] = LONG["extra_body"] | fields["extra_body"]
    answer: ChatCompletion = client.chat.completions.create(model="stub", messages=list(messages), **fields)
    return answer


def text(answer: Completion | ChatCompletion, index: int = 0) -> str:
    choice = answer.choices[index]
    return (choice.message.content or "") if hasattr(choice, "message") else choice.text


BOTH = pytest.mark.parametrize("ask", [complete, chat], ids=["completions", "chat"])


# Shapes --------------------------------------------------------------------------------------------------------------


def test_models_are_listed(client: openai.OpenAI) -> None:
    listed = list(client.models.list())
    assert [model.id for model in listed] == ["stub", "other", "org/name"]
    assert {model.object for model in listed} == {"model"}
    assert client.models.retrieve("org/name").id == "org/name"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("nobody")
    assert raised.value.code == "model_not_found"


def test_a_completion_has_openais_shape(client: openai.OpenAI) -> None:
    answer = complete(client)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model, answer.system_fingerprint) == ("text_completion", "stub", "stub-4096")
    assert answer.created > 1_700_000_000
    assert [(c.index, c.finish_reason, c.logprobs) for c in answer.choices] == [(0, "length", None)]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(TOKENIZER.encode("Once upon a time"))
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_chat_completion_has_openais_shape(client: openai.OpenAI) -> None:
    answer = chat(client)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "stub")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (choice.message.role, choice.message.refusal, choice.message.tool_calls) == ("assistant", None, None)
    assert choice.message.content


def test_a_streamed_completion_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = complete(client, n=2)
    texts, ends = ["", ""], [None, None]
    for chunk in complete(client, n=2, stream=True):
        assert chunk.object == "text_completion"
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        ends[choice.index] = ends[choice.index] or choice.finish_reason
    assert texts == [text(whole, 0), text(whole, 1)]
    assert ends == ["length", "length"]


def test_a_streamed_chat_completion_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = chat(client, n=2)
    chunks: list[ChatCompletionChunk] = list(chat(client, n=2, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    for index in range(2):
        of = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert (of[0].delta.role, of[0].delta.content) == ("assistant", "")
        assert "".join(choice.delta.content or "" for choice in of) == text(whole, index)
        assert [choice.finish_reason for choice in of] == [None] * (len(of) - 1) + ["length"]


@BOTH
def test_include_usage_adds_a_last_chunk(client: openai.OpenAI, ask: Any) -> None:
    *chunks, last = ask(client, stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == 24
    assert all(chunk.choices for chunk in ask(client, stream=True))


def test_the_async_client_gets_the_same(server: RunningServer, client: openai.OpenAI) -> None:
    async def play() -> tuple[str, str, str, str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as other:
            completion, chatted = await asyncio.gather(
                other.completions.create(model="stub", prompt="Once upon a time", **LONG),
                other.chat.completions.create(model="stub", messages=[USER], **LONG),
            )
            chunks = await other.completions.create(model="stub", prompt="Once upon a time", stream=True, **LONG)
            streamed = "".join([chunk.choices[0].text async for chunk in chunks])
            deltas = await other.chat.completions.create(model="stub", messages=[USER], stream=True, **LONG)
            spoken = "".join([chunk.choices[0].delta.content or "" async for chunk in deltas])
            return text(completion), text(chatted), streamed, spoken

    completion, chatted, streamed, spoken = asyncio.run(play())
    assert completion == streamed == text(complete(client))
    assert chatted == spoken == text(chat(client))


def test_the_same_under_the_prefix(server: RunningServer, client: openai.OpenAI) -> None:
    with openai.OpenAI(base_url=server.url + "/openai/v1", api_key="none", max_retries=0) as prefixed:
        assert [model.id for model in prefixed.models.list()] == [model.id for model in client.models.list()]
        assert text(complete(prefixed)) == text(complete(client))
        assert text(chat(prefixed)) == text(chat(client))
        with pytest.raises(openai.BadRequestError):
            complete(prefixed, temperature=3)


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


# What is not honoured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"audio": {"voice": "a", "format": "wav"}},
        {"web_search_options": {}},
    ],
)
def test_what_is_refused_is_refused_by_name(client: openai.OpenAI, fields: Any) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, **fields)
    assert raised.value.param == next(iter(fields))
    assert raised.value.code == "unsupported_parameter"


def test_what_asks_for_nothing_is_accepted(client: openai.OpenAI) -> None:
    neutral: Any = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    assert text(chat(client, **neutral)) == text(chat(client))


def test_what_is_ignored_is_reported(client: openai.OpenAI) -> None:
    ignored: Any = {"store": True, "metadata": {"a": "b"}, "service_tier": "flex", "reasoning_effort": "high"}
    raw = client.chat.completions.with_raw_response.create(model="stub", messages=[USER], **LONG, **ignored)
    assert raw.headers["x-dragoman-warnings"] == "ignored: reasoning_effort, service_tier, store, metadata"
    assert text(raw.parse()) == text(chat(client))
    plain = client.chat.completions.with_raw_response.create(model="stub", messages=[USER], **LONG)
    assert "x-dragoman-warnings" not in plain.headers


# Errors --------------------------------------------------------------------------------------------------------------


def test_errors_are_typed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        complete(client, temperature=3)
    assert (wrong.value.code, wrong.value.param) == ("decimal_above_max_value", "temperature")
    with pytest.raises(openai.BadRequestError) as long:
        complete(client, max_tokens=10_000)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "prompt")
    assert "maximum context length is 256 tokens" in str(long.value)
    with pytest.raises(openai.BadRequestError) as unknown:
        complete(client, extra_body={"tempratur": 1})
    assert "Unrecognized request argument supplied: tempratur" in str(unknown.value)


@BOTH
def test_errors_of_streams_have_their_status_too(client: openai.OpenAI, ask: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(client, stream=True, max_tokens=10_000)


def test_the_request_id_is_the_clients_own(client: openai.OpenAI) -> None:
    def sent(request_id: str) -> str:
        raw = client.models.with_raw_response.list(extra_headers={"X-Request-Id": request_id})
        return str(raw.headers["x-request-id"])

    assert sent("mine-1") == "mine-1"
    assert sent("not; plain").startswith("req-")
    assert sent("x" * 200).startswith("req-")
    assert sent("") != sent("")
