"""Whatever is asked for, the answer comes soon: a grammar that can be followed, or an error."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from walks import MATCHING, VOCABULARY

from dragoman.core.constraint import Choice, Constraint, JsonObject, JsonSchema, Lark, Regex
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.grammar.process import GrammarLimits, GrammarProcess
from dragoman.grammar.worker import in_child


@pytest.fixture(scope="module")
def process() -> Iterator[GrammarProcess]:
    process = GrammarProcess(VOCABULARY)
    process.check(JsonObject())
    yield process
    process.close()


def schema(value: Any) -> JsonSchema:
    return JsonSchema(json.dumps(value))


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    return value


def doubling(count: int, **around: Any) -> dict[str, Any]:
    """Definitions each of which mentions the next one twice."""
    twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": twice | {f"d{count}": {"type": "string"}}}


OPTIONAL = {f"p{i}": {"type": "string"} for i in range(1000)}
HOSTILE: dict[str, Constraint] = {
    "repeated repetition": Regex("(a{1,1000}){1,1000}"),
    "long repetition": Regex("(.{0,100000}b){0,100000}"),
    "states that double": Regex("(a|b)*a(a|b){30}"),
    "stars in stars": Regex("(((((a*)*)*)*)*)*b"),
    "letters of all scripts": Regex(r"(\p{L}|\p{N}|\W){1,500}"),
    "many alternatives": Regex("|".join(f"({a}.*{b})" for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrst")),
    "parentheses": Regex("(" * 4000 + ")" * 4000),
    "ten thousand values": schema({"enum": [f"value{i}" for i in range(10_000)]}),
    "many more": schema({"enum": [f"{i}" for i in range(30_000)]}),
    "a long text": schema({"type": "string", "minLength": 1_000_000, "pattern": "^(a|b)*a(a|b){9}"}),
    "a long array": schema({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    "a thousand optional properties": schema({"type": "object", "properties": OPTIONAL}),
    "and a hundred of such": schema({"properties": {f"q{i}": {"properties": OPTIONAL} for i in range(9)}}),
    "deep nesting": schema(nested(60)),
    "deeper nesting": JsonSchema('{"items":' * 20_000 + "{}" + "}" * 20_000),
    "references that double": schema(doubling(40)),
    "alternatives multiplied": schema(
        {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]}
    ),
    "divisors multiplied": schema({"type": "integer", "allOf": [{"multipleOf": n} for n in (9973, 9967, 9949)]}),
    "patterns at once": schema({"allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}c"} for n in range(5, 25)]}),
    "ambiguity": Lark('start: e\ne: e e | "a" | "aa" | |'),
    "repetition of rules": Lark('start: a{0,100000}\na: b{0,100000}\nb: "x"?'),
    "levels of repetition": Lark(
        "start: a\n" + "\n".join(f"{a}: {b}{{0,1000}}" for a, b in zip("abcdefg", "bcdefgh", strict=True)) + '\nh: "x"'
    ),
    "a language without texts": Lark("start: start"),
    "an end that cannot be reached": Lark('start: "a" start'),
    "terminals against each other": Lark("start: T\nT: /(a{1,1000}){1,1000}/ & ~/(.*b){1,1000}/"),
    "GBNF in parentheses": Lark("root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
}


def processor_s(process: GrammarProcess) -> float:
    """Seconds of a processor that the process and its children have taken."""
    [only] = process._processes._all
    assert only._process is not None
    return sum(psutil.Process(only._process.pid).cpu_times()[:4])


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_takes_less_than_two_seconds_of_a_processor(process: GrammarProcess, name: str) -> None:
    """By the clock it takes longer where others want the processor: it has a lower priority than they have."""
    before, ours_before = processor_s(process), time.process_time()
    with contextlib.suppress(BadRequest):
        grammar = process.check(HOSTILE[name])
        matcher = MATCHING.matcher(grammar)
        assert not matcher.error
        assert len(matcher.allowed())
    assert processor_s(process) - before + time.process_time() - ours_before < 2


def test_a_trial_that_waits_is_ended_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.grammar.worker._CLOCK_FACTOR", 0.2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        result = in_child(lambda: time.sleep(1_000) or {}, 1.0, ours)
    assert result == {"kind": "lost", "error": "its process was stopped, killed, or got no processor"}


def test_others_are_served_behind_one_that_was_killed() -> None:
    process = GrammarProcess(VOCABULARY, GrammarLimits(time_s=0.6))
    slow = schema({"properties": {f"q{i}": {"properties": OPTIONAL} for i in range(9)}})
    with pytest.raises(UnsupportedFeature):
        process.check(slow)
    assert "start" in process.check(Choice(("yes", "no")))
    process.close()


def test_memory_is_bounded() -> None:
    process = GrammarProcess(VOCABULARY, GrammarLimits(time_s=2.0, memory_bytes=8 << 20))
    with pytest.raises(UnsupportedFeature):
        process.check(schema({"enum": [f"value{i}" for i in range(10_000)]}))
    process.close()


def test_what_is_wrong_is_told_from_what_is_not_supported(process: GrammarProcess) -> None:
    with pytest.raises(UnsupportedFeature, match="'uniqueItems'"):
        process.check(schema({"uniqueItems": True}))
    with pytest.raises(BadRequest, match="is not a type") as raised:
        process.check(schema({"type": "text"}))
    assert not isinstance(raised.value, UnsupportedFeature)


def test_a_dead_end_is_found_before_generation(process: GrammarProcess) -> None:
    with pytest.raises(UnsupportedFeature, match="no text can follow"):
        process.check(Lark("start: start"))


def test_a_grammar_that_passes_is_the_one_that_is_followed(process: GrammarProcess) -> None:
    grammar = process.check(Choice(("yes", "no")))
    matcher = MATCHING.matcher(grammar)
    assert sorted(VOCABULARY.tokens[each] for each in matcher.allowed()) == [b"n", b"y"]


def test_a_trial_that_cannot_be_started_is_not_the_grammars_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", fork)
    before = psutil.Process().num_fds()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        result = in_child(lambda: {"grammar": "never made"}, 1.0, ours)
    assert result["kind"] == "lost"
    assert "Resource temporarily unavailable" in result["error"]
    assert psutil.Process().num_fds() == before


def test_the_part_that_is_refused_is_named(process: GrammarProcess) -> None:
    schemas = {"tools[0]": {"type": "object"}, "tools[1]": {"uniqueItems": True}, "tools[2]": {"if": {}}}

    def refusal(*places: str) -> BadRequest:
        grammar = " | ".join(f"%json {json.dumps(schemas[place])}" for place in places)
        parts = tuple((place, json.dumps(schemas[place])) for place in places)
        with pytest.raises(UnsupportedFeature) as raised:
            process.check(Lark(f"start: {grammar}", parts=parts))
        return raised.value

    assert refusal("tools[0]", "tools[2]", "tools[1]").param == "tools[2]"
    assert "'uniqueItems'" in refusal("tools[0]", "tools[1]").message
    # Neither of them is to blame for what is around them.
    around = Lark('start: %json {"type": "object"} other', parts=(("tools[0]", '{"type": "object"}'),))
    with pytest.raises(BadRequest) as raised:
        process.check(around)
    assert raised.value.param is None
