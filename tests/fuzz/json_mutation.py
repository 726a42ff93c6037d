"""Changes to JSON documents that keep them JSON: bytes changed at random are hardly ever read beyond the parser."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 255, 256, 2**31 - 1, 2**31, 2**32, 2**63, 10**30, -0.0, 1.5, 1e-30, 1e300,
    float("inf"), float("nan"), "", "x", "▁", "</s>", "<0x41>", "<0xZZ>", "\ud800", "\0", "(", "(a*)*b", ".*", "[",
    "$A", "[EMPTY_0]", [], {}, [[]], [{}], [None], ["x", 1, None], {"x": []}, {"type": "Sequence"}, {"Regex": "("},
)  # fmt: skip


def mutate_json(data: bytes, rng: random.Random, most_changes: int = 3) -> bytes:
    """The document with a few values changed, removed, doubled or exchanged; as it is where it is not JSON."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    for _ in range(rng.randint(1, most_changes)):
        document = _change(document, rng)
    return json.dumps(document).encode()


def _change(document: Any, rng: random.Random) -> Any:
    places = list(_places(document))
    if not places:
        return copy.deepcopy(rng.choice(JUNK))
    # Of a place in a short container as often as of one in a vocabulary.
    container, keys = rng.choice(places)
    key = rng.choice(keys)
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1:
            other, others = rng.choice(places)
            container[key] = copy.deepcopy(other[rng.choice(others)]) if other else None
        case 2 if isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        case 3 if isinstance(container[key], str):
            container[key] = _change_text(container[key], rng)
        case 4 if isinstance(container[key], int) and not isinstance(container[key], bool):
            container[key] += rng.choice((-1, 1, 2, -256, 256, 2**31))
        case _:
            container[key] = copy.deepcopy(rng.choice(JUNK))
    return document


def _change_text(text: str, rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    piece = rng.choice(("", "\0", "▁", "(", "\\", "{", "%", "é", text[:at]))
    return text[:at] + piece + text[at + rng.randint(0, 2) :]


def _places(value: Any) -> Iterator[tuple[Any, list[Any]]]:
    if isinstance(value, dict):
        children: list[Any] = list(value.values())
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        children, keys = value, list(range(len(value)))
    else:
        return
    if keys:
        yield value, keys
    for child in children:
        yield from _places(child)


def mutate_bytes(data: bytes, rng: random.Random, most_changes: int = 4) -> bytes:
    """The bytes with a few changed, removed, doubled, or set to a number that is read wrongly easily."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, most_changes)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                del changed[at : at + rng.randint(1, 16)]
            case 1:
                changed[at:at] = changed[max(0, at - 16) : at]
            case 2:
                changed[at : at + 8] = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)).to_bytes(8, "little")
            case 3:
                changed[at : at + 4] = rng.randrange(64).to_bytes(4, "little")
            case _:
                changed[at : at + 1] = bytes((rng.randrange(256),))
    return bytes(changed)
