"""Tiny stories about named animals."""

from random import Random

from training.exercises.conversation import Exchange
from training.exercises.vocabulary import ANIMAL_NAMES, STORY_ANIMALS

PLACES = ["in a forest", "by a river", "on a farm", "near the sea", "in a quiet garden", "under an old tree"]
FINDS = ["a red ball", "a shiny key", "a small boat", "a golden leaf", "a lost letter", "a big blue egg", "a warm hat"]
WEATHER = ["One sunny morning", "One rainy day", "One cold evening", "One windy day", "One day in spring"]
FEELINGS = ["happy", "proud", "full of joy", "very glad"]
MEALS = ["a warm soup", "some sweet berries", "a big cake", "fresh bread and honey"]


def story(rng: Random) -> Exchange:
    animal, other = rng.sample(STORY_ANIMALS, 2)
    name, friend = rng.sample(ANIMAL_NAMES, 2)
    question, named = rng.choice(
        [
            (f"Tell me a story about {_a(animal)} called {name}.", True),
            (f"Tell me a tiny story about {_a(animal)} named {name}.", True),
            (f"Write a short story about {_a(animal)} called {name}.", True),
            (f"Tell me a story about {_a(animal)}.", True),
            (f"Write a story about {_a(animal)} and {_a(other)}.", True),
            ("Tell me a story.", False),
            ("Tell me a short story, please.", False),
        ]
    )
    assert named or animal
    return Exchange("story", question, _told(rng, animal, name, other, friend))


def _told(rng: Random, animal: str, name: str, other: str, friend: str) -> str:
    find = rng.choice(FINDS)
    opening = rng.choice(
        [
            f"Once upon a time there was {_a(animal)} called {name} who lived {rng.choice(PLACES)}.",
            f"{name} was {_a(rng.choice(['little', 'young', 'small', 'brave']) + ' ' + animal)} "
            f"who lived {rng.choice(PLACES)}.",
        ]
    )
    plots = [
        [
            f"{rng.choice(WEATHER)} {name} found {find}.",
            f'"Whose is this?" asked {name}.',
            f'"It is mine," said {friend} the {other}. "Thank you for finding it."',
            "From that day on they were friends.",
        ],
        [
            f"{rng.choice(WEATHER)} {name} met {_a(other)} called {friend}.",
            f'"I am lost," said {friend}.',
            f'"I will help you," said {name}, and together they walked all the way home.',
            f"{friend} was {rng.choice(FEELINGS)}.",
        ],
        [
            f"{rng.choice(WEATHER)} {name} was hungry.",
            f"So {name} went to see {friend} the {other}, who had made {rng.choice(MEALS)}.",
            f'"Come in and eat with me," said {friend}.',
            f"They ate until the moon was high, and {name} was {rng.choice(FEELINGS)}.",
        ],
        [
            f"{rng.choice(WEATHER)} {name} lost {find}.",
            f"{name} looked up and down, but could not find it.",
            f'Then {friend} the {other} came by. "Look behind you!" said {friend}.',
            f"There it was, and {name} was {rng.choice(FEELINGS)}.",
        ],
    ]
    return " ".join([opening, *rng.choice(plots)])


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
