#!/usr/bin/env python3
"""How often a really trained draft model is right, and what it saves: the embedded model and the one distilled for it.

    python benchmarks/trained_draft.py [--precision int8] [--lengths 1 2 4] [--rounds 3]

Questions are answered one after the other, without drafts and with drafts of a fixed length, in turns; the tokens must
be equal. ``right`` is the part of guesses that were; ``tokens a step`` counts steps that decode. The last column is how
many times as fast the whole is, medians of the rounds, and each round. ``chosen`` drafts as the server does: a length
that pays by what was measured, or none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from drafts import time_steps
from dragoman import models
from dragoman.core.events import TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import SamplingParams
from dragoman.core.vocabulary import DraftVocabulary
from dragoman.engine.engine import Engine
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation.draft_gain import Acceptance, DraftGain
from dragoman.engine.speculation.draft_model import DraftModel
from dragoman.text.tokenizer import Tokenizer

DRAFT = Path(__file__).resolve().parents[1] / "builtin-draft"
QUESTIONS = [
    "hi",
    "Who are you?",
    "What is 47 + 38?",
    "What is the capital of Japan?",
    "Count from 1 to 20.",
    "Tell me a story about a fox called Pip.",
    "Put this in the past tense: The fox finds the key.",
    "Mia is 31 years old and lives in Oslo. Give me JSON with name, age and city.",
    "Extract price and shop as JSON: The price is 12. The shop is Norma.",
    "Write a Python function twice that doubles a number.",
    "Lea lives in Bonn. Lea works as a baker. Lea has 12 cats.\n\nHow many cats does Lea have?",
    "Ben has 12 apples and buys 7 more. How many apples does Ben have?",
]
PROSE = ["ROMEO:\n", "It was a dark night, and", "HAMLET:\nTo be", "Sherlock Holmes took"]


class FixedLength(DraftGain):
    """Drafts of one length, whether they pay or not."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def skip_step(self) -> bool:
        return False

    def length(self, acceptances: Collection[Acceptance], most: int, running: int) -> tuple[int, float]:
        return min(self._length, most), 2.0

    def pays(self, unread: int, left: int, gain: float, running: int, drafting: int) -> bool:
        return True


class Run(NamedTuple):
    tokens: dict[str, list[int]]
    decoding_steps: int
    seconds: float
    drafted: int
    accepted: int


def answered(
    runner: models.Model,
    draft: models.Model | None,
    prompts: list[tuple[int, ...]],
    temperature: float,
    length: int | None = None,
) -> Run:
    """Answer one prompt after the other, with drafts of the length, or of one that pays."""
    engine = Engine(runner, SchedulerSettings(draft_sources=("model",), prefix_cache=False))
    if draft is not None:
        engine.scheduler.drafts.model = model = DraftModel(draft)
        model.vocabulary = DraftVocabulary(runner.vocab_size)
        time_steps(engine, runner)
        if length is not None:
            model.gain = FixedLength(length)
    tokens: dict[str, list[int]] = {}
    steps, started = 0, time.perf_counter()
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=temperature)
        engine.submit(
            EngineRequest(request_id=str(index), prompt=prompt, seeds=(index,), max_tokens=96,
                          end_token_ids=runner.card.eos_token_ids, sampling=sampling)
        )  # fmt: skip
        while engine.has_work:
            found = [event for event in engine.step().events if isinstance(event, TokenEvent)]
            steps += bool(found)
            for event in found:
                tokens.setdefault(event.request_id, []).append(event.token_id)
    seconds, stats = time.perf_counter() - started, engine.output().stats
    return Run(tokens, steps - len(prompts), seconds, stats.drafted.get("model", 0), stats.accepted.get("model", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a folder; the embedded model by default")
    parser.add_argument("--draft", type=Path, default=DRAFT)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    runner = models.load(asked.model, models.ModelSettings(precision=asked.precision, max_context=1024))
    draft = models.load(asked.draft, models.plan_draft(str(asked.draft), models.ModelSettings(), "int8", 1024)[1])
    tokenizer = Tokenizer.load(asked.model or models.embedded_path())
    chats = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
    print("text   temperature  guesses  right  tokens a step  times as fast (each round)")
    for text, given in (("chat", chats), ("prose", PROSE)):
        prompts = [tokenizer.encode(each) for each in given]
        for temperature in asked.temperature:
            for length in [*asked.lengths, None]:
                rounds = []
                for _ in range(asked.rounds):
                    plain = answered(runner, None, prompts, temperature)
                    drafting = answered(runner, draft, prompts, temperature, length)
                    assert drafting.tokens == plain.tokens, "a draft changed a token"
                    rounds.append(plain.seconds / drafting.seconds)
                decoded = sum(map(len, drafting.tokens.values())) - len(prompts)
                right = f"{100 * drafting.accepted / drafting.drafted:4.0f} %" if drafting.drafted else "     -"
                ratios = ", ".join(f"{each:.2f}" for each in rounds)
                print(
                    f"{text:6} {temperature:11} {length or 'chosen':>8} {right} "
                    f"{decoded / drafting.decoding_steps:14.2f}  {statistics.median(rounds):.2f} ({ratios})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
