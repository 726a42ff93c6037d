"""Names of people and places: mostly from the closed lists, now and then invented, so that copying is learned."""

from random import Random

from training.exercises.vocabulary import CITIES, PEOPLE

INVENTED_SHARE = 0.15

ONSETS = "B Br C Ch D F G H J K L M N P R S Sh St T Tr V W Z".split()  # noqa: SIM905
VOWELS = "a e i o u ai ea ee ia oo".split()  # noqa: SIM905
MIDDLES = "b d l ll m n nn r rd s st t v z".split()  # noqa: SIM905
ENDS = ["a", "e", "o", "y", "an", "en", "in", "ia", "us", "el", "ie", "or"]
PLACE_ENDS = ["ton", "burg", "ville", "field", "ford", "port", "holm", "wick", "stad", "mouth"]


def a_person(rng: Random) -> str:
    return _invented(rng) if rng.random() < INVENTED_SHARE else rng.choice(PEOPLE)


def a_city(rng: Random) -> str:
    if rng.random() < INVENTED_SHARE:
        return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(MIDDLES) + rng.choice(PLACE_ENDS)
    return rng.choice(CITIES)


def _invented(rng: Random) -> str:
    name = rng.choice(ONSETS) + rng.choice(VOWELS)
    if rng.random() < 0.8:
        name += rng.choice(MIDDLES) + rng.choice(ENDS)
    return name
