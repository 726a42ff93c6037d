"""What the tokens of each kind of tokenizer add to a text, as grammars rely on it."""

from __future__ import annotations

import json
import random

import pytest

from dragoman.core.constraint import JsonSchema
from dragoman.core.vocabulary import Vocabulary
from dragoman.grammar.lark import grammar_of
from dragoman.grammar.matching import Matching
from dragoman.text import Detokenizer, Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a b": {"type": "integer", "minimum": 0, "maximum": 999}, "c": {"enum": ["x y", ""]}},
    "required": ["a b", "c"],
    "additionalProperties": False,
}


def test_a_text_made_along_a_grammar_decodes_to_one_that_the_grammar_allows(tokenizer: Tokenizer) -> None:
    end = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.vocab_size - 1
    special = tuple(sorted(tokenizer.special_ids))
    matching = Matching(Vocabulary(tokens=tokenizer.token_table, special_ids=special, end_ids=(end,)))
    start = matching.matcher(grammar_of(JsonSchema(json.dumps(SCHEMA))))
    assert not start.error
    begun = tokenizer.encode("a", add_special_tokens=False)
    finished = 0
    for seed in range(4):
        rng, matcher = random.Random(seed), start.copy()
        detokenizer, text, raw = Detokenizer(tokenizer, begun, skip_special_tokens=True), "", b""
        for _ in range(300):
            allowed = matcher.allowed()
            if not len(allowed):
                pytest.skip("this vocabulary cannot spell the text")
            token_id = int(rng.choice(allowed))
            if token_id != end:
                text += detokenizer.push(token_id)
                raw += tokenizer.token_table[token_id]
            if matcher.push(token_id) or token_id == end:
                # A decoder may hold back the end of what came before, which then precedes the text.
                assert (text + detokenizer.flush()).endswith(raw.decode())
                value = json.loads(raw)
                assert 0 <= value["a b"] <= 999
                assert value["c"] in ("x y", "")
                finished += 1
                break
    assert finished


def test_the_table_is_of_the_single_tokens(tokenizer: Tokenizer) -> None:
    table = tokenizer.token_table
    assert len(table) == tokenizer.vocab_size
    for token_id in random.Random(0).sample(range(tokenizer.vocab_size), 50):
        assert table[token_id] == tokenizer.token_bytes(token_id)
