"""The generate family byte for byte, before a model that says what the test wants; log-probabilities are -0.5."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from chat_runtime import ChatServer, chat_runtime
from native import events_of
from stub_runtime import TOKENIZER

from dragoman.core.errors import BadRequest
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

EOS = TOKENIZER.eos_ids[0]
PROMPT = TOKENIZER.encode("Hi")
SEVEN = TOKENIZER.token_text(7)


@pytest.fixture
async def runtime(anyio_backend: str, template: ChatTemplate) -> AsyncIterator[ChatServer]:
    async with chat_runtime(template) as runtime:
        yield runtime


async def said(
    runtime: ChatServer, says: str, path: str = "/generate", stream: bool | None = None, **parameters: Any
) -> str:
    body: dict[str, Any] = {"inputs": "Hi", "parameters": parameters}
    answer = await runtime.post(path, body if stream is None else body | {"stream": stream}, says)
    assert answer.status_code == 200, answer.text
    return answer.text


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


# Whole ---------------------------------------------------------------------------------------------------------------


async def test_a_plain_answer_is_the_text_alone(runtime: ChatServer) -> None:
    assert await said(runtime, " there") == '{"generated_text":" there"}'


async def test_details(runtime: ChatServer) -> None:
    (there,) = ids(" there")
    assert await said(runtime, " there", details=True) == (
        '{"generated_text":" there","details":{"finish_reason":"eos_token","generated_tokens":2,"seed":null,'
        f'"prefill":[],"tokens":[{{"id":{there},"text":" there","logprob":-0.5,"special":false}},'
        f'{{"id":{EOS},"text":"<|im_end|>","logprob":-0.5,"special":true}}]}}}}'
    )


async def test_alternatives_come_after_the_tokens(runtime: ChatServer) -> None:
    (there,) = ids(" there")
    other = f'{{"id":7,"text":"{SEVEN}","logprob":-1.0,"special":false}}'
    assert await said(runtime, " there", details=True, top_n_tokens=2, max_new_tokens=1, seed=5, do_sample=True) == (
        '{"generated_text":" there","details":{"finish_reason":"length","generated_tokens":1,"seed":5,"prefill":[],'
        f'"tokens":[{{"id":{there},"text":" there","logprob":-0.5,"special":false}}],'
        f'"top_tokens":[[{other},{other}]]}}}}'
    )


async def test_the_root_answers_with_an_array(runtime: ChatServer) -> None:
    assert await said(runtime, " there", "/") == '[{"generated_text":"Hi there"}]'
    assert await said(runtime, " there", "/", return_full_text=False) == '[{"generated_text":" there"}]'
    assert await said(runtime, " there", "/generate", return_full_text=True) == '{"generated_text":"Hi there"}'


async def test_prompt_tokens_are_shown_when_asked_for(runtime: ChatServer) -> None:
    text = await said(runtime, " there", decoder_input_details=True)
    prefill = ",".join(f'{{"id":{token},"text":"{TOKENIZER.token_text(token)}","logprob":null}}' for token in PROMPT)
    assert f'"prefill":[{prefill}],"tokens":[' in text


async def test_prompt_tokens_may_be_turned_off(template: ChatTemplate) -> None:
    async with chat_runtime(template, enable_prefill_logprobs=False) as runtime:
        assert '"prefill":[],' in await said(runtime, " there", decoder_input_details=True)


async def test_the_losers_of_best_of_in_their_order(runtime: ChatServer) -> None:
    text = await said(runtime, " there", best_of=2, do_sample=True, details=True, max_new_tokens=1)
    (there,) = ids(" there")
    token = f'[{{"id":{there},"text":" there","logprob":-0.5,"special":false}}]'
    before, _, loser = text.partition('"best_of_sequences":')
    assert before.startswith(
        '{"generated_text":" there","details":{"finish_reason":"length","generated_tokens":1,"seed":'
    )
    assert loser.startswith('[{"generated_text":" there","finish_reason":"length","generated_tokens":1,"seed":')
    assert loser.endswith(f',"prefill":[],"tokens":{token}}}]}}}}')
    assert "null" not in text
    assert len(runtime.engine.requests[-1].seeds) == 2


# Streamed ------------------------------------------------------------------------------------------------------------


async def test_a_stream_has_one_event_for_each_token(runtime: ChatServer) -> None:
    (there,) = ids(" there")
    expected = (
        f'data: {{"index":1,"token":{{"id":{there},"text":" there","logprob":-0.5,"special":false}},'
        '"generated_text":null,"details":null}\n\n'
        f'data: {{"index":2,"token":{{"id":{EOS},"text":"<|im_end|>","logprob":-0.5,"special":true}},'
        '"generated_text":" there","details":{"finish_reason":"eos_token","generated_tokens":2,"seed":null,'
        f'"input_length":{len(PROMPT)}}}}}\n\n'
    )
    assert await said(runtime, " there", "/generate_stream", details=True) == expected
    assert await said(runtime, " there", "/", stream=True, details=True, return_full_text=False) == expected


async def test_without_details_the_last_event_has_none(runtime: ChatServer) -> None:
    *_, last = events_of(await said(runtime, " there", "/generate_stream"))
    assert last["details"] is None
    assert last["generated_text"] == " there"
    *_, last = events_of(await said(runtime, " there", "/", stream=True))
    assert last["generated_text"] == "Hi there"


async def test_streamed_alternatives_come_behind_the_token(runtime: ChatServer) -> None:
    (there,) = ids(" there")
    assert await said(runtime, " there", "/generate_stream", top_n_tokens=1, max_new_tokens=1) == (
        f'data: {{"index":1,"token":{{"id":{there},"text":" there","logprob":-0.5,"special":false}},'
        f'"top_tokens":[{{"id":7,"text":"{SEVEN}","logprob":-1.0,"special":false}}],'
        '"generated_text":" there","details":null}\n\n'
    )


async def test_a_character_of_several_tokens_comes_with_the_last(runtime: ChatServer) -> None:
    wave = ids("👋")
    assert len(wave) > 1
    events = events_of(await said(runtime, "👋", "/generate_stream"))
    assert [event["token"]["text"] for event in events] == [*[""] * (len(wave) - 1), "👋", "<|im_end|>"]
    assert events[-1]["generated_text"] == "👋"


async def test_an_unfinished_character_is_left_out(runtime: ChatServer) -> None:
    count = len(ids(" a👋")) - 1
    events = events_of(await said(runtime, " a👋", "/generate_stream", max_new_tokens=count))
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"] == " a"
    assert await said(runtime, " a👋", max_new_tokens=count) == '{"generated_text":" a"}'


async def test_a_stream_is_text_event_stream(runtime: ChatServer) -> None:
    answer = await runtime.post("/generate_stream", {"inputs": "Hi"}, " there")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-compute-type"] == "gpu+optimized"
    assert answer.headers["x-compute-characters"] == "2"
    assert "x-total-time" not in answer.headers


# Stopping ------------------------------------------------------------------------------------------------------------


async def test_a_stop_string_stays_in_the_text_and_nothing_follows(runtime: ChatServer) -> None:
    text = await said(runtime, " one two three four", stop=["o th"], details=True)
    assert text.startswith('{"generated_text":" one two th","details":{"finish_reason":"stop_sequence"')
    events = events_of(await said(runtime, " one two three four", "/generate_stream", stop=["o th"]))
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"] == " one two th"


async def test_a_stop_string_is_not_held_back(runtime: ChatServer) -> None:
    events = events_of(await said(runtime, " one two", "/generate_stream", stop=[" one twelve"]))
    assert len(events) == len(ids(" one two")) + 1


async def test_a_strict_server_looks_for_stops_at_the_ends_of_tokens(template: ChatTemplate) -> None:
    async with chat_runtime(template, tgi_quirk=("stop-at-token-ends",)) as runtime:
        text = await said(runtime, " one two three four", stop=["o th"], details=True)
        assert text.startswith('{"generated_text":" one two three four","details":{"finish_reason":"eos_token"')
        text = await said(runtime, " one two three four", stop=["o three"], details=True)
        assert text.startswith('{"generated_text":" one two three","details":{"finish_reason":"stop_sequence"')


async def test_a_special_token_stops_and_disappears(runtime: ChatServer) -> None:
    says = " one<|im_start|> two"
    text = await said(runtime, says, stop=["<|im_start|>"], details=True)
    assert text.startswith('{"generated_text":" one","details":{"finish_reason":"stop_sequence","generated_tokens":2')


async def test_the_end_token_comes_before_a_stop_string_of_its_text(runtime: ChatServer) -> None:
    text = await said(runtime, " one", stop=["<|im_end|>"], details=True)
    assert text.startswith('{"generated_text":" one","details":{"finish_reason":"eos_token","generated_tokens":2')


async def test_special_tokens_are_hidden_from_the_text_and_shown_as_tokens(runtime: ChatServer) -> None:
    events = events_of(await said(runtime, " one<|im_start|> two", "/generate_stream"))
    assert "<|im_start|>" in [event["token"]["text"] for event in events if event["token"]["special"]]
    assert events[-1]["generated_text"] == " one two"


async def test_empty_stop_strings_count_for_nothing(runtime: ChatServer) -> None:
    assert await said(runtime, " one two", stop=["", ""]) == '{"generated_text":" one two"}'


async def test_stop_sequences_is_another_name(runtime: ChatServer) -> None:
    assert await said(runtime, " one two", stop_sequences=["one"]) == '{"generated_text":" one"}'


async def test_truncate_keeps_the_last_tokens(runtime: ChatServer) -> None:
    await runtime.post("/generate", {"inputs": "one two three four", "parameters": {"truncate": 2}}, " five")
    assert runtime.engine.requests[-1].prompt == TOKENIZER.encode("one two three four")[-2:]


# What is asked of the engine -----------------------------------------------------------------------------------------


async def test_no_parameters_are_not_empty_ones(runtime: ChatServer) -> None:
    for body, temperature in (
        ({"inputs": "Hi"}, 1.0),
        ({"inputs": "Hi", "parameters": None}, 1.0),
        ({"inputs": "Hi", "parameters": {}}, 0.0),
    ):
        await runtime.post("/generate", body, " there")
        assert runtime.engine.requests[-1].sampling.temperature == temperature


@pytest.mark.parametrize(
    "parameters", [{"do_sample": True}, {"temperature": 1.0}, {"top_k": 5}, {"top_p": 0.5}, {"typical_p": 0.5}], ids=str
)
async def test_what_turns_sampling_on(runtime: ChatServer, parameters: Any) -> None:
    await said(runtime, " there", **parameters)
    assert runtime.engine.requests[-1].sampling.temperature == 1.0
    assert '"seed":7' in await said(runtime, " there", details=True, seed=7, **parameters)


async def test_a_seed_of_a_greedy_answer_is_null(runtime: ChatServer) -> None:
    assert '"seed":null' in await said(runtime, " there", details=True, seed=7)


async def test_a_drawn_seed_is_an_integer_of_64_bits(runtime: ChatServer) -> None:
    for seed in (2**64 - 1, 2**53 + 1, 0):
        assert f'"seed":{seed},' in await said(runtime, " there", details=True, seed=seed, do_sample=True)
    seeds = set()
    for _ in range(4):
        await said(runtime, " there", do_sample=True)
        seeds.add(runtime.engine.requests[-1].seeds)
    assert len(seeds) == 4


async def test_every_parameter_reaches_the_engine(template: ChatTemplate) -> None:
    async with chat_runtime(template, watermark_gamma=0.25, watermark_delta=1.5) as runtime:
        await said(
            runtime,
            " there",
            temperature=0.5,
            repetition_penalty=1.25,
            frequency_penalty=0.75,
            top_k=10,
            top_p=0.9,
            typical_p=0.95,
            watermark=True,
            max_new_tokens=9,
            details=True,
        )
        asked = runtime.engine.requests[-1]
        assert asked.max_tokens == 9
        assert asked.length_first
        assert asked.logprobs is not None
        assert asked.logprobs.mode == "processed"
        sampling = asked.sampling
        assert (sampling.temperature, sampling.repetition_penalty, sampling.frequency_penalty) == (0.5, 1.25, 0.75)
        assert (sampling.top_k, sampling.top_p, sampling.typical_p) == (10, 0.9, 0.95)
        assert (sampling.watermark, sampling.watermark_gamma, sampling.watermark_delta) == (True, 0.25, 1.5)


async def test_log_probabilities_are_computed_where_they_are_shown(runtime: ChatServer) -> None:
    shown = ({"details": True}, {"decoder_input_details": True}, {"best_of": 2, "do_sample": True}, {"top_n_tokens": 1})
    for parameters in shown:
        await said(runtime, " there", **parameters)
        assert runtime.engine.requests[-1].logprobs is not None
    await said(runtime, " there")
    assert runtime.engine.requests[-1].logprobs is None
    await said(runtime, " there", "/generate_stream")
    assert runtime.engine.requests[-1].logprobs is not None


async def test_strict_frequencies_are_shares(template: ChatTemplate) -> None:
    async with chat_runtime(template, tgi_strict=True) as runtime:
        await said(runtime, " there", frequency_penalty=0.5)
        assert runtime.engine.requests[-1].sampling.frequency_share


async def test_an_adapter_that_is_not_there_is_the_base_model(runtime: ChatServer) -> None:
    body = {"inputs": "Hi", "parameters": {"adapter_id": "nobody"}}
    answer = await runtime.post("/generate", body, " there")
    assert answer.text == '{"generated_text":" there"}'
    assert answer.headers["x-dragoman-warnings"] == "ignored: parameters.adapter_id"


async def test_a_text_that_cannot_be_tokenized(runtime: ChatServer) -> None:
    def fail(*_: object, **__: object) -> object:
        raise BadRequest("no such text")

    runtime.serving.tokenize = fail  # type: ignore[method-assign,assignment]
    answer = await runtime.post("/generate", {"inputs": "Hi"})
    said = "Input validation error: tokenizer error no such text"
    assert (answer.status_code, answer.json()) == (422, {"error": said, "error_type": "validation"})


async def test_images_in_inputs_are_text(runtime: ChatServer) -> None:
    picture = "![](data:image/png;base64,aaaa)"
    await runtime.post("/generate", {"inputs": picture}, " there")
    assert runtime.engine.prompt() == picture


# Headers -------------------------------------------------------------------------------------------------------------


async def test_an_answer_says_what_it_took(runtime: ChatServer) -> None:
    answer = await runtime.post("/generate", {"inputs": "Héllo"}, " there")
    headers = answer.headers
    assert headers["x-compute-type"] == "gpu+optimized"
    assert float(headers["x-compute-time"]) > 0
    assert headers["x-compute-characters"] == "5"
    assert headers["x-prompt-tokens"] == str(len(TOKENIZER.encode("Héllo")))
    assert headers["x-generated-tokens"] == "2"
    for name in ("total", "validation", "queue", "inference"):
        assert headers[f"x-{name}-time"].isdigit()
    assert headers["x-time-per-token"].isdigit()
    assert headers["content-type"] == "application/json"
    assert headers["vary"] == "origin, access-control-request-method, access-control-request-headers"


async def test_other_routes_do_not(runtime: ChatServer) -> None:
    answer = await runtime.client.get("/info")
    assert not [name for name in answer.headers if name.startswith("x-compute")]
