"""Counting up, down and in steps, and what comes next among numbers, days and months."""

from random import Random

from training.exercises.conversation import Exchange
from training.exercises.vocabulary import DAYS, MONTHS


def count(rng: Random) -> Exchange:
    low, high = sorted(rng.sample(range(41), 2))
    if rng.random() < 0.4:
        low, high = 1, rng.choice([3, 5, 8, 10, 12, 15, 20, 25, 30])
    if rng.random() < 0.03:
        low, high = 1, rng.choice([50, 60, 100])
    elif rng.random() < 0.3:
        question = rng.choice(["Count down from {} to {}.", "Count backwards from {} to {}."]).format(high, low)
        return Exchange("count", question, _listed(range(high, low - 1, -1)))
    question = rng.choice(["Count from {} to {}.", "Count up from {} to {}.", "Please count from {} to {}."])
    if low == 1 and rng.random() < 0.5:
        return Exchange("count", rng.choice([f"Count to {high}.", f"Count up to {high}."]), _listed(range(1, high + 1)))
    return Exchange("count", question.format(low, high), _listed(range(low, high + 1)))


def count_in_steps(rng: Random) -> Exchange:
    step = rng.choice([2, 2, 3, 4, 5, 5, 10, 10])
    start = rng.choice([0, step, step, rng.randint(1, 9)])
    end = start + step * rng.randint(3, 9)
    if rng.random() < 0.3:
        question, numbers = f"Count down from {end} to {start} in steps of {step}.", range(end, start - 1, -step)
    else:
        asked = rng.choice(["Count from {} to {} in steps of {}.", "Count from {} to {} by {}s."])
        question, numbers = asked.format(start, end, step), range(start, end + 1, step)
    return Exchange("count", question, _listed(numbers))


def comes_next(rng: Random) -> Exchange:
    after = rng.random() < 0.6
    relation = rng.choice(["after", "comes after", "follows"] if after else ["before", "comes before"])
    relation = relation if " " in relation or relation == "follows" else f"is {relation}"
    kind, names = rng.choice([("day", DAYS), ("month", MONTHS), ("number", [])])
    if kind == "number":
        number = rng.randint(1, 99)
        found = str(number + 1 if after else number - 1)
        return Exchange("next", f"Which number {relation} {number}?", f"The number {found}.", short=found)
    place = rng.randrange(len(names))
    found = names[(place + (1 if after else -1)) % len(names)]
    given = names[place]
    answer = f"{found} comes {'after' if after else 'before'} {given}."
    return Exchange("next", f"Which {kind} {relation} {given}?", answer, short=found)


def listing(rng: Random) -> Exchange:
    question, names = rng.choice(
        [
            (rng.choice(["Name the days of the week.", "List the days of the week."]), DAYS),
            (rng.choice(["Name the months of the year.", "List the months."]), MONTHS),
        ]
    )
    return Exchange("list", question, ", ".join(names) + ".")


def _listed(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."
