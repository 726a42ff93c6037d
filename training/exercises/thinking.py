"""Answers after a reasoning block: sums of two digits, worked out digit by digit, questions about a list, and a plain
thought about whatever else is asked, for clients that switch reasoning on for every message."""

import re
from dataclasses import replace
from random import Random

from training.exercises.conversation import Conversation, Message, user
from training.exercises.copying import look_up
from training.exercises.invented_tools import REFUSAL
from training.exercises.sums import FEW_SMALL, Sum, draw

ABOUT_A_LINE = "The question is about a line of the text: {}"
THOUGHTS = {
    "greeting": "The user greets me.",
    "name": "The user asks who I am.",
    "talk": "This is small talk.",
    "first message": "This is a short message.",
    "memory": "The answer was said before.",
    "sum sheet": "These are sums.",
    "word problem": "I have to find the sum in this.",
    "json": "The answer is JSON, with these keys.",
    "story": "The user wants a story.",
    "copy": "The words must stay the same.",
    "echo": "The words must stay the same.",
    "reading": "The answer stands in the question.",
    "about a text": "The answer stands in the text, or the text does not say.",
    "count": "I have to count.",
}


def conversation(rng: Random, *, held_out: bool = False) -> Conversation:
    """One question that is thought about before it is answered; its template has reasoning switched on."""
    if rng.random() < 0.7:
        drawn = draw(rng, held_out=held_out, small_share=FEW_SMALL)
        question = rng.choice(["What is {} {} {}?", "How much is {} {} {}?", "{} {} {} = ?"]).format(*drawn)
        reasoning = steps(drawn)
        answer = f"{drawn.left} {drawn.sign} {drawn.right} = {drawn.result}"
    else:
        exchange = look_up(rng, held_out=held_out)
        question, answer = exchange.question, exchange.answer
        reasoning = ABOUT_A_LINE.format(exchange.answer)
    message = {"role": "assistant", "content": answer, "reasoning_content": reasoning}
    return Conversation(["reasoning"], [user(question), message], thinks=True)


def thought_about(whole: Conversation) -> Conversation:
    """The conversation with a thought before its last answer, and with reasoning switched on."""
    *before, last = whole.messages
    reasoning = thought(before, last, whole.tasks[-1], offered=bool(whole.tools))
    return replace(whole, messages=[*before, {**last, "reasoning_content": reasoning}], thinks=True)


def thought(before: list[Message], last: Message, task: str, *, offered: bool) -> str:
    """What leads to the last message: the tool that fits, the tool's result, or the kind of the question."""
    if last.get("tool_calls"):
        return f"The tool {last['tool_calls'][0]['function']['name']} fits."
    if before[-1]["role"] == "tool":
        return "The tool has answered."
    if last["content"] == REFUSAL:
        return "No tool fits."
    if worked := re.fullmatch(r"(\d+) ([-+*]) (\d+) = \d+", last["content"]):
        return steps(Sum(int(worked[1]), worked[2], int(worked[3])))
    if task == "look up":
        return ABOUT_A_LINE.format(last["content"])
    plain = THOUGHTS.get(task, "I can answer this at once.")
    return f"No tool is needed. {plain}" if offered else plain


def steps(drawn: Sum) -> str:
    """How the result is found: tens and ones apart for a sum, one step for the rest."""
    left, sign, right = drawn
    if sign == "+":
        tens, ones = left // 10 * 10 + right // 10 * 10, left % 10 + right % 10
        return f"Tens: {left // 10 * 10} + {right // 10 * 10} = {tens}. Ones: {left % 10} + {right % 10} = {ones}. " \
               f"Together: {tens} + {ones} = {drawn.result}."  # fmt: skip
    if sign == "-":
        after_tens = left - right // 10 * 10
        return f"First the tens: {left} - {right // 10 * 10} = {after_tens}. " \
               f"Then the ones: {after_tens} - {right % 10} = {drawn.result}."  # fmt: skip
    return f"{left} times {right} is {drawn.result}."
