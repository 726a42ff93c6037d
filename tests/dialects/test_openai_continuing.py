"""``X-Request-Continue``: a generation cut into calls is the generation of one call."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stub_runtime import QUICK, STUB, TOKENIZER, LocalServer, local_server

from dragoman.core.events import FinishReason
from dragoman.engine.integrity import check_integrity
from dragoman.server.app import create_app
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "Once upon a time there was a"
NAMES = iter(range(10**9))
PROPERTY = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Part(msgspec.Struct, frozen=True):
    """One answer."""

    text: str
    finish: str
    headers: dict[str, str]
    logprobs: dict[str, Any] | None = None


async def ask(
    client: httpx.AsyncClient, key: str | None = None, *, path: str = COMPLETIONS, stream: bool = False, **fields: Any
) -> Part:
    prompt = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    headers = {} if key is None else {"x-request-continue": key}
    answer = await client.post(path, json={**prompt, "stream": stream, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return read(answer, path, stream)


def read(answer: httpx.Response, path: str, stream: object) -> Part:
    if not stream:
        (choice,) = answer.json()["choices"]
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        return Part(text, choice["finish_reason"], dict(answer.headers), choice.get("logprobs"))
    text, finish = "", ""
    for line in answer.text.split("\n\n"):
        if line and line != "data: [DONE]":
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            text += choice["text"] if path == COMPLETIONS else choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    return Part(text, finish, dict(answer.headers))


async def in_calls(client: httpx.AsyncClient, lengths: list[int], **fields: Any) -> list[Part]:
    """The answers to calls of one key, until the generation has come to its end."""
    key, parts = f"key-{next(NAMES)}", list[Part]()
    for number, length in enumerate(lengths):
        parts.append(await ask(client, key, **fields, max_tokens=length, stream=number % 2 == 1))
        if parts[-1].finish != "length":
            break
    return parts


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "plain": {},
    "truncated": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "typical": {"typical_p": 0.7},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.001},
    "mirostat 1": {"mirostat_mode": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.4},
    "mirostat 2": {"mirostat_mode": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.4},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.9, "presence_penalty": 0.5, "temperature": 0.3},
    "no repetition": {"no_repeat_ngram_size": 1, "temperature": 0.2},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "temperature": 0.2},
    "watermark": {"watermark": True, "watermark_delta": 4.0},
    "minimum length": {"min_tokens": 30, "logit_bias": {str(TOKENIZER.eos_ids[0]): 8}},
    "ends early": {"logit_bias": {str(TOKENIZER.eos_ids[0]): 9}},
    "grammar": {"guided_regex": "[a-z]{1,4}( [a-z]{1,4}){5,9}!"},
    "stop string": {"stop": ["e", "th"]},
    "kept stop string": {"stop": ["ing", "ed"], "include_stop_str_in_output": True},
}
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=6)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@given(lengths=LENGTHS, seed=st.integers(0, 2**64 - 1))
@PROPERTY
async def test_calls_of_any_lengths_give_the_text_of_one(
    runtime: LocalServer, sampling: str, lengths: list[int], seed: int
) -> None:
    asked = SAMPLINGS[sampling] | {"seed": seed}
    parts = await in_calls(runtime.client, lengths, **asked)
    (one,) = await in_calls(runtime.client, [sum(lengths)], **asked)
    assert "".join(part.text for part in parts) == one.text
    assert parts[-1].finish == one.finish
    # Without a key, what is held back at the end is shown.
    plain = await ask(runtime.client, max_tokens=max(sum(lengths), asked.get("min_tokens", 0)), **asked)
    assert plain.text == one.text if one.finish == "stop" else plain.text.startswith(one.text)
    check_integrity(runtime.engine.engine.scheduler)


@given(lengths=LENGTHS, begin=st.integers(0, 60), length=st.integers(1, 12), seed=st.integers(0, 99))
@PROPERTY
async def test_a_stop_string_across_a_cut_is_found(
    runtime: LocalServer, lengths: list[int], begin: int, length: int, seed: int
) -> None:
    whole = (await ask(runtime.client, max_tokens=60, seed=seed)).text
    stop = whole[begin : begin + length]
    if not stop:
        return
    plain = await ask(runtime.client, max_tokens=sum(lengths), seed=seed, stop=stop)
    parts = await in_calls(runtime.client, lengths, seed=seed, stop=stop)
    text = "".join(part.text for part in parts)
    assert text == plain.text if plain.finish == "stop" else plain.text.startswith(text)
    assert parts[-1].finish == plain.finish


async def test_a_cut_inside_of_a_stop_string_shows_none_of_it(runtime: LocalServer) -> None:
    whole = (await ask(runtime.client, "whole", max_tokens=12, seed=5)).text
    first = (await ask(runtime.client, "first", max_tokens=6, seed=5)).text
    stop = whole[len(first) - 2 : len(first) + 2]
    cut = await ask(runtime.client, "cut", max_tokens=6, seed=5, stop=stop)
    assert (cut.text, cut.finish) == (first[:-2], "length")
    rest = await ask(runtime.client, "cut", max_tokens=6)
    assert (rest.text, rest.finish) == ("", "stop")


@given(lengths=LENGTHS, seed=st.integers(0, 2**32))
@PROPERTY
async def test_characters_are_never_split_between_calls(runtime: LocalServer, lengths: list[int], seed: int) -> None:
    """A model that says little else than pieces of characters."""
    pieces = [i for i, piece in enumerate(TOKENIZER.token_table) if piece and not _is_text(piece)][:8]
    pieces += TOKENIZER.encode("\N{GRINNING FACE}é", add_special_tokens=False)
    asked = {"seed": seed, "logit_bias": {str(piece): 60 for piece in pieces}}
    parts = await in_calls(runtime.client, lengths, **asked)
    plain = await ask(runtime.client, max_tokens=sum(lengths), **asked)
    text = "".join(part.text for part in parts)
    assert plain.text == text if plain.finish == "stop" else plain.text.startswith(text)
    assert len(plain.text) - len(text) <= 3


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("stream", [False, True])
async def test_chats_are_continued_too(runtime: LocalServer, stream: bool) -> None:
    asked = {"path": CHAT, "seed": 3, "stream": stream}
    one = await ask(runtime.client, "one", max_tokens=24, **asked)
    parts = [await ask(runtime.client, "cut", max_tokens=8, **asked) for _ in range(3)]
    assert "".join(part.text for part in parts) == one.text
    assert [part.headers["x-dragoman-continued"] for part in parts] == ["0", "8", "16"]


async def test_a_later_call_says_only_what_it_wants_changed(runtime: LocalServer) -> None:
    asked = {"seed": 11, "temperature": 0.7, "repetition_penalty": 1.3}
    one = await ask(runtime.client, "one", max_tokens=20, **asked)
    first = await ask(runtime.client, "cut", max_tokens=10, **asked)
    answer = await runtime.client.post(COMPLETIONS, json={"max_tokens": 5}, headers={"x-request-continue": "cut"})
    assert answer.headers["x-dragoman-seed"] == "11"
    second = answer.json()["choices"][0]["text"]
    third = (await ask(runtime.client, "cut", prompt="Something else entirely", max_tokens=5)).text
    assert first.text + second + third == one.text
    changed = await ask(runtime.client, "cut", max_tokens=20, temperature=0)
    assert changed.text != (await ask(runtime.client, "one", max_tokens=20)).text


async def test_a_chat_may_leave_its_messages_out_once_it_goes_on(runtime: LocalServer) -> None:
    missing = await runtime.client.post(CHAT, json={"max_tokens": 5}, headers={"x-request-continue": "new"})
    assert missing.json()["error"]["param"] == "messages"
    await ask(runtime.client, "new", path=CHAT, max_tokens=5)
    for messages in ({}, {"messages": []}, {"messages": "anything"}):
        body = {"max_tokens": 5, **messages}
        answer = await runtime.client.post(CHAT, json=body, headers={"x-request-continue": "new"})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "end", [{"logit_bias": {str(TOKENIZER.eos_ids[0]): 100}}, {"stop_token_ids": list(range(STUB.vocab_size))[:256]}]
)
async def test_a_finished_generation_frees_its_key(runtime: LocalServer, end: dict[str, Any]) -> None:
    for _ in range(2):
        part = await ask(runtime.client, "key", max_tokens=100, seed=2, **end)
        assert (part.finish, part.headers["x-dragoman-continued"]) == ("stop", "0")
    await ask(runtime.client, "key", max_tokens=2, seed=2)
    part = await ask(runtime.client, "key", max_tokens=100, **end)
    assert (part.finish, part.headers["x-dragoman-continued"]) == ("stop", "2")
    assert (await ask(runtime.client, "key", max_tokens=2)).headers["x-dragoman-continued"] == "0"


async def test_calls_of_one_key_follow_each_other(runtime: LocalServer) -> None:
    one = await ask(runtime.client, "one", max_tokens=25, seed=9)
    parts = await asyncio.gather(*(ask(runtime.client, "same", max_tokens=5, seed=9) for _ in range(5)))
    in_order = sorted(parts, key=lambda part: int(part.headers["x-dragoman-continued"]))
    assert "".join(part.text for part in in_order) == one.text


async def test_log_probabilities_are_those_of_the_calls_own_tokens(runtime: LocalServer) -> None:
    asked = {"seed": 5, "logprobs": 1, "stop": ["zzz", "\N{SNOWMAN}"]}
    one = await ask(runtime.client, "one", max_tokens=12, **asked)
    parts = [await ask(runtime.client, "cut", max_tokens=4, **asked) for _ in range(3)]
    assert one.logprobs is not None
    assert len(one.logprobs["tokens"]) == 12, "this seed ends the text early"
    shift = 0
    for name in ("tokens", "token_logprobs"):
        assert [value for part in parts for value in part.logprobs[name]] == one.logprobs[name]  # type: ignore[index]
    offsets = list[int]()
    for part in parts:
        offsets += [shift + offset for offset in part.logprobs["text_offset"]]  # type: ignore[index]
        shift += len(part.text)
    assert offsets == one.logprobs["text_offset"]


async def test_a_generation_that_runs_out_of_time_is_cut(template: ChatTemplate) -> None:
    slow = msgspec.structs.replace(STUB, step_s=0.01)
    async with local_server(template) as quick:  # another server: this one would draft what it has said before
        one = await ask(quick.client, "one", max_tokens=40, seed=6)
    async with local_server(template, stub=slow) as runtime:
        runtime.serving._timeout_s = 0.2
        text, calls = "", 0
        while not text.startswith(one.text) and calls < 50:
            body = {"prompt": PROMPT, "max_tokens": 100, "seed": 6, "stream": calls % 2 == 1}
            answer = await runtime.client.post(COMPLETIONS, json=body, headers={"x-request-continue": "cut"})
            if answer.status_code == 200:  # not so when not even the prompt was computed
                part = read(answer, COMPLETIONS, body["stream"])
                assert part.finish == "length"
                text += part.text
            calls += 1
        assert text.startswith(one.text)
        assert calls > 1


# Clients that leave ------------------------------------------------------------------------------------------------


class Listener:
    """A client that reads a stream's first chunks and leaves."""

    def __init__(self, body: dict[str, Any], key: str, chunks: int) -> None:
        self.text, self._left = "", chunks
        self._body: list[bytes] = [json.dumps(body).encode()]
        self._gone = asyncio.Event()
        headers = [(b"content-type", b"application/json"), (b"x-request-continue", key.encode())]
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": COMPLETIONS,
            "raw_path": COMPLETIONS.encode(),
            "query_string": b"",
            "headers": [*headers, (b"content-length", str(len(self._body[0])).encode())],
        }

    async def receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set():
            raise OSError("nobody is there")
        for line in message.get("body", b"").decode().split("\n\n"):
            if line.startswith("data: {"):
                self.text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                self._left -= 1
        if self._left <= 0 and message["type"] == "http.response.body":
            self._gone.set()
            await asyncio.sleep(60)  # the server sees the client leave, and gives up sending


@pytest.fixture
async def app(runtime: LocalServer) -> Any:
    return create_app(runtime.serving, QUICK)


@pytest.mark.parametrize("chunks", [1, 2, 7])
async def test_what_a_client_has_seen_of_a_stream_is_kept_when_it_leaves(
    runtime: LocalServer, app: Any, chunks: int
) -> None:
    one = await ask(runtime.client, "one", max_tokens=40, seed=8)
    body = {"prompt": PROMPT, "max_tokens": 100, "seed": 8, "stream": True}
    listener = Listener(body, "left", chunks)
    await app(listener.scope, listener.receive, listener.send)
    assert listener.text
    rest = await ask(runtime.client, "left", max_tokens=40)
    assert (listener.text + rest.text).startswith(one.text)
    check_integrity(runtime.engine.engine.scheduler)


async def test_an_answer_that_nobody_took_is_given_again(runtime: LocalServer, app: Any) -> None:
    first = await ask(runtime.client, "left", max_tokens=5, seed=8)
    runtime.engine.free.clear()
    listener = Listener({"prompt": PROMPT, "max_tokens": 5}, "left", 1)
    calling = asyncio.create_task(app(listener.scope, listener.receive, listener.send))
    while len(runtime.engine.requests) < 2:
        await asyncio.sleep(0.001)
    listener._gone.set()
    await calling
    runtime.engine.free.set()
    rest = await ask(runtime.client, "left", max_tokens=5)
    assert rest.headers["x-dragoman-continued"] == "5"
    assert first.text + rest.text == (await ask(runtime.client, "one", max_tokens=10, seed=8)).text


async def test_a_failure_leaves_the_key_as_it_was(runtime: LocalServer) -> None:
    first = await ask(runtime.client, "key", max_tokens=5, seed=8)
    runtime.engine.free.clear()
    calling = asyncio.create_task(
        runtime.client.post(COMPLETIONS, json={"max_tokens": 9}, headers={"x-request-continue": "key"})
    )
    while len(runtime.engine.requests) < 2:
        await asyncio.sleep(0.001)
    submitted = runtime.engine.requests[-1]
    runtime.engine.cancel(submitted.request_id)
    assert (await calling).status_code == 500
    runtime.engine.free.set()
    rest = await ask(runtime.client, "key", max_tokens=5)
    assert first.text + rest.text == (await ask(runtime.client, "one", max_tokens=10, seed=8)).text


# Whose it is, and what it does not go with -------------------------------------------------------------------------


async def test_every_tenant_has_keys_of_its_own(runtime: LocalServer) -> None:
    holders = {name: f"a long enough key of {name}" for name in ("ann", "bob")}
    keys = Keyring([hashed(key, name, ("infer",)) for name, key in holders.items()])
    app = create_app(runtime.serving, QUICK, keys=keys)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        before = {}
        for name in ("ann", "bob", "ann", "bob"):
            client.headers["authorization"] = f"Bearer {holders[name]}"
            part = await ask(client, "same", max_tokens=3, prompt=f"{name} says")
            before.setdefault(name, []).append(part.headers["x-dragoman-continued"])
        assert before == {"ann": ["0", "3"], "bob": ["0", "3"]}


async def test_completions_and_chats_have_keys_of_their_own(runtime: LocalServer) -> None:
    for path in (COMPLETIONS, CHAT):
        assert (await ask(runtime.client, "same", path=path, max_tokens=3)).headers["x-dragoman-continued"] == "0"


async def test_a_full_context_is_an_error_and_not_an_endless_series(runtime: LocalServer) -> None:
    part = await ask(runtime.client, "key", path=CHAT, ignore_eos=True, seed=1)
    assert part.finish == "length"
    answer = await runtime.client.post(CHAT, json={}, headers={"x-request-continue": "key"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"n": 2}, "n"),
        (COMPLETIONS, {"best_of": 2}, "n"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"forced_output_tokens": [1, 2]}, "forced_output_tokens"),
        (
            COMPLETIONS,
            {"token_index_to_replace": [0], "embedding_to_replace": [0.0] * STUB.hidden_size},
            "embedding_to_replace",
        ),
        (CHAT, {"n": 3}, "n"),
        (CHAT, {"tools": [TOOL]}, "tools"),
    ],
)
async def test_what_cannot_be_made_of_several_calls_is_refused(
    runtime: LocalServer, path: str, fields: dict[str, Any], param: str
) -> None:
    prompt = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    answer = await runtime.client.post(path, json=prompt | fields, headers={"x-request-continue": "key"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "X-Request-Continue" in answer.json()["error"]["message"]
    assert not runtime.engine.requests


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop", ["x"]), ("guided_regex", "a*"), ("skip_special_tokens", False), ("include_stop_str_in_output", True)],
)
async def test_what_shapes_the_text_cannot_change_on_the_way(runtime: LocalServer, field: str, value: Any) -> None:
    await ask(runtime.client, "key", max_tokens=3, stop=["zzz"])
    body = {"max_tokens": 3, field: value}
    answer = await runtime.client.post(COMPLETIONS, json=body, headers={"x-request-continue": "key"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert (await ask(runtime.client, "key", max_tokens=3, stop=["zzz"])).headers["x-dragoman-continued"] == "3"


@pytest.mark.parametrize("key", ["", "x" * 257, "two words", "t\tab"])
async def test_keys_are_short_and_plain(runtime: LocalServer, key: str) -> None:
    answer = await runtime.client.post(COMPLETIONS, json={"prompt": "a"}, headers={"x-request-continue": key})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Request-Continue")


async def test_other_finish_reasons_are_as_ever(runtime: LocalServer) -> None:
    """Nothing changes for those who do not ask."""
    part = await ask(runtime.client, max_tokens=3)
    assert part.finish == FinishReason.LENGTH
    assert "x-dragoman-continued" not in part.headers
    assert runtime.serving.continuing.misses == 0


# A client that says what it has -------------------------------------------------------------------------------------


def headers_of(key: str, tokens: int | None) -> dict[str, str]:
    return {"x-request-continue": key} | ({} if tokens is None else {"x-request-continue-from": str(tokens)})


async def ask_from(client: httpx.AsyncClient, key: str, tokens: int | None, **fields: Any) -> httpx.Response:
    return await client.post(COMPLETIONS, json={"prompt": PROMPT, **fields}, headers=headers_of(key, tokens))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@given(lost=st.integers(1, 20), seed=st.integers(0, 2**64 - 1), stream=st.booleans())
@PROPERTY
async def test_a_call_whose_answer_was_lost_is_given_again(
    runtime: LocalServer, sampling: str, lost: int, seed: int, stream: bool
) -> None:
    asked, key = SAMPLINGS[sampling] | {"seed": seed}, f"key-{next(NAMES)}"
    (one,) = await in_calls(runtime.client, [10 + lost], **asked)
    first = read(await ask_from(runtime.client, key, 0, max_tokens=10, **asked), COMPLETIONS, False)
    have = 10 if first.finish == "length" else None
    for _ in range(2):  # this answer is lost, and given again
        if have is None:
            break
        again = await ask_from(runtime.client, key, have, max_tokens=lost, stream=stream, **asked)
        assert again.status_code == 200, again.text
        part = read(again, COMPLETIONS, stream)
        assert first.text + part.text == one.text
        assert part.finish == one.finish
        assert part.headers["x-dragoman-continued"] == "10"


@given(have=st.integers(0, 30), seed=st.integers(0, 99))
@PROPERTY
async def test_the_rest_behind_any_token_is_the_same_rest(runtime: LocalServer, have: int, seed: int) -> None:
    key = f"key-{next(NAMES)}"
    (whole,) = await in_calls(runtime.client, [30], seed=seed, ignore_eos=True)
    await ask_from(runtime.client, key, 0, max_tokens=30, seed=seed, ignore_eos=True)
    (start,) = await in_calls(runtime.client, [have], seed=seed, ignore_eos=True) if have else (Part("", "", {}),)
    rest = read(await ask_from(runtime.client, key, have, max_tokens=max(30 - have, 1)), COMPLETIONS, False)
    if have < 30:
        assert start.text + rest.text == whole.text


async def test_the_end_is_given_again_to_a_client_that_says_what_it_has(runtime: LocalServer) -> None:
    ends = {"logit_bias": {str(TOKENIZER.eos_ids[0]): 100}, "min_tokens": 8, "seed": 3, "max_tokens": 30}
    whole = read(await ask_from(runtime.client, "end", 0, **ends), COMPLETIONS, False)
    assert whole.finish == "stop"
    for tokens, text in ((0, whole.text), (9, "")):
        again = await ask_from(runtime.client, "end", tokens, max_tokens=30)
        assert read(again, COMPLETIONS, False).text == text, tokens
        assert read(again, COMPLETIONS, False).finish == "stop"
    streamed = read(await ask_from(runtime.client, "end", 9, max_tokens=30, stream=True), COMPLETIONS, True)
    assert (streamed.text, streamed.finish) == ("", "stop")
    # A client that says nothing begins again: the key is free, as ever when a generation has come to its end.
    anew = await ask(runtime.client, "end", max_tokens=4, seed=9)
    assert anew.headers["x-dragoman-continued"] == "0"


async def test_an_answer_that_cannot_be_kept_is_given_and_says_so(
    runtime: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(runtime.serving.continuing, "_save", full)
    answer = await ask(runtime.client, "full", max_tokens=4, seed=1)
    assert answer.headers["x-dragoman-not-kept"] == "1"
    assert answer.text == (await ask(runtime.client, max_tokens=4, seed=1)).text
    streamed = await ask(runtime.client, "full", max_tokens=4, seed=1, stream=True)
    assert (streamed.text, streamed.finish) == (answer.text, "length")
