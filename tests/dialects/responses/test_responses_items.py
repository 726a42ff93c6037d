"""Items that change how a response is made: settings, tools that were found, and files of text by their ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from batch_world import ANN, BOB, batch_server
from scripted import ScriptedServer, can_follow, scripted_server
from scripted_responses import ASK, ask, post
from stub_runtime import RunningServer

from dragoman.text import ChatTemplate

HI = {"role": "user", "content": "Hi."}
FORM = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"b": {"type": "boolean"}}}}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with batch_server(tmp_path_factory.mktemp("files")) as server:
        yield server


def settings(**fields: Any) -> dict[str, Any]:
    return {"type": "configuration_update", **fields}


def test_later_settings_hold(server: ScriptedServer) -> None:
    both = settings(text={"format": FORM}, reasoning={"effort": "high"})
    changed = ask(
        server, '{"b":true}', input=[settings(reasoning={"effort": "low"}), HI, both], text={"verbosity": "low"}
    )
    assert changed["text"]["format"]["name"] == "n"
    assert (changed["text"]["verbosity"], changed["reasoning"]["effort"]) == ("low", "high")
    assert can_follow(server, '{"b":true}')
    assert not can_follow(server, "Hello.")
    prompt = server.engine.prompt()
    assert ask(server, "Hello.", input=[HI])["text"]["format"] == {"type": "text"}
    assert server.engine.prompt() == prompt, "the model is not shown them"


def test_settings_last_until_a_request_has_its_own(server: ScriptedServer) -> None:
    first = ask(server, '{"b":true}', input=[HI, settings(text={"format": FORM})])
    second = ask(server, '{"b":true}', input=[HI], previous_response_id=first["id"])
    assert second["text"]["format"]["name"] == "n"
    third = ask(server, "Hello.", input=[HI], previous_response_id=second["id"], text={"format": {"type": "text"}})
    assert third["text"]["format"] == {"type": "text"}


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (settings(reasoning={"effort": "x"}), "input[1].reasoning.effort"),
        (settings(reasoning=7), "input[1].reasoning"),
        (settings(text={"format": "x"}), "input[1].text.format"),
        (settings(text={"format": {"type": "x"}}), "text.format.type"),
        ({"type": "tool_search_output", "tools": [7]}, "input[1].tools"),
    ],
)
def test_what_is_no_setting_is_named(server: ScriptedServer, item: dict[str, Any], param: str) -> None:
    answer = post(server, ASK | {"input": [HI, item]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_tools_that_were_found_may_be_called(server: ScriptedServer) -> None:
    search = {"type": "tool_search_call", "call_id": "t1", "arguments": {"query": "sky"}, "execution": "client"}
    found = {"type": "tool_search_output", "call_id": "t1", "execution": "client", "tools": [WEATHER]}
    response = ask(server, CALL, input=[HI, search, found, search, found])
    assert (response["output"][0]["type"], response["output"][0]["name"]) == ("function_call", "weather")
    assert [tool["name"] for tool in response["tools"]] == ["weather"]
    prompt = server.engine.prompt()
    ask(server, CALL, input=[HI], tools=[WEATHER])
    assert server.engine.prompt() == prompt
    assert len(ask(server, CALL, input=[HI, found], tools=[WEATHER])["tools"]) == 1
    twice = post(server, ASK | {"tools": [WEATHER, WEATHER]})
    assert twice.json()["error"]["param"] == "tools[1].name"


def test_a_field_that_is_refused_has_its_own_name(server: ScriptedServer) -> None:
    error = post(server, ASK | {"prompt": {"id": "p"}}).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "unsupported_parameter")


# Files ---------------------------------------------------------------------------------------------------------------


def called(server: RunningServer, path: str, key: str = ANN, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1{path}", headers={"authorization": f"Bearer {key}"}, timeout=60, **more)


def uploaded(server: RunningServer, content: bytes, name: str = "notes.md") -> str:
    file = called(server, "/files", data={"purpose": "user_data"}, files={"file": (name, content)})
    id: str = file.json()["id"]
    return id


def with_file(part: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "Read."}, {"type": "input_file", **part}]
    return {"model": "stub", "input": [{"role": "user", "content": content}]}


def test_a_stored_file_is_the_document_that_its_data_is(files: RunningServer) -> None:
    id = uploaded(files, "\ufeffThe cat sät.".encode())
    plain = {"file_data": "data:text/plain,The cat s%C3%A4t.", "filename": "notes.md"}
    counts = [
        called(files, "/responses/input_tokens", json=with_file(part)).json()["input_tokens"]
        for part in (plain, {"file_id": id}, {"file_id": id, "filename": "a longer name.md"})
    ]
    assert counts[0] == counts[1] < counts[2]
    first = called(files, "/responses", json=with_file({"file_id": id}) | {"max_output_tokens": 2}).json()
    httpx.delete(f"{files.url}/v1/files/{id}", headers={"authorization": f"Bearer {ANN}"})
    again = {"model": "stub", "input": "Again.", "previous_response_id": first["id"], "max_output_tokens": 2}
    assert called(files, "/responses", json=again).status_code == 200, "the response has the text"


def test_files_that_cannot_be_read(files: RunningServer) -> None:
    id, binary, large = uploaded(files, b"x"), uploaded(files, b"\xff\xfe%"), uploaded(files, b"a " * 30_000)
    param = "input[0].content[1].file_id"
    for asked, key, status in (("file-1", ANN, 404), (id, BOB, 404), (binary, ANN, 400)):
        answer = called(files, "/responses", key, json=with_file({"file_id": asked}))
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    answer = called(files, "/responses", json=with_file({"file_id": large}))
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_chat_reads_files_of_text(server: ScriptedServer) -> None:
    file = {"filename": "a.json", "file_data": "data:application/json;base64,e30="}
    server.ask(
        "Yes.", [{"role": "user", "content": [{"type": "text", "text": "So: "}, {"type": "file", "file": file}]}]
    )
    assert 'So: <document title="a.json">\n{}\n</document>' in server.engine.prompt()
    for other in ({"file_id": "file-1"}, {"file_data": "data:application/pdf;base64,e30="}):
        body = {"model": "stub", "messages": [{"role": "user", "content": [{"type": "file", "file": other}]}]}
        error = post(server, body, "/v1/chat/completions").json()["error"]
        assert (error["param"], error["code"]) == ("messages[0].content[0]", "unsupported_parameter")
        assert "files are read where 'file_data' is a data URL of text or JSON" in error["message"]
