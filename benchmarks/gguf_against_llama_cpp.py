#!/usr/bin/env python3
"""A comparison of GGUF reading with llama.cpp: the tokens of a text, and the most likely next tokens with their
logprobs, and 32 greedy tokens.

    llama-server -m model.gguf --port 8081 &
    python benchmarks/gguf_against_llama_cpp.py model.gguf --server http://127.0.0.1:8081

Both round their operands, each differently, so logprobs agree to about the precision of 8-bit activations.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import models
from dragoman.models import describe
from dragoman.models.batch import Batch, tables_of_one
from dragoman.models.model import Model
from dragoman.models.settings import ModelSettings
from dragoman.text import Tokenizer

GREEDY = 32
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Es war einmal ein König, der hatte 12345 Schafe und",
    "I'll   see\n\n\twhat naïve 中文 🙂 text does: 3.14159!",
)


def our_logprobs(model: Model, ids: tuple[int, ...]) -> np.ndarray:
    batch = Batch(
        token_ids=np.array(ids, np.int32),
        positions=np.arange(len(ids), dtype=np.int32),
        row_starts=np.array([0, len(ids)], np.int32),
        block_tables=tables_of_one(model.pools, -(-len(ids) // model.block_size)),
        logit_rows=np.array([len(ids) - 1], np.int32),
    )
    logits = model.run(batch)[0].astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def greedy_agreement(model: Model, prompt: tuple[int, ...], theirs: list[int]) -> str:
    """How many greedy tokens are the same, and how near the other one was where they part."""
    ids = prompt
    for place, token in enumerate(theirs):
        logprobs = our_logprobs(model, ids)
        best = int(logprobs.argmax())
        if best != token:
            return f"{place} of {len(theirs)}, then {logprobs[best] - logprobs[token]:.3f} apart"
        ids = (*ids, token)
    return f"all {len(theirs)}"


def ask(server: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{server}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def compare(model: Model, tokenizer: Tokenizer, server: str, prompt: str) -> None:
    theirs = tuple(ask(server, "/tokenize", {"content": prompt, "add_special": True})["tokens"])
    ours = tokenizer.encode(prompt)
    body = {"prompt": list(theirs), "n_predict": GREEDY, "n_probs": 20, "temperature": 0, "cache_prompt": False}
    generated = ask(server, "/completion", body | {"return_tokens": True})
    said = generated["completion_probabilities"][0]["top_logprobs"]
    logprobs = our_logprobs(model, theirs)
    differences = [abs(logprobs[each["id"]] - each["logprob"]) for each in said]
    print(
        f"{prompt[:30]!r:36} tokens {'equal' if ours == theirs else 'DIFFER'} ({len(theirs)}), "
        f"first {'equal' if int(logprobs.argmax()) == said[0]['id'] else 'DIFFERS'}, "
        f"20 most likely: logprobs {np.mean(differences):.4f} apart, at most {np.max(differences):.4f}, "
        f"greedy tokens equal: {greedy_agreement(model, theirs, generated['tokens'])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", required=True, help="llama-server with the same file")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    started = time.perf_counter()
    settings = ModelSettings(max_context=128, max_sequences=1, cache_bytes=0, precision=asked.precision)
    model = models.load(asked.model, settings)
    print(f"{model.card.architecture}, {model.card.precision}, loaded in {time.perf_counter() - started:.1f} s")
    tokenizer = Tokenizer.load(describe(asked.model).tokenizer_folder)
    for prompt in PROMPTS:
        compare(model, tokenizer, asked.server, prompt)


if __name__ == "__main__":
    main()
