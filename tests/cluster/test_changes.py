"""Adapters that are loaded while the cluster runs: on every replica, also on those that start later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from cluster_stub import IN_A_HURRY, PATIENT, SECRET, SLOW, UNLIMITED, Cluster, cluster_of
from stub_runtime import RunningServer, running_server

from dragoman.cluster.answer import Frames
from dragoman.cluster.changes import Change, Changes, ChangingOperations, status_of
from dragoman.cluster.replica_state import Replica
from dragoman.cluster.routing import Wanted
from dragoman.cluster.running import Arrivals
from dragoman.cluster.upstream import ReplicaPool
from dragoman.core.errors import GenerationFailed
from dragoman.dialects import DIALECTS
from dragoman.server.relay import END_FRAME, HEAD_FRAME
from dragoman.server.settings import NetworkSettings
from dragoman.serving.settings import AdapterSettings

pytestmark = pytest.mark.anyio

QUICK_STUB = msgspec.structs.replace(SLOW, step_s=0.0)
BODY = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
RIGHT = {"x-dragoman-relay": SECRET.decode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("poems", "recipes"):
        (folder / name).mkdir()
        (folder / name / "adapter_config.json").write_text(f'{{"name": "{name}"}}')
        (folder / name / "adapter_model.safetensors").touch()
    return folder


@pytest.fixture
def replicas(folder: Path, secret_file: Path, tmp_path: Path) -> Iterator[list[RunningServer]]:
    """Three replicas that offer adapters; the last one offers none."""
    network = NetworkSettings(cluster_secret_file=str(secret_file))
    folders = (folder, folder, tmp_path)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_server(
                    PATIENT,
                    QUICK_STUB,
                    dialects=UNLIMITED,
                    network=network,
                    adapters=AdapterSettings(adapters_folder=str(each)),
                )
            )
            for each in folders
        ]


def addresses(replicas: list[RunningServer]) -> list[tuple[str, int]]:
    return [(f"replica-{number}", each.port) for number, each in enumerate(replicas)]


async def models_of(replica: RunningServer) -> list[str]:
    async with httpx.AsyncClient(base_url=replica.url) as client:
        models: list[str] = (await client.get("/cluster/state", headers=RIGHT)).json()["models"]
        return models


async def load(cluster: Cluster, name: str) -> httpx.Response:
    return await cluster.client.post("/v1/load_lora_adapter", json={"lora_name": name})


async def test_an_adapter_is_loaded_on_all_replicas_and_on_one_that_comes_later(replicas: list[RunningServer]) -> None:
    first, second = replicas[:2]
    async with cluster_of([("first", first.port)]) as cluster:
        assert (await load(cluster, "poems")).text == "Success: LoRA adapter 'poems' added successfully."
        assert (await load(cluster, "recipes")).status_code == 200
        assert (await cluster.client.post("/v1/unload_lora_adapter", json={"lora_name": "recipes"})).status_code == 200
        assert "poems" not in await models_of(second)
        cluster.table.add(Replica("second", "127.0.0.1", second.port))
        async with asyncio.timeout(60):
            while "second" not in cluster.table.ready:
                await asyncio.sleep(0.02)
        # It gets requests only now that it has the adapter.
        models = await models_of(second)
        assert "poems" in models
        assert "recipes" not in models
        cluster.table.remove("first")
        reply = await cluster.client.post("/v1/completions", json={**BODY, "model": "poems"})
        assert reply.status_code == 200
        assert reply.json()["model"] == "poems"
        assert (await cluster.client.post("/v1/completions", json={**BODY, "model": "recipes"})).status_code == 404


@pytest.mark.thorough
async def test_an_ingress_that_starts_anew_finds_the_changes_at_the_replicas(replicas: list[RunningServer]) -> None:
    async with cluster_of(addresses(replicas[:1])) as cluster:
        assert (await load(cluster, "poems")).status_code == 200
    async with cluster_of(addresses(replicas[:2])) as cluster:
        async with asyncio.timeout(60):
            while "poems" not in await models_of(replicas[1]):
                await asyncio.sleep(0.02)
        assert (await cluster.client.get("/v1/models/poems")).status_code == 200


async def test_a_change_that_is_refused_reaches_no_other_replica(replicas: list[RunningServer]) -> None:
    async with cluster_of(addresses(replicas[:2])) as cluster:
        reply = await load(cluster, "letters")
        assert reply.status_code == 404
        assert "letters" in reply.json()["error"]["message"]
        assert not cluster.ingress.changes._kept


async def test_requests_go_to_the_replicas_that_have_their_adapter(replicas: list[RunningServer]) -> None:
    """The last replica does not find the adapter: the answer names it, and the others serve it."""
    async with cluster_of(addresses(replicas)) as cluster:
        for _ in range(20):  # the first replica that is asked may be the one that refuses
            reply = await load(cluster, "poems")
            if reply.status_code != 404:
                break
        assert reply.status_code == 500
        assert "The change was made on 2 of 3 replicas: replica-2 answered" in reply.json()["error"]["message"]
        async with asyncio.timeout(60):
            while [("poems" in each) for each in cluster.table.choice._models.values()].count(True) < 2:
                await asyncio.sleep(0.02)
        for path, body in (
            ("/v1/completions", {**BODY, "model": "poems"}),
            ("/generate", {"inputs": "hi", "parameters": {"adapter_id": "poems", "max_new_tokens": 4}}),
        ):
            replies = await asyncio.gather(*(cluster.client.post(path, json=body) for _ in range(12)))
            assert {each.status_code for each in replies} == {200}


class Listed:
    """Replicas that are there; the first of them makes each change first."""

    ready = ("first",)

    def __init__(self, there: list[Replica]) -> None:
        self.there = there

    @asynccontextmanager
    async def slot(self, wanted: Wanted, wait_s: float) -> AsyncIterator[Replica]:
        yield self.there[0]

    def all(self) -> list[Replica]:
        return list(self.there)

    def admit_by(self, admits: object) -> None: ...


LOADING = Change(0, "/v1/load_lora_adapter poems", "poems", "POST", b"/v1/load_lora_adapter", [], b"{}")


async def test_a_refusal_is_told_whoever_brought_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """What watches for replicas that lack a change is faster here than the change's own request."""
    first, refusing = Replica("first", "127.0.0.1", 9), Replica("refusing", "127.0.0.1", 9)
    asked: list[str] = []

    async def ask(replica: Replica, request: object) -> Frames:
        asked.append(replica.name)
        return [(HEAD_FRAME, msgspec.msgpack.encode([200 if replica is first else 404, []])), (END_FRAME, b"")]

    async def left_behind(pool: object, replica: Replica, secret: object, method: str, *rest: object) -> bytes:
        if replica is first and method == "PUT":
            async with asyncio.timeout(10):
                while "refusing" not in asked:
                    await asyncio.sleep(0.001)
        return b""

    monkeypatch.setattr("dragoman.cluster.changes.ask_replica", left_behind)
    monkeypatch.setattr("dragoman.cluster.changes.LOOK_S", 0.001)
    changes = Changes(Listed([first, refusing]), ask, ReplicaPool(), SECRET, Arrivals())
    watching = asyncio.create_task(changes.watch())
    with pytest.raises(GenerationFailed, match=r"1 of 2 replicas: refusing answered .* with status 404"):
        await changes.make(LOADING, "r", 1.0)
    watching.cancel()
    assert asked == ["first", "refusing"]


async def test_a_replica_that_leaves_while_it_is_busy_is_no_longer_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change is made by then, and its client is told so."""
    first, leaving = Replica("first", "127.0.0.1", 9), Replica("leaving", "127.0.0.1", 9)
    there = [first, leaving]

    async def ask(replica: Replica, request: object) -> Frames:
        if replica is leaving and leaving in there:
            there.remove(leaving)
        return [(HEAD_FRAME, msgspec.msgpack.encode([200 if replica is first else 503, []])), (END_FRAME, b"")]

    async def left_behind(*asked: object) -> bytes:
        return b""

    monkeypatch.setattr("dragoman.cluster.changes.ask_replica", left_behind)
    monkeypatch.setattr("dragoman.cluster.changes.LOOK_S", 0.01)
    changes = Changes(Listed(there), ask, ReplicaPool(), SECRET, Arrivals())
    watching = asyncio.create_task(changes.watch())
    frames = await changes.make(LOADING, "r", 1.0)
    watching.cancel()
    assert status_of(frames) == 200
    assert there == [first]


async def test_no_replica_to_change_is_an_error(replicas: list[RunningServer]) -> None:
    async with cluster_of([], settings=IN_A_HURRY) as cluster:
        assert (await load(cluster, "poems")).status_code == 503


def test_operations_of_administrators_are_changes() -> None:
    operations = ChangingOperations(DIALECTS)

    def subject(method: str, path: str, body: bytes = b"{}") -> str | None:
        change = operations.find(method, path, path.encode(), [], body)
        return None if change is None else change.subject

    assert subject("POST", "/v1/load_lora_adapter", b'{"lora_name":"poems"}') == "/v1/load_lora_adapter poems"
    assert subject("POST", "/openai/v1/load_lora_adapter", b'{"lora_name":3}') == "/v1/load_lora_adapter"
    assert subject("POST", "/locallab/models/load/org/name") == "/models/load/{id:path}"
    assert subject("POST", "/system/instructions", b"not JSON") == "/system/instructions"
    assert subject("GET", "/v1/lora_adapters") is None
    assert subject("POST", "/v1/completions") is None
    admin = {each.path for dialect in DIALECTS for each in dialect.operations if each.scope == "admin"}
    shared = {
        each.path
        for dialect in DIALECTS
        for each in dialect.operations
        if each.scope != "admin" and each.method == "POST"
    }
    assert not admin & shared  # a path would not tell which one is meant
