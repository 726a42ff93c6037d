"""Small sums: addition, subtraction and multiplication of whole numbers, none below zero or above 100."""

import zlib
from random import Random
from typing import NamedTuple

from training.exercises.conversation import Exchange
from training.exercises.names import a_person
from training.exercises.vocabulary import THINGS

SMALL_SHARE = 0.75  # of the sums have numbers up to twelve: few enough for a tiny model to know by heart
FEW_SMALL = 0.15  # of the sums in exercises about numbers of two digits
TRICKY_SHARE = 0.35  # of the training sums in those exercises

WORDS = {"+": "plus", "-": "minus", "*": "times"}


class Sum(NamedTuple):
    left: int
    sign: str
    right: int

    @property
    def result(self) -> int:
        if self.sign == "+":
            return self.left + self.right
        return self.left - self.right if self.sign == "-" else self.left * self.right

    @property
    def held_out(self) -> bool:
        """Whether training never sees this sum: one in sixteen of those with two numbers of two digits."""
        if self.left < 10 or self.right < 10:
            return False
        return zlib.crc32(f"{self.left}{self.sign}{self.right}".encode()) % 16 == 0


def draw(rng: Random, *, held_out: bool, small_share: float = SMALL_SHARE, tricky_share: float = 0.0) -> Sum:
    """A sum from the training share, or (with `held_out`) one that training never sees."""
    while True:
        if tricky_share and not held_out and rng.random() < tricky_share:
            candidate = _tricky(rng)
            if candidate.result <= 100 and not candidate.held_out:
                return candidate
            continue
        sign = rng.choice("+++--*")
        if sign == "*" and not held_out:
            return Sum(rng.randint(0, 10), "*", rng.randint(0, 10))
        if rng.random() < small_share and not held_out:
            left, right = rng.randint(0, 12), rng.randint(0, 12)
        else:
            left, right = rng.randint(1, 99), rng.randint(1, 99)
        if sign == "-":
            left, right = max(left, right), min(left, right)
        candidate = Sum(left, sign, right)
        if sign != "*" and candidate.result <= 100 and candidate.held_out == held_out:
            return candidate


def _tricky(rng: Random) -> Sum:
    """A sum of the kinds that are most often wrong: ones that make ten, or a small difference of larger numbers."""
    if rng.random() < 0.4:
        ones = rng.randint(1, 9)
        return Sum(10 * rng.randint(0, 8) + ones, "+", 10 * rng.randint(0, 8) + 10 - ones)
    left = rng.randint(10, 100)
    return Sum(left, "-", left - rng.randint(0, min(left, rng.choice([9, 9, 19, 40]))))


def single(
    rng: Random, *, held_out: bool = False, small_share: float = SMALL_SHARE, tricky_share: float = 0.0
) -> Exchange:
    drawn = draw(rng, held_out=held_out, small_share=small_share, tricky_share=tricky_share)
    left, sign, right = drawn
    written = f"{left} {rng.choice([sign, sign, WORDS[sign]])} {right}"
    question = rng.choice(
        [
            f"What is {written}?",
            f"What is {written}?",
            f"How much is {written}?",
            f"Work out {written}.",
            f"Calculate {written}.",
            f"{written} = ?",
            f"{left}{sign}{right}",
            f"Please add up: {written}" if sign == "+" else f"Can you tell me what {written} is?",
        ]
    )
    answer = f"{left} {sign} {right} = {drawn.result}"
    return Exchange("sum", question, answer, short=str(drawn.result))


def larger(rng: Random, *, held_out: bool = False) -> Exchange:
    """One sum, mostly of numbers with two digits."""
    return single(rng, held_out=held_out, small_share=FEW_SMALL, tricky_share=TRICKY_SHARE)


def sheet(rng: Random, *, held_out: bool = False) -> Exchange:
    """Several sums at once, one to a line: many sums in few tokens."""
    sums = [
        draw(rng, held_out=held_out, small_share=FEW_SMALL, tricky_share=TRICKY_SHARE) for _ in range(rng.randint(2, 6))
    ]
    asked = ", ".join(f"{s.left} {s.sign} {s.right}" for s in sums)
    question = rng.choice(["Work out these sums: {}.", "Calculate: {}.", "Solve these: {}."]).format(asked)
    return Exchange("sum sheet", question, "\n".join(f"{s.left} {s.sign} {s.right} = {s.result}" for s in sums))


def word_problem(rng: Random, *, held_out: bool = False) -> Exchange:
    drawn = draw(rng, held_out=held_out, small_share=FEW_SMALL)
    while drawn.sign == "*" or drawn.right < 2 or drawn.left < 2:
        drawn = draw(rng, held_out=held_out, small_share=FEW_SMALL)
    who, thing = a_person(rng), rng.choice(THINGS)
    if drawn.sign == "+":
        change = rng.choice([f"gets {drawn.right} more", f"finds {drawn.right} more", f"buys {drawn.right} more"])
    else:
        change = rng.choice([f"gives away {drawn.right}", f"loses {drawn.right}", f"sells {drawn.right}"])
    question = f"{who} has {drawn.left} {thing} and {change}. How many {thing} does {who} have now?"
    answer = f"{drawn.left} {drawn.sign} {drawn.right} = {drawn.result}, so {who} has {drawn.result} {thing}."
    return Exchange("word problem", question, answer, short=str(drawn.result))
