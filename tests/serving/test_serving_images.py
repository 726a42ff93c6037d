"""Serving requests with images."""

from __future__ import annotations

from typing import Any

import pytest
from asking import request
from stub_runtime import LocalServer

from dragoman.core.errors import UnsupportedFeature
from dragoman.core.images import ImageInput, ImageTiles

pytestmark = pytest.mark.anyio

TILES: Any = {"pixels": bytes(12), "tiles": 1, "height": 2, "width": 2, "rows": 0, "columns": 0, "image_height": 2}
TILES |= {"image_width": 2, "tokens": 3, "embeddings": 1}


async def test_a_model_without_a_tower_refuses_images_by_its_name(runtime: LocalServer) -> None:
    card = runtime.serving.model(None)
    assert card.images is None
    with pytest.raises(UnsupportedFeature, match=f"The model '{card.name}' sees no images") as raised:
        await runtime.serving.image_tiles(ImageInput(width=1, height=1, pixels=bytes(3)), param="messages[0]")
    assert raised.value.param == "messages[0]"
    asked = request(images=(ImageTiles.of(**TILES),), images_param="image_url")
    for answer in (runtime.serving.generate, runtime.serving.explain, runtime.serving.prepare):
        with pytest.raises(UnsupportedFeature, match="sees no images") as raised:
            await answer(asked)
        assert raised.value.param == "image_url"
    with pytest.raises(UnsupportedFeature, match="sees no images"):
        await anext(runtime.serving.stream(asked))
