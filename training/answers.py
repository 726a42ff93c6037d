"""What a model answers, uncurated: `python -m training.answers --model builtin > training/answers.md`.

The first exercises of each kind, as the generator draws them and none left out, held out where that kind has held-out
ones: `training.evaluate` counts the same exercises. Decoding is greedy.
"""

import argparse
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from training.evaluate import CHECKS, MOST_TOKENS, Answer, answers_well, greedy_answer
from training.export import load_model
from training.model import Llama
from training.tokenizer import TURN_END, TURN_START, load_tokenizer

PAGE = """# What the built-in model answers

Nothing here was chosen: these are the first {count} exercises of each kind that
[`training.evaluate`](README.md#how-good-it-is) counts, each with the greedy answer of the shipped model. A tick says
that the answer is the expected one, or fits as well.

Written by `python -m training.answers --model builtin > training/answers.md`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="an exported model")
    parser.add_argument("--count", type=int, default=4, help="exercises of each kind")
    options = parser.parse_args()
    tokenizer, model = load_tokenizer(options.model / "tokenizer.json"), load_model(options.model)
    print(PAGE.format(count=options.count))
    for name, draw in CHECKS.items():
        print(f"## {name[0].upper()}{name[1:]}\n")
        for number in range(options.count):
            print(_shown(model, tokenizer, draw(Random(f"evaluation/{name}/{number}"))))


def _shown(model: Llama, tokenizer: Tokenizer, answer: Answer) -> str:
    """One exercise in Markdown: what is given, the answer, and the expected one where it differs."""
    said = greedy_answer(model, tokenizer, answer.given)
    well = answers_well(model, tokenizer, answer)
    given = answer.given.replace(TURN_START, "").replace(f"{TURN_END}\n", "\n").removesuffix("assistant\n").strip()
    lines = ["```text", given, "```", ""]
    lines += [f"{'✓' if well else '✗'} {_code(said or f'(goes on for {MOST_TOKENS} tokens)')}", ""]
    if not well:
        lines += [f"expected: {_code(answer.expected)}", ""]
    return "\n".join(lines)


def _code(text: str) -> str:
    """The text as Markdown shows it letter by letter."""
    return f"`{text}`" if "\n" not in text else f"\n\n```text\n{text}\n```"


if __name__ == "__main__":
    main()
