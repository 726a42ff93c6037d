"""``benchmarks/load.py``: prompts of an exact length, and every request accounted for."""

from __future__ import annotations

import pytest

from benchmarks import load
from dragoman.models import embedded_path


@pytest.mark.parametrize("tokens", [4, 16, 128, 512])
def test_prompts_have_the_exact_length(tokens: int) -> None:
    prompts = load.Prompts(embedded_path(), "0")
    made = [prompts.make(tokens) for _ in range(5)]
    assert [prompts.length(text) for text in made] == [tokens] * 5
    assert len(set(made)) == 5


def test_same_seed_same_prompts() -> None:
    one, same, other = (load.Prompts(embedded_path(), seed).make(64) for seed in ("1", "1", "2"))
    assert one == same != other


def test_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    prompts = load.Prompts(embedded_path(), "0")
    made = prompts.with_shared_prefix(256, 32, 4)
    own = {text.partition("\n\n")[2] for text in made}
    assert len({text.partition("\n\n")[0] for text in made}) == 1
    assert len(own) == 4
    assert all(abs(prompts.length(text) - 288) <= 3 for text in made)


def test_spread_leaves_out_what_was_not_measured() -> None:
    assert load.spread("x", [3.0, None, 1.0, 2.0]) == {"repeats": 3, "x_median": 2.0, "x_min": 1.0, "x_max": 3.0}
    assert load.spread("x", [None]) == {"repeats": 0}


def test_ids_are_those_of_a_prompt() -> None:
    ids, text = load.Prompts(embedded_path(), "0").ids(96), load.Prompts(embedded_path(), "0").make(96)
    assert len(ids) == 96
    assert load.Prompts(embedded_path(), "1").length(text) == 96
