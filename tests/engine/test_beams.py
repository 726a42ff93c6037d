"""The steps of a beam search that transformers does not have, each against its definition; and the ends of a search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from test_grammar_mask import END, VOCABULARY
from test_sampler import make_sequence
from test_sampler_truncations import chi_square

from dragoman.core.constraint import Choice, Constraint, Regex
from dragoman.core.errors import BadRequest
from dragoman.core.events import FinishEvent, FinishReason, TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import BeamParams, LogprobParams, SamplingParams
from dragoman.engine import admission
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.beam_search.expand import candidates, gumbel_noise
from dragoman.engine.engine import Engine
from dragoman.engine.integrity import check_integrity
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.stub import StubRunner
from dragoman.grammar.lark import grammar_of
from dragoman.kernels.reference import sampling as plain
from dragoman.models.batch import Batch
from simulation import Hypothesis, hypotheses, run, run_beams, stub

Floats = NDArray[np.float64]


class Chain(StubRunner):
    """A model that knows only the token before: ``table[i]`` are the logits behind token i."""

    def __init__(self, table: Float32) -> None:
        super().__init__()
        self.table, self.vocab_size = table, len(table)

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None, interrupt: int | None = None) -> Float32:
        return self.table[batch.token_ids[batch.logit_rows]].copy()

    def copy_blocks(self, sources: Int32, targets: Int32, group: int = 0) -> None: ...


def chain(seed: int, vocab_size: int, scale: float = 2.0) -> Chain:
    return Chain(np.random.default_rng(seed).normal(scale=scale, size=(vocab_size, vocab_size)).astype(np.float32))


def ask(num_beams: int, n: int = 1, *, seed: int = 0, prompt: tuple[int, ...] = (0,), **fields: Any) -> EngineRequest:
    """``fields`` of the search, of its sampling, or of the request."""
    beams = {name: fields.pop(name) for name in BeamParams.__struct_fields__ if name in fields}
    sampling = {name: fields.pop(name) for name in SamplingParams.__struct_fields__ if name in fields}
    return EngineRequest(
        request_id=fields.pop("request_id", "r"),
        prompt=prompt,
        seeds=(seed,) * n,
        max_tokens=fields.pop("max_tokens", 6),
        beams=BeamParams(num_beams=num_beams, **beams),
        sampling=SamplingParams(**sampling),
        **fields,
    )


# Random numbers -------------------------------------------------------------------------------------------------------


def test_noise_is_a_function_of_its_place() -> None:
    """Counter (1 + token // 4, place of the text, 2, position): as the manual says."""
    noise = gumbel_noise(2**64 - 3, 70, 5, np.arange(11))
    words = [plain.philox([1 + block, 5, 2, 70], [2**64 - 3, 0]) for block in range(3)]
    uniform = [((word >> 11) + 0.5) / 2**53 for word in itertools.chain(*words)]
    np.testing.assert_allclose(noise, [-math.log(-math.log(u)) for u in uniform[:11]], rtol=1e-12)


def test_noise_of_few_tokens_is_that_among_many() -> None:
    whole = gumbel_noise(5, 6, 7, np.arange(20_000))
    for few in ([0], [19_999], [3, 4, 5, 7, 9_000], [8_192, 8_193, 8_195, 19_000]):
        assert gumbel_noise(5, 6, 7, np.array(few)).tolist() == whole[few].tolist()


def test_the_largest_sum_is_a_draw() -> None:
    logits = np.random.default_rng(1).normal(scale=1.5, size=20)
    probabilities = np.exp(plain.log_softmax(logits))
    drawn = [int(np.argmax(logits + gumbel_noise(seed, 3, 1, np.arange(20)))) for seed in range(8000)]
    chi_square(np.bincount(drawn, minlength=20).astype(float), probabilities)


# Normalization --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_log_probabilities_are_normalized_before_or_after_the_steps(before: bool, after: bool) -> None:
    row = np.random.default_rng(2).normal(scale=3.0, size=50).astype(np.float32)
    beams = BeamParams(num_beams=3, pre_normalization=before, post_normalization=after)
    sequence = make_sequence(prompt=(4, 5), generated=(6,), beams=beams, repetition_penalty=1.7, logit_bias={9: 2.0})
    expected = plain.log_softmax(row) if before else row.astype(np.float64)
    expected = plain.penalize(expected, [4, 5, 6], [0, 0, 1], 1.7, 0.0, 0.0)
    expected[9] += 2.0
    if after:
        expected = plain.log_softmax(expected)
    found = candidates(row.copy(), sequence, -4.0, -4.0, 0, 8)
    assert found is not None
    best = np.argsort(-expected)[:8]
    assert found.token_ids.tolist() == best.tolist()
    np.testing.assert_allclose(found.logprobs, expected[best], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(found.keys, -4.0 + expected[best], rtol=2e-6)


# Stochastic beams -----------------------------------------------------------------------------------------------------


def kool(runner: Chain, request: EngineRequest) -> list[tuple[tuple[int, ...], float]]:
    """Algorithm 1 of Kool et al. 2019 as it is printed, in float64: texts and log-probabilities by descending key."""
    assert request.beams is not None
    beam: list[tuple[tuple[int, ...], float, float, bool]] = [((), 0.0, 0.0, False)]
    for position in range(request.max_tokens):
        expansions = [text for text in beam if text[3]]
        for rank, (tokens, phi, key, _) in enumerate(text for text in beam if not text[3]):
            logprobs = plain.log_softmax(runner.table[(request.prompt + tokens)[-1]])
            perturbed = phi + logprobs + gumbel_noise(request.seeds[0], position, rank, np.arange(runner.vocab_size))
            shifted = -np.log(np.exp(-key) - np.exp(-perturbed.max()) + np.exp(-perturbed))
            for token, child in enumerate(shifted):
                ended = token in request.end_token_ids
                expansions.append(((*tokens, token), phi + logprobs[token], float(child), ended))
        beam = sorted(expansions, key=lambda text: -text[2])[: request.beams.num_beams]
    return [(tokens, phi) for tokens, phi, _, _ in beam]


@pytest.mark.parametrize("seed", range(30))
def test_stochastic_beam_search(seed: int) -> None:
    runner = chain(seed, 13)
    ends = ((), (3,), (3, 7))[seed % 3]
    request = ask(1 + seed % 7, 1 + seed % 7, seed=seed, kind="stochastic", max_tokens=1 + seed % 9, end_token_ids=ends)
    found = hypotheses(run_beams(runner, request), request)
    expected = kool(runner, request)
    assert [each.token_ids for each in found] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([each.score for each in found], [score for _, score in expected], rtol=1e-5)


def test_texts_are_a_sample_without_replacement() -> None:
    """All fifteen texts of two letters and an end, up to three tokens: each pair as often as drawing it would be."""
    runner = chain(4, 3, scale=1.0)
    probabilities: dict[tuple[int, ...], float] = {}
    rows = np.exp(plain.log_softmax(runner.table))
    for length in (1, 2, 3):
        for tokens in itertools.product(range(3), repeat=length):
            if 1 not in tokens[:-1] and (length == 3 or tokens[-1] == 1):
                path = zip((0, *tokens), tokens, strict=False)
                probabilities[tokens] = math.prod(float(rows[before, token]) for before, token in path)
    assert len(probabilities) == 15
    assert math.isclose(sum(probabilities.values()), 1.0)
    pairs = list(itertools.permutations(probabilities, 2))
    expected = np.array([probabilities[a] * probabilities[b] / (1 - probabilities[a]) for a, b in pairs])
    engine, counts = Engine(runner), np.zeros(len(pairs))
    for start in range(0, 3000, 100):
        searches = [
            ask(2, 2, seed=seed, kind="stochastic", max_tokens=3, end_token_ids=(1,), request_id=str(seed))
            for seed in range(start, start + 100)
        ]
        for each in run(engine, searches).values():
            counts[pairs.index((tuple(each.ids(0)), tuple(each.ids(1))))] += 1
    chi_square(counts, expected)


def test_a_sample_of_all_texts_is_all_texts() -> None:
    request = ask(31, 15, kind="stochastic", max_tokens=3, end_token_ids=(1,))
    found = hypotheses(run_beams(chain(4, 3), request), request)
    assert len({each.token_ids for each in found}) == 15
    assert math.isclose(sum(math.exp(each.score or 0) for each in found), 1.0, rel_tol=1e-5)


# Ends -----------------------------------------------------------------------------------------------------------------


def best_of_all(runner: Chain, request: EngineRequest) -> list[Hypothesis]:
    """Every text there is, best first: what a search that is as wide as the space has to find."""
    rows = plain.log_softmax(runner.table)
    found: list[Hypothesis] = []
    for length in range(1, request.max_tokens + 1):
        for tokens in itertools.product(range(runner.vocab_size), repeat=length):
            ended = tokens[-1] in request.end_token_ids
            if any(token in request.end_token_ids for token in tokens[:-1]) or not (
                ended or length == request.max_tokens
            ):
                continue
            path = zip((request.prompt[-1], *tokens), tokens, strict=False)
            score = sum(float(rows[before, token]) for before, token in path)
            found.append(Hypothesis(tokens, FinishReason.EOS if ended else FinishReason.LENGTH, score))
    return sorted(found, key=lambda each: -(each.score or 0))


def test_a_wide_search_finds_the_best_of_all_texts() -> None:
    runner = chain(8, 4)
    request = ask(31, 5, max_tokens=3, end_token_ids=(2,), length_penalty=0.0, early_stopping="never")
    found, expected = hypotheses(run_beams(runner, request), request), best_of_all(runner, request)[:5]
    assert [(h.token_ids, h.finish) for h in found] == [(h.token_ids, h.finish) for h in expected]
    np.testing.assert_allclose([h.score for h in found], [h.score for h in expected], rtol=1e-5)


def test_where_fewer_texts_exist_the_rest_of_the_answer_is_empty() -> None:
    request = ask(4, 3, max_tokens=1, banned_phrases=((0,), (1,), (3,), (4,)))
    first, second, third = hypotheses(run_beams(chain(1, 6), request), request)
    assert {first.token_ids, second.token_ids} == {(2,), (5,)}
    assert third == Hypothesis((), FinishReason.EOS, None)


def test_where_no_text_exists_the_request_fails() -> None:
    everything = tuple((token,) for token in range(6))
    for event in run_beams(chain(1, 6), ask(3, 2, banned_phrases=everything))[1:]:
        assert isinstance(event, FinishEvent)
        assert event.finish is FinishReason.ERROR
        assert "forbidden" in event.message


def test_a_row_that_is_no_distribution_fails_its_search_alone() -> None:
    runner = stub(vocab_size=61, nan_token=60)
    bad = ask(3, 2, prompt=(1, 60), request_id="bad")
    good = ask(3, 2, prompt=(1, 2), request_id="good", banned_phrases=((60,),))
    done = run(Engine(runner), [bad, good])
    assert set(done["bad"].finish.values()) == {FinishReason.ERROR}
    assert set(done["good"].finish.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("kind", ["sampling", "stochastic"])
@pytest.mark.parametrize("temperature", [1e-38, 1e-50, 3e38])
@pytest.mark.parametrize("after", [False, True])
def test_no_number_ends_the_engine(kind: str, temperature: float, after: bool) -> None:
    """A search may fail of it, in words. The next one is as if nothing had been."""
    engine, fields = Engine(chain(5, 9)), {"post_normalization": after, "pre_normalization": not after}
    extreme = {"temperature": temperature, "logit_bias": {3: 1e38, 4: -1e38}, "repetition_penalty": 1e30}
    failing = ask(3, 2, kind=kind, end_token_ids=(2,), request_id="failing", **fields, **extreme)
    done = run(engine, [failing, ask(3, 2, request_id="next")])
    assert set(done["failing"].finish) == {0, 1}
    assert set(done["next"].finish.values()) == {FinishReason.LENGTH}


def test_a_stop_token_ends_a_text_and_the_search_goes_on() -> None:
    runner = chain(3, 9)
    likely = dict.fromkeys((4, 5, 6), 2.0)
    request = ask(3, 3, stop_token_ids=(4, 5, 6), early_stopping=True, max_tokens=30, logit_bias=likely)
    found = hypotheses(run_beams(runner, request), request)
    assert {each.finish for each in found} == {FinishReason.STOP_TOKEN}
    assert all(each.token_ids[-1] in (4, 5, 6) for each in found)
    assert not any(set(each.token_ids[:-1]) & {4, 5, 6} for each in found)


def test_the_length_may_be_looked_at_first() -> None:
    request = ask(2, 2, max_tokens=1, end_token_ids=tuple(range(9)))
    reasons = [
        {each.finish for each in hypotheses(run_beams(chain(3, 9), asked), asked)}
        for asked in (request, msgspec.structs.replace(request, length_first=True))
    ]
    assert reasons == [{FinishReason.EOS}, {FinishReason.LENGTH}]


@pytest.mark.parametrize("penalty", [1e300, -1e300, 1e-300, 400.0, -400.0])
def test_any_length_penalty_is_a_number(penalty: float) -> None:
    request = ask(3, 3, length_penalty=penalty, end_token_ids=(2,), early_stopping="never", max_tokens=12)
    found = hypotheses(run_beams(chain(6, 9), request), request)
    assert all(each.score is not None and math.isfinite(each.score) for each in found)
    assert [each.score for each in found] == sorted((each.score or 0 for each in found), reverse=True)


def test_it_goes_on_behind_what_was_generated_before() -> None:
    """Of which the score knows nothing; penalties and lengths do."""
    runner = chain(7, 9)
    whole = ask(3, 2, prompt=(1, 4, 2), max_tokens=4)
    continued = ask(3, 2, prompt=(1,), max_tokens=6, generated=((4, 2), (4, 2)))
    events = run_beams(runner, continued)
    assert hypotheses(events, continued) == hypotheses(run_beams(runner, whole), whole)
    assert [event.index for event in events if isinstance(event, TokenEvent) and event.sequence == 0] == [2, 3, 4, 5]


# Log-probabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["stub", "float32"], indirect=True)
def test_log_probabilities_are_those_of_a_sequence_that_says_the_same(runner: Runner) -> None:
    request = ask(4, 3, prompt=(3, 8), repetition_penalty=1.4, max_tokens=9, logprobs=LogprobParams(top=2))
    found = run(Engine(runner), [request])["r"]
    for index in range(3):
        forced = SamplingParams(forced_tokens=tuple(found.ids(index)))
        said = run(Engine(runner), [msgspec.structs.replace(request, beams=None, seeds=(0,), sampling=forced)])["r"]
        assert found.tokens[index] == said.tokens[0]


@pytest.mark.parametrize("runner", ["stub", "float32"], indirect=True)
def test_processed_log_probabilities_add_up_to_the_score(runner: Runner) -> None:
    request = ask(
        4,
        3,
        pre_normalization=False,
        post_normalization=True,
        repetition_penalty=1.4,
        max_tokens=9,
        logprobs=LogprobParams(mode="processed"),
    )
    found = run(Engine(runner), [request])["r"]
    for index, score in found.scores.items():
        assert math.isclose(sum(logprob or 0 for _, logprob, _ in found.tokens[index]) / 9, score, rel_tol=1e-5)


# Grammars -------------------------------------------------------------------------------------------------------------


def followed(constraint: Constraint, **fields: Any) -> tuple[list[str], list[Hypothesis]]:
    """The texts that a search finds, each followed by its grammar in a matcher of its own."""
    request = ask(6, 6, end_token_ids=(END,), grammar=grammar_of(constraint), max_tokens=20, prompt=(7,), **fields)
    engine = Engine(stub(vocab_size=len(VOCABULARY.tokens), num_blocks=64))
    engine.set_vocabulary(VOCABULARY)
    engine.submit(request)
    events = []
    while engine.has_work:
        events += engine.step().events
        check_integrity(engine.scheduler)
    found = hypotheses(events, request)
    return [b"".join(VOCABULARY.tokens[i] for i in each.token_ids if i != END).decode() for each in found], found


@pytest.mark.parametrize("kind", ["deterministic", "sampling", "stochastic"])
def test_every_text_follows_the_grammar(kind: str) -> None:
    texts, found = followed(Choice(("maybe", "no", "yes")), kind=kind)
    assert sorted({text for text in texts if text}) == ["maybe", "no", "yes"]
    assert {each.finish for each in found} == {FinishReason.EOS}
    texts, _ = followed(Regex("[ab]{3}[0-9]{2}"), kind=kind)
    assert len(texts) == 6
    for text in texts:
        assert text[:3].strip("ab") == ""
        assert text[3:].isdigit()


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_k": 3}, "top_k"),
        ({"top_p": 0.5}, "top_p"),
        ({"min_p": 0.5}, "min_p"),
        ({"kind": "sampling", "temperature": 0.0}, "temperature"),
        ({"kind": "sampling", "typical_p": 0.5}, "typical_p"),
        ({"kind": "stochastic", "xtc_probability": 0.5}, "xtc_probability"),
        ({"kind": "sampling", "mirostat_mode": 2}, "mirostat_mode"),
        ({"forced_tokens": (1, 2, 3, 4, 5, 6)}, "forced_tokens"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"kind": "stochastic", "length_penalty": 0.5}, "length_penalty"),
        ({"kind": "stochastic", "early_stopping": "never"}, "early_stopping"),
        ({"pre_normalization": False}, "pre_normalization"),
        ({"max_tokens": 0}, None),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(BadRequest) as error:
        admission.check(ask(3, **fields), stub(), 64)
    assert error.value.param == param


@pytest.mark.parametrize(("num_beams", "n"), [(0, 1), (32, 1), (3, 4)])
def test_how_many(num_beams: int, n: int) -> None:
    with pytest.raises(BadRequest, match="beams"):
        admission.check(ask(num_beams, n), stub(), 64)


# Memory ---------------------------------------------------------------------------------------------------------------


def test_texts_share_what_they_have_in_common() -> None:
    """Ten blocks of prompt once, and for each text the blocks behind where it left the others."""
    runner = stub(vocab_size=61, num_blocks=64)
    engine, most = Engine(runner, SchedulerSettings(prefix_cache=False)), 0
    engine.submit(ask(8, 8, prompt=tuple(range(60)) * 5 + tuple(range(20)), max_tokens=31))
    while engine.has_work:
        engine.step()
        check_integrity(engine.scheduler)
        most = max(most, 64 - engine.scheduler.cache.available)
    assert most <= 10 + 8 * 1
    assert engine.scheduler.cache.available == 64
