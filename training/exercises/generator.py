"""The generator: draws whole conversations, each determined by its random state alone."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from training.exercises import (
    copying,
    counting,
    drills,
    facts,
    first_words,
    invented_tools,
    passages,
    reading,
    records,
    rewriting,
    schemas,
    stories,
    sums,
    talk,
    thinking,
    tools,
    writing,
)
from training.exercises.conversation import Conversation, Exchange, Message, assistant, system, user
from training.exercises.systems import Manner, asked_in_a_manner, manner

PLAIN = Manner("", "plain")

WEIGHTED: list[tuple[int, Callable[[Random], Exchange]]] = [
    (1, talk.greeting),
    (2, talk.who_are_you),
    (2, talk.small_talk),
    (2, talk.too_hard),
    (3, counting.count),
    (5, counting.count_in_steps),
    (2, counting.comes_next),
    (1, counting.listing),
    (4, facts.capital),
    (5, facts.opposite),
    (2, facts.colour),
    (1, facts.sound),
    (2, facts.definition),
    (8, facts.yes_or_no),
    (20, rewriting.letters),
    (6, reading.echo),
    (3, reading.next_in_list),
    (4, reading.who_has_what),
    (1, rewriting.plural),
    (1, rewriting.plural_sentence),
    (2, rewriting.past_tense),
    (1, rewriting.past_of_verb),
    (2, rewriting.question_form),
    (3, stories.story),
    (2, writing.sorted_words),
    (12, writing.name_some),
    (1, writing.printed),
    (20, drills.quoted),
]

SPLIT: list[tuple[int, Callable[..., Exchange]]] = [
    # These hold whole questions out of training, so that their accuracy is not memory.
    (8, sums.single),
    (30, sums.larger),
    (22, sums.sheet),
    (4, sums.word_problem),
    (8, records.record),
    (26, first_words.first_message),
    (14, copying.look_up),
    (14, copying.say_it_again),
    (56, schemas.extraction),
    (14, passages.about_a_text),
    (3, writing.table),
    (2, writing.program),
    (16, drills.written_again),
    (12, drills.pairs),
    (10, drills.is_it_there),
    (10, drills.sorted_out),
    (8, drills.look_up_word),
]

THOUGHT_SHARE = 1 / 16
MANNERS_OF_FACTS = {"short", "upper", "lower", "json", "opening"}

TASKS = [task for _, task in WEIGHTED] + [task for _, task in SPLIT]
WEIGHTS = [weight for weight, _ in WEIGHTED] + [weight for weight, _ in SPLIT]
SPLIT_TASKS = {task for _, task in SPLIT}

TOOL_LIKE = {"sum", "sum sheet", "word problem", "talk", "first message"}
"""Tasks that one of the offered tools might also do: never asked where no call is to follow."""


def draw_conversation(rng: Random, *, held_out: bool = False) -> Conversation:
    """A conversation of one to six exchanges, or one with tools; one in sixteen is thought about at its end."""
    drawn = _draw_conversation(rng, held_out=held_out)
    if drawn.thinks or rng.random() > THOUGHT_SHARE:
        return drawn
    answers = [place for place, message in enumerate(drawn.messages) if message["role"] == "assistant"]
    # Of earlier answers the task is not known, unless they are calls or refusals.
    known = [place for place in answers if place == answers[-1] or _is_about_tools(drawn.messages[place])]
    last = rng.choice(known)
    return thinking.thought_about(replace(drawn, messages=drawn.messages[: last + 1]))


def _is_about_tools(answer: Message) -> bool:
    return bool(answer.get("tool_calls")) or answer["content"] == invented_tools.REFUSAL


def _draw_conversation(rng: Random, *, held_out: bool) -> Conversation:
    kind = rng.random()
    if kind < 0.06:
        return tools.conversation(rng)
    if kind < 0.09:
        return invented_tools.conversation(rng, held_out=held_out)
    if kind < 0.17:
        return invented_tools.many_questions(rng, held_out=held_out)
    if kind < 0.24:
        return invented_tools.short_orders(rng, held_out=held_out)
    if kind < 0.28:
        return drills.asked_about_a_list(rng, held_out=held_out)
    if kind < 0.30:
        drawn = draw_exchange(rng, held_out=held_out)
        while drawn.task in TOOL_LIKE:
            drawn = draw_exchange(rng, held_out=held_out)
        return tools.unneeded(rng, drawn.question, drawn.answer)
    if kind < 0.33:
        return thinking.conversation(rng, held_out=held_out)
    if kind < 0.36:
        return _remembering(rng, rng.choice([0, 0, 1, 2]), held_out=held_out)
    if kind < 0.46:
        return _opened(rng, held_out=held_out)
    if kind < 0.51:
        return _facts_in_one_manner(rng)
    if kind < 0.58:
        return schemas.several_orders(rng, held_out=held_out)
    if kind < 0.61:
        return passages.several_questions(rng, held_out=held_out)
    if kind < 0.64:
        return _claims(rng)
    length = rng.choice([1, 1, 1, 2, 2, 3, 4, 6])
    return _in_one_manner(rng, length, held_out=held_out)


def draw_long_conversation(rng: Random, *, held_out: bool = False) -> Conversation:
    """A conversation of many exchanges, for rows that fill the whole context."""
    length = rng.randint(12, 40)
    if rng.random() < 0.5:
        return _remembering(rng, length, held_out=held_out)
    return _in_one_manner(rng, length, held_out=held_out)


def draw_exchange(rng: Random, *, held_out: bool = False) -> Exchange:
    task = rng.choices(TASKS, WEIGHTS)[0]
    drawn = task(rng, held_out=held_out) if task in SPLIT_TASKS else task(rng)
    assert isinstance(drawn, Exchange)
    return drawn


def _in_one_manner(rng: Random, length: int, *, held_out: bool) -> Conversation:
    chosen = manner(rng) if rng.random() < 0.4 else PLAIN
    messages = [system(chosen.message)] if chosen.message else []
    exchanges: list[Exchange] = []
    while len(exchanges) < length:
        drawn = draw_exchange(rng, held_out=held_out)
        if chosen.style == "named" and not exchanges and rng.random() < 0.6:
            drawn = talk.who_are_you(rng)
        if chosen is PLAIN and rng.random() < 0.12:
            drawn = asked_in_a_manner(rng, drawn)
        if chosen.takes(drawn):
            exchanges.append(with_a_break(rng, chosen.applied(rng, drawn)))
    for each in exchanges:
        messages += _turns(each)
    return Conversation([each.task for each in exchanges], messages)


def _facts_in_one_manner(rng: Random) -> Conversation:
    """One to three facts under a system message that changes how they are written, in capitals half of the time."""
    chosen = manner(rng)
    while chosen.style not in MANNERS_OF_FACTS or (chosen.style != "upper" and rng.random() < 0.6):
        chosen = manner(rng)
    asked = [
        rng.choice([facts.capital, facts.opposite, facts.opposite, facts.colour])(rng) for _ in range(rng.randint(1, 3))
    ]
    turns = [turn for each in asked for turn in _turns(chosen.applied(rng, each))]
    return Conversation([each.task for each in asked], [system(chosen.message), *turns])


def _claims(rng: Random) -> Conversation:
    """Several claims about facts, one after another: many decisions between yes and no."""
    claims = [facts.yes_or_no(rng) for _ in range(rng.randint(3, 7))]
    return Conversation([each.task for each in claims], [turn for each in claims for turn in _turns(each)])


def _opened(rng: Random, *, held_out: bool) -> Conversation:
    """A first message as it is typed, alone or before one or two other exchanges."""
    exchanges = [with_a_break(rng, first_words.first_message(rng, held_out=held_out))]
    exchanges += [draw_exchange(rng, held_out=held_out) for _ in range(rng.choice([0, 0, 1, 2]))]
    return Conversation([each.task for each in exchanges], [turn for each in exchanges for turn in _turns(each)])


def _remembering(rng: Random, length: int, *, held_out: bool) -> Conversation:
    opening, recall = talk.remembered(rng)
    between = [draw_exchange(rng, held_out=held_out) for _ in range(length)]
    messages = opening + [turn for each in between for turn in _turns(each)] + recall
    return Conversation(["memory", *(each.task for each in between)], messages)


def with_a_break(rng: Random, each: Exchange) -> Exchange:
    """The exchange, now and then with line breaks in its question, as people press Enter, or after a greeting."""
    if each.verbatim or rng.random() < 0.9:
        return each
    words = each.question.split(" ")
    if len(words) < 3 or rng.random() < 0.3:
        opening = rng.choice(["Hi,", "Hello,", "hey", "Hi there,", "Hello!", "Good morning.", "hi"])
        return replace(each, question=f"{opening}{rng.choice([' ', chr(10), chr(10) * 2])}{each.question}")
    place = rng.randrange(1, len(words))
    return replace(each, question=f"{' '.join(words[:place])}\n{' '.join(words[place:])}")


def _turns(each: Exchange) -> list[Message]:
    return [user(each.question), assistant(each.answer)]
