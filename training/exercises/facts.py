"""Questions about small closed lists of facts: capitals, opposites, colours, sounds, definitions."""

from random import Random

from training.exercises.conversation import Exchange
from training.exercises.vocabulary import CAPITALS, COLOURS, DEFINITIONS, OPPOSITES, SOUNDS


def capital(rng: Random) -> Exchange:
    country, city = rng.choice(list(CAPITALS.items()))
    if rng.random() < 0.2:
        question = rng.choice([f"{city} is the capital of which country?", f"Which country has the capital {city}?"])
        return Exchange("capital", question, f"{city} is the capital of {country}.", short=country.removeprefix("the "))
    question = rng.choice(
        ["What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.",
         "Tell me the capital of {}.", "What's the capital of {}?", "Do you know the capital of {}?",
         "What is the capital city of {}?"]
    )  # fmt: skip
    return Exchange("capital", question.format(country), f"The capital of {country} is {city}.", short=city)


def opposite(rng: Random) -> Exchange:
    word, other = rng.choice(list(OPPOSITES.items()))
    if rng.random() < 0.5:
        word, other = other, word
    question = rng.choice(
        ["What is the opposite of {}?", "What is the opposite of '{}'?", "Which word is the opposite of {}?",
         "Give me the opposite of {}.", "Name the opposite of {}.", "What's the opposite of {}?"]
    )  # fmt: skip
    return Exchange("opposite", question.format(word), f"The opposite of {word} is {other}.", short=other)


def colour(rng: Random) -> Exchange:
    thing, seen = rng.choice(list(COLOURS.items()))
    question = rng.choice(
        ["What colour is {}?", "Which colour is {}?", "What is the colour of {}?", "What color is {}?",
         "Tell me the colour of {}."]
    )  # fmt: skip
    return Exchange("colour", question.format(thing), f"{_sentence(thing)} is {seen}.", short=seen)


def sound(rng: Random) -> Exchange:
    animal, heard = rng.choice(list(SOUNDS.items()))
    asked = rng.choice(["What does a {} say?", "What sound does a {} make?", "Which sound does a {} make?"])
    question = asked.format(animal).replace("a owl", "an owl")
    article = "An" if animal == "owl" else "A"
    return Exchange("sound", question, f"{article} {animal} says {heard}.", short=heard)


def definition(rng: Random) -> Exchange:
    thing, meaning = rng.choice(list(DEFINITIONS.items()))
    question = rng.choice(["What is {}?", "What is {}?", "Explain what {} is.", "Tell me what {} is.", "Define {}."])
    return Exchange("definition", question.format(thing), f"{_sentence(thing)} is {meaning}.")


def yes_or_no(rng: Random) -> Exchange:
    """A claim about a capital or a colour, which is true half of the time."""
    if rng.random() < 0.5:
        country, right = rng.choice(list(CAPITALS.items()))
        claimed = right if rng.random() < 0.5 else rng.choice(list(CAPITALS.values()))
        question, truth = f"Is {claimed} the capital of {country}?", f"The capital of {country} is {right}."
    else:
        thing, right = rng.choice(list(COLOURS.items()))
        claimed = right if rng.random() < 0.5 else rng.choice(list(COLOURS.values()))
        question, truth = f"Is {thing} {claimed}?", f"{_sentence(thing)} is {right}."
    verdict = "Yes" if claimed == right else "No"
    return Exchange("yes or no", question, f"{verdict}. {truth}", short=verdict)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
