"""Questions about a given text of a few sentences, as retrieval puts them; also ones that it does not answer."""

from random import Random

from training.exercises.conversation import Conversation, Exchange, Message, assistant, user
from training.exercises.names import a_city, a_code, a_person
from training.exercises.phrasing import phrased
from training.exercises.vocabulary import COLOURS, DAYS, JOBS, MONTHS, THINGS

NOT_THERE = "The text does not say."
ABSENT_SHARE, HELD_OUT_ABSENT_SHARE = 0.24, 0.12


Fact = tuple[str, str, str, str]  # the sentence, a question, its answer and the answer in a word


def about_a_text(rng: Random, *, held_out: bool = False) -> Exchange:
    """A text about one person and one firm, and a question that one of its sentences answers, or none does."""
    facts = _facts(rng, held_out=held_out)
    told = rng.sample(facts, rng.randint(2, 5))
    asked = _one_or_none(rng, facts, told, HELD_OUT_ABSENT_SHARE if held_out else ABSENT_SHARE)
    return Exchange("about a text", _asked(rng, told, asked[1], held_out=held_out), asked[2], short=asked[3])


def several_questions(rng: Random, *, held_out: bool = False) -> Conversation:
    """One text, and one question after another: many choices of a sentence, or of none, in few tokens."""
    facts = _facts(rng, held_out=held_out)
    told = rng.sample(facts, rng.randint(2, 5))
    messages: list[Message] = []
    for place in range(rng.randint(3, 7)):
        asked = _one_or_none(rng, facts, told, 0.4)
        question = _asked(rng, told, asked[1], held_out=held_out) if place == 0 else asked[1]
        messages += [user(question), assistant(asked[2])]
    return Conversation(["about a text"], messages)


def _one_or_none(rng: Random, facts: list[Fact], told: list[Fact], absent_share: float) -> Fact:
    """A fact that the text tells, or in a share of cases one that it does not, with the answer that says so."""
    if rng.random() >= absent_share:
        return rng.choice(told)
    sentence, question, _, _ = rng.choice([fact for fact in facts if fact not in told])
    return sentence, question, NOT_THERE, NOT_THERE


def _asked(rng: Random, told: list[Fact], question: str, *, held_out: bool) -> str:
    text = " ".join(fact[0] for fact in told)
    ways = [
        "{text}\n\n{question}",
        "Text: {text}\nQuestion: {question}",
        "Read this: {text} {question}",
        "Context: {text}\n\nAnswer from the context: {question}",
        "{question} {text}",
        "Here is a text: {text} My question is: {question}",
    ]
    return phrased(rng, ways, held_out=held_out).format(text=text, question=question)


def _facts(rng: Random, *, held_out: bool) -> list[Fact]:
    """Ten things about one person and one firm."""
    who, city = a_person(rng, held_out=held_out), a_city(rng, held_out=held_out)
    friend, firm = a_person(rng, held_out=held_out), a_city(rng, held_out=held_out)
    job, day, month = rng.choice(JOBS), rng.choice(DAYS), rng.choice(MONTHS)
    year, count, thing = rng.randint(1900, 2030), rng.randint(2, 99), rng.choice(THINGS)
    colour, code = rng.choice(list(COLOURS.values())), a_code(rng, held_out=held_out)
    return [
        (f"{who} lives in {city}.", f"Where does {who} live?", f"{who} lives in {city}.", city),
        (f"{who} works as a {job}.", f"What is the job of {who}?", f"{who} works as a {job}.", job),
        (f"{who} was born in {year}.", f"When was {who} born?", f"{who} was born in {year}.", str(year)),
        (f"Every {day} {who} visits {friend}.", f"Whom does {who} visit?", f"{who} visits {friend}.", friend),
        (f"{who} has {count} {thing}.", f"How many {thing} does {who} have?", f"{who} has {count} {thing}.",
         str(count)),
        (f"The house of {who} is {colour}.", f"What colour is the house of {who}?",
         f"The house of {who} is {colour}.", colour),
        (f"The office is in {firm}.", "Where is the office?", "The office is in " + firm + ".", firm),
        (f"The shop opens in {month}.", "When does the shop open?", f"The shop opens in {month}.", month),
        (f"The number of the order is {code}.", "What is the number of the order?",
         f"The number of the order is {code}.", code),
        (f"The head of the firm is {friend}.", "Who is the head of the firm?", f"The head of the firm is {friend}.",
         friend),
    ]  # fmt: skip
