"""First messages as people type them: small letters, no full stop, a slip of the finger."""

from random import Random

from training.exercises.conversation import Exchange
from training.exercises.facts import capital, colour, opposite
from training.exercises.names import is_held_out
from training.exercises.sums import single
from training.exercises.talk import DEFAULT_NAME, GREETINGS, OFFERS, PLAIN_TALK, too_hard, who_are_you

OPENERS: list[tuple[list[str], list[str]]] = [
    (
        ["hi", "hello", "hey", "hiya", "yo", "heya", "hi there", "hello there", "hey there", "good morning", "morning",
         "good evening", "hello?", "hi!", "hello!!", "sup", "hallo", "greetings", "anyone there", "are you there?"],
        [f"Hello! {offer}" for offer in OFFERS],
    ),
    (
        ["test", "testing", "test test", "test 123", "this is a test", "just testing", "ping", "foo", "asdf", "check"],
        ["The test has arrived. What would you like to do?", "It works: I can read you. How can I help you?"],
    ),
    (
        ["bye", "goodbye", "bye bye", "cya", "see you", "see ya", "good night", "gn", "quit", "exit", "im done"],
        ["Goodbye! Come back soon.", "Goodbye, and have a good day.", "See you soon."],
    ),
    (
        ["thanks", "thx", "ty", "thank you", "thank you so much", "cheers", "thanks a lot", "great thanks"],
        ["You are welcome.", "You are welcome!", "I am glad I could help."],
    ),
    (
        ["how are you", "how r u", "how are you doing", "hows it going", "how are things", "whats up", "what's up?"],
        ["I am well, thank you. How are you?", "I am fine, thank you."],
    ),
    (
        ["who are you", "who r u", "what are you", "whats your name", "what is your name", "what model are you",
         "which model is this", "what is this", "are you chatgpt", "are you gpt-4", "are you an ai"],
        [f"I am {DEFAULT_NAME}.", f"I am {DEFAULT_NAME}. I can do small sums, count and tell tiny stories."],
    ),
    (
        ["help", "help me", "what can you do", "what can u do", "what do you do", "how does this work", "?"],
        ["I can do small sums, count, name capitals and opposites, tell tiny stories, fill in JSON and call tools."],
    ),
    (
        ["ok", "okay", "k", "cool", "nice", "great", "good", "yes", "sure", "wow", "awesome", "lol", "haha"],
        ["Good. What would you like to do next?", "All right. What would you like to do next?"],
    ),
    (["no", "nope", "nothing", "never mind", "stop"], ["All right.", "As you like."]),
    (
        ["say something", "say hi", "talk to me", "tell me something", "write something", "im bored"],
        ["The sun is warm and the sky is blue.", "A river always finds its way to the sea.",
         "The owl sleeps by day and flies by night."],
    ),
]  # fmt: skip

KNOWN = {said for group, _ in OPENERS for said in group}

SMALL_SHARE, TRICKY_SHARE = 0.4, 0.2  # of the sums in training: fewer small ones than elsewhere, for people type any

NEIGHBOURS = {"a": "s", "e": "w", "i": "o", "o": "p", "t": "r", "n": "m", "s": "d", "r": "e", "h": "j", "l": "k"}


def first_message(rng: Random, *, held_out: bool = False) -> Exchange:
    """A greeting or a simple question, as typed. Held out are one in sixteen of all spellings, so that the model is
    asked about typing errors it has never read; but not the openers as they stand in the list: nobody can guess
    what "gn" means."""
    while True:
        exchange = _opener(rng, held_out=held_out) if rng.random() < 0.55 else _question(rng, held_out=held_out)
        if (is_held_out(exchange.question) and exchange.question not in KNOWN) == held_out:
            return exchange


def known_message(rng: Random) -> Exchange:
    """An opener as it stands in the list."""
    said, answers = rng.choice(OPENERS)
    return Exchange("first message", rng.choice(said), rng.choice(answers))


def apt_answers(exchange: Exchange) -> list[str]:
    """All answers that fit a first message as well as the one it was drawn with."""
    greetings = [f"{hello}! {offer}" for hello in GREETINGS for offer in OFFERS]
    groups = [(greetings if place == 0 else answers) for place, (_, answers) in enumerate(OPENERS)]
    groups += [answers for _, answers in PLAIN_TALK]
    fitting = [exchange.answer]
    for group in groups:
        if exchange.answer in group:
            fitting += group
    return list(dict.fromkeys(fitting))


def as_typed(rng: Random, text: str, *, slips: float) -> str:
    """The text as somebody in a hurry types it: none of its numbers and capitals of the alphabet are needed.
    A share of `slips` has a wrong letter."""
    if rng.random() < 0.8:
        text = text.lower()
    if rng.random() < 0.7:
        text = text.rstrip(".?!")
    if rng.random() < 0.3:
        text = text.replace("what is", "whats").replace("What is", "Whats")
    if rng.random() < slips:
        text = misspelt(rng, text)
    return text


def misspelt(rng: Random, text: str) -> str:
    """The text with one letter dropped, doubled, swapped with the next one, or mistaken for its neighbour on the
    keyboard."""
    places = [place for place, letter in enumerate(text[:-1]) if letter.isalpha() and text[place + 1].isalpha()]
    if len(places) < 3:
        return text
    place = rng.choice(places)
    before, letter, after = text[:place], text[place], text[place + 1 :]
    return before + rng.choice(
        [after, letter + letter + after, after[0] + letter + after[1:], NEIGHBOURS.get(letter, letter) + after]
    )


def _opener(rng: Random, *, held_out: bool) -> Exchange:
    slips, endings = (0.25, 0.15) if held_out else (0.5, 0.3)
    said, answers = rng.choice([*OPENERS, OPENERS[0], OPENERS[0]])
    question = rng.choice(said)
    if rng.random() < slips:
        question = misspelt(rng, question)
    if rng.random() < 0.2:
        question = question.capitalize()
    if rng.random() < endings:
        question += rng.choice(["!", ".", " :)", "!!", " there", " dragoman", "..."])
    return Exchange("first message", question, rng.choice(answers))


def _question(rng: Random, *, held_out: bool) -> Exchange:
    # In training more sums and slips of the finger than are asked about: both are learnt slowest.
    facts, sums, slips = (0.5, 0.7, 0.3) if held_out else (0.45, 0.72, 0.45)
    kind = rng.random()
    if kind < facts:
        drawn = rng.choice([capital, capital, capital, opposite, colour])(rng)
    elif kind < sums:
        drawn = single(rng, held_out=held_out, small_share=SMALL_SHARE, tricky_share=TRICKY_SHARE)
        return Exchange("first message", drawn.question.lower(), drawn.answer, drawn.short)
    elif kind < 0.8:
        drawn = who_are_you(rng)
    else:
        questions, answers = rng.choice(PLAIN_TALK)
        drawn = Exchange("talk", rng.choice(questions), rng.choice(answers))
        if not held_out and rng.random() < 0.3:
            drawn = too_hard(rng)
    return Exchange("first message", as_typed(rng, drawn.question, slips=slips), drawn.answer, drawn.short)
