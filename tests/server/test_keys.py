"""One wall of API keys before all dialects: who comes in, what the others are told, and where keys never appear."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import DIALECTS, QUICK, LocalServer
from toy_dialect import ECHOING, toy

from dragoman.core.errors import DragomanError
from dragoman.dialects.api import Dialect
from dragoman.server.app import create_app
from dragoman.server.key_file import hashed, keys_of_text, new_key
from dragoman.server.keys import (
    Keyring,
    KeySettings,
    first_key,
    keyring_of,
    reaches_others,
)

pytestmark = pytest.mark.anyio

ANN, BOB = "ann-has-a-long-enough-key", "bob-has-a-long-enough-key"
KEYS = (hashed(ANN, "ann", ("infer", "admin")), hashed(BOB, "bob", ("infer",)))
AUTO = msgspec.structs.replace(QUICK, dialect="auto")
TOYS = (toy("north", key_headers=("x-api-key",), cors=ECHOING), toy("south"))


@asynccontextmanager
async def asked(
    runtime: LocalServer, dialects: tuple[Dialect, ...] = TOYS, **more: bool
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(runtime.serving, AUTO, dialects=dialects, keys=Keyring(KEYS, **more))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (bearer(ANN), 200),
        (bearer(BOB), 200),
        ({"authorization": f"bearer   {ANN}  "}, 200),
        (bearer(ANN.upper()), 401),
        (bearer(ANN[:-1]), 401),
        (bearer(""), 401),
        (bearer("\xe9" * 20), 401),
        ({"authorization": ANN}, 401),
        ({"authorization": f"Basic {ANN}"}, 401),
        ({"x-api-key": ANN}, 200),
        ({"x-api-key": "nobody"}, 401),
    ],
)
async def test_a_known_key_comes_in(runtime: LocalServer, headers: dict[str, str], status: int) -> None:
    async with asked(runtime) as client:
        answer = await client.get("/north/who", headers={k: v.encode("latin-1") for k, v in headers.items()})
    assert answer.status_code == status
    if status == 401:
        assert answer.json() == {"north": "Unauthorized"}
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
async def test_a_key_that_is_not_ascii_comes_in(runtime: LocalServer, encoding: str) -> None:
    key = "schlüssel-für-jeden-tag"
    app = create_app(runtime.serving, AUTO, dialects=TOYS, keys=Keyring([hashed(key, "ann")]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for sent, status in ((key, 200), (key.replace("ü", "u"), 401), (key + "\xff", 401)):
            header = f"Bearer {sent}".encode(encoding)
            assert (await client.get("/north/who", headers={"authorization": header})).status_code == status


@pytest.mark.parametrize("name", ["api_key", "api-key", "key", "token", "access_token", "authorization", "x-api-key"])
async def test_a_key_in_the_query_lets_nobody_in(runtime: LocalServer, name: str) -> None:
    async with asked(runtime) as client:
        for value in (ANN, f"Bearer {ANN}"):
            answer = await client.get("/north/who", params={name: value})
            assert (answer.status_code, answer.json()) == (401, {"north": "Unauthorized"})


async def test_other_headers_count_only_where_a_dialect_says_so(runtime: LocalServer) -> None:
    async with asked(runtime) as client:
        assert (await client.get("/south/who", headers={"x-api-key": ANN})).json() == {"south": "Unauthorized"}


async def test_an_admins_operations_need_an_admins_key(runtime: LocalServer) -> None:
    async with asked(runtime) as client:
        refused = await client.post("/north/admin", json={"text": "a"}, headers=bearer(BOB))
        assert (refused.status_code, refused.json()) == (403, {"north": "Forbidden"})
        assert (await client.post("/north/admin", json={"text": "a"}, headers=bearer(ANN))).json() == {"north": "a"}


async def test_callers_are_told_apart_by_a_digest_that_is_not_the_files(runtime: LocalServer) -> None:
    async with asked(runtime) as client:
        tenants = [(await client.get("/north/who", headers=bearer(key))).json()["north"] for key in (ANN, BOB, ANN)]
    assert tenants[0] == tenants[2] != tenants[1]
    assert all(len(tenant) == 32 and tenant not in KEYS[0].digest + KEYS[1].digest for tenant in tenants)
    async with asked(runtime) as client:
        assert (await client.get("/north/facts")).json() == {"north": ""}


async def test_without_keys_everybody_is_nobody_in_particular(runtime: LocalServer) -> None:
    app = create_app(runtime.serving, AUTO, dialects=TOYS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/north/who", headers=bearer("anything"))).json() == {"north": ""}


async def test_what_a_contract_leaves_open_can_be_closed_but_for_probes(runtime: LocalServer) -> None:
    for protect_all, status in ((False, 200), (True, 401)):
        async with asked(runtime, protect_all=protect_all) as client:
            for path in ("/north/facts", "/metrics", "/north/metrics", "/openapi.json"):
                assert (await client.get(path)).status_code == status, path
            for path in ("/locallab/startup-status", "/startup-status"):
                async with asked(runtime, DIALECTS, protect_all=protect_all) as all_dialects:
                    assert (await all_dialects.get(path)).status_code == status, path
            for path in ("/north/probe", "/livez", "/readyz", "/health", "/healthcheck"):
                assert (await client.get(path)).status_code == 200, path


async def test_a_browser_may_ask_without_a_key_what_it_may_do(runtime: LocalServer) -> None:
    headers = {"origin": "https://page.example", "access-control-request-method": "POST"}
    async with asked(runtime) as client:
        assert (await client.options("/north/echo", headers=headers)).status_code == 200
        refused = await client.post("/north/echo", json={"text": "a"}, headers={"origin": "https://page.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "*"


def operations() -> list[Any]:
    return [pytest.param(d, o, id=f"{d.name} {o.method} {o.path}") for d in DIALECTS for o in d.operations]


BODY = {
    "inputs": "Once",
    "prompt": "Once",
    "prompts": [{"request_id": "r", "prompt": "Once"}],
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
    "model": "stub",
}


@pytest.mark.parametrize(("dialect", "operation"), operations())
async def test_every_operation_is_behind_the_wall_unless_it_says_otherwise(
    runtime: LocalServer, dialect: Any, operation: Any
) -> None:
    """And what says otherwise generates nothing."""
    path = operation.path.replace("{", "").replace("}", "").replace(":path", "")
    async with asked(runtime, DIALECTS) as client:
        body = {"json": BODY} if operation.method == "POST" else {}
        answer = await client.request(operation.method, f"/{dialect.name}{path}", **body)
    if operation.open or operation.probe:
        assert answer.status_code not in (401, 403)
    else:
        assert answer.status_code == 401
        assert ANN not in answer.text
    assert runtime.engine.requests == []


# Where keys come from ------------------------------------------------------------------------------------------------


def test_a_file_has_a_name_scopes_and_a_digest_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# keys\n\n{KEYS[0].line}  # the first\n{KEYS[1].line}\n")
    assert keys_of_text(file.read_text(), file) == list(KEYS)
    ring = keyring_of(KeySettings(api_key=("a-third-key-that-is-long",), api_key_file=str(file)))
    assert len(ring) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "my-plain-key-without-a-digest\n",
        "ann infer sha256:123\n",
        "ann everything sha256:" + "0" * 64,
        "ann infer,root sha256:" + "0" * 64,
        "ann infer md5:" + "0" * 64,
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_being_repeated(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(DragomanError) as refused:
        Keyring(file=file)
    assert str(file) in refused.value.message
    assert not text.strip("#\n ") or text.split()[0] not in refused.value.message.removeprefix(str(file))
    with pytest.raises(DragomanError, match="No such file"):
        Keyring(file=tmp_path / "absent")


def test_a_short_key_is_refused() -> None:
    with pytest.raises(DragomanError, match="16 characters"):
        keyring_of(KeySettings(api_key=("hunter2",)))


def test_made_keys_differ_and_are_long() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith("dgm-") and len(key) >= 47 for key in made)


def test_the_first_start_makes_a_key_and_later_ones_know_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "dragoman" / "api-key"
    ring, key = first_key(path)
    assert key is not None
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again, nothing = first_key(path)
    assert nothing is None
    for each in (ring, again):
        assert each.holder(bearer(key), (), "admin").name == "first-start"


def test_a_key_that_cannot_be_kept_still_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    ring, key = first_key(tmp_path / "file" / "api-key")
    assert key is not None
    assert ring.holder(bearer(key), (), "infer")
    assert "not kept" in caplog.text
    assert key not in caplog.text


def test_a_full_disk_at_the_first_start_does_not_hinder_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "api-key"
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert first_key(path)[1] is not None
    assert "No space left on device" in caplog.text
    assert not list(tmp_path.iterdir())
    path.touch(0o600)  # what a loss of power leaves
    key = first_key(path)[1]
    assert key is not None
    assert first_key(path)[0].holder(bearer(key), (), "infer").name == "first-start"
    assert [each.name for each in tmp_path.iterdir()] == ["api-key"]


@pytest.mark.parametrize(
    ("host", "others"), [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("::", True)]
)
def test_other_machines_reach_all_but_loopback_addresses(host: str, others: bool) -> None:
    assert reaches_others(host) is others


# Where they never appear ---------------------------------------------------------------------------------------------


async def test_keys_are_in_no_log_and_no_description(runtime: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with asked(runtime) as client:
        for key in (ANN, "a-wrong-key-of-some-length"):
            for path in ("/north/who", "/nowhere", "/north/echo"):
                await client.get(path, headers=bearer(key), params={"api_key": key})
                await client.post(path, headers={"x-api-key": key}, json={"oops": key})
    assert len(caplog.records) >= 12
    # httpx logs the addresses that it asks for.
    text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("dragoman"))
    assert ANN not in text
    assert "a-wrong-key" not in text
    settings = KeySettings(api_key=(ANN,))
    assert ANN not in f"{settings!r} {settings!s} {Keyring(KEYS)!r}"
