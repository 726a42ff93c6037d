"""Sequences that follow a grammar: every text is valid, and the same however the request is run."""

from __future__ import annotations

import json
import random
import re
import threading
from typing import Any

import msgspec
import pytest

from dragoman.core.constraint import Choice, Constraint, JsonSchema, Lark, Regex
from dragoman.core.events import FinishEvent, FinishReason, TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.core.vocabulary import Vocabulary
from dragoman.engine.engine import Engine
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine_client.recovery import InFlightRequest
from dragoman.grammar.lark import grammar_of
from dragoman.grammar.matching import Matching
from simulation import Limited, Transcript, random_request, run, run_alone, step, stub

WORDS = ['{"', '":', '": ', '", "', '"}', ", ", "true", "false", "name", "value", "12", "the ", "ab", "-1"]
TEXTS = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
END = len(TEXTS)
VOCABULARY = Vocabulary(tokens=(*TEXTS, b"<end>", b"<stop>", b""), special_ids=(END, END + 1), end_ids=(END,))
SIZE = len(VOCABULARY.tokens)

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
CONSTRAINTS: list[Constraint] = [
    JsonSchema(json.dumps(SCHEMA)),
    JsonSchema('{"type": "array", "items": {"type": "number"}, "maxItems": 5}'),
    Regex("[a-c]{3,}(,[0-9]+)*"),
    Choice(("yes", "no", "nothing of the kind")),
    Lark('start: "(" inner ")"\ninner: (WORD | start)*\nWORD: /[a-z]+/'),
]


def engine(runner: Runner, **settings: Any) -> Engine:
    made = Engine(runner, **settings)
    made.set_vocabulary(VOCABULARY)
    return made


def runner() -> Runner:
    return stub(vocab_size=SIZE, num_blocks=256, max_tokens=256, max_sequences=64, max_logit_rows=64)


def request(constraint: Constraint, request_id: str = "ours", seed: int = 1, **fields: Any) -> EngineRequest:
    fields = {"seeds": (seed,), "max_tokens": 120, "end_token_ids": (END,)} | fields
    return EngineRequest(request_id=request_id, prompt=(1, 2, 3), grammar=grammar_of(constraint), **fields)


def random_constrained(rng: random.Random, request_id: str) -> EngineRequest:
    """Any request at all, made to follow one of the grammars."""
    made = random_request(rng, request_id, SIZE, output=60)
    made = msgspec.structs.replace(made, grammar=grammar_of(rng.choice(CONSTRAINTS)), stop_token_ids=())
    made = msgspec.structs.replace(made, eos_after_grammar=rng.random() < 0.5)
    return msgspec.structs.replace(made, end_token_ids=rng.choice([(END,), (END,), ()]), max_tokens=rng.randint(5, 60))


def alone(runner: Runner, wanted: EngineRequest) -> Transcript:
    return run(engine(runner), [wanted])[wanted.request_id]


def text(output_processor: Transcript, sequence: int = 0) -> bytes:
    ids = output_processor.ids(sequence)
    return b"".join(VOCABULARY.tokens[each] for each in ids if each != END)


# What is generated ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_text_that_ends_follows_its_grammar(seed: int) -> None:
    done = run(engine(runner()), [request(each, str(i), seed) for i, each in enumerate(CONSTRAINTS)])
    for output_processor in done.values():
        assert output_processor.finish[0] in (FinishReason.EOS, FinishReason.LENGTH)
    finished = {key: text(each).decode() for key, each in done.items() if each.finish[0] is FinishReason.EOS}
    if "0" in finished:
        value = json.loads(finished["0"])
        assert isinstance(value["name"], str)
        assert isinstance(value["ok"], bool)
    if "1" in finished:
        assert len(json.loads(finished["1"])) <= 5
    if "2" in finished:
        assert re.fullmatch("[a-c]{3,}(,[0-9]+)*", finished["2"])
    assert finished["3"] in ("yes", "no", "nothing of the kind")


def test_it_ends_with_the_last_token_of_a_text_that_nothing_can_follow() -> None:
    done = alone(runner(), request(Choice(("yes",))))
    assert text(done) == b"yes"
    assert END not in done.ids()
    assert done.finish[0] is FinishReason.EOS


def test_it_may_end_wherever_the_grammar_lets_it() -> None:
    lengths = set()
    for seed in range(12):
        done = alone(runner(), request(Regex("[ab]*"), seed=seed, sampling=SamplingParams(logit_bias={END: 4.0})))
        assert done.ids()[-1] == END
        lengths.add(len(done.ids()))
    assert len(lengths) > 1


def test_where_end_tokens_are_ordinary_ones_it_goes_on_as_long_as_it_can() -> None:
    endless = alone(runner(), request(Regex("[ab]*"), end_token_ids=()))
    assert endless.finish[0] is FinishReason.LENGTH
    assert len(endless.ids()) == 120
    bounded = alone(runner(), request(Regex("[ab]{0,9}"), end_token_ids=()))
    assert bounded.finish[0] is FinishReason.EOS
    assert len(text(bounded)) == 9


def test_the_grammar_wins_over_a_minimum_length() -> None:
    done = alone(runner(), request(Choice(("yes", "no")), min_tokens=100))
    assert text(done) in (b"yes", b"no")
    assert done.finish[0] is FinishReason.EOS
    longer = alone(runner(), request(Regex("[ab]*"), min_tokens=30, sampling=SamplingParams(logit_bias={END: 9.0})))
    assert len(longer.ids()) == 31


def test_a_text_is_cut_at_its_length() -> None:
    done = alone(runner(), request(CONSTRAINTS[0], max_tokens=4))
    assert done.finish[0] is FinishReason.LENGTH
    assert len(done.ids()) == 4
    assert text(done).startswith(b"{")


def test_every_other_parameter_acts_on_what_is_allowed() -> None:
    greedy = alone(runner(), request(CONSTRAINTS[0], sampling=SamplingParams(temperature=0.0)))
    assert greedy == alone(runner(), request(CONSTRAINTS[0], seed=2, sampling=SamplingParams(temperature=0.0)))
    narrow = SamplingParams(top_k=1, top_p=0.1, min_p=0.9, repetition_penalty=1.5, logit_bias={0: 100.0, END: 100.0})
    assert text(alone(runner(), request(CONSTRAINTS[0], sampling=narrow))).startswith(b"{")


def test_log_probabilities_are_those_of_the_model() -> None:
    asked = LogprobParams(top=SIZE)
    free = EngineRequest(request_id="free", prompt=(1, 2, 3), seeds=(1,), max_tokens=1, logprobs=asked)
    alternatives = run_alone(runner(), free).tokens[0][0][2]
    own = {each.token_id: each.logprob for each in alternatives}
    token_id, logprob, top = alone(runner(), request(CONSTRAINTS[0], logprobs=LogprobParams(top=3))).tokens[0][0]
    assert logprob == own[token_id]
    assert [each.logprob for each in top] == sorted(own.values(), reverse=True)[:3]


# However it is run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(8))
def test_in_any_company(case: int) -> None:
    rng = random.Random(case)
    ours = random_constrained(rng, "ours")
    expected = alone(runner(), ours)
    free = random_request(rng, "free", SIZE)
    expected_free = run_alone(runner(), free)
    crowd = [ours, free, *(random_constrained(rng, f"other {i}") for i in range(12))]
    rng.shuffle(crowd)
    done = run(engine(runner()), crowd)
    assert done["ours"] == expected
    assert done["free"] == expected_free


@pytest.mark.parametrize("case", range(8))
def test_after_a_crash_at_any_token(case: int) -> None:
    rng = random.Random(case)
    ours = random_constrained(rng, "ours")
    expected = alone(runner(), ours)
    unfinished = InFlightRequest(ours)
    died = engine(runner())
    died.submit(ours)
    deaths = rng.randint(1, 40)
    seen: list[TokenEvent] = []
    for _ in range(deaths):
        if died.has_work:
            for event in died.step().events:
                assert unfinished.accept(event)
                if isinstance(event, TokenEvent):
                    seen.append(event)
    if unfinished.is_over:
        return
    fresh = engine(runner())
    fresh.submit(unfinished.as_replay())
    while fresh.has_work:
        for event in fresh.step().events:
            if unfinished.accept(event) and isinstance(event, TokenEvent):
                seen.append(event)
    for sequence in range(len(ours.seeds)):
        mine = [(e.token_id, e.logprob, e.top) for e in seen if e.sequence == sequence]
        assert mine == expected.tokens.get(sequence, [])


@pytest.mark.parametrize("case", range(4))
def test_after_preemption(case: int) -> None:
    rng = random.Random(case)
    ours = msgspec.structs.replace(
        random_constrained(rng, "ours"),
        grammar=grammar_of(Regex("[a-z ]*")),
        max_tokens=50,
        priority=-5,
        end_token_ids=(),
    )
    expected = alone(runner(), ours)
    tight = engine(Limited(runner(), num_blocks=8))
    intruders = [
        msgspec.structs.replace(
            random_constrained(rng, f"i{i}"), prompt=(1,) * 230, max_tokens=5, seeds=(i,), priority=i
        )
        for i in range(3)
    ]
    output_processors = {each.request_id: Transcript() for each in [ours, *intruders]}
    tight.submit(ours)
    while tight.has_work:
        if intruders and output_processors["ours"].tokens and rng.random() < 0.3:
            tight.submit(intruders.pop())
        step(tight, output_processors)
    assert output_processors["ours"] == expected


@pytest.mark.parametrize("case", range(6))
def test_with_drafts_and_without(case: int) -> None:
    rng = random.Random(case)
    crowd = [random_constrained(rng, str(index)) for index in range(3)]
    crowd.append(request(Regex("(ab){50}"), "repeating", case))
    model = stub(vocab_size=SIZE, period=rng.randint(1, 4))
    plain = run(engine(model, settings=SchedulerSettings(speculation=0)), crowd)
    settings = SchedulerSettings(speculation=12)
    assert run(engine(model, settings=settings), crowd) == plain
    # Alone: which grammar is compiled first decides about the company, and so about the steps with room for drafts.
    drafting = engine(model, settings=settings)
    assert run(drafting, crowd[-1:]) == {"repeating": plain["repeating"]}
    assert drafting.output().stats.accepted_tokens > 0


def test_sequences_of_one_request_follow_it_each_for_itself() -> None:
    together = alone(runner(), request(CONSTRAINTS[0], seeds=(5, 6, 7)))
    for index, seed in enumerate((5, 6, 7)):
        assert together.tokens[index] == alone(runner(), request(CONSTRAINTS[0], seed=seed)).tokens[0]


# What goes wrong ------------------------------------------------------------------------------------------------------


def finish_of(made: Engine, *requests: EngineRequest) -> dict[str, FinishEvent]:
    events = []
    for each in requests:
        made.submit(each)
    while made.has_work:
        events += made.step().events
    return {event.request_id: event for event in events if isinstance(event, FinishEvent)}


def test_without_a_vocabulary_a_grammar_is_refused() -> None:
    ends = finish_of(Engine(runner()), request(CONSTRAINTS[0]))
    assert ends["ours"].finish is FinishReason.ERROR
    assert "vocabulary" in ends["ours"].message


def test_a_broken_grammar_fails_its_own_request() -> None:
    broken = msgspec.structs.replace(request(CONSTRAINTS[0], "broken"), grammar="start: (")
    dead_end = request(Lark('start: "a" start'), "dead end")
    made = engine(runner())
    ends = finish_of(made, broken, dead_end, request(Choice(("yes",)), "sound"))
    assert ends["broken"].finish is FinishReason.ERROR
    assert ends["broken"].message
    assert "dead end" not in ends or "no text can follow" in ends["dead end"].message
    assert "sound" not in ends  # it ended with a token
    assert not made.has_work


def test_a_grammar_that_fails_in_an_unknown_way_fails_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    compile = Matching.matcher

    def matcher(matching: Matching, grammar: str) -> Any:
        if grammar == wrong.grammar:
            raise RuntimeError("not seen before")
        return compile(matching, grammar)

    wrong = request(Regex("b+"), "wrong")
    monkeypatch.setattr(Matching, "matcher", matcher)
    done = run(engine(runner()), [wrong, request(Choice(("yes",)))])
    assert (done["wrong"].finish[0], text(done["ours"])) == (FinishReason.ERROR, b"yes")


def test_a_process_of_low_priority_follows_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_priority(which: int, who: int, niceness: int) -> None:
        if niceness < 15:
            raise PermissionError  # as of users who started it with `nice`, and are not root

    monkeypatch.setattr("os.getpriority", lambda which, who: 15)
    monkeypatch.setattr("os.setpriority", set_priority)
    assert text(alone(runner(), request(Choice(("yes",))))) == b"yes"


def test_others_go_on_while_a_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    compile_grammar = Matching.matcher

    def slowly(self: Matching, grammar: str) -> Any:
        assert may_go_on.wait(60)
        return compile_grammar(self, grammar)

    monkeypatch.setattr(Matching, "matcher", slowly)
    made = engine(runner())
    output_processors = {"free": Transcript(), "ours": Transcript(), "cancelled": Transcript()}
    made.submit(request(CONSTRAINTS[0]))
    made.submit(request(CONSTRAINTS[0], "cancelled"))
    made.submit(EngineRequest(request_id="free", prompt=(1, 2), seeds=(1,), max_tokens=10))
    while not output_processors["free"].finish:
        step(made, output_processors)
    assert not output_processors["ours"].tokens
    assert made.has_work
    made.cancel("cancelled")
    may_go_on.set()
    while made.has_work:
        step(made, output_processors)
    assert output_processors["ours"].finish[0] is FinishReason.EOS
    assert not output_processors["cancelled"].tokens


def test_a_second_request_of_the_same_id_is_refused_while_the_first_is_prepared() -> None:
    made = engine(runner())
    made.submit(request(CONSTRAINTS[0]))
    made.submit(request(CONSTRAINTS[0]))
    assert "already in use" in made.output().events[0].message  # type: ignore[union-attr]


# An end-of-sequence token behind a complete text ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_complete_text_may_end_with_a_generated_end_token(seed: int) -> None:
    plain = alone(runner(), request(Regex("[a-c]{4}"), seed=seed))
    ended = alone(runner(), request(Regex("[a-c]{4}"), seed=seed, eos_after_grammar=True))
    assert ended.ids(0) == [*plain.ids(0), END]
    assert plain.finish[0] is ended.finish[0] is FinishReason.EOS


def test_its_log_probability_is_of_the_only_token_that_is_possible() -> None:
    logprobs = LogprobParams(top=3, mode="processed")
    ended = alone(runner(), request(Regex("[a-c]{4}"), eos_after_grammar=True, logprobs=logprobs))
    token_id, logprob, _ = ended.tokens[0][-1]
    assert (token_id, logprob) == (END, 0.0)


def test_a_text_that_is_complete_with_its_last_token_ends_by_its_length() -> None:
    count = len(alone(runner(), request(Regex("[a-c]{4}"))).ids(0))
    wanted = request(Regex("[a-c]{4}"), eos_after_grammar=True, max_tokens=count, length_first=True)
    assert alone(runner(), wanted).finish[0] is FinishReason.LENGTH


def test_a_request_that_ignores_end_tokens_gets_none() -> None:
    wanted = request(Regex("[a-c]{4}"), eos_after_grammar=True, end_token_ids=())
    assert alone(runner(), wanted).ids(0) == alone(runner(), request(Regex("[a-c]{4}"))).ids(0)


def test_a_replay_behind_a_complete_text_goes_on_with_the_end_token() -> None:
    wanted = request(Regex("[a-c]{4}"), eos_after_grammar=True)
    *before, _ = alone(runner(), wanted).ids(0)
    again = engine(runner())
    again.submit(msgspec.structs.replace(wanted, generated=(tuple(before),)))
    events: list[Any] = []
    while again.has_work:
        events += again.step().events
    (token,) = [event for event in events if isinstance(event, TokenEvent)]
    assert (token.token_id, token.finish) == (END, FinishReason.EOS)
