"""Where drafts come from, and how much of them: found in the text, as long as it pays, in bounded memory."""

from __future__ import annotations

import random

import pytest

from dragoman.engine.speculation.drafter import LONGEST_PAUSE, Drafter
from dragoman.engine.speculation.lookup import MOST_PLACES, Lookup
from dragoman.engine.speculation.prediction import Prediction
from dragoman.engine.speculation.recent_outputs import (
    CAPACITY,
    MOST_CALLERS,
    RecentOutputs,
    RecentOutputsByCaller,
    RecentOutputsLookup,
)

BASE = random.Random(0).choices(range(30_000), k=300)


def steps(prompt: list[int], output: list[int], most: int = 11) -> tuple[int, int]:
    """Steps that it takes to say ``output``, and tokens drafted in vain."""
    lookup, token_ids, said, count, wasted = Lookup(len(prompt) + len(output)), list(prompt), 0, 0, 0
    while said < len(output):
        draft = lookup.draft(token_ids, most)
        assert len(draft) <= most
        accepted = 0
        while accepted < len(draft) and draft[accepted : accepted + 1] == output[said : said + 1]:
            token_ids.append(output[said])
            said, accepted = said + 1, accepted + 1
        token_ids += output[said : said + 1]
        said += 1
        if draft:
            lookup.verified(len(token_ids), len(draft), accepted)
        count, wasted = count + 1, wasted + len(draft) - accepted
    return count, wasted


def test_the_newest_tokens_are_found_where_they_were_last() -> None:
    assert Lookup(100).draft([1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 4], 3) == [8, 1, 2]
    assert Lookup(100).draft([5, 6, 7, 8, 5, 6], 2) == [7, 8]
    assert Lookup(100).draft([5, 6, 7, 8, 6, 5], 2) == []


def test_a_loop_is_drafted_beyond_its_own_end() -> None:
    assert Lookup(100).draft([7, 8, 9, 7, 8, 9, 7, 8], 4) == [9, 7, 8, 9]


def test_a_copied_prompt_takes_a_fraction_of_the_steps() -> None:
    count, wasted = steps(BASE, BASE)
    assert count <= len(BASE) / 10
    assert wasted < 12


@pytest.mark.parametrize(("every", "faster"), [(30, 7), (12, 6), (5, 2)])
def test_a_copy_with_other_words_in_it_goes_on_behind_them(every: int, faster: int) -> None:
    edited = [token_id if (place + 1) % every else token_id + 1 for place, token_id in enumerate(BASE)]
    assert steps(BASE, edited)[0] < len(edited) / faster


def test_text_that_never_repeats_is_left_alone() -> None:
    """Pairs of tokens come again, what follows them does not: drafts become short and rare."""
    rng = random.Random(1)
    pairs = [(rng.randrange(20), rng.randrange(20)) for _ in range(400)]
    output = [token_id for place, pair in enumerate(pairs) for token_id in (*pair, 1000 + place)]
    _, wasted = steps([], output)
    assert wasted < len(output) / LONGEST_PAUSE + 20


def test_memory_is_bounded_and_old_places_are_forgotten() -> None:
    lookup = Lookup(10**9)
    token_ids = list(range(3 * MOST_PLACES))
    lookup.draft(token_ids, 4)
    assert sum(table.nbytes for table in lookup.tables) == 2 * 4 * MOST_PLACES
    assert lookup.draft([*token_ids, *token_ids[-50:-40]], 4) == token_ids[-40:-36]


def told(drafter: Drafter, start: list[int], output: list[int], most: int = 11) -> tuple[int, int]:
    """Steps that it takes to say ``output`` after ``start``, and tokens drafted in vain."""
    token_ids, said, count, wasted = list(start), 0, 0, 0
    while said < len(output):
        draft = drafter.draft(token_ids, most)
        assert len(draft) <= most
        accepted = 0
        while draft[accepted : accepted + 1] == output[said + accepted : said + accepted + 1] != []:
            accepted += 1
        token_ids += output[said : said + accepted + 1]
        said += accepted + 1
        if draft:
            drafter.verified(len(token_ids), len(draft), accepted)
        count, wasted = count + 1, wasted + len(draft) - accepted
    return count, wasted


def edited(kind: str) -> list[int]:
    """``BASE`` after an edit of every 20th place."""
    output: list[int] = []
    for place, token_id in enumerate(BASE):
        if place % 20 == 10:
            output += {"replaced": [9], "inserted": [9, 8, token_id], "left out": []}[kind]
        else:
            output.append(token_id)
    return output


@pytest.mark.parametrize("kind", ["replaced", "inserted", "left out"])
def test_a_prediction_is_followed_behind_every_edit(kind: str) -> None:
    output = edited(kind)
    count, wasted = told(Prediction(tuple(BASE), 3), [1, 2, 3], output)
    assert count < len(output) / 4
    assert wasted < len(output)


def test_a_right_prediction_takes_the_fewest_steps() -> None:
    assert told(Prediction(tuple(BASE), 3), [1, 2, 3], BASE) == (len(BASE) // 12, 0)


def test_a_prediction_of_something_else_is_left_alone() -> None:
    output = random.Random(7).choices(range(30_000, 60_000), k=300)
    _, wasted = told(Prediction(tuple(BASE), 0), [], output)
    assert wasted < 60


def test_a_prediction_is_taken_up_within_a_known_output() -> None:
    """A sequence that comes back after a crash has tokens already."""
    drafter = Prediction(tuple(BASE), 2)
    assert drafter.draft([5, 6, *BASE[:100]], 4) == BASE[100:104]


def recent(*outputs: list[int]) -> RecentOutputsLookup:
    known = RecentOutputs()
    for output in outputs:
        known.add(output)
    return RecentOutputsLookup(known, 2)


def test_an_answer_like_an_earlier_one_is_drafted() -> None:
    count, _ = told(recent(BASE[:50], BASE), [1, 2], BASE)
    assert count < len(BASE) / 6


def test_a_prompt_is_not_mistaken_for_an_answer() -> None:
    assert recent(BASE).draft(BASE[:2], 4) == []


def test_a_draft_ends_with_the_output_that_it_is_from() -> None:
    drafter = RecentOutputsLookup(outputs := RecentOutputs(), 0)
    outputs.add(BASE[:10])
    outputs.add(BASE[50:60])
    assert drafter.draft(BASE[1:7], 4) == BASE[7:10]


def test_recent_outputs_are_bounded_and_the_newest_stay() -> None:
    outputs = RecentOutputs()
    for start in range(0, 4 * CAPACITY, 100):
        outputs.add(list(range(start, start + 100)))
        if start % 700 == 0:
            outputs.following([1] * 6, 1)
    last = 4 * CAPACITY - 4 * CAPACITY % 100
    assert outputs.following(list(range(last - 100, last - 90)), 3) == [last - 90, last - 89, last - 88]
    assert outputs.num_tokens <= CAPACITY


def test_recent_outputs_are_of_those_who_share_a_cache() -> None:
    known = RecentOutputsByCaller()
    known.of("a").add(BASE)
    assert known.of("a").following(BASE[:6], 2) == BASE[6:8]
    assert known.of("b").following(BASE[:6], 2) == []
    for index in range(MOST_CALLERS):
        known.of(f"{index}").add(BASE)
    assert known.of("a").following(BASE[:6], 2) == []
