"""Forms of writing: lists, tables, short programs, sorted and joined words."""

from random import Random

from training.exercises.conversation import Exchange
from training.exercises.names import a_city, a_made_up_word, a_person
from training.exercises.vocabulary import COLOURS, PLURALS, THINGS

NUMBERS = {2: "two", 3: "three", 4: "four"}


def table(rng: Random, *, held_out: bool = False) -> Exchange:
    """A Markdown table of what a sentence says."""
    rows = [(a_person(rng, held_out=held_out), a_city(rng, held_out=held_out)) for _ in range(rng.randint(1, 4))]
    heads = rng.choice([("Name", "City"), ("Person", "Home"), ("Who", "Where")])
    told = ", ".join(f"{who} in {where}" for who, where in rows)
    order = rng.choice(["Make a table with {} and {}: {}", "Write a Markdown table with the columns {} and {}: {}"])
    lines = [f"| {heads[0]} | {heads[1]} |", "|---|---|", *(f"| {who} | {where} |" for who, where in rows)]
    return Exchange("table", order.format(*heads, told), "\n".join(lines), verbatim=True)


def sorted_words(rng: Random) -> Exchange:
    """Numbers or words in order."""
    if rng.random() < 0.5:
        numbers = rng.sample(range(1, 100), rng.randint(3, 5))
        return Exchange(
            "sort",
            f"Sort these numbers: {', '.join(map(str, numbers))}",
            ", ".join(map(str, sorted(numbers))),
            verbatim=True,
        )
    words = rng.sample(list(PLURALS), rng.randint(2, 4))
    return Exchange("sort", f"Put these words in order: {', '.join(words)}", ", ".join(sorted(words)), verbatim=True)


def name_some(rng: Random) -> Exchange:
    """A numbered list of things of a kind."""
    kind, things = rng.choice([("colours", sorted(set(COLOURS.values()))), ("animals", list(PLURALS)[:6]),
                               ("things to count", THINGS)])  # fmt: skip
    count = rng.randint(2, 4)
    chosen = things[:count]
    question = rng.choice(["Name {} {}.", "List {} {}.", "Give me {} {}."]).format(
        rng.choice([count, NUMBERS[count]]), kind
    )
    return Exchange("list", question, "\n".join(f"{n}. {thing}" for n, thing in enumerate(chosen, 1)), verbatim=True)


def program(rng: Random, *, held_out: bool = False) -> Exchange:
    """A short function in Python, of which name and operation are asked for."""
    name = a_made_up_word(rng, held_out=held_out) if rng.random() < 0.5 else rng.choice(["add", "total", "area", "f"])
    asked, arguments, body = rng.choice(
        [
            ("adds two numbers", "a, b", "return a + b"),
            ("multiplies two numbers", "a, b", "return a * b"),
            ("subtracts two numbers", "a, b", "return a - b"),
            ("doubles a number", "x", "return 2 * x"),
            ("squares a number", "x", "return x * x"),
            ("says hello to a name", "name", 'return f"Hello, {name}!"'),
            ("reverses a text", "text", "return text[::-1]"),
            ("counts the letters of a text", "text", "return len(text)"),
            ("returns the larger of two numbers", "a, b", "return max(a, b)"),
            ("returns the sum of a list", "numbers", "return sum(numbers)"),
            ("tells whether a number is even", "x", "return x % 2 == 0"),
            ("writes a text in capital letters", "text", "return text.upper()"),
        ]
    )
    question = rng.choice(
        [f"Write a Python function {name} that {asked}.", f"Write a function called {name} that {asked}, in Python."]
    )
    answer = f"```python\ndef {name}({arguments}):\n    {body}\n```"
    return Exchange("program", question, answer, verbatim=True)


def printed(rng: Random) -> Exchange:
    """A line of Python that prints a text."""
    text = rng.choice([a_person(rng), a_city(rng), "Hello", "Hello, world!"])
    return Exchange("program", f"Write Python code that prints {text}", f'```python\nprint("{text}")\n```',
                    verbatim=True)  # fmt: skip
