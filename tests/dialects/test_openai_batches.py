"""Files and batches, with the ``openai`` package as a witness."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from batch_world import (
    ANN,
    BOB,
    COMPLETIONS,
    LONG,
    SETTINGS,
    batch_server,
    begin,
    client_of,
    finished,
    held,
    jsonl,
    line,
    results,
    until,
)
from sockets import until as happens
from stub_runtime import LocalServer, RunningServer

from dragoman.core.errors import GenerationFailed

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with batch_server(tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_file_is_stored_listed_read_and_deleted(client: openai.OpenAI) -> None:
    content = b'{"a": 1}\r\n--boundary\r\n' + bytes(range(256))
    made = [client.files.create(file=(f"../f{i}.txt", content), purpose="user_data") for i in range(3)]
    assert (made[0].bytes, made[0].filename, made[0].status) == (len(content), "../f0.txt", "processed")
    assert made[0].expires_at is None
    ids = [each.id for each in made]
    assert client.files.content(ids[1]).content == content
    assert client.files.retrieve(ids[1]) == made[1]
    assert [each.id for each in client.files.list(purpose="user_data")] == ids[::-1]
    page = client.files.list(purpose="user_data", order="asc", limit=2)
    assert ([each.id for each in page.data], page.has_more) == (ids[:2], True)
    assert [each.id for each in page] == ids, "the package asks for the next page"
    for id in ids:
        assert client.files.delete(id).deleted
    with pytest.raises(openai.NotFoundError) as gone:
        client.files.retrieve(ids[0])
    assert gone.value.body == {  # type: ignore[comparison-overlap]
        "message": f"No such File object: {ids[0]}",
        "type": "invalid_request_error",
        "param": "id",
        "code": None,
    }


def test_a_file_of_too_many_lines_is_named_as_its_client_knows_it(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(str(number)) for number in range(4)]
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    monkeypatch.setattr("dragoman.serving.batch_database.MAX_WAITING_LINES", 3)
    with pytest.raises(openai.BadRequestError, match="too many lines") as raised:
        client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
    assert raised.value.param == "input_file_id"


def test_a_file_expires_when_it_is_told_to(server: RunningServer, client: openai.OpenAI) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch", expires_after=expiry)
    assert file.expires_at == file.created_at + 3600
    store = server.runtime.serving.batches
    store._clock = lambda: time.time() + 3601
    try:
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)
    finally:
        store._clock = time.time


@pytest.mark.parametrize(
    ("form", "file", "said"),
    [
        ({"purpose": "batch"}, ("in.txt", b"x"), "Invalid file format for Batch API. Must be .jsonl"),
        ({"purpose": "fine-tune"}, ("in.jsonl", b"x"), "Invalid value: 'fine-tune'."),
        ({"purpose": "batch_output"}, ("in.jsonl", b"x"), "Invalid value: 'batch_output'."),
        ({}, ("in.jsonl", b"x"), "Missing required parameter: 'purpose'."),
        ({"purpose": "batch"}, None, "Missing required parameter: 'file'."),
        ({"purpose": "batch", "expires_after[anchor]": "now"}, ("in.jsonl", b"x"), "Invalid value: 'now'."),
        ({"purpose": "x" * 5000}, ("in.jsonl", b"x"), "'purpose' is larger than 4096 bytes."),
        ({f"f{i}": "" for i in range(17)}, ("in.jsonl", b"x"), "The form has more than 16 parts."),
    ],
)
def test_a_form_that_cannot_be_stored_is_refused(
    server: RunningServer, form: dict[str, str], file: Any, said: str
) -> None:
    files = [("file", file)] if file is not None else [("other", ("a", b"x"))]
    answer = post_form(server, form, files)
    assert (answer.status_code, said in answer.json()["error"]["message"]) == (400, True), answer.text
    contents = server.runtime.serving.batches.folder / "files"
    assert not list(contents.glob("*.part"))


def post_form(server: RunningServer, form: dict[str, str], files: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {ANN}"}
    return httpx.post(f"{server.url}/v1/files", data=form, files=files, headers=headers, timeout=30)


def delete_all(client: openai.OpenAI) -> None:
    for file in list(client.files.list()):
        client.files.delete(file.id)


def test_files_are_bounded_each_and_together(server: RunningServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as large:
        client.files.create(file=("a.txt", b"x" * (SETTINGS.files_max_bytes + 1)), purpose="user_data")
    assert (large.value.status_code, large.value.code) == (413, "request_too_large")
    delete_all(client)
    whole = ("a.txt", b"x" * SETTINGS.files_max_bytes)
    room = SETTINGS.files_max_total_bytes // SETTINGS.files_max_bytes
    made = [client.files.create(file=whole, purpose="user_data") for _ in range(room)]
    with pytest.raises(openai.BadRequestError) as full:
        client.files.create(file=whole, purpose="user_data")
    assert full.value.code == "storage_full"
    for each in made:
        client.files.delete(each.id)
    contents = server.runtime.serving.batches.folder / "files"
    assert not [path for path in contents.iterdir() if path.stat().st_size == SETTINGS.files_max_bytes]


def test_a_body_that_is_no_form_is_refused(server: RunningServer) -> None:
    headers = {"authorization": f"Bearer {ANN}", "content-type": "multipart/form-data; boundary=b"}
    for body in (
        b"",
        b"x" * 1000,
        b"--b\r\n",
        b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n',
    ):
        answer = httpx.post(f"{server.url}/v1/files", content=body, headers=headers, timeout=30)
        assert answer.status_code == 400, (body, answer.text)
    assert httpx.post(f"{server.url}/v1/files", json={}, headers=headers | {"content-type": "a/b"}).status_code == 400
    unbounded = httpx.post(f"{server.url}/v1/files", json={}, headers=headers | {"content-type": "multipart/form-data"})
    assert "has no boundary" in unbounded.json()["error"]["message"]
    for boundary, told in (
        ("b" * 71, "longer than 70 bytes"),
        ("b" * 9000, "longer than 70 bytes"),
        ("b" * 70, "no end"),
    ):
        long = headers | {"content-type": f"multipart/form-data; boundary={boundary}"}
        refused = httpx.post(f"{server.url}/v1/files", content=b"--" + boundary.encode() + b"\r\n", headers=long)
        assert (refused.status_code, told in refused.json()["error"]["message"]) == (400, True)
    compressed = httpx.post(f"{server.url}/v1/files", content=b"x", headers=headers | {"content-encoding": "gzip"})
    assert "must not be compressed" in compressed.json()["error"]["message"]


# Batches --------------------------------------------------------------------------------------------------------------


def test_every_line_is_answered_as_the_request_alone(client: openai.OpenAI) -> None:
    lines = [line(f"c{i}", {"seed": i}) for i in range(6)]
    lines[2]["body"]["temperature"] = "hot"
    lines[4]["body"]["stream"] = True
    begun = begin(client, ["\ufeff".encode(), *lines[:3], b"\r\n\n", *lines[3:]], metadata={"night": "1"})
    assert (begun.status, begun.metadata, begun.expires_at) == ("validating", {"night": "1"}, begun.created_at + 86400)
    batch = finished(client, begun)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 6, "completed": 4, "failed": 2}
    answered = results(client, batch.output_file_id)
    assert [each["custom_id"] for each in answered] == ["c0", "c1", "c3", "c5"], "in the order of the input"
    for each in answered:
        alone = client.completions.create(**next(x for x in lines if x["custom_id"] == each["custom_id"])["body"])
        body = each["response"]["body"]
        assert (each["response"]["status_code"], each["error"]) == (200, None)
        assert body["choices"][0]["text"] == alone.choices[0].text
        assert body["created"] == batch.created_at
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(each["response"]["body"]["usage"]["completion_tokens"] for each in answered)
    hot, streamed = results(client, batch.error_file_id)
    assert (hot["custom_id"], hot["response"]["status_code"], hot["error"]) == ("c2", 400, None)
    assert hot["response"]["body"]["error"]["param"] == "temperature"
    assert {len(each["response"]["request_id"]) for each in (*answered, hot, streamed)} == {28}, "each has an id"
    assert streamed["response"]["body"]["error"]["param"] == "stream"
    assert batch.output_file_id is not None
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'completed'"):
        client.batches.cancel(batch.id)


def test_result_lines_end_where_every_client_sees_their_end(client: openai.OpenAI) -> None:
    ids = ["a\u2028b", "a\x85b", "a\u2029b"]
    batch = finished(client, begin(client, [line(id, {"echo": True, "prompt": id}) for id in ids]))
    assert batch.output_file_id is not None
    lines = [json.loads(each) for each in client.files.content(batch.output_file_id).text.splitlines()]
    assert [each["custom_id"] for each in lines] == ids
    assert all(each["custom_id"] in each["response"]["body"]["choices"][0]["text"] for each in lines)


def test_responses_are_kept_in_the_file_alone_unless_a_line_asks_for_more(client: openai.OpenAI) -> None:
    bodies: dict[str, Any] = {
        "plain": {},
        "null": {"store": None},
        "stored": {"store": True},
        "background": {"background": True},
        "large": {"metadata": {"number": 1e300}},
    }
    given = {"model": "stub", "input": "Once", "max_output_tokens": 4, "seed": 7}
    lines = [line(name, url="/v1/responses", body=given | body) for name, body in bodies.items()]
    # A number that no body can have: the endpoint says so, as it does to the request alone.
    lines[-1] = jsonl([lines[-1]]).replace(b"1e+300", b"1e400")
    batch = finished(client, begin(client, lines, endpoint="/v1/responses"))
    assert batch.status == "completed"
    answered = {each["custom_id"]: each["response"]["body"] for each in results(client, batch.output_file_id)}
    refused = {each["custom_id"]: each["response"]["status_code"] for each in results(client, batch.error_file_id)}
    assert (list(answered), refused) == (["plain", "null", "stored"], {"background": 400, "large": 400})
    alone: Any = client.post("/responses", body=given, cast_to=object)
    for body in answered.values():
        assert body["output"][0]["content"] == alone["output"][0]["content"]
    assert [body["store"] for body in answered.values()] == [False, False, True]
    assert client.responses.retrieve(answered["stored"]["id"]).output_text == alone["output"][0]["content"][0]["text"]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answered["plain"]["id"])
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(body["usage"]["input_tokens"] for body in answered.values())


def test_embeddings_are_those_of_the_request_alone(client: openai.OpenAI) -> None:
    body = {"model": "stub", "input": ["Once upon", "a time"], "encoding_format": "float"}
    lines = [line(f"c{i}", url="/v1/embeddings", body=body) for i in range(3)]
    batch = finished(client, begin(client, lines, endpoint="/v1/embeddings"))
    answered = results(client, batch.output_file_id)
    alone = client.embeddings.create(**body).to_dict()  # type: ignore[arg-type]
    assert [each["response"]["body"] for each in answered] == [alone] * 3
    assert batch.usage is not None
    assert batch.usage.input_tokens == 3 * alone["usage"]["prompt_tokens"]  # type: ignore[index]


def test_a_line_that_cannot_be_read_at_first_is_run_again(
    server: RunningServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, failed = server.runtime.serving.batches, list[int]()
    read = store.read

    async def failing(work: Any, file: str) -> Any:
        asked = work.keywords.get("line")
        if asked is not None and asked.position == 1 and not failed:
            failed.append(asked.position)
            raise GenerationFailed("the disk fails")
        return await read(work, file)

    monkeypatch.setattr(store, "read", failing)
    batch = finished(client, begin(client, [line(f"c{i}") for i in range(3)]))
    assert (batch.status, failed) == ("completed", [1])
    assert [each["custom_id"] for each in results(client, batch.output_file_id)] == ["c0", "c1", "c2"]


def test_a_faulty_input_fails_before_anything_runs(client: openai.OpenAI) -> None:
    lines = [
        line("a"),
        b"{not json\n",
        line("a"),
        {"custom_id": "b"},
        line("c", method="GET"),
        line("d", url="/v1/chat/completions"),
        line(""),
        line("e", {"model": "other"}),
    ]
    batch = finished(client, begin(client, lines))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.errors is not None
    assert [(each.line, each.code) for each in batch.errors.data or ()] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "missing_required_parameter"),
        (5, "invalid_method"),
        (6, "url_mismatch"),
        (7, "invalid_custom_id"),
        (8, "model_mismatch"),
    ]
    for lines, code in (
        ([b"\n"], "empty_file"),
        ([line("a", {"model": "nobody"})], "model_not_found"),
        ([line("a", method="GET"), line("b")], "invalid_method"),
    ):
        batch = finished(client, begin(client, lines))
        assert batch.errors is not None
        assert [each.code for each in batch.errors.data or ()] == [code]
    batch = finished(client, begin(client, [line("a", {"model": None}), line("b")]))
    assert batch.errors is not None
    assert batch.errors.data is not None
    told = "All lines of a batch name one model: this one names 'stub', the first one none."
    assert [each.message for each in batch.errors.data] == [told]


def test_a_cancelled_batch_has_what_was_done(server: RunningServer, client: openai.OpenAI) -> None:
    with held(server, 6):
        batch = begin(client, [line(f"c{i}") for i in range(40)])
        with pytest.raises(openai.BadRequestError):
            client.files.delete(batch.input_file_id)
        until(client, batch, lambda batch: batch.request_counts is not None and batch.request_counts.completed == 6)
        cancelled = client.batches.cancel(batch.id)
        assert cancelled.status == "cancelling"
        assert client.batches.cancel(batch.id).cancelling_at == cancelled.cancelling_at
    batch = finished(client, batch)
    assert (batch.status, batch.completed_at) == ("cancelled", None)
    done, given_up = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert sorted(each["custom_id"] for each in done + given_up) == sorted(f"c{i}" for i in range(40))
    assert len(done) >= 6
    assert {each["error"]["code"] for each in given_up} == {"batch_cancelled"}
    assert client.files.delete(batch.input_file_id).deleted


def test_a_batch_that_is_cancelled_before_it_is_read_has_a_result_for_every_line(
    server: RunningServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def of_another() -> bool:
        return False

    monkeypatch.setattr(server.runtime.serving.batches, "own", of_another)
    batch = begin(client, [line(f"c{i}") for i in range(3)])
    assert client.batches.cancel(batch.id).in_progress_at is None
    monkeypatch.undo()
    client.batches.cancel(batch.id)  # the runner looks again
    batch = finished(client, batch)
    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    assert [each["custom_id"] for each in results(client, batch.error_file_id)] == ["c0", "c1", "c2"]


def test_what_is_not_done_in_time_has_expired(server: RunningServer, client: openai.OpenAI) -> None:
    store = server.runtime.serving.batches
    lines = [line(f"c{i}", {"max_tokens": LONG, "ignore_eos": True}) for i in range(40)]
    store._clock = lambda: time.time() + 3598.5
    try:
        batch = finished(client, begin(client, lines, completion_window="1h"))
    finally:
        store._clock = time.time
    assert batch.status == "expired"
    done, given_up = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert len(done) + len(given_up) == 40
    assert {each["error"]["code"] for each in given_up} == {"batch_expired"}


def test_results_that_find_no_room_fail_the_batch(client: openai.OpenAI) -> None:
    delete_all(client)
    fill = [client.files.create(file=("a.txt", b"x" * SETTINGS.files_max_bytes), purpose="user_data") for _ in range(3)]
    used = sum(each.bytes for each in client.files.list())
    rest = SETTINGS.files_max_total_bytes - used - 20_000
    fill.append(client.files.create(file=("a.txt", b"x" * rest), purpose="user_data"))
    batch = finished(client, begin(client, [line(f"c{i}", {"echo": True}) for i in range(60)]))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [each.code for each in batch.errors.data or ()] == ["storage_full"]
    both = results(client, batch.output_file_id) + results(client, batch.error_file_id)
    assert len(both) == 60
    for each in fill:
        client.files.delete(each.id)


def test_a_batch_whose_input_is_removed_from_the_disk_fails(server: RunningServer, client: openai.OpenAI) -> None:
    store = server.runtime.serving.batches
    with held(server, 1):
        batch = begin(client, [line("a"), line("b"), line("c")])
        until(client, batch, lambda batch: batch.request_counts is not None and batch.request_counts.completed == 1)
        store.path(batch.input_file_id).unlink()
    batch = finished(client, batch)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [each.code for each in batch.errors.data] == ["file_not_found"]
    assert len(results(client, batch.output_file_id)) == 1
    file = client.files.create(file=("in.jsonl", jsonl([line("a")])), purpose="batch")
    store.path(file.id).unlink()
    batch = client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
    assert finished(client, batch).status == "failed"


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "shifted"])
def test_a_batch_whose_input_changes_on_the_disk_fails(server: RunningServer, client: openai.OpenAI, cut: bool) -> None:
    path = server.runtime.serving.batches.path
    with held(server, 1):
        batch = begin(client, [line("a"), line("b"), line("c")])
        until(client, batch, lambda batch: batch.request_counts is not None and batch.request_counts.completed == 1)
        content = path(batch.input_file_id).read_bytes()
        path(batch.input_file_id).write_bytes(content[:20] if cut else content.replace(b'"b"', b'"x"') + b"\n")
    batch = finished(client, batch)
    assert (batch.status, batch.output_file_id is None) == ("failed", False)
    assert batch.errors is not None
    assert [each.code for each in batch.errors.data or ()] == ["file_damaged"]
    with pytest.raises(openai.InternalServerError, match="are damaged"):
        client.files.content(batch.input_file_id)
    path(batch.input_file_id).unlink()
    with pytest.raises(openai.NotFoundError, match="are gone"):
        client.files.content(batch.input_file_id)


def test_a_state_folder_that_is_removed_takes_its_batches_along_and_no_later_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with batch_server(tmp_path / "state") as server, client_of(server) as client:
        with held(server, 1):
            lost = begin(client, [line(each) for each in "abc"])
            until(client, lost, lambda batch: batch.request_counts is not None and batch.request_counts.completed == 1)
            shutil.rmtree(tmp_path / "state")
            batch = begin(client, [line(each) for each in "defg"])
        batch = finished(client, batch)
        assert [each["custom_id"] for each in results(client, batch.output_file_id)] == list("defg")
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(lost.id)
        happens(lambda: f"batch {lost.id} cannot go on" in caplog.text)
    assert (tmp_path / "state" / "files" / (batch.output_file_id or "")).is_file()


def test_the_metrics_say_what_is_kept(server: RunningServer, client: openai.OpenAI) -> None:
    shown = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {ANN}"})
    assert shown.status_code == 200
    for name in ("dragoman_files_stored", "dragoman_batches_unfinished", "dragoman_batch_store_failures_total"):
        assert f"\n{name} " in shown.text


def test_batches_are_listed_in_pages(client: openai.OpenAI) -> None:
    first, second = (begin(client, [line("a")]) for _ in range(2))
    page = client.batches.list(limit=1)
    assert ([each.id for each in page.data], page.has_more) == ([second.id], True)
    assert [each.id for each in client.batches.list(limit=1)][:2] == [second.id, first.id]
    for each in (first, second):
        finished(client, each)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"completion_window": "25"}, "invalid_value"),
        ({"completion_window": "337h"}, "invalid_value"),
        ({"endpoint": "/v1/moderations"}, "invalid_value"),
        ({"metadata": {f"k{i}": "" for i in range(17)}}, "object_above_max_length"),
        ({"metadata": {"k": 1}}, "invalid_type"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(client: openai.OpenAI, fields: Any, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        begin(client, [line("a")], **fields)
    assert refused.value.code == code


def test_nobody_sees_what_is_of_another_key(server: RunningServer, client: openai.OpenAI) -> None:
    batch = finished(client, begin(client, [line("a")]))
    assert batch.output_file_id is not None
    with client_of(server, BOB) as bob:
        assert list(bob.files.list()) == list(bob.batches.list()) == []
        for ask in (bob.files.retrieve, bob.files.content, bob.files.delete):
            with pytest.raises(openai.NotFoundError):
                ask(batch.output_file_id)
        for about in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError) as unknown:
                about(batch.id)
            assert unknown.value.message.count(f"No batch found with id '{batch.id}'.") == 1
        with pytest.raises(openai.NotFoundError):
            bob.batches.create(input_file_id=batch.input_file_id, endpoint=COMPLETIONS, completion_window="24h")
        with pytest.raises(openai.NotFoundError):
            bob.files.list(after=batch.input_file_id)


async def test_without_a_store_there_are_no_such_paths(runtime: LocalServer) -> None:
    for path in ("/v1/files", "/v1/batches"):
        answer = await runtime.client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
