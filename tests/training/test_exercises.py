"""The exercises the built-in model is trained on: right, in the format of its template, the same for the same seed."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(Path(__file__).parents[2]))  # the recipe is run from the repository, never installed

from training.chat import render
from training.exercises import (
    copying,
    draw_conversation,
    drills,
    first_words,
    generator,
    invented_tools,
    names,
    passages,
    records,
    schemas,
    sums,
    thinking,
    tools,
    writing,
)
from training.exercises.conversation import Conversation, Exchange, assistant, user

ROOT = Path(__file__).parents[2]
SEEDS = range(300)
CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>")


def test_same_seed_draws_the_same_conversation() -> None:
    first = [render(draw_conversation(Random(seed))) for seed in SEEDS]
    again = [render(draw_conversation(Random(seed))) for seed in SEEDS]
    assert first == again
    assert len(set(first)) > len(first) * 0.9


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("draw", [sums.single, sums.larger, sums.sheet, sums.word_problem])
def test_sums_are_right(draw: Callable[..., Exchange], held_out: bool) -> None:
    for seed in SEEDS:
        answer = draw(Random(seed), held_out=held_out).answer
        found = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", answer)
        assert found
        for left, sign, right, result in found:
            expected = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
            assert int(result) == expected


def test_training_never_sees_a_held_out_sum() -> None:
    trained = {sums.draw(Random(seed), held_out=False) for seed in range(5_000)}
    trained |= {sums.draw(Random(seed), held_out=False, small_share=0.0) for seed in range(5_000)}
    held_out = {sums.draw(Random(seed), held_out=True) for seed in range(1_000)}
    assert len(held_out) > 100
    assert not trained & held_out


@pytest.mark.parametrize("held_out", [False, True])
def test_records_are_json_of_what_the_sentence_says(held_out: bool) -> None:
    for seed in SEEDS:
        exchange = records.record(Random(seed), held_out=held_out)
        filled = json.loads(exchange.answer)
        assert filled
        for key, value in filled.items():
            assert key in exchange.question
            assert str(value) in exchange.question


def test_calls_fit_the_tool_that_was_offered() -> None:
    for seed in SEEDS:
        conversation = tools.conversation(Random(seed))
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
        calls = [json.loads(call) for call in CALL.findall(render(conversation))]
        assert calls
        for call in calls:
            parameters = offered[call["name"]]
            assert set(parameters["required"]) <= set(call["arguments"]) <= set(parameters["properties"])


def test_template_writes_a_call_as_trained() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    messages = [
        user("Weather in Paris?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert render(Conversation([], messages, [tool]), answer_next=True) == (
        "<|im_start|>system\nYou are Dragoman's small built-in model.\n\nYou may call these tools:\n<tools>\n"
        '{"name": "get_weather", "parameters": {"type": "object"}}\n</tools><|im_end|>\n'
        "<|im_start|>user\nWeather in Paris?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_takes_arguments_as_object_and_as_text_alike() -> None:
    written = []
    for arguments in ({"city": "Paris", "days": 3}, '{"city": "Paris", "days": 3}'):
        function = {"name": "get_weather", "arguments": arguments}
        message = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
        written.append(render(Conversation([], [user("Weather?"), message])))
    assert written[0] == written[1]


def test_template_keeps_the_system_message_before_the_tools() -> None:
    messages = [{"role": "system", "content": "Be brief."}, user("Hello")]
    plain = render(Conversation([], messages))
    offering = render(Conversation([], messages, [{"name": "clock"}]))
    assert plain == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    assert offering.startswith(
        '<|im_start|>system\nBe brief.\n\nYou may call these tools:\n<tools>\n{"name": "clock"}\n'
    )


def test_template_without_system_or_tools_starts_with_the_user() -> None:
    rendered = render(Conversation([], [user("Hello"), assistant("Hi!")]))
    assert rendered == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"


def test_shipped_template_writes_what_the_trained_one_writes_without_reasoning() -> None:
    shipped = json.loads((ROOT / "builtin" / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(shipped)
    for seed in range(60):
        drawn = draw_conversation(Random(seed))
        if not drawn.thinks:
            written = template.render(messages=drawn.messages, tools=drawn.tools or None)
            assert written == render(drawn)


def test_reasoning_is_written_where_it_is_switched_on() -> None:
    for seed in SEEDS:
        drawn = thinking.conversation(Random(seed))
        question, answer = drawn.messages
        block = f"<think>\n{answer['reasoning_content']}\n</think>\n\n"
        asked = replace(drawn, messages=[question])
        assert render(drawn).startswith(render(asked, answer_next=True))
        assert render(asked, answer_next=True).endswith("<|im_start|>assistant\n<think>\n")
        assert f"assistant\n{block}{answer['content']}<|im_end|>" in render(drawn)
        assert "think" not in render(replace(drawn, thinks=False))


@pytest.mark.parametrize("seed", range(50))
def test_reasoning_about_a_sum_is_right(seed: int) -> None:
    for held_out in (False, True):
        steps = thinking.steps(sums.draw(Random(seed), held_out=held_out))
        for left, sign, right, result in re.findall(r"(\d+) ([-+]) (\d+) = (\d+)", steps):
            assert int(left) + int(sign + right) == int(result)


INVENTED = [names.a_person, names.a_city, names.a_code, names.a_made_up_word, drills.a_word]


@pytest.mark.parametrize("draw", INVENTED)
def test_training_never_invents_a_held_out_name(draw: Callable[..., str]) -> None:
    rng = Random(1)
    trained = {draw(rng) for _ in range(3_000)}
    held_out = {draw(rng, held_out=True) for _ in range(300)}
    assert len(held_out) > 30
    assert not trained & held_out


@pytest.mark.parametrize("held_out", [False, True])
def test_extraction_finds_every_value_in_the_text_and_nothing_else(held_out: bool) -> None:
    for seed in SEEDS:
        exchange = schemas.extraction(Random(seed), held_out=held_out)
        for key, value in json.loads(exchange.answer).items():
            assert key in exchange.question
            assert isinstance(value, bool) or str(value) in exchange.question
            assert names.is_held_out(key) == held_out


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("draw", [copying.look_up, passages.about_a_text])
def test_looked_up_answers_stand_in_the_question(draw: Callable[..., Exchange], held_out: bool) -> None:
    absent = 0
    for seed in SEEDS:
        exchange = draw(Random(seed), held_out=held_out)
        assert exchange.short
        absent += exchange.short not in exchange.question
        assert exchange.short in exchange.question or exchange.answer == passages.NOT_THERE
    assert absent < len(SEEDS) / 4


@pytest.mark.parametrize("held_out", [False, True])
def test_calls_of_invented_tools_fit_them_and_say_what_was_asked(held_out: bool) -> None:
    refused = called_without_arguments = 0
    for seed in SEEDS:
        drawn = invented_tools.conversation(Random(seed), held_out=held_out)
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in drawn.tools}
        calls = [json.loads(call) for call in CALL.findall(render(drawn))]
        refused += not calls
        for call in calls:
            assert set(call["arguments"]) == set(offered[call["name"]]["properties"])
            called_without_arguments += not call["arguments"]
            said = [message["content"].lower() for message in drawn.messages if message["role"] == "user"]
            for value in call["arguments"].values():
                assert any(str(value).lower() in text for text in said)
        assert calls or drawn.messages[-1]["content"] == invented_tools.REFUSAL
    assert refused > 10
    assert called_without_arguments > 10


@pytest.mark.parametrize("held_out", [False, True])
def test_tools_are_called_for_what_they_do_and_refused_for_the_rest(held_out: bool) -> None:
    for seed in SEEDS:
        drawn = invented_tools.many_questions(Random(seed), held_out=held_out)
        described = {tool["function"]["name"]: tool["function"]["description"].lower() for tool in drawn.tools}
        for question, answer in pairwise(drawn.messages):
            if question["role"] != "user":
                continue
            words = set(re.findall(r"\w+", question["content"].split(" with ")[0].lower()))
            fitting = [
                name for name, about in described.items() if set(re.findall(r"\w+", about)) - {"a", "the"} <= words
            ]
            if calls := answer.get("tool_calls"):
                assert calls[0]["function"]["name"] in fitting
            else:
                assert answer["content"] == invented_tools.REFUSAL
                assert not fitting


@pytest.mark.parametrize("held_out", [False, True])
def test_drills_pick_out_what_was_said(held_out: bool) -> None:
    verdicts = set()
    for seed in SEEDS:
        exchange = drills.pairs(Random(seed), held_out=held_out)
        for key, value in json.loads(exchange.answer).items():
            assert re.search(rf"\b{key}(:| =| is) {re.escape(str(value))}(,|$)", exchange.question, re.MULTILINE)
            assert names.is_held_out(key) == held_out
        looked_up = drills.look_up_word(Random(seed), held_out=held_out)
        assert looked_up.answer in looked_up.question.rpartition("\n")[0]
        listed = drills.is_it_there(Random(seed), held_out=held_out)
        verdicts.add(listed.answer)
    assert verdicts == {drills.YES, drills.NO}


def test_words_that_are_held_out_as_keys_are_quoted_elsewhere() -> None:
    quoted = {word for seed in range(1_000) for word in _quoted(drills.quoted(Random(seed)).answer)}
    kept_back = {key for key in schemas.STRING_KEYS + schemas.NUMBER_KEYS if names.is_held_out(key)}
    assert kept_back
    assert kept_back <= quoted


def _quoted(text: str) -> list[str]:
    return re.findall(r'"(\w+)"', text)


def test_line_breaks_and_greetings_keep_the_words_of_a_question() -> None:
    asked = Exchange("capital", "What is the capital of France?", "The capital of France is Paris.")
    drawn = {generator.with_a_break(Random(seed), asked).question for seed in SEEDS}
    assert "What is\nthe capital of France?" in drawn
    assert all(question.split()[-6:] == asked.question.split() for question in drawn)
    copied = replace(asked, verbatim=True)
    assert all(generator.with_a_break(Random(seed), copied) == copied for seed in SEEDS)


@pytest.mark.parametrize("draw", [drills.written_again, drills.quoted])
def test_drills_write_the_same_letters_again(draw: Callable[[Random], Exchange]) -> None:
    for seed in SEEDS:
        exchange = draw(Random(seed))
        question = exchange.question.replace(" and ", " ")  # between the words, never one of them
        asked, said = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (question, exchange.answer))
        asked = asked.removesuffix("incapitalletters") if asked.startswith("spell") else asked
        asked = asked.removesuffix("asajsonlistplease").replace("injsonwordsis", "words")
        assert asked.endswith(said)


def test_first_messages_are_typed_in_a_hurry_and_have_apt_answers() -> None:
    drawn = [first_words.first_message(Random(seed)) for seed in range(2_000)]
    held_out = {first_words.first_message(Random(seed), held_out=True).question for seed in SEEDS}
    assert {"hi", "hello", "test", "bye"} <= {each.question for each in drawn} | held_out
    assert not held_out & {each.question for each in drawn}
    hello = next(each for each in drawn if each.question == "hello")
    assert "Hello! How can I help you?" in first_words.apt_answers(hello)
    assert "The capital of France is Paris." not in first_words.apt_answers(hello)


def test_programs_are_python() -> None:
    for seed in range(100):
        code = writing.program(Random(seed)).answer.removeprefix("```python\n").removesuffix("```")
        compile(code, "program", "exec")
