"""The package ``anthropic`` with a picture. Run by ``test_seeing``, against a model that sees."""

from __future__ import annotations

from typing import Any

import anthropic
from checking import raised, run

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAABgAAAAQCAIAAACDRijCAAAAJ0lEQVR42mP8z4AdMJIowcRAJTBq0FA0"
    "iIUBV3rBIfF/NLBHDcIEADQ1Bh5ZHxW9AAAAAElFTkSuQmCC"
)
BASE64: Any = {"type": "base64", "media_type": "image/png", "data": PICTURE}


def asked(source: Any) -> Any:
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is in this picture?"}]
    return {"model": "seeing", "messages": [{"role": "user", "content": content}]}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"{url}/anthropic", api_key="none", max_retries=0)


def check_a_picture(url: str) -> None:
    counted = client(url).messages.count_tokens(**asked(BASE64))
    message = client(url).messages.create(max_tokens=8, **asked(BASE64))
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0), usage
    assert message.content[0].text, message


def check_the_url_of_a_picture(url: str) -> None:
    source = {"type": "url", "url": f"data:image/png;base64,{PICTURE}"}
    assert client(url).messages.create(max_tokens=8, **asked(source)).content[0].text


def check_a_damaged_picture(url: str) -> None:
    broken = BASE64 | {"data": PICTURE[:80]}
    error = raised(anthropic.BadRequestError, client(url).messages.create, max_tokens=8, **asked(broken))
    assert "messages.0.content.0.image: Could not process image: " in str(error), error


def check_the_model_says_that_it_sees(url: str) -> None:
    assert client(url).models.retrieve("seeing").capabilities.image_input.supported


if __name__ == "__main__":
    run(globals())
