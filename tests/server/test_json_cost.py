"""Bodies that would hold up every stream while they are decoded are refused, and no others."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_runtime import LocalServer

from dragoman.core.errors import PayloadTooLarge
from dragoman.dialects.api import NotJson
from dragoman.server import json_cost as complexity
from dragoman.server.body import decode_json
from dragoman.server.json_cost import MAX_EXTREMES, MAX_ITEMS, MAX_PARTS, check_complexity


def repeated(item: str, count: int) -> bytes:
    return f'{{"prompt": [{",".join([item] * count)}]}}'.encode()


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


LONG = {
    "exponents": lambda: repeated("1.5e300", MAX_EXTREMES + 1),
    "negative exponents": lambda: repeated("-1E-300", MAX_EXTREMES + 1),
    "long exponents": lambda: repeated("1e+3000", MAX_EXTREMES + 1),
    "lists": lambda: repeated("[]", MAX_PARTS),
    "objects": lambda: repeated("{}", MAX_PARTS),
    "strings": lambda: repeated('"a"', MAX_PARTS),
    "backslashes": lambda: repeated(r'"\\"', MAX_PARTS),
    "quotes": lambda: repeated(r'"\\\""', MAX_PARTS),
    "objects with a key": lambda: repeated('{"a":1}', MAX_PARTS // 3),
    "numbers": lambda: repeated("1", MAX_ITEMS + 2),
}
"""Bodies of megabytes, made by the tests that need them: each process of tests imports this file."""
ONLY_LARGE = {
    "a text of brackets": lambda: encoded({"prompt": "[{:," * 10**6}),
    "a text of quotes": lambda: encoded({"prompt": '"[' * 10**6}),
    "a text of backslashes": lambda: encoded({"prompt": '\\"[' * 10**6}),
    "a text that is not ASCII": lambda: encoded({"prompt": "é[" * 10**6}),
    "integers": lambda: encoded({"prompt": list(range(10**6))}),
    "fractions": lambda: encoded({"values": [i / 7 for i in range(10**6)]}),
    "small fractions": lambda: encoded({"values": [1e-5 * i for i in range(10**5)]}),
    "exponents": lambda: repeated("1.5e300", MAX_EXTREMES),
    "hexadecimal digits": lambda: repeated('"72a2e298c9625c41"', 2 * MAX_EXTREMES),
    "messages": lambda: encoded({"messages": [{"role": "user", "content": "hello"}] * 10_000}),
}


@pytest.mark.parametrize("name", LONG)
def test_what_would_take_long_is_refused(name: str) -> None:
    body = LONG[name]()
    json.loads(body)
    with pytest.raises(PayloadTooLarge, match="has more than"):
        check_complexity(body)


@pytest.mark.parametrize("name", ONLY_LARGE)
def test_what_is_only_long_is_not(name: str) -> None:
    check_complexity(ONLY_LARGE[name]())


VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\[{,:é', max_size=6) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='k"\\', max_size=3), inner, max_size=4)
    ),
    max_leaves=40,
)


def parts_of(value: Any) -> int:
    match value:
        case dict():
            return 1 + sum(2 + parts_of(inner) for inner in value.values())
        case list():
            return 1 + sum(map(parts_of, value))
        case str():
            return 1
    return 0


@given(value=VALUES, ascii_only=st.booleans())
@settings(max_examples=300, deadline=None)
def test_parts_are_counted_exactly(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    parts = parts_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(complexity, "FREE_BYTES", 8)
        patch.setattr(complexity, "MAX_EXTREMES", 10**6)
        patch.setattr(complexity, "MAX_PARTS", parts)
        check_complexity(body)
        patch.setattr(complexity, "MAX_PARTS", parts - 1)
        if len(body) > 8 and parts:
            with pytest.raises(PayloadTooLarge):
                check_complexity(body)


@given(value=VALUES, ascii_only=st.booleans(), piece=st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_pieces_count_as_the_whole_does(value: Any, ascii_only: bool, piece: int) -> None:
    body = json.dumps({"é\\": value, "x": [1.5e300, "1e300"]}, ensure_ascii=ascii_only).replace("e+", "E").encode()
    assert complexity.count_parts(body, piece) == complexity.count_parts(body)
    assert complexity.count_parts(body)[2] >= 1


@given(text=st.text(alphabet="0123456789eE+-., ", min_size=9, max_size=60))
@settings(max_examples=300, deadline=None)
def test_extreme_numbers_are_counted(text: str) -> None:
    body = text.encode() + b"]"
    found = len(re.findall(rb"(?=[0-9][eE][+-]?[0-9]{3})", body))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(complexity, "FREE_BYTES", 8)
        patch.setattr(complexity, "MAX_EXTREMES", found)
        check_complexity(body)
        patch.setattr(complexity, "MAX_EXTREMES", found - 1)
        with pytest.raises(PayloadTooLarge, match="exponents"):
            check_complexity(body)


@pytest.mark.anyio
async def test_the_dialect_words_the_refusal(runtime: LocalServer) -> None:
    answer = await runtime.client.post("/v1/completions", content=repeated("1.5e300", MAX_EXTREMES + 1))
    assert answer.status_code == 413
    assert "exponents" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is empty"),
        (rb'{"prompt": "\ud83d", "max_tokens": 5}', "a character is half of a UTF-16 surrogate pair"),
        (rb'{"prompt": "cut \ud83d"}', "a character is half of a UTF-16 surrogate pair"),
        (rb'{"prompt": "cut \ude00 here"}', "a character is half of a UTF-16 surrogate pair"),
        (b'{"prompt": "a"', "Input data was truncated"),
        (b'{"temperature": 1e999}', "Number out of range"),
    ],
)
def test_what_is_no_json_is_told_by_its_fault(body: bytes, reason: str) -> None:
    with pytest.raises(NotJson) as refused:
        decode_json(body)
    assert refused.value.message == f"The request's body is not valid JSON: {reason}."
