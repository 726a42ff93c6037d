"""Names of people, places and things: some from the closed lists, many invented, so that copying is learned.

One in sixteen of the invented ones is held out: training never draws it.
"""

import zlib
from collections.abc import Callable
from random import Random

from training.exercises.vocabulary import CITIES, PEOPLE

INVENTED_SHARE = 0.4

ONSETS = "B Br C Ch D F G H J K L M N P R S Sh St T Tr V W Z".split()  # noqa: SIM905
VOWELS = "a e i o u ai ea ee ia oo".split()  # noqa: SIM905
MIDDLES = "b d l ll m n nn r rd s st t v z".split()  # noqa: SIM905
ENDS = ["a", "e", "o", "y", "an", "en", "in", "ia", "us", "el", "ie", "or"]
PLACE_ENDS = ["ton", "burg", "ville", "field", "ford", "port", "holm", "wick", "stad", "mouth"]

NEVER = {"shit", "tit", "tits"}

HELD_OUT_PARTS = 16


def is_held_out(text: str) -> bool:
    """Whether training never sees this invented text: one in sixteen of all texts."""
    return zlib.crc32(text.encode()) % HELD_OUT_PARTS == 0


def a_person(rng: Random, *, held_out: bool = False) -> str:
    """A name of a person; with `held_out`, an invented one that training never sees."""
    if held_out or rng.random() < INVENTED_SHARE:
        return _drawn(rng, _invented_person, held_out=held_out)
    return rng.choice(PEOPLE)


def a_city(rng: Random, *, held_out: bool = False) -> str:
    """A name of a city; with `held_out`, an invented one that training never sees."""
    if held_out or rng.random() < INVENTED_SHARE:
        return _drawn(rng, _invented_city, held_out=held_out)
    return rng.choice(CITIES)


def a_code(rng: Random, *, held_out: bool = False) -> str:
    """An identifier as orders, rooms and users have them: "KX-204", "b71f", "user_38"."""
    return _drawn(rng, _code, held_out=held_out)


def a_made_up_word(rng: Random, *, held_out: bool = False) -> str:
    """A word of small letters that means nothing: "tarvol"."""
    return _drawn(rng, lambda rng: (_invented_person(rng) + rng.choice(["", "l", "m", "t"])).lower(), held_out=held_out)


def _drawn(rng: Random, make: Callable[[Random], str], *, held_out: bool) -> str:
    while True:
        name = make(rng)
        if is_held_out(name) == held_out and name.lower() not in NEVER:
            return name


def _invented_person(rng: Random) -> str:
    name = rng.choice(ONSETS) + rng.choice(VOWELS)
    if rng.random() < 0.8:
        name += rng.choice(MIDDLES) + rng.choice(ENDS)
    return name


def _invented_city(rng: Random) -> str:
    return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(MIDDLES) + rng.choice(PLACE_ENDS)


def _code(rng: Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHKLMNPRSTVXZ", k=rng.randint(1, 3)))
    number = rng.randint(1, 9999)
    return rng.choice(
        [f"{letters}-{number}", f"{letters}{number}", f"{letters.lower()}{number}", f"user_{number}", f"#{number}",
         f"{number:04x}", f"{letters.lower()}_{number}"]
    )  # fmt: skip
