"""Answers after a reasoning block: sums of two digits, worked out digit by digit, and questions about a list."""

from random import Random

from training.exercises.conversation import Conversation, user
from training.exercises.copying import look_up
from training.exercises.sums import FEW_SMALL, Sum, draw


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
        reasoning = f"The question is about a line of the text: {exchange.answer}"
    message = {"role": "assistant", "content": answer, "reasoning_content": reasoning}
    return Conversation(["reasoning"], [user(question), message], thinks=True)


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
