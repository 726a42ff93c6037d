"""Buckets of distances as transformers' T5 has them."""

from __future__ import annotations

import numpy as np
import pytest
from transformers_reference import torch

from dragoman.models.positions import RelativeBias

t5 = pytest.importorskip("transformers.models.t5.modeling_t5")


@pytest.mark.parametrize("both_sides", [False, True])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (64, 300), (32, 17)])
def test_every_distance_falls_into_their_bucket(buckets: int, distance: int, both_sides: bool) -> None:
    table = RelativeBias(buckets=buckets, distance=distance).table(
        np.arange(buckets, dtype=np.float32)[:, None], both_sides=both_sides
    )
    far = np.arange(-2 * distance, 2 * distance + 1)
    ours = table[0][np.clip(far, -distance, distance) + distance]
    theirs = t5.T5Attention._relative_position_bucket(torch.tensor(far), both_sides, buckets, distance)
    assert np.array_equal(ours, theirs.numpy())
