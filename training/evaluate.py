"""Measures an exported model: `python -m training.evaluate --model builtin --prose FOLDER`.

An exercise counts as done when greedy decoding gives exactly the expected answer. That needs no decoding: it holds
if and only if, reading the expected answer, the model finds each next token the likeliest.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from training.chat import render
from training.exercises import counting, facts, reading, records, rewriting, sums, systems, talk, tools
from training.exercises.conversation import Conversation, Exchange, Message, Tool, assistant, system, user
from training.loss import held_out_loss
from training.model import Llama, ModelConfig
from training.prose import encode_prose, read_books, split_books
from training.rows import RowMaker
from training.tokenizer import TURN_END, load_tokenizer

LOOSE_ANSWERS = ("It is done.", "Done: ")  # after a made-up tool's result, either is right


class Answer(NamedTuple):
    """What the model should say, and all it is given before."""

    given: str
    expected: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of an exported model")
    parser.add_argument("--prose", type=Path, help="the folder of books, for the held-out losses")
    parser.add_argument("--count", type=int, default=300, help="exercises of each kind")
    parser.add_argument("--failures", type=int, default=0, help="failures of each kind to show")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(options.model / "tokenizer.json")
    model = load_model(options.model)
    if options.prose:
        _, held_out_text = split_books(read_books(options.prose))
        rows = RowMaker(tokenizer, encode_prose(held_out_text, tokenizer), seed=1, held_out=True)
        for kind in ("prose", "exercises", "fim"):
            loss = held_out_loss(model, rows, kind, count=64, length=512, device=torch.device("cpu"))
            print(f"held-out {kind}: {loss:.3f} nats per token")
    for name, draw in CHECKS.items():
        answers = [draw(Random(f"evaluation/{name}/{number}")) for number in range(options.count)]
        wrong = [answer for answer in answers if not answers_exactly(model, tokenizer, answer)]
        print(f"{name}: {100 * (1 - len(wrong) / len(answers)):.1f} % of {len(answers)}")
        for answer in wrong[: options.failures]:
            print(f"    {answer.given[-150:]!r} expects {answer.expected!r}")


def load_model(folder: Path) -> Llama:
    """The shipped weights, computed with in float32."""
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Llama(ModelConfig(**{key: described[key] for key in ModelConfig().as_dict()}))
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return model.eval()


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
    while True:
        conversation = tools.conversation(rng)
        if not conversation.messages[-1]["content"].startswith(LOOSE_ANSWERS):
            return _last(conversation.messages, conversation.tools)


def _last(messages: list[Message], offered: list[Tool] | None = None) -> Answer:
    given = render(Conversation([], messages[:-1], offered or []), answer_next=True)
    whole = render(Conversation([], messages, offered or []))
    return Answer(given, whole.removeprefix(given).removesuffix(f"{TURN_END}\n"))


def _held_out_sum(rng: Random) -> Exchange:
    return sums.single(rng, held_out=True)


def _held_out_problem(rng: Random) -> Exchange:
    return sums.word_problem(rng, held_out=True)


def _held_out_record(rng: Random) -> Exchange:
    return records.record(rng, held_out=True)


CHECKS: dict[str, Callable[[Random], Answer]] = {
    "addition (trained sums)": _single(sums.single, "+"),
    "addition (two digits, held out)": _single(_held_out_sum, "+"),
    "subtraction (trained sums)": _single(sums.single, "-"),
    "subtraction (two digits, held out)": _single(_held_out_sum, "-"),
    "multiplication (0 to 10, trained)": _single(sums.single, "*"),
    "word problems (held-out sums)": _single(_held_out_problem),
    "counting": _single(counting.count),
    "counting in steps": _single(counting.count_in_steps),
    "capitals": _single(facts.capital),
    "opposites": _single(facts.opposite),
    "colours": _single(facts.colour),
    "definitions": _single(facts.definition),
    "yes or no": _single(facts.yes_or_no),
    "past tense of a sentence": _single(rewriting.past_tense),
    "question form": _single(rewriting.question_form),
    "letters (upper and lower case)": _single(rewriting.letters),
    "echo": _single(reading.echo),
    "looking up what was said": _single(reading.who_has_what),
    "JSON records (held out)": _single(_held_out_record),
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
