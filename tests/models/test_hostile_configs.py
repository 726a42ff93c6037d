"""Whatever a config.json says, it describes a decoder or is refused by a ModelError; nothing else comes of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from small_models import SCALED, VARIANTS

from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec
from dragoman.models.parameters import parameters
from dragoman.models.spec import DecoderSpec

Config = dict[str, Any]

_FIRST = {config["architectures"][0]: name for name, config in reversed(VARIANTS.items())}
CONFIGS = {name: VARIANTS[name] for name in (*_FIRST.values(), "phi3-long", "gemma3-newer-config")}
CONFIGS |= {name: SCALED[name] for name in ("dynamic", "llama3", "yarn-all")}

JUNK = (None, True, 0, -1, 1, 7, 1.5, 1e-30, 1e300, 1.7e308, 10**30, 2**31 - 1, math.inf, math.nan, "", "x")
NESTED_JUNK = ([], {}, [[]], [{}], ["x", 1, None], {"x": []}, {"rope_type": []}, {"full_attention": {"rope_type": {}}})


def places(config: Config) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *inner) for inner in places(value))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_any_value_in_any_place(config: Config) -> None:
    extra = {"rope_scaling": None, "rope_parameters": None, "layer_types": None, "sliding_window": None, "head_dim": 16}
    for place in places(extra | config):
        for junk in (*JUNK, *NESTED_JUNK):
            changed = copy.deepcopy(config)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = copy.deepcopy(junk)
            with suppress(ModelError):
                check(read_spec(changed))


def check(spec: DecoderSpec) -> None:
    assert len(spec.windows) == len(spec.attention_scales) == spec.layers <= 512
    assert len(spec.ropes) in (0, spec.layers)
    assert 0 < spec.context < 2**31
    assert len(parameters(spec)) < 1_000_000
