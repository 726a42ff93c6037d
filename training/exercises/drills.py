"""Drills of copying: any words, codes and numbers written again in another form, picked out, or found missing.

A word is written with other tokens at the start of a text, after a quote or in capitals than within a sentence. These
exercises teach how, for many words, so that a key, a name or a tool that was never seen can be said as well.
"""

import json
from random import Random

from training.exercises.conversation import Conversation, Exchange, Message, assistant, user
from training.exercises.names import a_city, a_code, a_made_up_word, a_person, is_held_out
from training.exercises.words import WORDS

YES, NO = "Yes.", "No."
HELD_OUT = [word for word in (*WORDS, "seats", "duration", "stock") if is_held_out(word)]
"""Words that training never uses as keys or names; the last ones are names of fields, and no common words."""


def a_word(rng: Random, *, held_out: bool = False) -> str:
    """A common English word; one in sixteen of them is held out."""
    while True:
        word = rng.choice(WORDS)
        if is_held_out(word) == held_out:
            return word


def written_again(rng: Random, *, held_out: bool = False) -> Exchange:
    """Words in quotes, in capitals, in small letters, joined as programs join them, or letter by letter."""
    words = _things(rng, rng.randint(1, 5), held_out=held_out)
    plain = [a_word(rng, held_out=held_out) for _ in range(rng.randint(1, 4))]
    listed, spoken = ", ".join(words), " ".join(plain)
    capitalised = [word.capitalize() for word in plain]
    question, answer = rng.choice(
        [
            (f"Write this as a JSON list: {listed}", json.dumps(words)),
            (f"Put each word in quotes: {listed}", ", ".join(f'"{word}"' for word in words)),
            (f"One word to a line: {listed}", "\n".join(words)),
            (f"Say only this: {listed}", listed),
            (f"Write in capital letters: {spoken}", spoken.upper()),
            (f"Put this in capitals: {' '.join(words)}", " ".join(words).upper()),
            (f"Write in lower case: {spoken.upper()}", spoken),
            (f"Begin each word with a capital letter: {spoken}", " ".join(capitalised)),
            (f"Write in snake case: {spoken}", "_".join(plain)),
            (f"Write in camel case: {spoken}", "".join([plain[0], *capitalised[1:]])),
            (f"Spell {plain[0]}.", "-".join(plain[0])),
            (f"Spell {plain[0].capitalize()} in capital letters.", "-".join(plain[0].upper())),
            (f"Which word is this? {'-'.join(plain[0])}", plain[0]),
        ]
    )
    return Exchange("drill", question, answer, verbatim=True)


def quoted(rng: Random) -> Exchange:
    """Words after quotation marks, those that are held out as keys and names among them, and often: what is held out is
    their use, not their letters, which nothing else would ever write there."""
    words = [rng.choice(HELD_OUT if rng.random() < 0.4 else WORDS) for _ in range(rng.randint(1, 6))]
    listed = rng.choice([", ", ", ", " ", "\n", " and "]).join(words)
    question, answer = rng.choice(
        [
            (f"Write these words as a JSON list: {listed}", json.dumps(words)),
            (f"{listed}\nAs a JSON list, please.", json.dumps(words)),
            (f"JSON list of {listed}", json.dumps(words)),
            (f"Put each of these in quotes: {listed}", ", ".join(f'"{word}"' for word in words)),
            (f'In JSON: "words" is {listed}', json.dumps({"words": words})),
        ]
    )
    return Exchange("drill", question, answer, verbatim=True)


def pairs(rng: Random, *, held_out: bool = False) -> Exchange:
    """Pairs of a word and a value, as JSON: all of them, or those that are asked for, in the order asked."""
    keys = list(dict.fromkeys(_key(rng, held_out=held_out) for _ in range(rng.randint(1, 5))))
    record = {key: _value(rng, held_out=held_out) for key in keys}
    told = rng.choice([", ", "\n"]).join(f"{key}{rng.choice([':', ' =', ' is'])} {record[key]}" for key in keys)
    if rng.random() < 0.4:
        return Exchange("drill", f"Write these pairs as JSON: {told}", json.dumps(record), verbatim=True)
    asked = rng.sample(keys, rng.randint(1, len(keys)))
    question = rng.choice(["{}\nOf these, write {} as JSON.", "{}\nJSON of {} alone, please."])
    answer = json.dumps({key: record[key] for key in asked})
    return Exchange("drill", question.format(told, " and ".join(asked)), answer, verbatim=True)


def is_it_there(rng: Random, *, held_out: bool = False) -> Exchange:
    """Whether a list holds a word: half of the time it does."""
    words = _things(rng, rng.choice([1, 1, 2, 2, 3, 4, 5, 7]), held_out=held_out)
    asked = _there_or_not(rng, words, held_out=held_out)
    question = rng.choice(["{0}\nIs {1} among these?", "List: {0}. Does it hold {1}?", "{0}\n{1}?", "In {0}: {1}?"])
    verdict = YES if asked in words else NO
    return Exchange("drill", question.format(", ".join(words), asked), verdict, short=verdict, verbatim=True)


def asked_about_a_list(rng: Random, *, held_out: bool = False) -> Conversation:
    """A list, and one question after another whether it holds a word: many decisions of one word."""
    words = list(dict.fromkeys(_plain_or_any(rng, held_out=held_out) for _ in range(rng.choice([1, 2, 3, 4, 6]))))
    form = rng.choice(["{}?", "{}?", "Is {} there?", "And {}?", "What about {}?", "Do we have {}", "{}"])
    messages: list[Message] = []
    for place in range(rng.randint(4, 10)):
        asked = _there_or_not(rng, words, held_out=held_out)
        opening = rng.choice(["List: {}. ", "We have {}. ", "{}\n"]).format(", ".join(words)) if place == 0 else ""
        messages += [user(opening + form.format(asked)), assistant(YES if asked in words else NO)]
    return Conversation(["drill"], messages)


def _there_or_not(rng: Random, words: list[str], *, held_out: bool) -> str:
    """One of the words, or half of the time one that is not among them."""
    if rng.random() < 0.5:
        return rng.choice(words)
    return next(word for word in iter(lambda: _plain_or_any(rng, held_out=held_out), "") if word not in words)


def sorted_out(rng: Random, *, held_out: bool = False) -> Exchange:
    """For several words whether a list holds them: many decisions in few tokens, so that finding is learned."""
    words = list(dict.fromkeys(_plain_or_any(rng, held_out=held_out) for _ in range(rng.choice([1, 2, 2, 3, 4, 6]))))
    others = [_plain_or_any(rng, held_out=held_out) for _ in range(rng.randint(1, 4))]
    asked = list(dict.fromkeys([*rng.sample(words, rng.randint(1, len(words))), *others]))
    rng.shuffle(asked)
    question = rng.choice(
        ["List: {0}\nWhich of these are in it? {1}", "{0}\nIs each of these there? {1}",
         "We have {0}. Do we have {1}?", "There are {0}. What about {1}?"]
    )  # fmt: skip
    verdicts = [f"{word}: {'yes' if word in words else 'no'}" for word in asked]
    return Exchange("drill", question.format(", ".join(words), ", ".join(asked)), "\n".join(verdicts), verbatim=True)


def _plain_or_any(rng: Random, *, held_out: bool) -> str:
    """A word, mostly: what is one token is found most easily."""
    return a_word(rng, held_out=held_out) if rng.random() < 0.8 else _things(rng, 1, held_out=held_out)[0]


def look_up_word(rng: Random, *, held_out: bool = False) -> Exchange:
    """The word that belongs to another one, both of them English words, in a list of pairs."""
    keys = list(dict.fromkeys(a_word(rng, held_out=held_out) for _ in range(rng.randint(2, 6))))
    values = [rng.choice([a_word, a_word, a_code, a_person])(rng, held_out=held_out) for _ in keys]
    form, asked = rng.choice(
        [("{} -> {}", "{} -> ?"), ("{} = {}", "What is {}?"), ("the {} is {}", "What is the {}?"),
         ("{} means {}", "What does {} mean?"), ("{}: {}", "Which is the value of {}?")]
    )  # fmt: skip
    place = rng.randrange(len(keys))
    told = rng.choice([", ", "\n"]).join(form.format(*pair) for pair in zip(keys, values, strict=True))
    return Exchange("drill", f"{told}\n{asked.format(keys[place])}", values[place], short=values[place], verbatim=True)


def _things(rng: Random, count: int, *, held_out: bool) -> list[str]:
    """Different words, names and codes; half of the lists are of one kind."""
    kinds = [a_word, a_word, a_made_up_word, a_person, a_city, a_code]
    if rng.random() < 0.5:
        kinds = [rng.choice(kinds)]
    return list(dict.fromkeys(rng.choice(kinds)(rng, held_out=held_out) for _ in range(count)))


def _key(rng: Random, *, held_out: bool) -> str:
    """One or two words, joined as in the names of fields."""
    while True:
        first, second = a_word(rng, held_out=held_out), a_word(rng, held_out=held_out)
        key = rng.choice([first, first, f"{first}_{second}", f"{first}{second.capitalize()}"])
        if is_held_out(key) == held_out:
            return key


def _value(rng: Random, *, held_out: bool) -> str | int:
    if rng.random() < 0.4:
        return rng.randint(1, rng.choice([99, 2999]))
    return rng.choice([a_word, a_made_up_word, a_person, a_city, a_code])(rng, held_out=held_out)
