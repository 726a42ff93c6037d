"""Measures exported models: `python -m training.evaluate --model builtin --prose FOLDER` prints a table.

An exercise counts as done when greedy decoding gives exactly the expected answer, or one of those that fit as well.
Where one answer is expected that needs no decoding: it holds if and only if, reading the expected answer, the model
finds each next token the likeliest.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from training.chat import render
from training.exercises import (
    copying,
    counting,
    facts,
    first_words,
    invented_tools,
    passages,
    reading,
    records,
    rewriting,
    schemas,
    sums,
    systems,
    talk,
    thinking,
    tools,
    writing,
)
from training.exercises.conversation import Conversation, Exchange, Message, Tool, assistant, system, user
from training.export import load_model
from training.loss import held_out_loss
from training.model import Llama
from training.prose import encode_prose, read_books, split_books
from training.rows import RowMaker
from training.tokenizer import TURN_END, load_tokenizer, special_id

MOST_TOKENS = 120
MOST_DECODED = 100
STOPS = f"stops by itself within {MOST_TOKENS} tokens"
GOALS = {
    "prose, nats per byte": "1.18",
    "capitals (trained)": "100 %",
    "addition (two digits)": "95 %",
    "subtraction (two digits)": "95 %",
    "tool calls (new tools, names and wording)": "92 %",
    "extraction (new keys, names and wording)": "90 %",
    "questions about a text (new names and wording)": "85 %",
    "first messages (trained)": "95 %",
    "first messages (new spellings)": "95 %",
    STOPS: "99 %",
}


class Answer(NamedTuple):
    """What the model should say, all it is given before, and what it may say instead."""

    given: str
    expected: str
    others: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, action="append", help="an exported model; also several")
    parser.add_argument("--prose", type=Path, help="the folder of books, for the held-out losses")
    parser.add_argument("--count", type=int, default=300, help="exercises of each kind")
    parser.add_argument("--failures", type=int, default=0, help="failures of each kind to show")
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = [measured(folder, options.prose, options.count, options.failures) for folder in options.model]
    print("| held out unless said otherwise | goal |" + "".join(f" {folder.name} |" for folder in options.model))
    print("|---|---|" + "---|" * len(columns))
    for name in columns[0]:
        print(f"| {name} | {GOALS.get(name, '')} |" + "".join(f" {column[name]} |" for column in columns))


def measured(folder: Path, prose: Path | None, count: int, failures: int) -> dict[str, str]:
    """Every figure of the model in a folder, by the name of what was measured."""
    tokenizer, model = load_tokenizer(folder / "tokenizer.json"), load_model(folder)
    figures: dict[str, str] = {}
    if prose:
        _, held_out_text = split_books(read_books(prose))
        rows = RowMaker(tokenizer, encode_prose(held_out_text, tokenizer), seed=1, held_out=True)
        for kind in ("prose", "exercises", "fim"):
            loss = held_out_loss(model, rows, kind, count=64, length=512, device=torch.device("cpu"))
            figures[f"{kind}, nats per token"] = f"{loss:.2f}"
            if kind == "prose":  # tokens are longer or shorter with another tokenizer, bytes are not
                size = sum(len(text.encode()) for text in held_out_text)
                figures["prose, nats per byte"] = f"{loss * rows.prose.num_tokens / size:.3f}"
    for name, draw in CHECKS.items():
        answers = [draw(Random(f"evaluation/{name}/{number}")) for number in range(count)]
        wrong = [answer for answer in answers if not answers_well(model, tokenizer, answer)]
        figures[name] = f"{100 * (1 - len(wrong) / len(answers)):.1f} %"
        for answer in wrong[:failures]:
            print(f"{folder.name}, {name}: {answer.given[-150:]!r} expects {answer.expected!r}")
    asked = [_first_message(Random(f"evaluation/stops/{number}")) for number in range(min(count, MOST_DECODED))]
    stopped = sum(greedy_answer(model, tokenizer, answer.given) is not None for answer in asked)
    figures[STOPS] = f"{100 * stopped / len(asked):.1f} %"
    return figures


def answers_well(model: Llama, tokenizer: Tokenizer, answer: Answer) -> bool:
    """Whether greedy decoding gives the expected answer or one that fits as well."""
    if not answer.others:
        return answers_exactly(model, tokenizer, answer)
    return greedy_answer(model, tokenizer, answer.given) in (answer.expected, *answer.others)


@torch.no_grad()
def greedy_answer(model: Llama, tokenizer: Tokenizer, given: str) -> str | None:
    """The answer by greedy decoding; None where it does not end by itself within `MOST_TOKENS` tokens."""
    ids = tokenizer.encode(given, add_special_tokens=False).ids
    start, end = len(ids), special_id(tokenizer, TURN_END)
    for _ in range(MOST_TOKENS):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == end:
            return str(tokenizer.decode(ids[start:-1], skip_special_tokens=False))
    return None


@torch.no_grad()
def answers_exactly(model: Llama, tokenizer: Tokenizer, answer: Answer) -> bool:
    given = tokenizer.encode(answer.given, add_special_tokens=False).ids
    expected = tokenizer.encode(answer.expected + TURN_END, add_special_tokens=False).ids
    likeliest = model(torch.tensor([given + expected]))[0].argmax(-1).tolist()
    return bool(likeliest[len(given) - 1 : -1] == expected)


def _single(draw: Callable[[Random], Exchange], sign: str | None = None) -> Callable[[Random], Answer]:
    """One exchange without a system message; with `sign`, a sum of that sign."""

    def drawn(rng: Random) -> Answer:
        exchange = draw(rng)
        while sign and f" {sign} " not in exchange.answer:
            exchange = draw(rng)
        return _last([user(exchange.question), assistant(exchange.answer)])

    return drawn


def _in_manner(style: str) -> Callable[[Random], Answer]:
    """A capital or an opposite asked under a system message of the style."""

    def drawn(rng: Random) -> Answer:
        chosen = systems.manner(rng)
        while chosen.style != style:
            chosen = systems.manner(rng)
        exchange = chosen.applied(rng, rng.choice([facts.capital, facts.opposite])(rng))
        return _last([system(chosen.message), user(exchange.question), assistant(exchange.answer)])

    return drawn


def _memory(rng: Random) -> Answer:
    opening, recall = talk.remembered(rng)
    between = facts.capital(rng)
    return _last([*opening, user(between.question), assistant(between.answer), *recall])


def _tool_call(rng: Random) -> Answer:
    conversation = tools.conversation(rng)
    place = next(place for place, message in enumerate(conversation.messages) if message.get("tool_calls"))
    return _last(conversation.messages[: place + 1], conversation.tools)


def _tool_answer(rng: Random) -> Answer:
    conversation = tools.conversation(rng)
    return _last(conversation.messages, conversation.tools)


def _known_message(rng: Random) -> Answer:
    return _opening(first_words.known_message(rng))


def _first_message(rng: Random) -> Answer:
    return _opening(first_words.first_message(rng, held_out=True))


def _opening(exchange: Exchange) -> Answer:
    single = _last([user(exchange.question), assistant(exchange.answer)])
    return single._replace(others=tuple(first_words.apt_answers(exchange)))


def _call_of_an_invented_tool(rng: Random) -> Answer:
    while True:
        conversation = invented_tools.conversation(rng, held_out=True)
        if "tool call" in conversation.tasks:
            return _last(conversation.messages[:2], conversation.tools)


def _refused_tool(rng: Random) -> Answer:
    while True:
        conversation = invented_tools.conversation(rng, held_out=True)
        if "tool call" not in conversation.tasks:
            return _last(conversation.messages, conversation.tools)


def _answer_of_an_invented_tool(rng: Random) -> Answer:
    while True:
        conversation = invented_tools.conversation(rng, held_out=True)
        if "tool call" in conversation.tasks:
            return _last(conversation.messages[:4], conversation.tools)


def _thought(rng: Random) -> Answer:
    return _last_of(thinking.conversation(rng, held_out=True))


def _held_out(draw: Callable[..., Exchange]) -> Callable[[Random], Answer]:
    return _single(partial(draw, held_out=True))


def _last_of(whole: Conversation) -> Answer:
    given = render(replace(whole, messages=whole.messages[:-1]), answer_next=True)
    return Answer(given, render(whole).removeprefix(given).removesuffix(f"{TURN_END}\n"))


def _last(messages: list[Message], offered: list[Tool] | None = None) -> Answer:
    return _last_of(Conversation([], messages, offered or []))


def _held_out_sum(rng: Random) -> Exchange:
    return sums.single(rng, held_out=True)


def _held_out_problem(rng: Random) -> Exchange:
    return sums.word_problem(rng, held_out=True)


def _held_out_record(rng: Random) -> Exchange:
    return records.record(rng, held_out=True)


CHECKS: dict[str, Callable[[Random], Answer]] = {
    "first messages (trained)": _known_message,
    "first messages (new spellings)": _first_message,
    "extraction (new keys, names and wording)": _held_out(schemas.extraction),
    "tool calls (new tools, names and wording)": _call_of_an_invented_tool,
    "refusing when no tool fits": _refused_tool,
    "answers from a new tool's result": _answer_of_an_invented_tool,
    "questions about a text (new names and wording)": _held_out(passages.about_a_text),
    "looking up in a list (new names and wording)": _held_out(copying.look_up),
    "copying a list (new words and wording)": _held_out(copying.say_it_again),
    "tables (new names)": _held_out(writing.table),
    "programs (new names)": _held_out(writing.program),
    "reasoning (new sums and names)": _thought,
    "addition (trained sums)": _single(sums.single, "+"),
    "addition (two digits)": _single(_held_out_sum, "+"),
    "subtraction (trained sums)": _single(sums.single, "-"),
    "subtraction (two digits)": _single(_held_out_sum, "-"),
    "multiplication (0 to 10, trained)": _single(sums.single, "*"),
    "word problems (new sums)": _single(_held_out_problem),
    "counting (trained)": _single(counting.count),
    "counting in steps (trained)": _single(counting.count_in_steps),
    "capitals (trained)": _single(facts.capital),
    "opposites (trained)": _single(facts.opposite),
    "colours (trained)": _single(facts.colour),
    "definitions (trained)": _single(facts.definition),
    "yes or no (trained)": _single(facts.yes_or_no),
    "past tense of a sentence": _single(rewriting.past_tense),
    "question form": _single(rewriting.question_form),
    "letters (upper and lower case)": _single(rewriting.letters),
    "echo": _single(reading.echo),
    "looking up what was said": _single(reading.who_has_what),
    "JSON records (new pairs)": _single(_held_out_record),
    "tool calls": _tool_call,
    "answers from a tool's result": _tool_answer,
    "memory over one exchange": _memory,
    "system message: one word": _in_manner("short"),
    "system message: capital letters": _in_manner("upper"),
    "system message: JSON": _in_manner("json"),
    "system message: opening words": _in_manner("opening"),
}


if __name__ == "__main__":
    main()
