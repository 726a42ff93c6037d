"""The package ``friendli``, version 0.3.21: the last that reads events. Run by ``test_friendli_old_package``."""

from __future__ import annotations

from typing import Any

from checking import PROMPT, USER, run
from friendli import SyncFriendli

MODEL = "tiny"
BODY: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "seed": [3]}


def client(url: str) -> Any:
    return SyncFriendli(token="flp_none", server_url=url, timeout_ms=30_000)


def complete(url: str, **fields: Any) -> Any:
    return client(url).serverless.completions.complete(serverless_completions_complete_body=BODY | fields)


def check_a_whole_completion(url: str) -> None:
    choice = complete(url).choices[0]
    assert (choice.index, choice.seed) == (0, 3)
    assert complete(url, seed=[choice.seed]).choices[0].text == choice.text


def check_events_and_their_end(url: str) -> None:
    whole = complete(url)
    stream = client(url).serverless.completions.stream(serverless_completions_stream_body=BODY)
    *tokens, last = [event.data for event in stream]
    assert {event.event for event in tokens} == {"token_sampled"}
    assert last.event == "complete"
    assert last.choices[0].text == whole.choices[0].text
    assert last.usage == whole.usage
    assert "".join(event.text for event in tokens) == whole.choices[0].text


def check_a_chat_and_its_stream(url: str) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": [USER], "max_tokens": 8, "temperature": 0}
    whole = client(url).serverless.chat.complete(**asked).choices[0].message.content
    stream = client(url).serverless.chat.stream(**asked)
    assert "".join(event.data.choices[0].delta.content or "" for event in stream) == whole


run(globals())
