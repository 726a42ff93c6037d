"""Schemas that nobody would write: each is enforced or refused, never neither."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from test_json_schema import check
from walks import MATCHING, walk

from dragoman.core.constraint import JsonSchema
from dragoman.core.errors import BadRequest
from dragoman.grammar.lark import grammar_of

NAMES = ["a", "b", "c d", "é", 'q"']
PATTERNS = ["^[a-z]*$", "a", "^\\d+$", "b|c", "[^x]", "^.?$", "\\s", "^\\w+ \\w+$"]


def number(rng: random.Random) -> float:
    digits = rng.randint(1, 15)
    return rng.choice(
        [rng.randint(-20, 20), rng.randint(-(10**digits), 10**digits), round(rng.uniform(-9, 9), digits % 5)]
    )


def value(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.4:
        inner = [value(rng, depth - 1) for _ in range(rng.randint(0, 2))]
        return inner if rng.random() < 0.5 else dict(zip(rng.sample(NAMES, len(inner)), inner, strict=True))
    return rng.choice([None, True, False, number(rng), rng.choice(["", "x y", "é😀", '"\\\n'])])


def some(rng: random.Random, **keywords: Any) -> dict[str, Any]:
    """Each keyword with a chance of one in three."""
    return {name: each for name, each in keywords.items() if rng.random() < 0.35}


def schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """Each keyword in any company."""
    match rng.randint(0, 10 if depth else 4):
        case 0:
            bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
            made = some(
                rng, **{name: number(rng) for name in bounds}, multipleOf=rng.choice([2, 3, 10, 0.5, 0.1, 0.25])
            )
            return {"type": rng.choice(["integer", "number"])} | made
        case 1:
            lengths = some(rng, minLength=rng.randint(0, 5), maxLength=rng.randint(0, 9))
            forms = some(rng, pattern=rng.choice(PATTERNS), format=rng.choice(["date", "ipv4", "uuid", "time"]))
            return {"type": "string"} | lengths | forms
        case 2:
            return {"const": value(rng, 1)}
        case 3:
            return {"enum": [value(rng, 1) for _ in range(rng.randint(1, 4))]}
        case 4:
            types = rng.sample(["null", "boolean", "integer", "string"], rng.randint(1, 3))
            return {"type": types} | some(rng, maxLength=4, minimum=3)
        case 5 | 6:
            properties = {name: schema(rng, depth - 1) for name in rng.sample(NAMES, rng.randint(0, 3))}
            required = rng.sample(list(properties), rng.randint(0, len(properties)))
            others = rng.choice([False, False, True, schema(rng, 0)])
            made = {"type": "object", "properties": properties, "required": required, "additionalProperties": others}
            counts = some(rng, minProperties=rng.randint(0, 2), maxProperties=rng.randint(0, 3))
            return made | counts | some(rng, patternProperties={rng.choice(["^x", "^[a-c]$"]): schema(rng, 0)})
        case 7:
            counts = {"maxItems": rng.randint(0, 3)} | some(rng, minItems=rng.randint(0, 2))
            first = [schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
            return {"type": "array", "items": schema(rng, depth - 1)} | counts | some(rng, prefixItems=first)
        case 8:
            return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
        case 9:
            return schema(rng, depth - 1) | {"allOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]}
        case _:
            return {"oneOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]} | some(rng, minLength=2)


@pytest.mark.parametrize("case", range(12))
def test_enforced_or_refused(case: int) -> None:
    rng = random.Random(case)
    enforced = 0
    for _ in range(25):
        made = schema(rng, 2)
        constraint = JsonSchema(json.dumps(made))
        try:
            if MATCHING.problem(grammar_of(constraint)):
                continue
        except BadRequest:
            continue
        for seed in range(2):
            done = walk(constraint, seed, most=150, wander=6)
            if done.complete:
                check(done.text.decode(), made)
                enforced += 1
    assert enforced > 10
