"""Answers of the llama.cpp dialect, whole and as events, to a model that says what the test wants."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedEvents, ScriptedServer, can_follow, scripted_server

from dragoman.core.events import TokenEvent
from dragoman.dialects.llamacpp.limits import LimitedServing
from dragoman.dialects.llamacpp.render import chosen
from dragoman.dialects.llamacpp.translate import Piece, prompts_of
from dragoman.text import ChatTemplate, Tokenizer

KEYS = [
    *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
    *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached"),
    "timings",
]


@pytest.fixture(scope="module")
def server(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


def post(server: ScriptedServer, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=20)


def ask(server: ScriptedServer, text: str, path: str = "/completion", **fields: Any) -> dict[str, Any]:
    """The whole answer, which is also what the events come to."""
    server.engine.texts = [text]
    body = {"prompt": "Once"} | fields
    whole = post(server, path, body)
    assert whole.status_code == 200, whole.text
    streamed = post(server, path, body | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *events, last = [json.loads(event.removeprefix("data: ")) for event in streamed.text.split("\n\n") if event]
    found: dict[str, Any] = whole.json()
    assert "".join(event["content"] for event in events) == found["content"]
    assert not any(event["stop"] for event in events)
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert (last["stop_type"], last["truncated"]) == (found["stop_type"], found["truncated"])
    return found


def test_a_completion(server: ScriptedServer) -> None:
    answer = ask(server, " upon a time.\n", return_tokens=True, seed=7)
    assert list(answer) == KEYS
    assert (answer["content"], answer["stop_type"], answer["prompt"]) == (" upon a time.\n", "eos", "Once")
    assert answer["tokens_predicted"] == len(answer["tokens"])
    assert answer["tokens_cached"] == answer["tokens_evaluated"] + answer["tokens_predicted"] - 1
    assert answer["generation_settings"]["seed"] == 7
    assert answer["has_new_line"]


@pytest.mark.parametrize(
    ("fields", "stop_type", "word"),
    [({"n_predict": 1}, "limit", ""), ({"stop": [" a"]}, "word", " a"), ({"stop": "nothing"}, "eos", "")],
)
def test_how_it_stops(server: ScriptedServer, fields: dict[str, Any], stop_type: str, word: str) -> None:
    answer = ask(server, " upon a time.", **fields)
    assert (answer["stop_type"], answer["stopping_word"]) == (stop_type, word)
    assert not answer["truncated"]


def test_a_text_that_the_context_ends_is_truncated(server: ScriptedServer) -> None:
    answer = ask(server, " a" * 5000, prompt="a b c d " * 500)
    assert (answer["stop_type"], answer["truncated"]) == ("limit", True)


def test_several_prompts_have_several_answers(server: ScriptedServer) -> None:
    server.engine.texts = [" one."]
    answers = post(server, "/completion", {"prompt": ["Once", [5, 6], ["a", 7]], "n": 2}).json()
    assert [answer["index"] for answer in answers] == list(range(6))
    events = post(server, "/completions", {"prompt": ["Once", "Twice"], "stream": True}).text
    ends = [json.loads(event[6:]) for event in events.split("\n\n") if event and '"stop":true' in event]
    assert sorted(end["index"] for end in ends) == [0, 1]
    assert events.count("[DONE]") == 0


def test_prompts() -> None:
    assert prompts_of([1, "a", 2, 3]) == [[Piece(None, (1,)), Piece("a"), Piece(None, (2, 3))]]
    assert prompts_of(["a", {"prompt_string": "b"}]) == [[Piece("a")], [Piece("b")]]


def test_only_named_steps_run(server: ScriptedServer) -> None:
    ask(server, ".", samplers=["top_k"], top_k=3, top_p=0.5, temperature=0.1, repeat_penalty=2, dry_multiplier=1)
    sampling = server.engine.requests[-1].sampling
    assert (sampling.top_k, sampling.top_p, sampling.min_p, sampling.temperature) == (3, 1.0, 0.0, 1.0)
    assert (sampling.repetition_penalty, sampling.dry_multiplier) == (1.0, 0.0)
    told = post(server, "/completion", {"prompt": "a", "samplers": "tk"})
    assert told.headers["x-dragoman-warnings"] == "ignored: samplers"
    assert told.json()["generation_settings"]["samplers"] == ["top_k", "temperature"]


def test_probabilities_and_biases(server: ScriptedServer) -> None:
    answer = ask(server, " upon", n_probs=2, logit_bias=[[5, 1.5], [6, False]])
    first = answer["completion_probabilities"][0]
    assert list(first) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert len(first["top_logprobs"]) == 2
    assert server.engine.requests[-1].sampling.logit_bias == {5: 1.5, 6: -float("inf")}
    after = ask(server, " upon", n_probs=1, post_sampling_probs=True)["completion_probabilities"][0]
    assert list(after)[3:] == ["prob", "top_probs"]


def test_a_grammar_binds(server: ScriptedServer) -> None:
    ask(server, "yes", grammar='root ::= "yes" | "no"')
    assert can_follow(server, "no")
    assert not can_follow(server, "maybe")


def test_a_gap_is_filled(server: ScriptedServer) -> None:
    body = {"input_prefix": "def f(", "input_suffix": "):", "prompt": "a", "input_extra": [{"text": "x = 1"}]}
    server.engine.texts = ["b"]
    answer = post(server, "/infill", body | {"response_fields": ["content", "timings/prompt_n", "nothing"]})
    assert answer.json()["content"] == "b"
    assert list(answer.json()) == ["content", "timings/prompt_n"]
    prompt = server.engine.prompt()
    assert prompt.endswith("<|fim_prefix|>def f(a<|fim_suffix|>):<|fim_middle|>")
    assert "x = 1" in prompt
    assert post(server, "/infill", body | {"response_fields": [""], "n_predict": 0}).json() == {}


def test_files_that_do_not_fit_are_left_out_and_told(server: ScriptedServer) -> None:
    files = [{"text": "a b c d " * 400, "filename": f"{i}.py"} for i in range(4)]
    body = {"input_prefix": "one", "input_suffix": "two", "input_extra": files, "n_predict": 1}
    answer = post(server, "/infill", body)
    assert answer.headers["x-dragoman-warnings"].startswith("truncated: input_extra 1")
    assert "one" in server.engine.prompt()
    refused = post(server, "/infill", body | {"input_prefix": "a b c d " * 2000})
    assert refused.json()["error"]["type"] == "exceed_context_size_error"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("    a\n    b\nc\n", "    a\n    b\n"),
        ("a\n    b\n\n    c", "a\n    b\n\n    c"),
        ("a\n  b", "a\n  "),
    ],
)
def test_a_text_ends_at_a_line_that_is_indented_less(server: ScriptedServer, text: str, kept: str) -> None:
    assert ask(server, text, n_indent=4)["content"] == kept
    held_back = ask(server, text, n_indent=4, stop=[text[-1] + "!"])  # until the end: it may begin the stop string
    assert held_back["content"] == kept


def test_the_time_counts_once_there_is_a_line() -> None:
    limited = LimitedServing(None, 0, 1.0)  # type: ignore[arg-type]
    assert limited._end("a\nb", 0) == (None, 0)


def test_tokens_and_templates(server: ScriptedServer) -> None:
    tokens = post(server, "/tokenize", {"content": "Hello <|im_end|>"}).json()["tokens"]
    assert post(server, "/llamacpp/detokenize", {"tokens": tokens}).json() == {"content": "Hello <|im_end|>"}
    assert post(server, "/detokenize", {"tokens": tokens}).json()["content"] == "Hello <|im_end|>"
    plain = post(server, "/tokenize", {"content": "<|im_end|>", "parse_special": False, "with_pieces": True}).json()
    assert "".join(each["piece"] for each in plain["tokens"]) == "<|im_end|>"
    assert len(plain["tokens"]) > 1
    parts = post(server, "/tokenize", {"content": "漢 a" * 2000, "with_pieces": True}).json()["tokens"]
    pieces = [each["piece"] for each in parts]
    assert any(isinstance(piece, list) for piece in pieces), "a part of a character is no text"
    assert (
        b"".join(bytes(each) if isinstance(each, list) else each.encode() for each in pieces)
        == ("漢 a" * 2000).encode()
    )
    assert post(server, "/tokenize", {"content": ""}).json() == {"tokens": []}
    assert "Hi" in post(server, "/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}).json()["prompt"]
    assert post(server, "/tokenize", {"inputs": "Hello"}).json()[0]["id"] == tokens[0]


def test_tokens_and_templates_of_a_named_model(server: ScriptedServer) -> None:
    bodies: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/tokenize", {"content": "Hello"}),
        ("/llamacpp/detokenize", {"tokens": [6]}),
        ("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}),
    )
    for path, body in bodies:
        named = post(server, path, body | {"model": "stub"})
        assert named.json() == post(server, path, body).json()
        assert "x-dragoman-warnings" not in named.headers
        assert post(server, path, body | {"model": "nobody"}).status_code == 404


def test_the_loaded_model_is_described(server: ScriptedServer) -> None:
    meta = httpx.get(f"{server.url}/llamacpp/models").json()["data"][0]["meta"]
    assert set(meta) == {"vocab_type", "n_vocab", "n_ctx", "n_ctx_train", "n_embd", "n_params", "size", "ftype"}
    assert (meta["n_ctx"], meta["n_ctx_train"]) == (4096, 4096)


def test_properties(server: ScriptedServer) -> None:
    found = httpx.get(f"{server.url}/props").json()
    assert isinstance(found["chat_template"], str)
    assert (found["total_slots"], found["is_sleeping"]) == (1, False)
    assert found["default_generation_settings"]["params"]["top_k"] == 40
    assert httpx.get(f"{server.url}/llamacpp/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/llamacpp/models").json()["data"][0]["owned_by"] == "llamacpp"
    assert httpx.get(f"{server.url}/lora-adapters").json() == []


@pytest.mark.parametrize(
    ("path", "body", "code", "kind", "message"),
    [
        ("/completion", {}, 400, "invalid_request_error", '"prompt" is required'),
        ("/infill", {"input_prefix": "a"}, 400, "invalid_request_error", '"input_suffix" is required'),
        (
            "/completion",
            {"prompt": "a", "top_p": 2},
            400,
            "invalid_request_error",
            "Field 'top_p': Value must be between 0 and 1",
        ),
        ("/completion", {"prompt": {"x": 1}}, 400, "invalid_request_error", None),
        ("/completion", {"prompt": "a", "lora": [{"id": 0, "scale": 1}]}, 400, "invalid_request_error", None),
        ("/completion", {"prompt": "a", "grammar_lazy": True}, 400, "invalid_request_error", None),
        ("/completion", {"prompt": "a", "model": "nobody"}, 404, "not_found_error", None),
        ("/embedding", {}, 400, "invalid_request_error", '"input" or "content" must be provided'),
        ("/embedding", {"content": "a", "input": "a"}, 400, "invalid_request_error", None),
        ("/embedding", {"content": "a", "embd_normalize": 1}, 400, "invalid_request_error", None),
        ("/embedding", {"content": "a " * 9000}, 400, "exceed_context_size_error", None),
        ("/rerank", {"query": "a"}, 400, "invalid_request_error", '"documents" or "texts" must be provided'),
        ("/slots/0", {}, 501, "not_supported_error", None),
        ("/tools", {}, 501, "not_supported_error", None),
        ("/llamacpp/v1/stream/a", {}, 501, "not_supported_error", None),
        ("/models/load", {"model": "nobody"}, 404, "not_found_error", "model 'nobody' not found"),
        ("/llamacpp/models/load", {}, 400, "invalid_request_error", None),
        ("/models/unload", {"model": "stub"}, 403, "permission_error", None),
        ("/completion", {"prompt": "a", "sse_ping_interval": -2}, 400, "invalid_request_error", None),
    ],
)
def test_errors(server: ScriptedServer, path: str, body: Any, code: int, kind: str, message: str | None) -> None:
    answer = post(server, path, body)
    assert answer.status_code == code, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == (code, kind)
    assert message is None or error["message"] == message


def test_a_model_that_is_loaded_needs_no_loading(server: ScriptedServer) -> None:
    assert post(server, "/models/load", {"model": "stub"}).json() == {"success": True}
    assert post(server, "/models/load", {"model_id": "stub"}).json()["status"] == "success", "LocalLab's"


def test_comments_come_as_often_as_asked(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second token comes after two seconds."""
    texts, pause = ScriptedEvents.__anext__, 2.0

    async def slowly(events: ScriptedEvents) -> Any:
        event = await texts(events)
        if isinstance(event, TokenEvent) and event.index == 1:
            await asyncio.sleep(pause)
        return event

    monkeypatch.setattr(ScriptedEvents, "__anext__", slowly)
    server.engine.texts = ["One two"]
    body = {"prompt": "a", "n_predict": 2, "stream": True}
    assert ":\n\n" in post(server, "/completion", body | {"sse_ping_interval": 1}).text
    assert ":\n\n" not in post(server, "/completion", body | {"sse_ping_interval": 0}).text


def test_chosen_members() -> None:
    assert chosen({"a": {"b": 1}, "c": 2}, ["a/b", "c", "a/x", ""]) == {"a/b": 1, "c": 2}


def test_a_prompt_of_many_tokens_takes_no_longer_for_each() -> None:
    began = time.thread_time()
    ((piece,),) = prompts_of([1] * 100_000)
    assert piece == Piece(None, (1,) * 100_000)
    assert time.thread_time() - began < 2


def test_pieces_beyond_the_context_are_not_read(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda *given, **more: read.append(given) or encode(*given, **more))
    refused = post(server, "/completion", {"prompt": ["a"] * 10_000 + [7]})
    assert refused.json()["error"]["type"] == "exceed_context_size_error"
    assert len(read) < 4200


def test_files_are_not_left_out_one_by_one(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    render = Tokenizer.render_fill
    monkeypatch.setattr(Tokenizer, "render_fill", lambda *given: tried.append(given) or render(*given))
    files = [{"text": "a b c d e f g h i j"}] * 1000
    body = {"input_prefix": "one", "input_suffix": "two", "input_extra": files, "n_predict": 1}
    answer = post(server, "/infill", body)
    dropped = int(answer.headers["x-dragoman-warnings"].removeprefix("truncated: input_extra 1-"))
    assert len(tried) < 15
    one_more = post(server, "/infill", body | {"input_extra": files[dropped - 1 :]})
    assert one_more.headers["x-dragoman-warnings"] == "truncated: input_extra 1"


def test_a_bias_beyond_all_numbers(server: ScriptedServer) -> None:
    body = '{"prompt": "Once", "n_predict": 1, "logit_bias": [[1, -%s]]}' % ("9" * 400)
    answer = httpx.post(f"{server.url}/completion", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
