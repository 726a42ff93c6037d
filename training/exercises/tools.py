"""Conversations in which a tool is offered, called in the given format, and its result put into words."""

import json
from random import Random

from training.exercises.conversation import Conversation, Message, assistant, system, user
from training.exercises.toolbox import MAKERS, Arguments, OfferedTool, Use

REPEATABLE = {"get_weather", "get_current_weather", "weather", "get_time", "current_time", "clock"}


def conversation(rng: Random) -> Conversation:
    """One to three tools, of which the first fits the question; now and then two calls, or a second question."""
    # Each kind of tool at most once, or the question would fit two of them.
    makers = dict.fromkeys(rng.choices(MAKERS, k=rng.choice([1, 1, 2, 3])))
    offered = [maker(rng) for maker in makers]
    fitting = offered[0]
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append(system(rng.choice(["You are a helpful assistant.", "Use the tools.", "Be kind and brief."])))
    if fitting.definition["function"]["name"] in REPEATABLE and rng.random() < 0.12:
        messages += _asked_for_two(rng, fitting)
    else:
        messages += _asked(rng, fitting)
        if rng.random() < 0.25:
            messages += _asked(rng, rng.choice(offered))
    tools = [tool.definition for tool in offered]
    rng.shuffle(tools)
    return Conversation(["tool call"], messages, tools)


def unneeded(rng: Random, question: str, answer: str) -> Conversation:
    """A question that needs no tool, asked while some are offered."""
    offered = [maker(rng).definition for maker in dict.fromkeys(rng.choices(MAKERS, k=rng.choice([1, 1, 2])))]
    return Conversation(["no tool needed"], [user(question), assistant(answer)], offered)


def _asked(rng: Random, tool: OfferedTool) -> list[Message]:
    use = tool.use(rng)
    question = use.question
    if rng.random() < 0.1:
        question = f"Use {tool.name}. {question}"
    return [user(question), _calls(rng, [(tool.name, use.arguments)]), _returned(use), assistant(use.answer)]


def _asked_for_two(rng: Random, tool: OfferedTool) -> list[Message]:
    first, second = tool.use(rng), tool.use(rng)
    while first.arguments == second.arguments:
        second = tool.use(rng)
    city, other = (next(iter(use.arguments.values())) for use in (first, second))
    what = "weather" if "weather" in tool.name else "time"
    asked = rng.choice([f"What is the {what} in {city} and in {other}?", f"Tell me the {what} in {city} and {other}."])
    calls = [(tool.name, first.arguments), (tool.name, second.arguments)]
    answer = f"{first.answer} {second.answer}"
    return [user(asked), _calls(rng, calls), _returned(first), _returned(second), assistant(answer)]


def _calls(rng: Random, calls: list[tuple[str, Arguments]]) -> Message:
    as_text = rng.random() < 0.5
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{rng.randrange(10**6)}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments},
            }
            for name, arguments in calls
        ],
    }


def _returned(use: Use) -> Message:
    return {"role": "tool", "content": use.result if isinstance(use.result, str) else json.dumps(use.result)}
