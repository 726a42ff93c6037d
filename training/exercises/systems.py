"""System messages that change how every answer of a conversation is written."""

import json
from dataclasses import dataclass
from random import Random

from training.exercises.conversation import Exchange
from training.exercises.names import a_person
from training.exercises.talk import DEFAULT_NAME, who_are_you

STYLES = "plain short short upper upper upper lower json json opening named named".split()  # noqa: SIM905

MODEL_NAMES = ["Robin", "Echo", "Atlas", "Nova", "Iris", "Orion", "Pixel", "Sage"]


@dataclass(frozen=True)
class Manner:
    """A system message and what it asks for."""

    message: str
    style: str  # plain, short, upper, lower, json, opening or named
    detail: str = ""  # the opening words, or the name

    def takes(self, exchange: Exchange) -> bool:
        """Whether this manner has a sure answer to the exchange."""
        if self.style in {"short", "json"}:
            return exchange.short is not None
        return not exchange.verbatim or self.style in {"plain", "named"}

    def applied(self, rng: Random, exchange: Exchange) -> Exchange:
        if self.style == "named" and exchange.task == "name":
            return who_are_you(rng, self.detail)
        answer = exchange.answer
        match self.style:
            case "short":
                answer = exchange.short or answer
            case "json":
                answer = json.dumps({"answer": exchange.short or answer})
            case "upper":
                answer = answer.upper()
            case "lower":
                answer = answer.lower()
            case "opening":
                answer = f"{self.detail} {answer}"
        return Exchange(exchange.task, exchange.question, answer, exchange.short, exchange.verbatim)


def manner(rng: Random) -> Manner:
    style = rng.choice(STYLES)
    match style:
        case "short":
            return Manner(rng.choice(["Answer in one word.", "Answer with one word only.", "One word only."]), style)
        case "upper":
            return Manner(rng.choice(["Answer in capital letters.", "Write in capital letters only."]), style)
        case "lower":
            return Manner(rng.choice(["Answer in small letters.", "Write everything in lower case."]), style)
        case "json":
            return Manner(rng.choice(["Answer in JSON.", 'Answer in JSON with the key "answer".']), style)
        case "opening":
            opening = rng.choice(["Ahoy!", "Dear friend,", "Well,", "Indeed!", "Listen:"])
            order = rng.choice(["Begin every answer with", "Start each answer with"])
            return Manner(f"{order} {opening}", style, opening)
        case "named":
            name = a_person(rng) if rng.random() < 0.5 else rng.choice(MODEL_NAMES)
            message = rng.choice(["You are called {}.", "Your name is {}.", "You are {}."]).format(name)
            return Manner(message, style, name)
    plain = ["You are a helpful assistant.", f"You are {DEFAULT_NAME}.", "Be kind and brief.", "Answer the question."]
    return Manner(rng.choice(plain), "plain")


def asked_in_a_manner(rng: Random, exchange: Exchange) -> Exchange:
    """The exchange with a manner asked for by the user, where one fits: "... Answer in one word."."""
    chosen = manner(rng)
    if chosen.style in {"plain", "named"} or not chosen.takes(exchange):
        return exchange
    answered = chosen.applied(rng, exchange)
    question = f"{exchange.question} {chosen.message}"
    return Exchange(exchange.task, question, answered.answer, exchange.short, verbatim=True)
