"""The exercises the built-in model is trained on: right, in the format of its template, the same for the same seed."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the recipe is run from the repository, never installed

from training.chat import render
from training.exercises import draw_conversation, records, sums, tools
from training.exercises.conversation import Conversation, Exchange, assistant, user

SEEDS = range(300)
CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>")


def test_same_seed_draws_the_same_conversation() -> None:
    first = [render(draw_conversation(Random(seed))) for seed in SEEDS]
    again = [render(draw_conversation(Random(seed))) for seed in SEEDS]
    assert first == again
    assert len(set(first)) > len(first) * 0.9


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("draw", [sums.single, sums.sheet, sums.word_problem])
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


def test_shipped_template_is_the_trained_one() -> None:
    root = Path(__file__).parents[2]
    shipped = json.loads((root / "builtin" / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    assert shipped == (root / "training" / "chat_template.jinja").read_text(encoding="utf-8").strip("\n")
