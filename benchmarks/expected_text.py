#!/usr/bin/env python3
"""What drafts save where text is known beforehand: an edited file (``prediction``) and an answer in JSON (``grammar``).

    python -m benchmarks.expected_text [--model FOLDER] [--precision int4] [--streams 1 8] [--tokens 1000]

Two engines of the same model take turns with the same requests, one with a single source of drafts, the other without
drafts; their texts must be equal. What the edited file says is given token by token, since random weights edit nothing;
drafts are made, computed and compared as ever. Values of the JSON answer are what the model draws. Printed are seconds
of the whole requests: medians, and the times as fast of each round. An engine without work takes no processor time.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import textwrap
import time
from typing import Any

from dragoman import LLM, SamplingParams, StructuredOutputsParams

FIELDS = {
    "customer_number": "[1-9][0-9]{3}",
    "first_name": '"[A-Z][a-z]{2,9}"',
    "last_name": '"[A-Z][a-z]{2,9}"',
    "preferred_language": '"(english|french|german|spanish)"',
    "is_active": "(true|false)",
    "shipping_method": '"(standard|express|collection)"',
    "number_of_items": "[1-9][0-9]?",
    "payment_status": '"(paid|open|overdue)"',
    "requires_signature": "(true|false)",
    "internal_comment": '"[A-Z][a-z ]{7,23}"',
}
"""Names and patterns of values."""
ANSWER = r"\{" + ", ".join(f'"{name}": {value}' for name, value in FIELDS.items()) + r"\}"
"""With one blank behind colons and commas, as models write: in a schema, random weights put blanks everywhere."""
EDITED_EVERY = 60
"""Words of the file between two that are edited."""


def edited_file(llm: LLM, seed: int, tokens: int) -> tuple[str, tuple[int, ...]]:
    """Return a file of so many tokens, and the tokens of what it is after its edit."""
    source = inspect.getsource(textwrap) + inspect.getsource(statistics)
    text: str = llm.detokenize(llm.tokenize(source)[100 * seed : 100 * seed + tokens])
    words = text.split(" ")
    for place in range(EDITED_EVERY // 2 + seed, len(words), EDITED_EVERY):
        words[place] += "_edited"
    return text, tuple(llm.tokenize(" ".join(words)))


def edits(llm: LLM, streams: int, tokens: int) -> list[SamplingParams]:
    found = []
    for seed in range(streams):
        text, edited = edited_file(llm, seed, tokens)
        found.append(
            SamplingParams(
                max_tokens=len(edited), seed=seed, temperature=0.0, prediction=text, forced_output_tokens=edited
            )
        )
    return found


def forms(llm: LLM, streams: int, _: int) -> list[SamplingParams]:
    form = StructuredOutputsParams(regex=ANSWER)
    return [SamplingParams(max_tokens=400, seed=seed, structured_outputs=form) for seed in range(streams)]


def seconds(llm: LLM, params: list[SamplingParams]) -> tuple[float, list[str]]:
    """Return what requests at one time took, and their texts."""
    prompts = [f"Request {index}:" for index in range(len(params))]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return time.perf_counter() - started, [output.text for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="a folder; the embedded model by default")
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--only", choices=["file", "json"], help="one of the two")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=1000, help="of the edited file")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    common: dict[str, Any] = {"precision": asked.precision, "max_context": 2048}
    print("work        streams  without s   with s  times as fast (each round)")
    for work, source, make in (("edited file", "prediction", edits), ("JSON answer", "grammar", forms)):
        if asked.only and asked.only not in work.lower():
            continue
        with (
            LLM(asked.model, speculation=0, **common) as plain,
            LLM(asked.model, draft_sources=(source,), **common) as drafting,
        ):
            for streams in asked.streams:
                params = make(plain, streams, asked.tokens)
                rounds = []
                for turn in range(asked.rounds + 1):
                    without, expected = seconds(plain, params)
                    with_drafts, found = seconds(drafting, params)
                    assert found == expected, "a draft changed a token"
                    if turn:  # the first compiles grammars, and fills caches
                        rounds.append((without, with_drafts))
                before, after = (statistics.median(each) for each in zip(*rounds, strict=True))
                ratios = ", ".join(f"{one / other:.2f}" for one, other in rounds)
                times = statistics.median(one / other for one, other in rounds)
                print(f"{work:11} {streams:7} {before:10.2f} {after:8.2f}  {times:.2f} ({ratios})", flush=True)


if __name__ == "__main__":
    main()
