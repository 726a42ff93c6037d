"""The package ``ollama`` with a picture. Run by ``test_seeing``, against a model that sees."""

from __future__ import annotations

import base64
from typing import Any

import ollama
from checking import raised, run

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAABgAAAAQCAIAAACDRijCAAAAJ0lEQVR42mP8z4AdMJIowcRAJTBq0FA0"
    "iIUBV3rBIfF/NLBHDcIEADQ1Bh5ZHxW9AAAAAElFTkSuQmCC"
)
TEXT = "What is in this picture?"
OPTIONS: Any = {"temperature": 0, "num_predict": 8}


def client(url: str) -> ollama.Client:
    return ollama.Client(f"{url}/ollama")


def check_a_picture(url: str) -> None:
    message = {"role": "user", "content": TEXT, "images": [base64.b64decode(PICTURE)]}
    answer = client(url).chat("seeing", messages=[message], options=OPTIONS)
    same = client(url).generate("seeing", TEXT, images=[PICTURE], options=OPTIONS)
    assert answer.message.content == same.response, (answer, same)
    assert answer.prompt_eval_count == same.prompt_eval_count


def check_a_damaged_picture(url: str) -> None:
    message = {"role": "user", "content": TEXT, "images": [base64.b64decode(PICTURE)[:60]]}
    error = raised(ollama.ResponseError, client(url).chat, "seeing", messages=[message], options=OPTIONS)
    assert (error.status_code, "PNG" in error.error) == (400, True), error


def check_the_model_says_that_it_sees(url: str) -> None:
    assert "vision" in (client(url).show("seeing").capabilities or [])


if __name__ == "__main__":
    run(globals())
