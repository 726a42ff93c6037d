"""Tokens of models whose cross-attention layers look at images, compared with those of transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from vision_models import image

from dragoman.core.images import PlacedImage
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.models.model import Model

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from seeing_models import tiles_of

from simulation import run

torch = pytest.importorskip("torch")


def require_equal_tokens(
    theirs: Any, ours: Model, family: ModuleType, tokens: Sequence[int], sizes: Sequence[Any]
) -> None:
    """Compare 64 tokens, none of which ends the text, and the logits of each to one part in 10,000, with transformers.

    ``family``: its ``IMAGE`` takes the place of each token 0, and its ``their_inputs`` are transformers' of images of
    these ``sizes``.
    """
    ids = [family.IMAGE if token == 0 else token for token in tokens]
    pictures = [image(*size, seed) for seed, size in enumerate(sizes)]
    limits = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        inputs = family.their_inputs(ids, pictures)
        found = theirs.generate(**inputs, **limits, return_dict_in_generate=True, output_logits=True)
    places = [place for place, token in enumerate(tokens) if token == 0]
    tiles = [tiles_of(ours.tower.vision, *size, seed) for seed, size in enumerate(sizes)] if ours.tower else []
    placed = tuple(PlacedImage(start=at, end=at + 1, tiles=each) for at, each in zip(places, tiles, strict=True))
    request = EngineRequest(
        request_id="ours",
        prompt=tuple(ids),
        images=placed,
        seeds=(1,),
        max_tokens=64,
        sampling=SamplingParams(temperature=0, logit_bias={2: -1e9}),
        logprobs=LogprobParams(top=5),
    )
    made = run(Engine(ours), [request])["ours"]
    assert made.ids() == found.sequences[0, len(ids) :].tolist()
    for (_, _, top), logits in zip(made.tokens[0], found.logits, strict=True):
        expected = torch.log_softmax(logits[0], -1)
        best = expected.topk(5)
        assert [each.token_id for each in top] == best.indices.tolist()
        scale = float(logits.abs().max())
        assert np.abs(np.array([each.logprob for each in top]) - best.values.numpy()).max() < 1e-4 * scale
