"""The tools on offer: their definitions under varied names, and questions that need them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from training.exercises.conversation import Tool
from training.exercises.names import a_city, a_person
from training.exercises.vocabulary import CITIES, DAYS, ITEM_PRICES, MONTHS, PEOPLE

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Use:
    """One use of a tool: what is asked, the call that follows, what the tool returns, what is then answered."""

    question: str
    arguments: Arguments
    result: Any
    answer: str


@dataclass(frozen=True)
class OfferedTool:
    """A tool under the name and parameter names it has in one conversation."""

    definition: Tool
    use: Callable[[Random], Use]

    @property
    def name(self) -> str:
        return str(self.definition["function"]["name"])


def _defined(name: str, description: str, parameters: dict[str, dict[str, Any]]) -> Tool:
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _typed(rng: Random, kind: str, description: str) -> dict[str, Any]:
    return {"type": kind, "description": description} if rng.random() < 0.3 else {"type": kind}


def _weather(rng: Random) -> OfferedTool:
    name = rng.choice(["get_weather", "get_weather", "get_current_weather", "weather"])
    where = rng.choice(["city", "city", "location", "place"])
    described = rng.choice(["Get the weather in a city.", "Get the current weather.", "The weather now.", "Weather"])
    parameters: dict[str, dict[str, Any]] = {where: _typed(rng, "string", "The city")}
    unit = rng.choice(["unit", None, None])
    if unit:
        parameters[unit] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    definition = _defined(name, described, parameters)
    if unit:
        definition["function"]["parameters"]["required"] = [where]

    def use(rng: Random) -> Use:
        city, degrees = a_city(rng), rng.randint(0, 35)
        sky = rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "clear"])
        asked = rng.choice(
            ["What is the weather in {}?", "What's the weather like in {}?", "How is the weather in {}?",
             "Tell me the weather in {}.", "How warm is it in {}?", "What is the weather in {} today?",
             "Is it raining in {}?"]
        ).format(city)  # fmt: skip
        arguments = {where: city}
        if unit and rng.random() < 0.4:
            arguments[unit] = rng.choice(["celsius", "fahrenheit"])
            asked = f"{asked[:-1]} in {arguments[unit]}{asked[-1]}"
        result: Any = rng.choice(
            [
                {"temperature": degrees, "sky": sky},
                {"temperature": degrees, "conditions": sky},
                {where: city, "temperature": degrees, "sky": sky},
                f"{degrees} degrees and {sky}",
                f"{sky}, {degrees} degrees",
            ]
        )
        return Use(asked, arguments, result, f"It is {degrees} degrees and {sky} in {city}.")

    return OfferedTool(definition, use)


def _clock(rng: Random) -> OfferedTool:
    name, where = rng.choice(["get_time", "current_time", "clock"]), rng.choice(["city", "place"])
    described = rng.choice(["Get the time in a city.", "Tell the time."])

    def use(rng: Random) -> Use:
        city, time = a_city(rng), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
        asked = rng.choice(["What time is it in {}?", "Tell me the time in {}.", "What is the time in {}?"])
        result: Any = rng.choice([{"time": time}, time])
        return Use(asked.format(city), {where: city}, result, f"It is {time} in {city}.")

    return OfferedTool(_defined(name, described, {where: _typed(rng, "string", "The city")}), use)


def _adder(rng: Random) -> OfferedTool:
    name, verb = rng.choice([("add", "Add"), ("add_numbers", "Add"), ("multiply", "Multiply")])
    left, right = rng.choice([("a", "b"), ("x", "y"), ("first", "second")])

    def use(rng: Random) -> Use:
        a, b = rng.randint(1, 999), rng.randint(1, 999)
        found, word = (a * b, "times") if verb == "Multiply" else (a + b, "plus")
        asked = rng.choice([f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", f"{verb} {a} and {b}."])
        result: Any = rng.choice([{"result": found}, str(found)])
        return Use(asked, {left: a, right: b}, result, f"{a} {word} {b} is {found}.")

    number = rng.choice(["integer", "number"])
    return OfferedTool(_defined(name, f"{verb} two numbers.", {left: {"type": number}, right: {"type": number}}), use)


def _timer(rng: Random) -> OfferedTool:
    name, key = rng.choice(["set_timer", "start_timer"]), rng.choice(["minutes", "duration"])

    def use(rng: Random) -> Use:
        minutes = rng.randint(2, 60)
        asked = rng.choice([f"Set a timer for {minutes} minutes.", f"Please wake me in {minutes} minutes."])
        return Use(asked, {key: minutes}, rng.choice(["ok", {"status": "ok"}]), f"The timer is set: {minutes} minutes.")

    return OfferedTool(_defined(name, "Set a timer.", {key: _typed(rng, "integer", "Minutes to wait")}), use)


def _price(rng: Random) -> OfferedTool:
    name, key = rng.choice(["get_price", "find_price"]), rng.choice(["item", "product"])

    def use(rng: Random) -> Use:
        item, price = rng.choice(list(ITEM_PRICES)), rng.randint(1, 20)
        asked = rng.choice([f"How much does {item} cost?", f"What is the price of {item}?", f"What does {item} cost?"])
        result: Any = rng.choice([{"price": price}, {"price": price, "currency": "euro"}, f"{price} euros"])
        return Use(asked, {key: item}, result, f"The price of {item} is {price} euros.")

    return OfferedTool(_defined(name, "Find the price of an item.", {key: _typed(rng, "string", "The item")}), use)


def _message(rng: Random) -> OfferedTool:
    name, whom = rng.choice(["send_message", "send_email"]), rng.choice(["to", "recipient"])
    body = rng.choice(["text", "message", "body"])

    def use(rng: Random) -> Use:
        person = a_person(rng)
        words = rng.choice(
            ["I am late", "dinner is ready", "see you soon", "call me", "the train is late", "thank you"]
        )
        asked = rng.choice([f"Tell {person}: {words}", f"Send {person} this message: {words}"])
        return Use(asked, {whom: person, body: words}, rng.choice(["sent", {"status": "sent"}]), f"I told {person}.")

    parameters = {whom: _typed(rng, "string", "Who gets it"), body: _typed(rng, "string", "What to say")}
    return OfferedTool(_defined(name, "Send a message to a person.", parameters), use)


def _search(rng: Random) -> OfferedTool:
    name = rng.choice(["search", "web_search", "lookup"])
    key = rng.choice(["query", "query", "text"])

    def use(rng: Random) -> Use:
        topic = rng.choice(
            ["the moon", "honey bees", "old ships", "green tea", "the first train", "steam engines", "black holes",
             "chess", "wild horses", "the Nile", "paper", "volcanoes", "whales", "bread", "the violin"]
        )  # fmt: skip
        fact = rng.choice(["There are many books about it", "It is very old", "It is known all over the world"])
        asked = rng.choice([f"Search for {topic}.", f"Look up {topic}.", f"Find something about {topic}."])
        return Use(asked, {key: topic}, rng.choice([fact, {"result": fact}]), f"I found this about {topic}: {fact}.")

    return OfferedTool(_defined(name, "Search for a text.", {key: _typed(rng, "string", "What to find")}), use)


def _light(rng: Random) -> OfferedTool:
    name = rng.choice(["set_light", "switch_light"])

    def use(rng: Random) -> Use:
        room, on = rng.choice(["kitchen", "bedroom", "garden", "office", "hall"]), rng.random() < 0.5
        state = "on" if on else "off"
        asked = rng.choice([f"Turn {state} the light in the {room}.", f"Switch the {room} light {state}."])
        return Use(asked, {"room": room, "on": on}, rng.choice(["ok", "done"]), f"The light in the {room} is {state}.")

    definition = _defined(name, "Turn a light on or off.", {"room": {"type": "string"}, "on": {"type": "boolean"}})
    return OfferedTool(definition, use)


def _age(rng: Random) -> OfferedTool:
    name, key = rng.choice(["get_age", "find_person", "get_user"]), rng.choice(["name", "person"])

    def use(rng: Random) -> Use:
        person, age = a_person(rng), rng.randint(5, 90)
        asked = rng.choice([f"How old is {person}?", f"What is the age of {person}?", f"Find the age of {person}."])
        return Use(asked, {key: person}, rng.choice([{"age": age}, str(age)]), f"{person} is {age} years old.")

    return OfferedTool(_defined(name, "Find out about a person.", {key: _typed(rng, "string", "The name")}), use)


def _made_up(rng: Random) -> OfferedTool:
    """A tool of any name with any parameters, so that a call must be read off its definition."""
    verb = rng.choice(["find", "open", "book", "buy", "read", "check", "order", "start", "clean", "paint", "make"])
    noun = rng.choice(["table", "ticket", "door", "letter", "room", "report", "song", "boat", "machine", "list", "car"])
    name = rng.choice([f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}_the_{noun}", f"{verb}{noun.capitalize()}"])
    kinds = {
        "day": DAYS, "month": MONTHS, "colour": ["red", "green", "blue", "black", "white"], "name": PEOPLE,
        "owner": PEOPLE, "city": CITIES, "from": CITIES, "number": range(1, 100), "count": range(1, 30),
        "size": range(1, 50), "id": range(100, 1000), "fast": [True, False],
    }  # fmt: skip
    keys = rng.sample(list(kinds), rng.choice([1, 2, 2, 3]))
    types = {str: "string", bool: "boolean", int: "integer"}
    parameters: dict[str, dict[str, Any]] = {key: {"type": types[type(kinds[key][0])]} for key in keys}

    def use(rng: Random) -> Use:
        arguments = {key: rng.choice(kinds[key]) for key in keys}
        spelled = [
            f"{key} {json.dumps(value) if isinstance(value, bool) else value}" for key, value in arguments.items()
        ]
        order = rng.choice([f"{verb.capitalize()} a {noun}", f"Please {verb} the {noun}", f"Use {name}"])
        asked = rng.choice([f"{order} with {' and '.join(spelled)}.", f"{order}: {', '.join(spelled)}."])
        result = rng.choice(["ok", "done", {"status": "done"}])
        return Use(asked, arguments, result, "Done.")

    return OfferedTool(_defined(name, f"{verb.capitalize()} a {noun}.", parameters), use)


MAKERS: list[Callable[[Random], OfferedTool]] = [
    _weather, _weather, _made_up, _made_up, _clock, _adder, _timer, _price, _message, _search, _light, _age
]  # fmt: skip
