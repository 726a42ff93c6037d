"""Questions whose answer stands in the question: repeating, and looking up what was just said."""

from random import Random

from training.exercises.conversation import Exchange
from training.exercises.names import a_city, a_person
from training.exercises.vocabulary import COLOURS, JOBS, OBJECTS, PLURALS, THINGS, VERBS

SENTENCES = ["This is a test.", "Hello!", "Good morning!", "All is well.", "One, two, three.", "The door is open."]


def echo(rng: Random) -> Exchange:
    said = rng.choice(SENTENCES)
    kind = rng.random()
    if kind < 0.6:
        words = [_word(rng) for _ in range(rng.randint(1, 10))]
        said = rng.choice([", ", " "]).join(words) + rng.choice(["", "", ".", "!"])
    elif kind < 0.9:
        base, third, past = rng.choice(VERBS)
        verb = rng.choice([third, past, f"will {base}"])
        said = f"{a_person(rng)} {verb} {rng.choice(OBJECTS)}{rng.choice('.!')}"
    order = rng.choice(["Say this: {}", "Repeat after me: {}", "Repeat: {}", 'Say "{}"', "Say: {}"])
    return Exchange("echo", order.format(said), said, verbatim=True)


def next_in_list(rng: Random) -> Exchange:
    words = list(dict.fromkeys(_word(rng) for _ in range(rng.randint(4, 8))))
    words += ["north", "south"][: max(0, 3 - len(words))]
    place = rng.randrange(len(words) - 1)
    question = rng.choice(
        ["In the list {}, what comes after {}?", "Here is a list: {}. Which word comes after {}?"]
    ).format(", ".join(words), words[place])
    found = words[place + 1]
    return Exchange("reading", question, f"After {words[place]} comes {found}.", short=found)


def who_has_what(rng: Random) -> Exchange:
    people = list(dict.fromkeys(a_person(rng) for _ in range(rng.randint(2, 4))))
    kind = rng.choice(["has", "lives in", "is a"])
    said = {}
    for person in people:
        said[person] = {
            "has": f"{rng.randint(2, 50)} {rng.choice(THINGS)}",
            "lives in": a_city(rng),
            "is a": rng.choice(JOBS),
        }[kind]
    asked = rng.choice(people)
    told = " ".join(f"{person} {kind} {what}." for person, what in said.items())
    question = {"has": f"What does {asked} have?", "lives in": f"Where does {asked} live?", "is a": f"What is {asked}?"}
    short = said[asked] if kind != "has" else None
    return Exchange("reading", f"{told} {question[kind]}", f"{asked} {kind} {said[asked]}.", short=short)


def _word(rng: Random) -> str:
    return rng.choice(
        [a_person(rng), a_person(rng), a_city(rng), rng.choice(list(PLURALS)), rng.choice(list(COLOURS.values())),
         str(rng.randint(1, 99)), rng.choice(VERBS)[0], rng.choice(OBJECTS)]
    )  # fmt: skip
