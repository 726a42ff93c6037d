"""The package ``google-genai``, version 3.6, with keys, deadlines and streams that are left. Run by
``test_gemini_package``, against a server that takes 10 ms for a token and asks for keys."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from typing import Any

from checking import raised, run
from google import genai
from google.genai import errors, types

ANN = "key-of-ann-0123456789"
LONG: Any = {"max_output_tokens": 900, "temperature": 0}
KEPT: list[genai.Client] = []


def client(url: str, key: str = ANN, **more: Any) -> genai.Client:
    KEPT.append(genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url, **more)))
    return KEPT[-1]


def running(url: str) -> int:
    """How many requests the engine has."""
    request = urllib.request.Request(url + "/metrics", headers={"authorization": f"Bearer {ANN}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        page = answer.read().decode()
    (line,) = (line for line in page.splitlines() if line.startswith("dragoman_sequences_running "))
    return int(float(line.split()[1]))


def nothing_runs(url: str) -> None:
    until = time.monotonic() + 5
    while running(url):
        assert time.monotonic() < until, "it is still generated for"
        time.sleep(0.02)


def check_the_right_key(url: str) -> None:
    config: Any = {"max_output_tokens": 2}
    assert client(url).models.generate_content(model="stub", contents="Hi", config=config).candidates
    assert next(iter(client(url).models.list())).name == "models/stub"


def check_a_wrong_key(url: str) -> None:
    asking = client(url, "not-the-key-of-anybody")
    for call in (
        lambda: asking.models.generate_content(model="stub", contents="Hi"),
        lambda: list(asking.models.generate_content_stream(model="stub", contents="Hi")),
        lambda: asking.models.count_tokens(model="stub", contents="Hi"),
        lambda: asking.models.get(model="stub"),
        lambda: list(asking.models.list()),
    ):
        error = raised(errors.ClientError, call)
        assert (error.code, error.status) == (401, "UNAUTHENTICATED"), error
        assert "API key not valid" in error.message


def check_a_stream_that_is_left(url: str) -> None:
    asking = client(url)
    chunks = asking.models.generate_content_stream(model="stub", contents="Tell me about the sea.", config=LONG)
    assert next(iter(chunks)).text
    assert running(url) == 1
    asking.close()
    nothing_runs(url)


async def check_an_async_stream_that_is_left(url: str) -> None:
    asking = client(url).aio
    stream = await asking.models.generate_content_stream(model="stub", contents="Tell me about the sea.", config=LONG)
    async for chunk in stream:
        assert chunk.text
        break
    assert await asyncio.to_thread(running, url) == 1
    await asking.aclose()
    await asyncio.to_thread(nothing_runs, url)


async def check_a_whole_answer_that_is_left(url: str) -> None:
    asking = client(url).aio
    call = asking.models.generate_content(model="stub", contents="Tell me about the sea.", config=LONG)
    task = asyncio.ensure_future(call)
    while not await asyncio.to_thread(running, url):
        assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(nothing_runs, url)


def check_a_deadline(url: str) -> None:
    """The client says it to the server too, and gives up itself at the same time."""
    asking = client(url, timeout=1000)
    try:
        asking.models.generate_content(model="stub", contents="Tell me about the sea.", config=LONG)
    except errors.ServerError as error:
        assert (error.code, error.status) == (504, "DEADLINE_EXCEEDED"), error  # noqa: PT017
    except Exception as error:
        assert "timed out" in str(error).lower(), error  # noqa: PT017
    else:
        raise AssertionError("nine seconds passed in one")
    nothing_runs(url)


if __name__ == "__main__":
    run(globals())
