"""The package ``octoai``, version 1.11: what its users do, with what they must see. Run by ``test_octoai_package``."""

from __future__ import annotations

import json
import math
from typing import Any

from checking import PROMPT, TOOL, USER, post, raised, run
from octoai.client import AsyncOctoAI, OctoAI
from octoai.core.api_error import ApiError
from octoai.environment import OctoAIEnvironment
from octoai.text_gen.errors import UnprocessableEntityError

MODEL = "tiny"
BODY: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "seed": 3, "ignore_eos": True}
CHAT: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0.0, "ignore_eos": True}


def environment(url: str) -> Any:
    base = url + "/octoai"
    return OctoAIEnvironment(default=base, image_gen=base, text_gen=base)


def client(url: str) -> Any:
    return OctoAI(api_key="none", environment=environment(url))


def complete(url: str, **fields: Any) -> Any:
    return client(url).text_gen.create_completion(**(BODY | fields))


def streamed(url: str, **fields: Any) -> list[Any]:
    return list(client(url).text_gen.create_completion_stream(**(BODY | fields)))


def text(url: str, **fields: Any) -> str:
    return complete(url, **fields).choices[0].text


def messages(*given: Any) -> list[Any]:
    from octoai.text_gen import ChatMessage

    return [ChatMessage(**message) for message in given or (USER,)]


def chat(url: str, *given: Any, **fields: Any) -> Any:
    return client(url).text_gen.create_chat_completion(messages=messages(*given), **(CHAT | fields))


def raw(url: str, **fields: Any) -> Any:
    return post(f"{url}/octoai/v1/completions", BODY | fields)


def token_of(url: str, **fields: Any) -> int:
    """The id of the token that a completion begins with: the one that its ban changes, found through its bytes."""
    first = raw(url, logprobs=0, **fields)["choices"][0]["logprobs"]["content"][0]["token"]
    return int(post(f"{url}/friendli/v1/tokenize", {"prompt": first})["tokens"][-1])


# Shapes --------------------------------------------------------------------------------------------------------------


def check_a_completion_has_every_key(url: str) -> None:
    answer = complete(url)
    assert answer.id.startswith("cmpl-")
    assert len(answer.id) == 37
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert answer.system_fingerprint == complete(url, seed=4).system_fingerprint
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12


def check_no_event_of_a_stream_is_dropped(url: str) -> None:
    whole = complete(url)
    chunks = streamed(url, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in streamed(url))


async def check_async_is_the_same(url: str) -> None:
    asynchronous = AsyncOctoAI(api_key="none", environment=environment(url))
    whole = await asynchronous.text_gen.create_completion(**BODY)
    assert whole.choices[0].text == text(url)
    parts = [chunk.choices[0].text async for chunk in asynchronous.text_gen.create_completion_stream(**BODY)]
    assert "".join(parts) == whole.choices[0].text


def check_generic_calls_without_headers(url: str) -> None:
    where = f"{url}/octoai/v1/completions"
    answer = client(url).infer(where, BODY)
    assert answer["choices"][0]["text"] == text(url)
    chunks = list(client(url).infer_stream(where, BODY | {"stream": True}))
    joined = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert joined == text(url)


# Fields of completions -----------------------------------------------------------------------------------------------


def check_prompts_of_every_form(url: str) -> None:
    ids = post(f"{url}/friendli/v1/tokenize", {"prompt": PROMPT})["tokens"]
    other = post(f"{url}/friendli/v1/tokenize", {"prompt": "The end"})["tokens"]
    assert text(url, prompt=ids) == text(url)
    both = complete(url, prompt=[PROMPT, "The end"], n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [c.text for c in both.choices] == [c.text for c in complete(url, prompt=[ids, other], n=2).choices]
    assert both.choices[2].text == text(url, prompt="The end")
    nothing = {name: value for name, value in BODY.items() if name != "prompt"}
    begun = client(url).text_gen.create_completion(**nothing)
    assert begun.usage.prompt_tokens == 1


def check_max_tokens_is_512_and_ends_with_the_context(url: str) -> None:
    fields = {name: value for name, value in BODY.items() if name != "max_tokens"}
    answer = client(url).text_gen.create_completion(**fields)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 256
    assert complete(url, max_tokens=100_000).usage.total_tokens == 256


def check_samples_use_consecutive_seeds(url: str) -> None:
    answer = complete(url, n=3)
    assert [choice.text for choice in answer.choices] == [text(url, seed=3 + i) for i in range(3)]
    assert text(url, seed=-1) == text(url, seed=2**64 - 1) == text(url, seed=2**64 * 5 - 1)
    assert text(url, seed=0) == text(url, seed=0)
    unseeded = {name: value for name, value in BODY.items() if name != "seed"}
    assert len({client(url).text_gen.create_completion(**unseeded).choices[0].text for _ in range(3)}) > 1


def check_best_of_orders_by_likelihood(url: str) -> None:
    every = raw(url, n=4, logprobs=0)["choices"]

    def mean(choice: Any) -> float:
        listed = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        return sum(listed) / len(listed)

    ranked = [choice["text"] for choice in sorted(every, key=mean, reverse=True)]
    assert [choice.text for choice in complete(url, n=4, best_of=4).choices] == ranked
    two = complete(url, n=2, best_of=4)
    assert [choice.text for choice in two.choices] == ranked[:2]
    assert two.usage.completion_tokens == 48
    raised(UnprocessableEntityError, complete, url, n=3, best_of=2)


def check_echo_precedes(url: str) -> None:
    assert text(url, echo=True) == PROMPT + text(url)
    chunks = streamed(url, echo=True)
    assert chunks[0].choices[0].text == PROMPT
    assert "".join(chunk.choices[0].text for chunk in chunks) == text(url, echo=True)


def check_temperature_and_truncations(url: str) -> None:
    greedy = text(url, temperature=0.0)
    assert greedy == text(url, temperature=0.000001, seed=8) == text(url, top_p=1e-6) == text(url, min_p=1.0)
    assert [choice.text for choice in complete(url, temperature=0.0, n=2).choices] == [greedy, greedy]
    assert greedy != text(url)


def check_penalties(url: str) -> None:
    plain = text(url, max_tokens=60, temperature=0.0)
    for penalty in ({"repetition_penalty": 8.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert text(url, max_tokens=60, temperature=0.0, **penalty) != plain, penalty


def check_biases_ban_and_force(url: str) -> None:
    banned = token_of(url)
    assert token_of(url, logit_bias={str(banned): -100}) != banned
    forced = post(f"{url}/friendli/v1/tokenize", {"prompt": " the"})["tokens"][-1]
    assert text(url, logit_bias={str(forced): 100, str(banned): None}, max_tokens=3) == " the" * 3
    for bias in ({"x": 1}, {"999999": 1}, {"5": 101}):
        raised(UnprocessableEntityError, complete, url, logit_bias=bias)


def check_stops_are_cut(url: str) -> None:
    plain = text(url)
    phrase = plain[6:10]
    for stop in (phrase, ["", phrase]):
        answer = complete(url, stop=stop).choices[0]
        assert (answer.text, answer.finish_reason) == (plain[: plain.index(phrase)], "stop")


def check_eos_ends_unless_ignored(url: str) -> None:
    bias = {"2": 100}
    ended = complete(url, ignore_eos=False, logit_bias=bias)
    assert (ended.choices[0].text, ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("", "stop", 1)
    ignored = complete(url, logit_bias=bias)
    assert (ignored.choices[0].text, ignored.choices[0].finish_reason) == ("", "length")
    assert ignored.usage.completion_tokens == 12


def check_logprobs_are_chat_shaped(url: str) -> None:
    shown = complete(url, logprobs=2).choices[0].logprobs
    assert len(shown.content) == 12
    assert "".join(entry.token for entry in shown.content) == text(url)
    assert all(len(entry.top_logprobs) == 2 for entry in shown.content)
    assert all(entry.top_logprobs == [] for entry in complete(url, logprobs=0).choices[0].logprobs.content)
    chunks = [chunk.choices[0].logprobs for chunk in streamed(url, logprobs=2)]
    entries = [entry for shape in chunks if shape for entry in shape.content]
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in shown.content]
    raised(UnprocessableEntityError, complete, url, logprobs=6)


def check_loglikelihood_is_of_the_prompt_alone(url: str) -> None:
    answer = complete(url, loglikelihood=True)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.prompt_tokens - 1
    total = sum(entry.logprob for entry in entries)
    for fields in ({"temperature": 0.0}, {"n": 2}, {"frequency_penalty": 2.0}, {"max_tokens": 1}, {"echo": True}):
        again = complete(url, loglikelihood=True, **fields).choices[-1].logprobs.content
        assert math.isclose(sum(entry.logprob for entry in again), total, rel_tol=1e-9), fields
    both = complete(url, loglikelihood=True, logprobs=1).choices[0].logprobs.content
    assert len(both) == len(entries) + 12
    assert all(len(entry.top_logprobs) == 1 for entry in both)
    first = streamed(url, loglikelihood=True)[0].choices[0]
    assert [entry.logprob for entry in first.logprobs.content] == [entry.logprob for entry in entries]


def check_a_suffix_fills_the_gap(url: str) -> None:
    filled = complete(url, suffix=" the end")
    assert filled.usage.prompt_tokens > complete(url).usage.prompt_tokens
    assert text(url, suffix="") == text(url)
    assert text(url, suffix=" the end", echo=True) == PROMPT + filled.choices[0].text


def check_unknown_adapters_are_not_found(url: str) -> None:
    error = raised(ApiError, complete, url, peft="mine")
    assert error.status_code == 404
    assert error.body["type"] == "not_found_error"
    assert raised(ApiError, complete, url, model="nobody").status_code == 404


def check_quiet_fields(url: str) -> None:
    assert text(url, log_prompt=True, user="somebody") == text(url)
    extra = raw(url, top_k=1, nothing=2)
    assert extra["choices"][0]["text"] == text(url)


# Chats ---------------------------------------------------------------------------------------------------------------


def check_chats(url: str) -> None:
    whole = chat(url)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client(url).text_gen.create_chat_completion_stream(messages=messages(), **CHAT))
    assert chunks[0].choices[0].delta.content is None
    assert {chunk.choices[0].delta.role for chunk in chunks} == {"assistant"}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def check_chat_logprobs(url: str) -> None:
    shown = chat(url, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(shown) == 12
    assert all(len(entry.top_logprobs) == 3 for entry in shown)
    answer = chat(url, loglikelihood=True)
    assert len(answer.choices[0].logprobs.content) == answer.usage.prompt_tokens - 1
    raised(UnprocessableEntityError, chat, url, top_logprobs=3)


def check_formats(url: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    asked: Any = CHAT | {"max_tokens": 100, "messages": [USER], "temperature": 1, "seed": 5}
    for form in (
        {"type": "json_object", "schema": schema | {"additionalProperties": False}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}}},
    ):
        answer = post(f"{url}/octoai/v1/chat/completions", asked | {"response_format": form})
        assert list(json.loads(answer["choices"][0]["message"]["content"])) == ["n"]


def check_tools(url: str) -> None:
    asked: Any = CHAT | {"max_tokens": 150, "messages": [USER], "temperature": 1, "seed": 5}
    where = f"{url}/octoai/v1/chat/completions"
    required = post(where, asked | {"tools": [TOOL], "tool_choice": "required"})["choices"][0]
    assert required["message"]["tool_calls"][0]["function"]["name"] == "weather"
    one = {"type": "function", "function": {"name": "weather"}}
    chosen = post(where, asked | {"tools": [TOOL], "tool_choice": one})["choices"][0]
    assert chosen["finish_reason"] == "tool_calls"
    assert list(json.loads(chosen["message"]["tool_calls"][0]["function"]["arguments"])) == ["city"]
    bare = {"function": {"name": "brave_search"}}
    named = post(where, asked | {"tools": [bare], "tool_choice": {"function": {"name": "brave_search"}}})
    call = named["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["arguments"].replace(" ", "").startswith('{"query":"')
    form = {"type": "json_object", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}
    either = post(where, asked | {"tools": [TOOL], "response_format": form})["choices"][0]["message"]
    assert either.get("tool_calls") or json.loads(either["content"]) == {}


def check_notebooks_leave_things_out(url: str) -> None:
    """Null content beside calls, results without the id of their call, calls without id and type."""
    call = {"function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    conversation = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    asked: Any = CHAT | {"messages": conversation, "tools": [{"function": {"name": "weather"}}]}
    assert post(f"{url}/octoai/v1/chat/completions", asked)["usage"]["completion_tokens"] > 0


# Errors --------------------------------------------------------------------------------------------------------------


def check_broken_rules_are_lists(url: str) -> None:
    for fields, place in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"n": 0}, "n"),
        ({"prompt": []}, "prompt"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ):
        error = raised(UnprocessableEntityError, complete, url, **fields)
        assert error.body.detail[0].loc[:2] == ["body", place], error.body


def check_a_prompt_that_is_too_long_is_status_400(url: str) -> None:
    assert raised(ApiError, complete, url, prompt="word " * 600).status_code == 400


run(globals())
