"""Where drafts come from, and how much of them: found in the text, as long as it pays, in bounded memory."""

from __future__ import annotations

import random

import pytest

from dragoman.engine.sampling.speculation import LONGEST_PAUSE, MOST_PLACES, Lookup

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
    assert sum(table.itemsize * len(table) for table in lookup._tables) == 2 * 4 * MOST_PLACES
    assert lookup.draft([*token_ids, *token_ids[-50:-40]], 4) == token_ids[-40:-36]
