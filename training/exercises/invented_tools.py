"""Tools that no training text repeats: names, parameters and values are drawn anew, and a call is read off them.

Several arguments or none, several tools of which one fits, and questions that none of them fits.
"""

# ruff: noqa: SIM905 - words in one line read better than one word per line

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from training.exercises.conversation import Conversation, Message, Tool, assistant, user
from training.exercises.names import a_city, a_code, a_made_up_word, a_person, is_held_out
from training.exercises.phrasing import phrased
from training.exercises.schemas import ANY_WORD_SHARE, spoken
from training.exercises.vocabulary import DAYS, MONTHS
from training.exercises.words import WORDS

VERBS = (
    "get find open close book cancel create delete update list show send check start stop order buy sell rent "
    "search add remove move copy read write print share block restart lock unlock track rate count load save plan "
    "invite"
).split()
NOUNS = (
    "flight hotel table ticket room order invoice user account file folder message email note task event meeting "
    "alarm song playlist photo video report recipe product parcel taxi car bike door window lamp heater printer "
    "server database backup page comment contact game player score course lesson patient doctor pet plant shop "
    "offer route"
).split()
PARAMETERS: dict[str, str] = {
    "city": "string", "name": "string", "origin": "string", "destination": "string", "from": "string", "to": "string",
    "date": "string", "day": "string", "month": "string", "id": "string", "user": "string", "title": "string",
    "colour": "string", "owner": "string", "query": "string", "code": "string", "guest": "string", "place": "string",
    "count": "integer", "number": "integer", "seats": "integer", "hours": "integer", "limit": "integer",
    "year": "integer", "floor": "integer", "size": "integer", "urgent": "boolean", "express": "boolean",
}  # fmt: skip
ORDERS = [
    "{} a {}", "{} the {}", "{} a {}", "{} the {}", "{} my {}", "{} that {}", "{} this {} for me",
    "Please {} the {}", "Please {} a {}", "Can you {} a {}", "Can you {} my {}", "Could you {} the {}",
    "Would you {} a {}", "I want to {} a {}", "I would like to {} the {}", "I need to {} a {}", "We have to {} the {}",
    "Help me {} a {}", "Let us {} a {}", "Now {} the {}", "Then {} a {}", "You should {} the {}", "We can {} a {} now",
    "My friend wants to {} a {}", "Who can {} the {}", "How do I {} a {}", "Do not forget to {} the {}",
    "It is important to {} the {}", "It would be good to {} a {}", "It is best to {} the {}", "It may help to {} a {}",
    "We are ready to {} the {}", "The plan is to {} a {}", "There is reason to {} the {}", "You may {} a {}",
    "We forgot to {} the {}", "Today we {} a {}", "Try to {} the {}", "She asks you to {} a {}",
    "It is time to {} a {}",
]  # fmt: skip
REFUSAL = "None of my tools can do that."


@dataclass(frozen=True)
class InventedTool:
    """A tool as it is offered, with its verb and noun."""

    verb: str
    noun: str
    name: str
    parameters: dict[str, str]
    definition: Tool


def conversation(rng: Random, *, held_out: bool = False) -> Conversation:
    """One to four tools and a question for one of them, its call, its result and the answer; sometimes a refusal."""
    offered = _several(rng, rng.choice([1, 1, 2, 2, 3, 4]), held_out=held_out)
    definitions = [tool.definition for tool in offered]
    if rng.random() < 0.15:
        other = _tool(rng, held_out=held_out)
        if all(other.verb != tool.verb and other.noun != tool.noun for tool in offered):
            question, _ = _question(rng, other, held_out=held_out)
            return Conversation(["no fitting tool"], [user(question), assistant(REFUSAL)], definitions)
    messages: list[Message] = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        messages += _used(rng, rng.choice(offered), held_out=held_out)
    return Conversation(["tool call"], messages, definitions)


def many_questions(rng: Random, *, held_out: bool = False) -> Conversation:
    """One to four tools and two to five questions: for one of them, or (half of them) for none, which is refused."""
    offered = _several(rng, rng.choice([1, 1, 2, 2, 3, 4]), held_out=held_out)
    tasks: list[str] = []
    messages: list[Message] = []
    for _ in range(rng.randint(2, 5)):
        if rng.random() < 0.5:
            tasks.append("tool call")
            messages += _used(rng, rng.choice(offered), held_out=held_out)
        else:
            tasks.append("no fitting tool")
            question, _ = _question(rng, _unlike(rng, offered, held_out=held_out), held_out=held_out)
            messages += [user(question), assistant(REFUSAL)]
    return Conversation(tasks, messages, [tool.definition for tool in offered])


def short_orders(rng: Random, *, held_out: bool = False) -> Conversation:
    """One or two tools and many orders of a few words, most of them for none: many decisions in few tokens."""
    offered = _several(rng, rng.choice([1, 1, 2]), held_out=held_out)
    messages: list[Message] = []
    for _ in range(rng.randint(4, 9)):
        if rng.random() < 0.35:
            messages += _used(rng, rng.choice(offered), held_out=held_out)
        else:
            other = _unlike(rng, offered, held_out=held_out)
            if rng.random() < 0.7:
                other = replace(other, parameters={})
            question, _ = _question(rng, other, held_out=held_out)
            messages += [user(question), assistant(REFUSAL)]
    return Conversation(["no fitting tool"], messages, [tool.definition for tool in offered])


def _used(rng: Random, tool: InventedTool, *, held_out: bool) -> list[Message]:
    """A question for the tool, its call, the result, and the answer."""
    question, arguments = _question(rng, tool, held_out=held_out)
    result, answer = _result(rng, tool, held_out=held_out)
    call = {"name": tool.name, "arguments": arguments}
    return [
        user(question),
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": result},
        assistant(answer),
    ]


def _unlike(rng: Random, offered: list[InventedTool], *, held_out: bool) -> InventedTool:
    """A tool that none of the offered ones is."""
    while True:
        other = _tool(rng, held_out=held_out)
        if all(other.verb != tool.verb and other.noun != tool.noun for tool in offered):
            return other


def _several(rng: Random, count: int, *, held_out: bool) -> list[InventedTool]:
    """Tools that differ in verb and noun, so that a question fits one alone."""
    tools: list[InventedTool] = []
    while len(tools) < count:
        tool = _tool(rng, held_out=held_out)
        if all(tool.verb != other.verb and tool.noun != other.noun for other in tools):
            tools.append(tool)
    return tools


def _tool(rng: Random, *, held_out: bool) -> InventedTool:
    while True:
        verb, noun = rng.choice(VERBS), rng.choice(NOUNS)
        if rng.random() < 0.2:
            noun = a_made_up_word(rng, held_out=held_out)
        elif not held_out and rng.random() < ANY_WORD_SHARE:
            noun = rng.choice(WORDS)
        if is_held_out(f"{verb} {noun}") == held_out:
            break
    name = rng.choice([f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}{noun.capitalize()}", f"{noun}_{verb}"])
    chosen = rng.sample(list(PARAMETERS), rng.choice([0, 0, 1, 1, 2, 2, 3]))
    parameters = {key: PARAMETERS[key] for key in chosen}
    schema: dict[str, Any] = {"type": "object", "properties": {key: {"type": kind} for key, kind in parameters.items()}}
    if parameters or rng.random() < 0.5:
        schema["required"] = list(parameters)
    described = rng.choice([f"{verb.capitalize()} a {noun}.", f"{verb.capitalize()} the {noun}", f"{verb} {noun}"])
    definition = {"type": "function", "function": {"name": name, "description": described, "parameters": schema}}
    return InventedTool(verb, noun, name, parameters, definition)


def _question(rng: Random, tool: InventedTool, *, held_out: bool) -> tuple[str, dict[str, Any]]:
    """A question for the tool that says every argument, and the arguments."""
    arguments = {key: _value(rng, key, kind, held_out=held_out) for key, kind in tool.parameters.items()}
    order = phrased(rng, ORDERS, held_out=held_out)
    verb = tool.verb.capitalize() if order.startswith("{}") else tool.verb
    asked = order.format(verb, tool.noun)
    said = dict(arguments)
    start, end = ("origin", "destination") if "origin" in said else ("from", "to")
    if start in said and end in said:
        asked += f" from {said.pop(start)} to {said.pop(end)}"
    if "city" in said and rng.random() < 0.6:
        asked += f" in {said.pop('city')}"
    if said:
        joined = [f"{spoken(key)} {json.dumps(v) if isinstance(v, bool) else v}" for key, v in said.items()]
        asked += rng.choice([" with ", ": ", ", "]) + rng.choice([", ", " and "]).join(joined)
    return asked + rng.choice([".", ".", "", "?"]), arguments


def _value(rng: Random, key: str, kind: str, *, held_out: bool) -> Any:
    if kind == "integer":
        return rng.randint(1900, 2030) if key == "year" else rng.randint(1, 99)
    if kind == "boolean":
        return rng.random() < 0.5
    if key == "day":
        return rng.choice(DAYS)
    if key == "month":
        return rng.choice(MONTHS)
    if key == "date":
        return f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    if key in {"city", "origin", "destination", "from", "to", "place"}:
        return a_city(rng, held_out=held_out)
    if key in {"name", "user", "owner", "guest"}:
        return a_person(rng, held_out=held_out)
    return (a_code if key in {"id", "code"} else a_made_up_word)(rng, held_out=held_out)


def _result(rng: Random, tool: InventedTool, *, held_out: bool) -> tuple[str, str]:
    """What the tool returns, and the answer in words, which holds a value of it."""
    code, count = a_code(rng, held_out=held_out), rng.randint(1, 99)
    return rng.choice(
        [
            (json.dumps({"id": code}), f"Done. The id is {code}."),
            (json.dumps({"status": "ok", "code": code}), f"Done. The code is {code}."),
            (json.dumps({"count": count}), f"Done. The count is {count}."),
            (json.dumps({"error": "not found"}), "It did not work: not found."),
            ("ok", "Done."),
        ]
    )
