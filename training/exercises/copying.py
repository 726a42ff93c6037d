"""Looking things up in a list of invented names, codes and words: copying that no memory can replace."""

from collections.abc import Callable
from random import Random

from training.exercises.conversation import Exchange
from training.exercises.names import a_city, a_code, a_made_up_word, a_person
from training.exercises.phrasing import phrased

Draw = Callable[..., str]

PAIRS: list[tuple[Draw, Draw, str, str, str]] = [
    # keys, values, how a pair is written, the question, the answer
    (a_person, a_city, "{} lives in {}.", "Where does {} live?", "{} lives in {}."),
    (a_person, a_code, "{} has the code {}.", "Which code does {} have?", "{} has the code {}."),
    (a_code, a_person, "{} belongs to {}.", "Who owns {}?", "{} belongs to {}."),
    (a_city, a_person, "The mayor of {} is {}.", "Who is the mayor of {}?", "The mayor of {} is {}."),
    (a_made_up_word, a_code, "{}: {}", "What is the value of {}?", "{}: {}"),
    (a_made_up_word, a_made_up_word, "{} = {}", "What is {}?", "{} = {}"),
    (a_made_up_word, a_made_up_word, "{} means {}.", "What does {} mean?", "{} means {}."),
    (a_person, a_person, "{} is a friend of {}.", "Who is {} a friend of?", "{} is a friend of {}."),
]


def look_up(rng: Random, *, held_out: bool = False) -> Exchange:
    """A list of pairs and a question about one of them."""
    draw_key, draw_value, written, asked, answered = rng.choice(PAIRS)
    pairs: dict[str, str] = {}
    for _ in range(rng.randint(2, 6)):
        pairs[draw_key(rng, held_out=held_out)] = draw_value(rng, held_out=held_out)
    chosen = rng.choice(list(pairs))
    told = rng.choice([" ", "\n"]).join(written.format(*pair) for pair in pairs.items())
    question = asked.format(chosen)
    ways = [
        f"{told}\n{question}",
        f"{told} {question}",
        f"{question}\n\n{told}",
        f"Here are some lines. {told} Tell me: {question}",
        f"{told}\n\nNow answer this. {question}",
        f"Answer from this list: {told}\n{question}",
        f"Data: {told}\nQ: {question}",
        f"I know this: {told} But {question[0].lower()}{question[1:]}",
        f"We know: {told} Now: {question}",
    ]
    text = phrased(rng, ways, held_out=held_out)
    return Exchange("look up", text, answered.format(chosen, pairs[chosen]), short=pairs[chosen])


def say_it_again(rng: Random, *, held_out: bool = False) -> Exchange:
    """Invented words, codes and names to be repeated, in their order, backwards, or only one of them."""
    draw = rng.choice([a_person, a_city, a_code, a_made_up_word])
    words = list(dict.fromkeys(draw(rng, held_out=held_out) for _ in range(rng.randint(2, 6))))
    listed = ", ".join(words)
    kind = rng.random()
    if kind < 0.5:
        ways = [
            "Repeat this list: {}", "Say this: {}", "Copy this exactly: {}", "Repeat after me: {}", "Copy: {}",
            "Write this: {}", "Say {}", "Please repeat: {}", "Write the same words: {}", "The same again: {}",
            "Please say: {}", "Then write: {}", "Say once more: {}", "Now repeat: {}", "Again: {}", "Now copy {}",
            "Now say: {}",
        ]  # fmt: skip
        order = phrased(rng, ways, held_out=held_out)
        return Exchange("copy", order.format(listed), listed, verbatim=True)
    if kind < 0.65:
        return Exchange("copy", f"Say this list backwards: {listed}", ", ".join(reversed(words)), verbatim=True)
    if kind < 0.8:
        place = rng.choice([0, -1])
        which = "first" if place == 0 else "last"
        return Exchange("copy", f"What is the {which} word of this list? {listed}", words[place], verbatim=True)
    bullets = "\n".join(f"- {word}" for word in words)
    order = rng.choice(["Write this as a list: {}", "Make a bullet list of {}"])
    return Exchange("copy", order.format(listed), bullets, verbatim=True)
