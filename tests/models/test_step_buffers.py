"""The memory of a step, compared with the buffers that the decoder records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_models import VARIANTS, make_folder

from dragoman import models
from dragoman.models.families import read_spec
from dragoman.models.layer_buffers import LayerBuffers
from dragoman.models.step_buffers import part_floats


@pytest.mark.parametrize(
    "variant", ["laguna", "laguna-by-element", "mimo-v2", "mimo-v2-options", "qwen2", "qwen3-next"]
)
def test_parts_of_attention_are_counted_in_each_of_their_widths(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: dict[tuple[str, int], int] = {}
    part = LayerBuffers.part

    def note(self: Any, name: str, width: int) -> int:
        recorded[name, width] = part(self, name, width)
        return recorded[name, width]

    monkeypatch.setattr(LayerBuffers, "part", note)
    models.load(make_folder(tmp_path, VARIANTS[variant]), models.ModelSettings(max_context=64))
    assert sum(width for _, width in recorded) == part_floats(read_spec(VARIANTS[variant]))
