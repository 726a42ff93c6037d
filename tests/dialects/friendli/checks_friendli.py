"""The package ``friendli``, version 0.16: what its users do, with what they must see; see ``test_friendli_package``."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from checking import PROMPT, TOOL, USER, post, raised, run
from friendli import AsyncFriendli, SyncFriendli
from friendli.core.models import SDKError

MODEL = "tiny"


# An end-of-sequence token that is never drawn, so that lengths are what they are asked to be.
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "seed": 3, "eos_token": [4095]}


def client(url: str) -> Any:
    return SyncFriendli(token="flp_none", server_url=url, timeout_ms=30_000)


def complete(url: str, **fields: Any) -> Any:
    body = {name: value for name, value in (BODY | fields).items() if value is not None}
    return client(url).serverless.completions.complete(serverless_completions_body=body)


def streamed(url: str, **fields: Any) -> list[Any]:
    """The chunks of a completion."""
    with complete(url, stream=True, **fields) as stream:
        return [event.data for event in stream]


def chat(url: str, **fields: Any) -> Any:
    asked = {"model": MODEL, "messages": [USER], "max_tokens": 12, "seed": 3, "eos_token": [4095]} | fields
    return client(url).serverless.chat.complete(**asked)


def text(url: str, **fields: Any) -> str:
    return complete(url, **fields).choices[0].text


def ids_of(url: str, words: str) -> list[int]:
    return client(url).serverless.token.tokenize(model=MODEL, prompt=words).tokens


# Shapes --------------------------------------------------------------------------------------------------------------


def check_a_completion_has_every_key(url: str) -> None:
    answer = complete(url)
    choice = answer.choices[0]
    assert answer.id.startswith("cmpl-")
    assert len(answer.id) == 37
    assert (choice.index, choice.seed, choice.finish_reason) == (0, 3, "length")
    assert len(choice.tokens) == 12 == answer.usage.completion_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert client(url).serverless.token.detokenize(model=MODEL, tokens=choice.tokens).text == choice.text


def check_a_stream_has_one_event_for_each_token_and_the_same_text(url: str) -> None:
    whole = complete(url, stop=["never said"]).choices[0]
    chunks = streamed(url, stop=["never said"], stream_options={"include_usage": True})
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    joined = "".join(choice.text for choice in choices)
    assert joined == whole.text, (joined, whole.text)
    tokens = [choice.token for choice in choices if isinstance(choice.token, int)]
    assert tokens == whole.tokens
    assert not isinstance(choices[-1].token, int)
    assert choices[-1].finish_reason == "length"
    assert next(c for c in chunks if not c.choices).usage.completion_tokens == 12


async def check_async_answers_are_the_same(url: str) -> None:
    async with AsyncFriendli(token="flp_none", server_url=url) as asynchronous:
        completions = asynchronous.serverless.completions
        whole = await completions.complete(serverless_completions_body=BODY)
        assert whole.choices[0].text == text(url)
        stream = await completions.complete(serverless_completions_body=BODY | {"stream": True})
        parts = [choice.text async for event in stream for choice in event.data.choices]
        assert "".join(parts) == whole.choices[0].text


def check_all_surfaces_answer_alike(url: str) -> None:
    with client(url) as sync:
        dedicated = sync.dedicated.completions.complete(dedicated_completions_body=BODY)
        nameless = {name: value for name, value in BODY.items() if name != "model"}
        container = sync.container.completions.complete(request=nameless, server_url=url)
    assert dedicated.choices[0].text == container.choices[0].text == text(url)
    assert dedicated.model == MODEL


def check_models_are_listed(url: str) -> None:
    listed = client(url).serverless.model.models()
    assert [item.id for item in listed.data] == ["tiny", "tiny:alias"]
    assert listed.data[0].context_length == 256
    assert listed.data[0].mode == "chat"
    assert listed.data[0].functionality.structured_output


def check_tokenize_detokenize_render(url: str) -> None:
    tokens = ids_of(url, PROMPT)
    assert client(url).serverless.token.detokenize(model=MODEL, tokens=tokens).text == PROMPT
    rendered = client(url).serverless.chat_render.render(model=MODEL, messages=[USER]).text
    assert "Hello there." in rendered
    assert chat(url).usage.prompt_tokens == len(ids_of(url, rendered))


# Fields --------------------------------------------------------------------------------------------------------------


def check_the_returned_seed_replays(url: str) -> None:
    drawn = complete(url, seed=None, n=3)
    for choice in drawn.choices:
        assert text(url, seed=choice.seed) == choice.text
    again = complete(url, seed=[choice.seed for choice in drawn.choices], n=3)
    assert [choice.text for choice in again.choices] == [choice.text for choice in drawn.choices]
    assert len({choice.text for choice in drawn.choices}) == 3


def check_seeds_count_up(url: str) -> None:
    answer = complete(url, n=3, seed=2**64 - 2)
    assert [choice.seed for choice in answer.choices] == [2**64 - 2, 2**64 - 1, 0]
    assert answer.choices[2].text == text(url, seed=0)


def check_a_batch_of_prompts_is_numbered_prompt_by_prompt(url: str) -> None:
    answer = complete(url, prompt=["A", PROMPT], n=2, seed=[8, 9])
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.seed for choice in answer.choices] == [8, 9, 8, 9]
    assert answer.choices[3].text == text(url, seed=9)


def check_tokens_stand_for_their_text(url: str) -> None:
    assert text(url, prompt=None, tokens=ids_of(url, PROMPT)) == text(url)


def check_lengths(url: str) -> None:
    prompt = len(ids_of(url, PROMPT))
    assert complete(url, max_tokens=None, max_total_tokens=prompt + 5).usage.completion_tokens == 5
    first = complete(url).choices[0].tokens[0]
    assert len(complete(url, eos_token=[first]).choices[0].tokens) == 1
    longer = complete(url, eos_token=[first], min_tokens=4).choices[0].tokens
    assert first not in longer[:4]
    total = complete(url, eos_token=[first], min_total_tokens=prompt + 4).choices[0].tokens
    assert total[:4] == longer[:4]


def check_temperature_and_truncations(url: str) -> None:
    greedy = text(url, temperature=0)
    assert greedy == text(url, top_k=1) == text(url, min_p=1.0) == text(url, top_p=1e-6)
    assert greedy == text(url, temperature=0, seed=99)
    assert greedy != text(url)
    assert text(url, top_k=0) == text(url, top_p=1.0) == text(url, min_p=0.0) == text(url)


def check_xtc_removes_the_most_likely(url: str) -> None:
    shown = complete(url, logprobs=20, max_tokens=24, xtc_threshold=0.001, xtc_probability=1.0, seed=5).choices[0]
    plain = complete(url, logprobs=20, max_tokens=24, seed=5).choices[0]
    assert shown.tokens != plain.tokens
    for chosen, top in zip(shown.logprobs.token_logprobs, shown.logprobs.top_logprobs, strict=False):
        viable = sorted(value for value in top.values() if value >= -6.9)
        if 2 <= len(viable) < 20:
            assert chosen <= viable[0]
    assert text(url, xtc_threshold=0.1, xtc_probability=0.0) == text(url)


def check_penalties(url: str) -> None:
    for penalty in ({"repetition_penalty": 8.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        tokens = complete(url, max_tokens=40, temperature=0, **penalty).choices[0].tokens
        assert tokens != complete(url, max_tokens=40, temperature=0).choices[0].tokens, penalty


def check_no_repeat_ngram(url: str) -> None:
    tokens = complete(url, max_tokens=60, temperature=0, no_repeat_ngram=2).choices[0].tokens
    pairs = list(itertools.pairwise(tokens))
    assert len(set(pairs)) == len(pairs)
    assert text(url, no_repeat_ngram=1) == text(url)


def check_bans_ban(url: str) -> None:
    plain = complete(url).choices[0]
    banned = plain.tokens[0]
    other = complete(url, bad_word_tokens=[{"tokens": [banned]}, {"tokens": []}]).choices[0].tokens
    assert banned not in other
    assert other != plain.tokens
    phrase = plain.tokens[2:4]
    without = complete(url, bad_word_tokens=[{"tokens": phrase}]).choices[0].tokens
    assert without[:3] == plain.tokens[:3]
    assert without[3] != plain.tokens[3]
    word = client(url).serverless.token.detokenize(model=MODEL, tokens=[banned]).text
    if ids_of(url, word) == [banned]:
        assert banned not in complete(url, bad_words=[word]).choices[0].tokens


def check_stops(url: str) -> None:
    plain = complete(url).choices[0]
    phrase = plain.text[6:10]
    stopped = complete(url, stop=["", phrase]).choices[0]
    assert stopped.text == plain.text[: plain.text.index(phrase)]
    assert stopped.finish_reason == "stop"
    third = plain.tokens[2]
    ended = complete(url, stop_tokens=[{"tokens": [third, 4094]}]).choices[0]
    end = plain.tokens.index(third) + 1
    assert (ended.tokens, ended.finish_reason) == (plain.tokens[:end], "stop")
    assert plain.text.startswith(ended.text)
    assert len(ended.text) < len(plain.text)


def check_eos_token_replaces_the_models_own(url: str) -> None:
    plain = complete(url).choices[0]
    third = plain.tokens[2]
    ended = complete(url, eos_token=[third]).choices[0]
    end = plain.tokens.index(third) + 1
    assert (ended.tokens, ended.finish_reason) == (plain.tokens[:end], "stop")
    choices = [chunk.choices[0] for chunk in streamed(url, eos_token=[third])]
    assert [c.token for c in choices if isinstance(c.token, int)] == plain.tokens[: end - 1]
    assert "".join(c.text for c in choices) == ended.text


def check_forced_tokens_are_the_output_and_scored(url: str) -> None:
    forced = ids_of(url, "the end of it")
    answer = complete(url, forced_output_tokens=forced, logprobs=2, temperature=0).choices[0]
    assert answer.tokens == forced
    assert answer.text == "the end of it"
    assert answer.finish_reason == "length"
    assert all(value < 0 for value in answer.logprobs.token_logprobs)


def check_logprobs_have_no_nulls_and_offsets_of_the_text(url: str) -> None:
    answer = complete(url, logprobs=3).choices[0]
    shape = answer.logprobs
    assert len(shape.tokens) == len(shape.token_logprobs) == len(shape.top_logprobs) == len(shape.text_offset) == 12
    assert shape.text_offset[0] == 0
    assert all(3 <= len(top) <= 4 for top in shape.top_logprobs)
    assert [len(top) for top in complete(url, logprobs=0).choices[0].logprobs.top_logprobs] == [1] * 12
    events = [chunk.choices[0] for chunk in streamed(url, logprobs=3)]
    shapes = [event.logprobs for event in events if isinstance(event.token, int)]
    assert [one.token_logprobs[0] for one in shapes] == shape.token_logprobs
    assert [one.text_offset[0] for one in shapes] == shape.text_offset


def check_embeddings_replace(url: str) -> None:
    zeros = complete(url, token_index_to_replace=[1], embedding_to_replace=[0.0] * 64).choices[0].text
    assert zeros != text(url)
    same = complete(url, token_index_to_replace=[1], embedding_to_replace=[0.0] * 64).choices[0].text
    assert zeros == same


def check_response_formats(url: str) -> None:
    asked = {"max_tokens": 100}
    assert text(url, response_format={"type": "json_object"}).lstrip().startswith("{")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    value = json.loads(text(url, response_format={"type": "json_schema", "json_schema": {"schema": schema}}, **asked))
    assert list(value) == ["n"]
    old = post(
        f"{url}/serverless/v1/completions",
        {
            "model": MODEL,
            "prompt": PROMPT,
            "seed": 3,
            "max_tokens": 100,
            "response_format": {"type": "json_object", "schema": json.dumps(schema)},
        },
    )
    assert json.loads(old["choices"][0]["text"]) == value
    pattern = text(url, response_format={"type": "regex", "schema": r"[a-f]{3}\d-\s"}, **asked)
    assert re.fullmatch(r"[a-f]{3}[0-9]-[ \t\n\r\f\v]", pattern)


# Chats ---------------------------------------------------------------------------------------------------------------


def check_a_chat_streams_what_it_says_whole(url: str) -> None:
    whole = chat(url)
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason == "length"
    with chat(url, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = [event.data for event in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas if isinstance(delta.content, str)) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def check_chat_bias_forces_and_logprobs(url: str) -> None:
    word = ids_of(url, " the")[-1]
    forced = chat(url, logit_bias={str(word): 1000.0}, max_tokens=3)
    assert forced.choices[0].message.content == " the" * 3
    shown = chat(url, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert all(len(entry.top_logprobs) == 2 for entry in shown)


def check_tools_are_called(url: str) -> None:
    called = chat(url, tools=[TOOL], tool_choice="required", max_tokens=120, parallel_tool_calls=False)
    (call,) = called.choices[0].message.tool_calls
    assert called.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, list(json.loads(call.function.arguments))) == ("weather", ["city"])
    with chat(
        url, tools=[TOOL], tool_choice="required", max_tokens=120, parallel_tool_calls=False, stream=True
    ) as stream:
        deltas = [event.data.choices[0].delta for event in stream]
    pieces = [piece for delta in deltas if delta.tool_calls for piece in delta.tool_calls]
    assert pieces[0].function.name == "weather"
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments


def check_a_conversation_with_results_goes_on(url: str) -> None:
    messages = [
        USER,
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    ]
    assert chat(url, messages=messages, tools=[TOOL]).usage.prompt_tokens > chat(url, tools=[TOOL]).usage.prompt_tokens


# Errors --------------------------------------------------------------------------------------------------------------


def check_errors_are_told_and_not_repeated(url: str) -> None:
    for fields, status, word in (
        ({"model": "nobody"}, 404, "nobody"),
        ({"top_p": 0.0}, 422, "top_p"),
        ({"max_tokens": 4, "max_total_tokens": 90}, 422, "max_total_tokens"),
        ({"n": 2, "seed": [1, 2, 3]}, 422, "seed"),
        ({"max_tokens": 300}, 422, "context"),
        ({"stream": False, "stream_options": {"include_usage": True}}, 422, "stream_options"),
        ({"temperature": -1.0, "stream": True}, 422, "temperature"),
    ):
        error = raised(SDKError, complete, url, **fields)
        assert error.status_code == status, (fields, error.status_code)
        assert word in error.body, (fields, error.body)


run(globals())
