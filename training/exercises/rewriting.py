"""Rewriting words and sentences: letters, plural, past tense, question form."""

from random import Random

from training.exercises.conversation import Exchange
from training.exercises.names import a_person
from training.exercises.vocabulary import OBJECTS, PLURALS, SUBJECT_NOUNS, VERBS

NOUN_PLURALS = PLURALS | {"boy": "boys", "girl": "girls"}


def letters(rng: Random) -> Exchange:
    text = rng.choice([_present(rng)[0], rng.choice(OBJECTS), rng.choice(list(PLURALS)), a_person(rng)])
    if rng.random() < 0.7:
        order = rng.choice(["Write this in capital letters", "Write in upper case", "Put this in capitals"])
        return Exchange("rewrite", f"{order}: {text}", text.upper(), verbatim=True)
    order = rng.choice(["Write this in small letters", "Write in lower case"])
    return Exchange("rewrite", f"{order}: {text.upper()}", text.lower(), verbatim=True)


def plural(rng: Random) -> Exchange:
    word, many = rng.choice(list(PLURALS.items()))
    question = rng.choice(["What is the plural of {}?", "Give me the plural of {}.", "Write the plural of '{}'."])
    return Exchange("plural", question.format(word), f"The plural of {word} is {many}.", short=many)


def plural_sentence(rng: Random) -> Exchange:
    noun = rng.choice(SUBJECT_NOUNS)
    base, third, _ = rng.choice(VERBS)
    thing = rng.choice(OBJECTS)
    order = rng.choice(["Put this in the plural", "Rewrite with a plural subject", "Make the subject plural"])
    answer = f"The {NOUN_PLURALS[noun]} {base} {thing}."
    return Exchange("rewrite", f"{order}: The {noun} {third} {thing}.", answer, verbatim=True)


def past_tense(rng: Random) -> Exchange:
    present, past, _ = _present(rng)
    order = rng.choice(["Put this in the past tense", "Rewrite in the past tense", "Write this in the past"])
    return Exchange("rewrite", f"{order}: {present}", past, verbatim=True)


def past_of_verb(rng: Random) -> Exchange:
    base, _, past = rng.choice(VERBS)
    question = rng.choice(["What is the past tense of {}?", "Give me the past tense of '{}'."]).format(base)
    return Exchange("past tense", question, f"The past tense of {base} is {past}.", short=past)


def question_form(rng: Random) -> Exchange:
    present, _, asked = _present(rng)
    order = rng.choice(["Turn this into a question", "Make this a question", "Rewrite as a question"])
    return Exchange("rewrite", f"{order}: {present}", asked, verbatim=True)


def _present(rng: Random) -> tuple[str, str, str]:
    """A sentence in the present tense, in the past tense, and as a question."""
    base, third, past = rng.choice(VERBS)
    thing = rng.choice(OBJECTS)
    subject = rng.choice([a_person(rng), f"The {rng.choice(SUBJECT_NOUNS)}"])
    inner = subject.replace("The ", "the ")
    return f"{subject} {third} {thing}.", f"{subject} {past} {thing}.", f"Does {inner} {base} {thing}?"
