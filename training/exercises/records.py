"""Filling a JSON record from a sentence."""

import json
import zlib
from random import Random

from training.exercises.conversation import Exchange
from training.exercises.names import a_city, a_person
from training.exercises.vocabulary import JOBS, THINGS

Record = dict[str, str | int]


def record(rng: Random, *, held_out: bool = False) -> Exchange:
    """A sentence and its record; `held_out` draws pairs of first values that training never sees together."""
    while True:
        sentence, filled = rng.choice([_person, _person, _worker, _order, _trip])(rng)
        first, second = list(filled.values())[:2]
        if (zlib.crc32(f"{first}/{second}".encode()) % 16 == 0) == held_out:
            break
    if len(filled) > 2 and rng.random() < 0.4:
        kept = rng.sample(list(filled), rng.randint(1, len(filled) - 1))
        filled = {key: filled[key] for key in kept}
    keys = list(filled)
    named = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    noun = "key" if len(keys) == 1 else "keys"
    question = rng.choice(
        [
            f"Fill in a JSON record with the {noun} {named}: {sentence}",
            f"Write this as JSON with the {noun} {named}. {sentence}",
            f"{sentence} Give me JSON with {named}.",
            f"Extract {named} as JSON: {sentence}",
        ]
    )
    return Exchange("json", question, json.dumps(filled), verbatim=True)


def _person(rng: Random) -> tuple[str, Record]:
    name, age, city = a_person(rng), rng.randint(5, 90), a_city(rng)
    sentence = rng.choice(
        [
            f"{name} is {age} years old and lives in {city}.",
            f"{name} lives in {city} and is {age} years old.",
            f"My friend {name} from {city} is {age}.",
        ]
    )
    return sentence, {"name": name, "age": age, "city": city}


def _worker(rng: Random) -> tuple[str, Record]:
    name, job, city = a_person(rng), rng.choice(JOBS), a_city(rng)
    sentence = rng.choice([f"{name} works as a {job} in {city}.", f"{name} is a {job} and lives in {city}."])
    return sentence, {"name": name, "job": job, "city": city}


def _order(rng: Random) -> tuple[str, Record]:
    name, count, item = a_person(rng), rng.randint(2, 50), rng.choice(THINGS)
    sentence = rng.choice([f"{name} buys {count} {item}.", f"{name} orders {count} {item}."])
    return sentence, {"name": name, "count": count, "item": item}


def _trip(rng: Random) -> tuple[str, Record]:
    start, end = a_city(rng), a_city(rng)
    hours = rng.randint(2, 20)
    sentence = rng.choice(
        [f"The train from {start} to {end} takes {hours} hours.", f"It takes {hours} hours from {start} to {end}."]
    )
    return sentence, {"from": start, "to": end, "hours": hours}
