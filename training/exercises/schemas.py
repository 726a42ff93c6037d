"""JSON for schemas never seen: keys drawn from many words, and a text that says the value of each."""

# ruff: noqa: SIM905 - words in one line read better than one word per line

import json
from collections.abc import Callable
from random import Random
from typing import Any

from training.exercises.conversation import Conversation, Exchange, Message, assistant, user
from training.exercises.drills import a_word
from training.exercises.names import a_city, a_code, a_made_up_word, a_person, is_held_out
from training.exercises.phrasing import phrased
from training.exercises.vocabulary import DAYS, MONTHS
from training.exercises.words import WORDS

Value = str | int | float | bool

STRING_KEYS = (
    "name title city town street country owner author editor teacher driver colour brand model category status "
    "kind language team player captain room label code ticket serial reference customer seller sender receiver "
    "company department product plant animal river hotel station airport airline ship song artist album recipe "
    "dish drink material shape pattern project task branch version host region zone species genre format mood "
    "season sport club"
).split()
NUMBER_KEYS = (
    "age price count amount quantity total year height width depth length weight size speed floor seats pages "
    "rating score points level rank distance duration minutes hours days stock rooms guests visitors members "
    "copies wheels doors capacity temperature power voltage budget salary discount balance population area"
).split()
FLAG_KEYS = "active paid open closed public private new sold ready urgent verified hidden fragile organic".split()

SIBLING_SHARE = 0.25  # of the trained keys share their word with one before, as `seats` and `net_seats`
FRACTION_SHARE, HELD_OUT_FRACTION_SHARE = 0.3, 0.15  # of the numbers have a fraction, which is to stay with its number
ANY_WORD_SHARE = 0.5  # of the trained keys: any English word, whatever it would mean, so that keys are read

VERBS = (
    "Extract|Find|Give|Give me|Return|Write|Write down|List|Tell me|Pick out|Take|Collect|Read off|Note|Show|Print|Get|"
    "I want|We want|She wants|They want|I would like|Could you give me|Can you find|Can we have|Let me have|Let us see|"
    "You should find|We are looking for|They asked for|My boss wants|The form has|We only want|Please look up|Send me|"
    "What are|What we want is|Fields:|Keys:"
).split("|")
COMPOSED_SHARE = 0.8  # of the trained questions: wordings put together, so that no single one is waited for
ANY_ORDER_SHARE = 0.6  # of those: any words in place of the verb, so that the keys are found by their place alone
SUBJECTS = ["", "", "I ", "We ", "You ", "They ", "Please ", "She ", "Now ", "Can you ", "Let us ", "To "]
HELD_OUT_ORDER = {"need"}  # the verb of the wording that is held out

HEADS = ["first", "last", "main", "home", "old", "next", "net", "max", "min", "order", "user", "item", "car", "book"]


def extraction(rng: Random, *, held_out: bool = False) -> Exchange:
    """A text and the JSON of what it says, for a schema that is given in one of several ways."""
    keys = _keys(rng, rng.choice([1, 2, 2, 3, 3, 4]), held_out=held_out)
    record: dict[str, Value] = {}
    kinds: dict[str, str] = {}
    for key in keys:
        kinds[key], record[key] = _value(rng, key, held_out=held_out)
    told = list(record.items())
    if rng.random() < 0.3:  # something the schema does not ask for
        key = _keys(rng, 1, held_out=held_out)[0]
        if key not in record:
            told.append((key, _value(rng, key, held_out=held_out)[1]))
    rng.shuffle(told)
    text = _told(rng, told)
    question = _asked(rng, text, kinds, held_out=held_out)
    return Exchange("json", question, json.dumps(record), verbatim=True)


def several_orders(rng: Random, *, held_out: bool = False) -> Conversation:
    """One text, and one order after another for JSON of some of what it says: many choices of keys in few tokens."""
    kinds: dict[str, str] = {}
    record: dict[str, Value] = {}
    for key in _keys(rng, rng.randint(2, 6), held_out=held_out):
        kinds[key], record[key] = _value(rng, key, held_out=held_out)
    text = _told(rng, rng.sample(list(record.items()), len(record)))
    messages: list[Message] = []
    for place in range(rng.randint(2, 6)):
        asked = rng.sample(list(record), rng.choice([1, 1, 2, 3]) if len(record) > 2 else rng.randint(1, len(record)))
        chosen = {key: kinds[key] for key in asked}
        if place == 0:
            question = _asked(rng, text, chosen, held_out=held_out)
        else:
            question = _order(rng, _listed(rng, asked), json.dumps(_schema(chosen))) + rng.choice([".", "", "?"])
        messages += [user(question), assistant(json.dumps({key: record[key] for key in asked}))]
    return Conversation(["json"], messages)


def _keys(rng: Random, count: int, *, held_out: bool) -> list[str]:
    keys: dict[str, None] = {}
    while len(keys) < count:
        key = rng.choice([*STRING_KEYS, *NUMBER_KEYS, *FLAG_KEYS])
        if not held_out and rng.random() < ANY_WORD_SHARE:
            key = rng.choice(WORDS)
        if not held_out and keys and rng.random() < SIBLING_SHARE:
            key = spoken(rng.choice(list(keys))).rpartition(" ")[2]
        if rng.random() < 0.4:
            head = rng.choice(HEADS)
            key = rng.choice([f"{head}_{key}", f"{head}{key.capitalize()}"])
        if is_held_out(key) == held_out:
            keys[key] = None
    return list(keys)


def _value(rng: Random, key: str, *, held_out: bool) -> tuple[str, Value]:
    """The type of the key's value in JSON Schema, and a value."""
    plain = key.rpartition("_")[2].lower()
    if any(plain.endswith(word) for word in FLAG_KEYS):
        return "boolean", rng.random() < 0.5
    if any(plain.endswith(word) for word in NUMBER_KEYS):
        if rng.random() < (HELD_OUT_FRACTION_SHARE if held_out else FRACTION_SHARE):
            return "number", rng.randint(1, 99) + rng.choice([0.5, 0.25, 0.75])
        return "integer", rng.choice([rng.randint(1, 99), rng.randint(100, 2999)])
    draw: Callable[..., str] = rng.choice([a_person, a_city, a_code, a_made_up_word])
    if rng.random() < 0.15:
        return "string", rng.choice([*DAYS, *MONTHS])
    return "string", draw(rng, held_out=held_out)


def spoken(key: str) -> str:
    """The key as it is said in a sentence: `first_name` and `firstName` are both "first name"."""
    split = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in key)
    return split.replace("_", " ")


def _told(rng: Random, told: list[tuple[str, Value]]) -> str:
    manner = rng.random()
    if manner < 0.25:
        return "\n".join(f"{spoken(key).capitalize()}: {_said(value)}" for key, value in told)
    if manner < 0.45:
        return ", ".join(f"{spoken(key)} {_said(value)}" for key, value in told)
    return " ".join(_sentence(rng, spoken(key), value) for key, value in told)


def _sentence(rng: Random, key: str, value: Value) -> str:
    if isinstance(value, bool):
        return f"It is {'' if value else 'not '}{key}."
    return rng.choice(["The {} is {}.", "Its {} is {}.", "The {} was {}.", "We noted {} as {}."]).format(key, value)


def _said(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _asked(rng: Random, text: str, kinds: dict[str, str], *, held_out: bool) -> str:
    keys = list(kinds)
    named = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    shape = "{" + ", ".join(f'"{key}": {kind}' for key, kind in kinds.items()) + "}"
    ways = [
        f"Extract {named} as JSON: {text}",
        f"{text}\nGive me JSON with {named}.",
        f"Write this as JSON with the keys {named}. {text}",
        f"Fill in this JSON: {shape}\n{text}",
        f"Extract as JSON of this schema: {json.dumps(_schema(kinds))}\n{text}",
        f"{text}\n\nAnswer in JSON: {shape}",
        f"From this text: {text}\nI need {named}, as JSON.",
    ]
    if not held_out and rng.random() < COMPOSED_SHARE:
        return _composed(rng, text, _listed(rng, keys), rng.choice([shape, json.dumps(_schema(kinds))]))
    return phrased(rng, ways, held_out=held_out)


def _schema(kinds: dict[str, str]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}


def _listed(rng: Random, keys: list[str]) -> str:
    """The keys in a row, in one of the ways in which people write them."""
    if len(keys) == 1:
        return rng.choice(["{}", "{}", "{}", '"{}"', "`{}`"]).format(keys[0])
    between, last = rng.choice(
        [(", ", " and "), (", ", " and "), (", ", " and "), (", ", ", and "), (", ", ", "), (" and ", " and "),
         ("; ", "; "), (" ", " "), ("/", "/")]
    )  # fmt: skip
    shown = [rng.choice(['"{}"', "`{}`"]).format(key) for key in keys] if rng.random() < 0.1 else keys
    return between.join(shown[:-1]) + last + shown[-1]


def _composed(rng: Random, text: str, named: str, schema: str) -> str:
    """One of many wordings: an order with the keys or a schema, before or after the text."""
    order = rng.choice(["", "", "", "Please: ", "Now: ", "Task: ", "Your task is this. "]) + _order(rng, named, schema)
    shown = rng.choice(
        ["{}", "{}", "Text: {}", "Note: {}", "Here it is: {}", "We read: {}", '"{}"', "Input: {}",
         "This is the text: {}", "From a letter: {}", *[f"{_words(rng).capitalize()}: {{}}"] * 6]
    )  # fmt: skip
    joined = rng.choice(["\n", "\n\n", " "])
    if rng.random() < 0.4:
        return f"{order}{rng.choice([':', '.', ''])}{joined}{shown.format(text)}"
    return f"{shown.format(text)}{joined}{order}{rng.choice(['.', '.', '', '?', ', please.'])}"


def _order(rng: Random, named: str, schema: str) -> str:
    """An order that names the keys, mostly, or gives a schema."""
    if rng.random() > 0.75:
        said = rng.choice(["Fill this", "Use this schema", "Follow this form", "JSON like this", "As in", _words(rng)])
        return f"{said}: {schema}"
    verb = rng.choice(VERBS)
    if rng.random() < ANY_ORDER_SHARE:
        verb = rng.choice(SUBJECTS) + _words(rng)
        verb = verb[0].upper() + verb[1:]
    form = rng.choice(["as JSON", "in JSON", "as a JSON object", "as JSON, and nothing else", "in JSON form"])
    named = rng.choice([named, named, f"the {named}", f"{named} of this"])
    order = rng.choice(["{0} {1} {2}", "{0} {1}, {2}", "{2}: {1}", "{0} {2} {1}", "{0} {1}, {2}", "JSON with {1}"])
    return order.format(verb, named, form)


def _words(rng: Random) -> str:
    """One to three English words, whatever they mean."""
    drawn: list[str] = []
    while len(drawn) < 1 or rng.random() < 0.4:
        word = a_word(rng)
        if word not in HELD_OUT_ORDER:
            drawn.append(word)
    return " ".join(drawn)
