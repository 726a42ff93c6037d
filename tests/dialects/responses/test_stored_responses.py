"""Stored responses over the wire: chains, references, lists, what runs in the background, and other keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, scripted_server
from scripted_responses import ASK, PATH, ask, events_of, get, post

from dragoman.text import ChatTemplate


@pytest.fixture(scope="module")
def server(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


def missing(answer: httpx.Response, id: str) -> None:
    error = {"message": f"Response with id '{id}' not found.", "type": "invalid_request_error"}
    assert (answer.status_code, answer.json()) == (404, {"error": error | {"param": None, "code": None}})
    assert "x-dragoman-elsewhere" not in answer.headers, "no ingress has asked"


def finished(server: ScriptedServer, id: str) -> dict[str, Any]:
    """A background response at its end; its stream is there until then."""
    events = events_of(get(server, f"/{id}", stream="true"))
    response: dict[str, Any] = events[-1]["response"]
    return response


def test_a_response_is_read_again(server: ScriptedServer) -> None:
    response = ask(server, "It is four.")
    assert get(server, f"/{response['id']}").json() == response


def test_a_response_that_is_not_stored(server: ScriptedServer) -> None:
    response = ask(server, "It is four.", store=False)
    assert response["store"] is False
    missing(get(server, f"/{response['id']}"), response["id"])


def test_events_are_the_same_bytes_again(server: ScriptedServer) -> None:
    server.engine.texts = ["It is four."]
    streamed = post(server, ASK | {"stream": True})
    id = events_of(streamed)[0]["response"]["id"]
    assert get(server, f"/{id}", stream="true").text == streamed.text
    later = get(server, f"/{id}", stream="true", starting_after=3)
    assert events_of(later)[0]["sequence_number"] == 4
    assert streamed.text.endswith(later.text)
    assert get(server, f"/{id}", stream="true", starting_after=999).text == ""
    for wrong in ("x", "-1"):
        refused = get(server, f"/{id}", stream="true", starting_after=wrong)
        assert refused.json()["error"]["message"] == "Invalid 'starting_after': expected an integer from 0."
    assert get(server, f"/{id}", starting_after=3).headers["x-dragoman-warnings"] == "ignored: starting_after"
    assert get(server, f"/{id}", include="all").json()["error"]["code"] == "invalid_value"
    asked = {"include[]": "reasoning.encrypted_content", "stream": "true", "include_obfuscation": "true"}
    told = get(server, f"/{id}", **asked)
    assert told.headers["x-dragoman-warnings"] == "ignored: include[], include_obfuscation"
    assert told.text == streamed.text
    assert "x-dragoman-warnings" not in later.headers


def test_a_whole_response_has_events_too(server: ScriptedServer) -> None:
    response = ask(server, "Yes.")
    assert events_of(get(server, f"/{response['id']}", stream="true"))[-1]["response"] == response


def test_a_chain_precedes_the_input(server: ScriptedServer) -> None:
    first = ask(server, "Four.", input="Two and two?", instructions="Calm.")
    second = ask(server, "Five.", input="And one?", previous_response_id=first["id"])
    chained = server.engine.prompt()
    ask(
        server,
        "Five.",
        input=[
            {"role": "user", "content": "Two and two?"},
            {"role": "assistant", "content": "Four."},
            {"role": "user", "content": "And one?"},
        ],
    )
    assert server.engine.prompt() == chained
    assert "Calm." not in chained
    listed = get(server, f"/{second['id']}/input_items", order="asc").json()
    texts = [item["content"][0]["text"] for item in listed["data"]]
    assert texts == ["Two and two?", "Four.", "And one?"]
    assert (listed["object"], listed["has_more"], listed["last_id"]) == ("list", False, listed["data"][-1]["id"])
    digits = second["id"].removeprefix("resp_")
    assert listed["last_id"] == f"msg_{digits}_i0"
    page = get(server, f"/{second['id']}/input_items", limit=1, after=listed["last_id"]).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([listed["data"][1]["id"]], True)
    behind = get(server, f"/{second['id']}/input_items", after="msg_9")
    assert (behind.status_code, behind.json()["error"]["param"]) == (404, "after"), "not the first page once more"


def test_a_deleted_response_stays_in_its_descendants(server: ScriptedServer) -> None:
    first = ask(server, "Four.", input="Two and two?")
    second = ask(server, "Five.", input="And one?", previous_response_id=first["id"])
    gone = httpx.delete(f"{server.url}{PATH}/{first['id']}")
    assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
    missing(get(server, f"/{first['id']}"), first["id"])
    missing(httpx.delete(f"{server.url}{PATH}/{first['id']}"), first["id"])
    answer = post(server, ASK | {"previous_response_id": first["id"]})
    assert answer.json()["error"]["code"] == "previous_response_not_found"
    ask(server, "Six.", input="And one?", previous_response_id=second["id"])
    assert "Two and two?" in server.engine.prompt()


def test_items_are_named_by_their_ids(server: ScriptedServer) -> None:
    first = ask(server, "Four.", input="Two and two?")
    items = [
        {"role": "user", "content": "Two and two?"},
        {"type": "item_reference", "id": first["output"][0]["id"]},
        {"role": "user", "content": "Sure?"},
    ]
    ask(server, "Yes.", input=items)
    assert "Four." in server.engine.prompt()


def test_a_background_response(server: ScriptedServer) -> None:
    server.engine.texts = ["It is four."]
    begun = post(server, ASK | {"background": True}).json()
    assert (begun["status"], begun["background"], begun["output"], begun["usage"]) == ("queued", True, [], None)
    response = finished(server, begun["id"])
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", "It is four.")
    assert server.engine.requests[-1].priority == -100
    events = events_of(get(server, f"/{begun['id']}", stream="true"))
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [events[i]["response"]["status"] for i in range(3)] == ["queued", "queued", "in_progress"]
    assert get(server, f"/{begun['id']}").json() == response
    cancelled = post(server, None, f"{PATH}/{begun['id']}/cancel")
    assert cancelled.json() == response


def test_a_background_response_is_streamed_at_once(server: ScriptedServer) -> None:
    server.engine.texts = ["Yes."]
    events = events_of(post(server, ASK | {"background": True, "stream": True}))
    assert events[-1]["type"] == "response.completed"
    assert get(server, f"/{events[0]['response']['id']}").json() == events[-1]["response"]


def test_cancelling_what_is_in_the_foreground(server: ScriptedServer) -> None:
    id = ask(server, "Yes.")["id"]
    answer = post(server, {}, f"{PATH}/{id}/cancel")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Cannot cancel a synchronous response.")
    missing(post(server, {}, f"{PATH}/resp_x/cancel"), "resp_x")


def test_an_item_whose_id_is_null_gets_one(server: ScriptedServer) -> None:
    response = ask(server, "Four.", input=[{"id": None, "role": "user", "content": "Two and two?"}])
    listed = get(server, f"/{response['id']}/input_items").json()
    digits = response["id"].removeprefix("resp_")
    assert (listed["first_id"], listed["data"][0]["id"]) == (f"msg_{digits}_i0",) * 2
