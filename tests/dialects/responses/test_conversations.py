"""Conversations over the wire: what responses read of them and add to them, their items, and other keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, scripted_server
from scripted_responses import ASK, ask, events_of, get, post

from dragoman.text import ChatTemplate

PATH = "/v1/conversations"
MESSAGE = {"role": "user", "content": "The number is 7."}


@pytest.fixture(scope="module")
def server(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


def call(server: ScriptedServer, method: str, path: str = "", body: Any = None, **params: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}{PATH}{path}", json=body, params=params, timeout=20)


def begun(server: ScriptedServer, *items: Any, **fields: Any) -> str:
    """The id of a new conversation."""
    answer = call(server, "POST", body={"items": list(items), **fields})
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


def texts(server: ScriptedServer, id: str) -> list[str]:
    """The texts of its messages."""
    listed = call(server, "GET", f"/{id}/items", order="asc", limit=100).json()
    return [item["content"][0]["text"] for item in listed["data"]]


def missing(answer: httpx.Response, message: str, param: str | None = None) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    assert (answer.status_code, answer.json()) == (404, {"error": error})


def test_a_conversation_has_an_id_and_its_metadata(server: ScriptedServer) -> None:
    made = call(server, "POST", body={"metadata": {"topic": "sea"}}).json()
    assert list(made) == ["id", "object", "created_at", "metadata"]
    assert (made["object"], made["metadata"], len(made["id"])) == ("conversation", {"topic": "sea"}, 37)
    assert call(server, "GET", f"/{made['id']}").json() == made
    changed = call(server, "POST", f"/{made['id']}", {"metadata": {"topic": "land"}}).json()
    assert changed == made | {"metadata": {"topic": "land"}}
    assert call(server, "GET", f"/{made['id']}").json() == changed
    assert call(server, "POST", f"/{made['id']}", {"metadata": None}).json() == made | {"metadata": {}}


def test_a_deleted_conversation_is_gone(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    gone = {"id": id, "object": "conversation.deleted", "deleted": True}
    assert call(server, "DELETE", f"/{id}").json() == gone
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/items"), ("GET", "/items/msg_1")):
        missing(call(server, method, f"/{id}{path}"), f"Conversation with id '{id}' not found.")
    refused = post(server, ASK | {"conversation": id})
    missing(refused, f"Conversation with id '{id}' not found.", "conversation")


def test_items_are_listed_added_and_deleted(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    added = call(
        server, "POST", f"/{id}/items", {"items": [MESSAGE | {"content": "And 8."}, {**MESSAGE, "id": "msg_9"}]}
    )
    assert [item["content"][0] for item in added.json()["data"]] == [
        {"type": "input_text", "text": "And 8."},
        {"type": "input_text", "text": "The number is 7."},
    ]
    listed = call(server, "GET", f"/{id}/items", limit=2).json()
    assert [item["id"] for item in listed["data"]] == ["msg_9", added.json()["data"][0]["id"]]
    assert (listed["object"], listed["has_more"], listed["last_id"]) == ("list", True, listed["data"][1]["id"])
    assert listed["data"][0]["status"] == "completed"
    rest = call(server, "GET", f"/{id}/items", after=listed["last_id"]).json()
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    assert call(server, "GET", f"/{id}/items/msg_9").json() == listed["data"][0]
    assert call(server, "DELETE", f"/{id}/items/msg_9").json() == call(server, "GET", f"/{id}").json()
    missing(call(server, "GET", f"/{id}/items/msg_9"), "Item with id 'msg_9' not found.")
    missing(call(server, "DELETE", f"/{id}/items/msg_9"), "Item with id 'msg_9' not found.")
    missing(call(server, "GET", f"/{id}/items", after="msg_9"), "Item with id 'msg_9' not found.", "after")
    assert texts(server, id) == ["The number is 7.", "And 8."]


def test_a_response_reads_a_conversation_and_adds_to_it(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    server.engine.texts = ["It is 7."]
    first = post(server, ASK | {"input": "Which?", "conversation": id}).json()
    assert first["conversation"] == {"id": id}
    prompt = server.engine.prompt()
    assert prompt.index("The number is 7.") < prompt.index("Which?")
    server.engine.texts = ["Sure."]
    streamed = events_of(post(server, ASK | {"input": "Sure?", "conversation": {"id": id}, "stream": True}))
    assert streamed[-1]["response"]["conversation"] == {"id": id}
    assert prompt.index("Which?") < server.engine.prompt().index("It is 7.") < server.engine.prompt().index("Sure?")
    assert texts(server, id) == ["The number is 7.", "Which?", "It is 7.", "Sure?", "Sure."]
    items = call(server, "GET", f"/{id}/items", order="asc").json()["data"]
    assert items[2] == first["output"][0]


def test_the_prompt_is_that_of_the_same_input_at_once(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    server.engine.texts = ["It is 7."]
    post(server, ASK | {"input": "Which?", "conversation": id})
    post(server, ASK | {"input": "Sure?", "conversation": id})
    prompt = server.engine.prompt()
    items = [("user", "The number is 7."), ("user", "Which?"), ("assistant", "It is 7."), ("user", "Sure?")]
    ask(server, "Yes.", input=[{"role": role, "content": text} for role, text in items])
    assert server.engine.prompt() == prompt


def test_what_it_was_generated_from_stays_as_it_was(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    server.engine.texts = ["It is 7."]
    first = post(server, ASK | {"input": "Which?", "conversation": id}).json()
    post(server, ASK | {"input": "Sure?", "conversation": id})
    listed = get(server, f"/{first['id']}/input_items", order="asc").json()
    assert [item["content"][0]["text"] for item in listed["data"]] == ["The number is 7.", "Which?"]
    post(server, ASK | {"input": "Then?", "previous_response_id": first["id"]})
    prompt = server.engine.prompt()
    assert prompt.index("The number is 7.") < prompt.index("Which?") < prompt.index("It is 7.") < prompt.index("Then?")
    assert "Sure?" not in prompt


def test_a_conversation_alone_is_enough(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    response = post(server, {"model": "stub", "conversation": id}).json()
    assert response["status"] == "completed"
    counted = post(server, {"model": "stub", "conversation": id}, path="/v1/responses/input_tokens").json()
    assert counted["input_tokens"] > response["usage"]["input_tokens"]


def test_background_responses_add_at_their_end(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    server.engine.texts = ["It is 7."]
    queued = post(server, ASK | {"input": "Which?", "conversation": id, "background": True}).json()
    assert queued["conversation"] == {"id": id}
    assert events_of(get(server, f"/{queued['id']}", stream="true"))[-1]["type"] == "response.completed"
    assert texts(server, id) == ["The number is 7.", "Which?", "It is 7."]


def test_a_response_that_is_not_stored_adds_nothing(server: ScriptedServer) -> None:
    id = begun(server, MESSAGE)
    ask(server, "Yes.", conversation=id, store=False)
    assert "The number is 7." in server.engine.prompt()
    assert texts(server, id) == ["The number is 7."]


def test_incomplete_responses_add_too(server: ScriptedServer) -> None:
    id = begun(server)
    server.engine.texts = ["one two three four five"]
    response = post(server, ASK | {"conversation": id, "max_output_tokens": 2}).json()
    assert response["status"] == "incomplete"
    assert len(texts(server, id)) == 2


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("", {"items": [{"role": "user"}]}, "items[0].content", "missing_required_parameter"),
        ("", {"items": [{"type": "function_call", "name": "f"}]}, "items[0].call_id", "missing_required_parameter"),
        ("", {"items": [{"type": "web_search_call"}]}, "items[0]", "unsupported_parameter"),
        ("", {"items": [MESSAGE] * 21}, "items", "array_above_max_length"),
        ("", {"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ("/conv_x", {}, "metadata", "missing_required_parameter"),
        ("/conv_x/items", {}, "items", "missing_required_parameter"),
    ],
)
def test_what_is_wrong_is_named(server: ScriptedServer, path: str, body: Any, param: str, code: str) -> None:
    answer = call(server, "POST", path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), answer.text


def test_calls_and_their_results_may_come_one_by_one(server: ScriptedServer) -> None:
    result = {"type": "function_call_output", "call_id": "a", "output": "Sun."}
    id = begun(server, result)
    assert call(server, "POST", f"/{id}/items", {"items": [{"type": "item_reference", "id": "x"}]}).status_code == 404
    refused = post(server, ASK | {"conversation": id}).json()["error"]
    assert refused["message"] == "No tool call found for function call output with call_id a."


def test_a_conversation_and_a_previous_response_exclude_each_other(server: ScriptedServer) -> None:
    response, id = ask(server, "Yes."), begun(server)
    error = post(server, ASK | {"conversation": id, "previous_response_id": response["id"]}).json()["error"]
    assert (error["param"], error["code"]) == ("previous_response_id", "mutually_exclusive_parameters")
