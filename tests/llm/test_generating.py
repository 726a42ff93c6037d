"""What ``LLM`` gives: texts, answers, streams and scores of the embedded model."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from dragoman import LLM, FillPrompt, RequestOutput, SamplingParams, StructuredOutputsParams, TextPrompt, TokenPrompt
from dragoman.core.errors import AdapterNotFound, BadRequest, ContextOverflow, UnsupportedFeature
from dragoman.core.events import Usage
from dragoman.llm.sampling_params import InvalidParams

SEEDED = SamplingParams(max_tokens=12, seed=7)
PROMPTS = ["Once upon a time", "The cat sat on the", "A very long road led", "Finn the frog said"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.text for output in outputs]


# Batches -------------------------------------------------------------------------------------------------------------


def test_outputs_are_in_the_order_of_the_prompts_and_as_if_each_were_alone(llm: LLM) -> None:
    batch = llm.generate(PROMPTS, SEEDED)
    assert [output.prompt for output in batch] == PROMPTS
    alone = [llm.generate(prompt, SEEDED)[0] for prompt in PROMPTS]
    assert [output.outputs for output in batch] == [output.outputs for output in alone]
    assert len(set(texts(batch))) == len(PROMPTS)


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=i + 1, seed=i) for i in range(4)]
    outputs = llm.generate(PROMPTS, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4]
    assert [output.outputs[0].seed for output in outputs] == [0, 1, 2, 3]


def test_prompts_of_every_form(llm: LLM) -> None:
    ids = llm.tokenize(PROMPTS[0])
    given: list[Any] = [PROMPTS[0], list(ids), ids, TokenPrompt(token_ids=ids), TextPrompt(text=PROMPTS[0])]
    assert len(set(texts(llm.generate(given, SEEDED)))) == 1
    assert llm.generate(list(ids), SEEDED)[0].text == llm.generate(PROMPTS[0], SEEDED)[0].text
    assert texts(llm.generate((each for each in PROMPTS), SEEDED)) == texts(llm.generate(PROMPTS, SEEDED))
    assert llm.generate([], SEEDED) == []
    assert llm.detokenize(llm.tokenize("Finn the frog", add_special_tokens=False)) == "Finn the frog"


def test_numbers_of_numpy_are_token_ids(llm: LLM) -> None:
    np = pytest.importorskip("numpy")
    ids = np.array(llm.tokenize(PROMPTS[0]))
    assert llm.generate(ids, SEEDED)[0].text == llm.generate(PROMPTS[0], SEEDED)[0].text
    assert len(llm.generate([ids, ids], SEEDED)) == 2


def test_numbers_and_texts_of_numpy_are_taken_everywhere(llm: LLM) -> None:
    np = pytest.importorskip("numpy")
    content: Any = np.array(["Hi"])[0]
    (answer,) = llm.chat([{"role": "user", "content": content}], SEEDED)
    (expected,) = llm.chat([{"role": "user", "content": "Hi"}], SEEDED)
    assert answer.text == expected.text
    assert llm.score("Once", top_logprobs=np.int64(2)) == llm.score("Once", top_logprobs=2)
    with LLM(threads=np.int64(1), max_context=np.int64(512)) as own:
        assert own.card.context_tokens == 512
    with pytest.raises(InvalidParams, match=r"'sampling_params' is .*: expected SamplingParams"):
        llm.generate("Once", {"max_tokens": 3})  # type: ignore[arg-type]


def test_a_gap_is_filled_where_the_model_can(llm: LLM) -> None:
    if llm.card.has_fill_tokens:
        assert llm.generate(FillPrompt(prefix="a", suffix="b"), SEEDED)[0].text
    else:
        with pytest.raises(UnsupportedFeature, match="fill-in-the-middle"):
            llm.generate(FillPrompt(prefix="a", suffix="b"), SEEDED)


# What a text is made of ----------------------------------------------------------------------------------------------


def test_an_output_says_how_it_came_about(llm: LLM) -> None:
    (output,) = llm.generate("Once upon a time", SEEDED)
    (completion,) = output.outputs
    assert output.text == completion.text == llm.detokenize(completion.token_ids, skip_special_tokens=True)
    assert (completion.index, completion.seed, completion.finish_reason) == (0, 7, "length")
    assert completion.logprobs is completion.cumulative_logprob is output.prompt_logprobs is None
    prompt_tokens = len(llm.tokenize("Once upon a time"))
    assert msgspec.structs.replace(output.usage, cached_tokens=0) == Usage(
        prompt_tokens=prompt_tokens, completion_tokens=12
    )
    assert output.timings.total_s > 0


def test_a_drawn_seed_gives_the_text_again(llm: LLM) -> None:
    first, second = llm.generate(["Once"] * 2, SamplingParams(max_tokens=12))
    assert first.outputs[0].seed != second.outputs[0].seed
    again = llm.generate("Once", SamplingParams(max_tokens=12, seed=first.outputs[0].seed))
    assert again[0].outputs == first.outputs


def test_each_of_n_texts_has_a_seed_of_its_own(llm: LLM) -> None:
    (output,) = llm.generate("Once", SamplingParams(n=3, max_tokens=10, seed=2**64 - 1))
    assert [completion.seed for completion in output.outputs] == [2**64 - 1, 0, 1]
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    for completion in output.outputs:
        (alone,) = llm.generate("Once", SamplingParams(max_tokens=10, seed=completion.seed))
        assert alone.outputs[0].token_ids == completion.token_ids
    (given,) = llm.generate("Once", SamplingParams(n=3, max_tokens=10, seed=(2**64 - 1, 0, 1)))
    assert given.outputs == output.outputs


def test_the_best_of_many_are_those_with_the_highest_mean_logprob(llm: LLM) -> None:
    asked = SamplingParams(n=6, max_tokens=8, seed=1, logprobs=0)
    (made,) = llm.generate("Once", asked)
    (best,) = llm.generate("Once", msgspec.structs.replace(asked, n=2, best_of=6))

    def mean(completion: Any) -> float:
        return float(completion.cumulative_logprob / len(completion.token_ids))

    ranked = sorted(made.outputs, key=mean, reverse=True)
    assert [completion.token_ids for completion in best.outputs] == [each.token_ids for each in ranked[:2]]


def test_logprobs_of_text_and_prompt_are_as_many_as_asked_for(llm: LLM) -> None:
    (output,) = llm.generate("Once upon a time", SamplingParams(max_tokens=4, seed=1, logprobs=3, prompt_logprobs=1))
    (completion,) = output.outputs
    assert completion.logprobs is not None
    assert completion.cumulative_logprob is not None
    assert output.prompt_logprobs is not None
    assert tuple(token.token_id for token in completion.logprobs) == completion.token_ids
    assert {len(token.top) for token in completion.logprobs} == {3}
    assert all(token.top[0].logprob >= token.logprob for token in completion.logprobs)  # type: ignore[operator]
    assert math.isclose(completion.cumulative_logprob, sum(t.logprob for t in completion.logprobs if t.logprob))
    first, *others = output.prompt_logprobs
    assert first.logprob is None
    assert {len(token.top) for token in others} == {1}
    assert llm.generate("Once upon a time", SamplingParams(max_tokens=4, seed=1))[0].text == output.text
    (only,) = llm.generate("Once upon a time", SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert only.outputs[0].logprobs is None
    assert only.prompt_logprobs is not None


@pytest.mark.parametrize("include", [False, True])
def test_stop_texts_end_a_text(llm: LLM, include: bool) -> None:
    whole = llm.generate("Once upon a time", SamplingParams(max_tokens=40, seed=7))[0].text
    stop = whole.split()[3]
    params = SamplingParams(max_tokens=40, seed=7, stop=stop, include_stop_str_in_output=include)
    (completion,) = llm.generate("Once upon a time", params)[0].outputs
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert completion.text == whole[: whole.index(stop) + (len(stop) if include else 0)]


def test_stop_tokens_end_a_text(llm: LLM) -> None:
    ids = llm.generate("Once upon a time", SamplingParams(max_tokens=12, seed=7))[0].outputs[0].token_ids
    (completion,) = llm.generate("Once", SamplingParams(max_tokens=12, seed=7, stop_token_ids=ids))[0].outputs
    params = SamplingParams(max_tokens=12, seed=7, stop_token_ids=[ids[5]])
    (completion,) = llm.generate("Once upon a time", params)[0].outputs
    assert (completion.finish_reason, completion.stop_reason) == ("stop", ids[5])
    assert completion.token_ids == ids[: ids.index(ids[5]) + 1]


def test_a_model_ends_its_text_by_itself(llm: LLM) -> None:
    (output,) = llm.chat(QUESTION, SamplingParams(temperature=0))
    assert "Paris" in output.text
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)


def test_time_that_is_over_leaves_what_there_is(llm: LLM) -> None:
    (output,) = llm.generate("Once", SamplingParams(max_tokens=2000, ignore_eos=True, timeout_s=0.2, seed=1))
    assert output.outputs[0].finish_reason == "timeout"
    assert 0 < len(output.outputs[0].token_ids) < 2000


def test_beams_are_returned_best_first(llm: LLM) -> None:
    params = SamplingParams(n=3, num_beams=4, max_tokens=8, seed=1)
    (output,) = llm.generate("Once upon a time", params)
    scores = [completion.score for completion in output.outputs]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    assert llm.generate("Once upon a time", params)[0].outputs == output.outputs


def test_structured_outputs_are_followed(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    asked = [
        StructuredOutputsParams(json=schema),
        StructuredOutputsParams(choice=["yes", "no"]),
        StructuredOutputsParams(regex="[ab]{3}"),
        StructuredOutputsParams(grammar='start: "<" /[a-z]{2}/ ">"'),
    ]
    params = [SamplingParams(max_tokens=40, seed=1, structured_outputs=each) for each in asked]
    made = texts(llm.generate(["Hello"] * 4, params))
    assert json.loads(made[0])["a"] in (1, 2)
    assert made[1] in ("yes", "no")
    assert set(made[2]) <= set("ab")
    assert len(made[2]) == 3
    assert (made[3][0], made[3][-1], len(made[3])) == ("<", ">", 4)


def test_forced_tokens_are_scored(llm: LLM) -> None:
    ids = llm.tokenize(" a time", add_special_tokens=False)
    (completion,) = llm.generate("Once upon", SamplingParams(forced_output_tokens=ids, logprobs=0))[0].outputs
    assert completion.token_ids == ids
    (score,) = llm.score(" a time", "Once upon")
    assert score.token_ids == ids
    assert completion.cumulative_logprob == pytest.approx(score.logprob, abs=1e-3)


# Conversations -------------------------------------------------------------------------------------------------------


def test_conversations_in_a_batch_are_answered_in_order(llm: LLM) -> None:
    others = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who are you?"}]
    outputs = llm.chat([QUESTION, others], SamplingParams(temperature=0))
    assert [output.prompt for output in outputs] == [QUESTION, others]
    assert outputs[0].text == llm.chat(QUESTION, SamplingParams(temperature=0))[0].text
    assert outputs[1].text == llm.chat(others, SamplingParams(temperature=0))[0].text


def test_content_may_come_in_parts_and_a_last_message_is_continued(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0)
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert llm.chat(parts, greedy)[0].text == llm.chat(QUESTION, greedy)[0].text
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    assert "Paris" in llm.chat(begun, greedy, continue_final_message=True)[0].text


def test_a_named_tool_is_called(llm: LLM) -> None:
    asked: dict[str, Any] = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    }
    (output,) = llm.chat([{"role": "user", "content": "Weather in Paris?"}], SamplingParams(seed=1), **asked)
    (call,) = output.outputs[0].tool_calls
    assert call.name == "get_weather"
    assert set(json.loads(call.arguments)) == {"city"}
    assert output.text == ""
    assert output.outputs[0].finish_reason == "stop"
    asked["tool_choice"] = "required"
    (output,) = llm.chat([{"role": "user", "content": "Weather in Paris?"}], SamplingParams(seed=1), **asked)
    assert output.outputs[0].finish_reason == "tool_calls"
    streamed = list(llm.stream([{"role": "user", "content": "Weather in Paris?"}], SamplingParams(seed=1), **asked))
    assert streamed[-1].tool_calls[0].arguments == output.outputs[0].tool_calls[0].arguments
    assert "".join(delta.text for delta in streamed) == output.text
    answered = [
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [_given(output.outputs[0].tool_calls[0])]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ]
    assert llm.chat(answered, SamplingParams(temperature=0), tools=[WEATHER])[0].outputs


def _given(call: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        ([{"content": "Hi"}], {}, r"messages\[0\].role"),
        ([{"role": "user"}], {}, r"'messages\[0\].content' is missing$"),
        ([{"role": "user", "content": "Hi", "mood": 1}], {}, r"'messages\[0\].mood' is unknown$"),
        ([{"role": "user", "content": "\ud800"}], {}, "surrogates not allowed"),
        (QUESTION, {"tools": [{"type": "function"}]}, "'tools' has a 'function'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "not supported"),
        (QUESTION, {"tool_choice": "required"}, "tool_choice"),
        (QUESTION, {"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
        (QUESTION, {"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ],
)
def test_conversations_that_cannot_be_are_refused(llm: LLM, messages: Any, options: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        llm.chat(messages, **options)


def test_reasoning_is_switched_on_and_set_apart(llm: LLM) -> None:
    """The embedded model works a sum out, where it is told to, before the answer."""
    question = [{"role": "user", "content": "What is 47 + 38?"}]
    switched_on = {"chat_template_kwargs": {"enable_thinking": True}, "separate_reasoning": True}
    greedy = SamplingParams(temperature=0)
    (thought,) = llm.chat(question, greedy, **switched_on)
    assert "Tens: 40 + 30 = 70." in (thought.outputs[0].reasoning or "")
    assert thought.text == "47 + 38 = 85"
    assert llm.chat(question, greedy)[0].text == "47 + 38 = 85"


def test_options_that_a_chat_has_not_are_errors(llm: LLM) -> None:
    with pytest.raises(TypeError, match="tool_choise"):
        llm.chat(QUESTION, tool_choise="auto")  # type: ignore[call-arg]
    with pytest.raises(InvalidParams, match="'tools' goes with messages"):
        llm.stream("Once", tools=[WEATHER])


# Streams -------------------------------------------------------------------------------------------------------------


def test_a_stream_is_the_text_piece_by_piece(llm: LLM) -> None:
    params = SamplingParams(n=2, max_tokens=20, seed=7, stop=["zzz"], logprobs=1)
    (whole,) = llm.generate("Once upon a time", params)
    deltas = list(llm.stream("Once upon a time", params))
    assert len(deltas) > 10
    for completion in whole.outputs:
        own = [delta for delta in deltas if delta.index == completion.index]
        assert "".join(delta.text for delta in own) == completion.text
        assert tuple(i for delta in own for i in delta.token_ids) == completion.token_ids
        assert tuple(t for delta in own for t in delta.logprobs or ()) == completion.logprobs
        assert [delta.finish_reason for delta in own][-1] == completion.finish_reason
        assert {delta.finish_reason for delta in own[:-1]} == {None}
        assert {delta.seed for delta in own} == {completion.seed}
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {delta.usage for delta in deltas[:-1]} == {None}


def test_a_conversation_is_streamed(llm: LLM) -> None:
    answer = "".join(delta.text for delta in llm.stream(QUESTION, SamplingParams(temperature=0)))
    assert answer == llm.chat(QUESTION, SamplingParams(temperature=0))[0].text


def test_what_cannot_be_streamed_is_refused_at_once(llm: LLM) -> None:
    with pytest.raises(InvalidParams, match="One prompt"):
        llm.stream(PROMPTS)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="best_of"):
        next(llm.stream("Once", SamplingParams(best_of=2)))


# Scores --------------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_prompts_tokens(llm: LLM) -> None:
    scores = llm.score(PROMPTS, top_logprobs=2)
    for text, score in zip(PROMPTS, scores, strict=True):
        (output,) = llm.generate(text, SamplingParams(max_tokens=0, prompt_logprobs=2))
        assert score.text == text
        assert score.logprobs == output.prompt_logprobs
        assert score.logprob == pytest.approx(sum(t.logprob for t in score.logprobs if t.logprob is not None))
        assert score.token_ids == llm.tokenize(text)
        assert output.outputs[0].token_ids == ()


def test_likely_texts_score_higher(llm: LLM) -> None:
    paris, stone = llm.score([" a time", " stone the"], "Once upon")
    assert paris.logprob > stone.logprob
    pairs = llm.score([" a time", " stone the"], ["Once upon", "Once upon"])
    assert [score.logprob for score in pairs] == [paris.logprob, stone.logprob]
    ids = llm.tokenize(" a time", add_special_tokens=False)
    assert llm.score([ids], "Once upon")[0].logprob == paris.logprob


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["a", "b"], ["c", "d", "e"]), "'prompts' are 3 for 2 texts"),
        (([""], "Once"), "empty text"),
        ((5,), "expected a text, token ids, or a list of such prompts"),
    ],
)
def test_scores_that_cannot_be_are_refused(llm: LLM, arguments: Any, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        llm.score(*arguments)
    with pytest.raises(InvalidParams, match="'top_logprobs' is from 0"):
        llm.score("a", top_logprobs=-1)
    with pytest.raises(InvalidParams, match="not True"):  # to the engine it is no number
        llm.score("a", top_logprobs=True)


# Errors --------------------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_too_long_is_refused_and_the_model_goes_on(llm: LLM) -> None:
    with pytest.raises(ContextOverflow) as caught:
        llm.generate(["Once", "word " * 5000], SEEDED)
    assert caught.value.__notes__ == ["This is about number 1 of the batch, counted from 0."]
    assert llm.generate("Once", SEEDED)[0].text


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (5, "'prompts' is 5: expected a text, token ids, or a list of such prompts"),
        ({"prompt": "x"}, "expected a text, token ids, or a list"),
        ([["a"]], "neither a text nor a list of token ids"),
        ([1.5], "neither a text nor a list of token ids"),
        ([True], "neither a text nor a list of token ids"),
    ],
)
def test_prompts_that_are_none_are_refused(llm: LLM, prompts: Any, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        llm.generate(prompts)


def test_token_ids_outside_the_vocabulary_are_refused(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="Token ids"):
        llm.generate([llm.card.vocab_size])


def test_parameters_that_do_not_fit_the_batch_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParams, match="'sampling_params' are 2 for 4 prompts"):
        llm.generate(PROMPTS, [SEEDED] * 2)
    with pytest.raises(InvalidParams, match="'sampling_params' has an item that is no SamplingParams"):
        llm.generate(PROMPTS, [{}] * 4)  # type: ignore[list-item]
    for given in ({}, "x", 5):
        with pytest.raises(InvalidParams, match="expected SamplingParams, or a list with one for each prompt"):
            llm.generate(PROMPTS, given)  # type: ignore[arg-type]


def test_an_error_in_a_batch_says_which_prompt_it_is_about_also_before_anything_is_sent(llm: LLM) -> None:
    for batch in (lambda: llm.generate(["Once", [1.5]]), lambda: llm.chat([QUESTION, [{"content": "Hi"}]])):
        with pytest.raises(BadRequest) as caught:
            batch()
        assert caught.value.__notes__ == ["This is about number 1 of the batch, counted from 0."]
    with pytest.raises(BadRequest) as alone:
        llm.chat([{"content": "Hi"}])
    assert not hasattr(alone.value, "__notes__")


def test_ids_that_are_none_are_refused_in_words_about_ids(llm: LLM) -> None:
    for given in (5, ["a"], b"a"):
        with pytest.raises(InvalidParams, match=r"'ids' is .*: expected a list of token ids"):
            llm.detokenize(given)  # type: ignore[arg-type]


def test_an_adapter_that_is_not_loaded_is_refused(llm: LLM) -> None:
    with pytest.raises(AdapterNotFound, match="nobody"):
        llm.generate("Once", adapter="nobody")
    with pytest.raises(InvalidParams, match="'adapter' is 5: expected a text"):
        llm.generate("Once", adapter=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prompt",
    [TextPrompt(text=5), TextPrompt(text="\ud800"), TokenPrompt(token_ids=("a",)), None, b"a", "\ud800"],  # type: ignore[arg-type]
)
def test_what_is_no_text_is_refused_wherever_it_comes(llm: LLM, prompt: Any) -> None:
    with pytest.raises(BadRequest):
        llm.generate([prompt])
    if not isinstance(prompt, TextPrompt | TokenPrompt):
        with pytest.raises(InvalidParams, match="'text' is"):
            llm.tokenize(prompt)
