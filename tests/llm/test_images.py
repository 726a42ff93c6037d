"""What a program gives as an image becomes the URL that a request would have."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dragoman.core.errors import BadRequest
from dragoman.llm.images import with_urls

PICTURE = Image.linear_gradient("L").resize((5, 3)).convert("RGB")


def url_of(image: Any, **more: Any) -> dict[str, Any]:
    part = {"type": "image", "image": image, **more}
    (message,) = with_urls([{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}])
    assert message["content"][0] == {"type": "text", "text": "What?"}
    assert message["content"][1]["type"] == "image_url"
    return dict(message["content"][1]["image_url"])


def file_of(url: str) -> bytes:
    head, _, data = url.partition(",")
    assert head == "data:;base64"
    return base64.b64decode(data)


def test_files_and_bytes_are_sent_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "picture.jpg"
    PICTURE.save(file)
    assert file_of(url_of(file)["url"]) == file.read_bytes() == file_of(url_of(bytearray(file.read_bytes()))["url"])
    assert url_of("data:,", detail="low") == {"url": "data:,", "detail": "low"}


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "HSV"])
def test_images_of_pillow_lose_nothing(mode: str) -> None:
    image = PICTURE.convert(mode)
    with Image.open(io.BytesIO(file_of(url_of(image)["url"]))) as found:
        assert found.convert("RGB").tobytes() == image.convert("RGB").tobytes()


def test_other_messages_stay() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, {"role": "user"}]
    assert with_urls(messages) == messages


@pytest.mark.parametrize("image", [None, 5, Path("/nonexistent/picture.png")])
def test_what_is_no_image_is_refused_by_its_place(image: Any) -> None:
    with pytest.raises(BadRequest, match=r"'messages\[0\].content\[1\]'"):
        url_of(image)
