"""Adapters in the engine: chosen by each request, loaded and unloaded while others go on, and never mixed up.

On the stub model, whose logits depend on the adapter through every cell of the history; ``tests/models/adapters`` has
the arithmetic.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from engine_clients import read
from tiny_model import make_tiny_adapter, make_tiny_llama

from dragoman.core.errors import AdapterNotFound, BadRequest, Conflict, EngineUnavailable, ModelError
from dragoman.core.events import FinishReason
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.messages import LoadModel, StubModel, WorkerSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.health import State
from dragoman.models import ModelSettings
from simulation import Transcript, random_request, run, run_alone, step, stub, with_beams

NAMES = ["red", "green", "blue"]


def request(request_id: str, adapter: str | None, *, tokens: int = 12, prompt: int = 80) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt=tuple(range(prompt)),
        seeds=(1,),
        max_tokens=tokens,
        sampling=SamplingParams(temperature=1.0),
        logprobs=LogprobParams(top=2),
        adapter=adapter,
    )


def with_adapters(engine: Engine) -> Engine:
    for name in NAMES:
        engine.load_adapter(name, f"folder of {name}")
    return engine


def alone(adapter: str | None, asked: EngineRequest) -> Transcript:
    """The reference: an engine that has no other adapter, in another slot."""
    runner = stub(vocab_size=199)
    engine = Engine(runner, SchedulerSettings(prefix_cache=False, speculation=0))
    engine.load_adapter("filler", "anything")
    if adapter is not None:
        engine.load_adapter(adapter, f"folder of {adapter}")
    return run(engine, [asked])[asked.request_id]


@pytest.mark.parametrize("case", range(16))
def test_mixed_adapters_give_each_request_what_it_gets_alone(case: int) -> None:
    rng = random.Random(case)
    requests = []
    for index in range(12):
        asked = random_request(rng, f"r{index}", 199, hidden_size=8)
        asked = with_beams(rng, asked) if rng.random() < 0.2 else asked
        requests.append(msgspec.structs.replace(asked, adapter=rng.choice([None, *NAMES])))
    engine = with_adapters(Engine(stub(vocab_size=199, num_blocks=96), SchedulerSettings(speculation=12)))
    for asked, found in zip(requests, run(engine, requests).values(), strict=True):
        assert found == alone(asked.adapter, asked), asked.adapter


def test_equal_prompts_share_blocks_under_one_adapter_only() -> None:
    engine = with_adapters(Engine(stub(vocab_size=199)))
    for adapter, cached in ((None, 0), ("red", 0), ("green", 0), ("red", 64), (None, 128)):
        run(engine, [request("r", adapter)])
        assert engine.output().stats.cached_tokens == cached


def test_one_name_with_other_files_shares_nothing() -> None:
    engine = Engine(stub(vocab_size=199))
    engine.load_adapter("red", "version 1")
    first = run(engine, [request("r", "red")])
    engine.unload_adapter("red")
    engine.load_adapter("red", "version 2")
    second = run(engine, [request("r", "red")])
    assert engine.output().stats.cached_tokens == 0
    assert first != second


def test_unloading_refuses_new_requests_and_lets_running_ones_finish() -> None:
    engine = with_adapters(Engine(stub(vocab_size=199, max_adapters=3)))
    output_processors = {"running": Transcript(), "late": Transcript()}
    engine.submit(request("running", "red", tokens=40))
    for _ in range(5):
        step(engine, output_processors)
    engine.unload_adapter("red")
    engine.adapters.check_integrity()
    engine.submit(request("late", "red"))
    with pytest.raises(Conflict, match="All 3 adapter slots"):
        engine.load_adapter("yellow", "folder")
    while engine.has_work:
        step(engine, output_processors)
    assert output_processors["late"].finish == {0: FinishReason.ERROR}
    assert output_processors["running"] == alone("red", request("running", "red", tokens=40))
    engine.load_adapter("yellow", "folder")
    engine.adapters.check_integrity()


@pytest.mark.parametrize("case", range(8))
def test_adapters_that_come_and_go_under_load(case: int) -> None:
    """At random; one that cannot be had is told, every other answer is the one that the request gets alone."""
    rng = random.Random(case)
    engine = Engine(stub(vocab_size=199, max_adapters=3, num_blocks=128))
    output_processors: dict[str, Transcript] = {}
    expected: dict[str, tuple[str | None, EngineRequest]] = {}
    for turn in range(300):
        action = rng.random()
        name = rng.choice(NAMES)
        try:
            if action < 0.1:
                engine.load_adapter(name, f"folder of {name}")
            elif action < 0.15:
                engine.unload_adapter(name)
        except (Conflict, AdapterNotFound):
            pass
        if action > 0.7:
            asked = msgspec.structs.replace(
                random_request(rng, f"r{turn}", 199, sequences=2), adapter=rng.choice([None, name])
            )
            output_processors[asked.request_id] = Transcript()
            if asked.adapter is None or asked.adapter in engine.adapters.infos():
                expected[asked.request_id] = asked.adapter, asked
            engine.submit(asked)
        if action < 0.05 and output_processors:
            gone = rng.choice(list(output_processors))
            engine.cancel(gone)
            expected.pop(gone, None)
        if engine.has_work:
            step(engine, output_processors)
        engine.adapters.check_integrity()
    while engine.has_work:
        step(engine, output_processors)
    for request_id, (adapter, asked) in expected.items():
        assert output_processors[request_id] == alone(adapter, asked)
    for name in list(engine.adapters.infos()):
        engine.unload_adapter(name)
    assert not engine.adapters.has_unloading


# Through the process --------------------------------------------------------------------------------------------------

STUB = StubModel(step_s=0.001, vocab_size=199, max_adapters=3)


async def started() -> EngineClient:
    client = EngineClient(WorkerSettings(model=STUB))
    await client.start()
    return client


def test_the_client_loads_lists_and_unloads() -> None:
    async def main() -> None:
        client = await started()
        try:
            info = await client.load_adapter("red", "folder of red")
            assert (info.name, info.source) == ("red", "folder of red")
            assert client.adapters == {"red": info}
            assert await read(client, request("r", "red")) == alone("red", request("r", "red"))
            with pytest.raises(Conflict):
                await client.load_adapter("red", "folder of red")
            with pytest.raises(ModelError, match="no such adapter"):
                await client.load_adapter("green", "missing")
            with pytest.raises(BadRequest):
                await client.load_adapter("a\nb", "folder")
            with pytest.raises(AdapterNotFound):
                client.submit(request("r", "green"))
            await client.unload_adapter("red")
            with pytest.raises(AdapterNotFound):
                client.submit(request("r", "red"))
            with pytest.raises(AdapterNotFound):
                await client.unload_adapter("red")
            assert client.adapters == {}
            for number in range(7):  # more than there are places: each is free again at once
                await client.load_adapter("red", f"version {number}")
                await client.unload_adapter("red")
        finally:
            await client.close()

    asyncio.run(main())


def test_an_adapter_is_replaced_when_the_other_one_has_been_read() -> None:
    async def main() -> None:
        client = await started()
        try:
            await client.load_adapter("red", "folder of red")
            with pytest.raises(ModelError, match="no such adapter"):
                await client.load_adapter("red", "missing one", replace=True)
            assert await read(client, request("old", "red")) == alone("red", request("old", "red"))
            begun = request("running", "red", tokens=60)
            running = asyncio.create_task(read(client, begun))
            await asyncio.sleep(0)
            info = await client.load_adapter("red", "folder of green", replace=True)
            assert client.adapters == {"red": info}
            assert await read(client, request("new", "red")) == alone("green", request("new", "green"))
            assert await running == alone("red", begun)
            assert (await client.load_adapter("blue", "folder of blue", replace=True)).name == "blue"
        finally:
            await client.close()

    asyncio.run(main())


def test_an_adapter_is_replaced_where_its_slot_is_the_last_one() -> None:
    async def main() -> None:
        client = EngineClient(WorkerSettings(model=StubModel(max_adapters=1)))
        await client.start()
        try:
            await client.load_adapter("red", "folder of red")
            for number in range(3):
                await client.load_adapter("red", f"version {number}", replace=True)
            using = asyncio.create_task(read(client, request("using", "red", tokens=100)))
            await asyncio.sleep(0)
            with pytest.raises(ModelError, match="slots are in use"):
                await client.load_adapter("red", "folder of green", replace=True)
            assert list(client.adapters) == ["red"]
            assert (await using).tokens
        finally:
            await client.close()

    asyncio.run(main())


def test_a_request_finishes_with_the_version_that_it_began_with() -> None:
    async def main() -> None:
        client = await started()
        try:
            for _ in range(100):
                await client.load_adapter("red", "folder of red")
                running = asyncio.create_task(read(client, request("old", "red", tokens=200)))
                await asyncio.sleep(0.05)
                await client.unload_adapter("red")
                await client.load_adapter("red", "folder of green")
                new = await read(client, request("new", "red"))
                is_running = not running.done()
                assert await running == alone("red", request("old", "red", tokens=200))
                assert new == alone("green", request("new", "green"))
                if is_running:  # unless this process stood still meanwhile
                    break
                await client.unload_adapter("red")
            assert is_running
        finally:
            await client.close()

    asyncio.run(main())


def test_adapters_and_their_requests_survive_the_death_of_the_process() -> None:
    async def main() -> None:
        client = await started()
        try:
            for name in NAMES:
                await client.load_adapter(name, f"folder of {name}")
            asked = {name: request(str(name), name, tokens=150) for name in (None, *NAMES)}
            running = {name: asyncio.create_task(read(client, each)) for name, each in asked.items()}
            await asyncio.sleep(0.05)
            await client.unload_adapter("blue")  # and still runs
            pid = client.health().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            for name, task in running.items():
                assert await task == alone(name, asked[name])
            assert client.stats().restarts == 1
            assert list(client.adapters) == ["red", "green"]
            assert await read(client, request("r", "green")) == alone("green", request("r", "green"))
            await client.load_adapter("blue", "folder of blue")  # its place is free
        finally:
            await client.close()

    asyncio.run(main())


def test_adapters_of_a_real_model_survive_its_process(tmp_path: Path) -> None:
    """Read from their folders again, and with the same bits; one whose files have changed takes its requests along."""

    async def main() -> None:
        model = LoadModel(source=str(make_tiny_llama(tmp_path / "model")), settings=ModelSettings(max_adapters=2))
        client = EngineClient(WorkerSettings(model=model))
        await client.start()
        try:
            for seed, name in enumerate(("red", "green")):
                await client.load_adapter(name, str(make_tiny_adapter(tmp_path / name, seed)))
            with pytest.raises(ModelError, match="All 2 adapter slots"):
                await client.load_adapter("blue", str(make_tiny_adapter(tmp_path / "blue", 2)))
            asked = [request(name, name, tokens=300) for name in ("red", "green")]
            before = [await read(client, each) for each in asked]
            assert before[0] != before[1]
            running = [asyncio.create_task(read(client, each)) for each in asked]
            await asyncio.sleep(0.02)
            shutil.copytree(tmp_path / "blue", tmp_path / "green", dirs_exist_ok=True)
            pid = client.health().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            red, green = await asyncio.gather(*running)
            assert red == before[0]
            assert green.finish == {0: FinishReason.ERROR} or green == before[1]  # it may have been done already
            while list(client.adapters) != ["red"]:
                await asyncio.sleep(0.01)
            await client.load_adapter("blue", str(tmp_path / "blue"))
        finally:
            await client.close()

    asyncio.run(main())


def test_a_load_that_the_process_dies_in_is_told() -> None:
    async def main() -> None:
        client = await started()
        try:
            pid = client.health().pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            loading = asyncio.create_task(client.load_adapter("red", "folder"))
            await asyncio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineUnavailable):
                await loading
            assert client.adapters == {}
            while client.health().state is not State.READY or client.health().pid in (pid, None):
                await asyncio.sleep(0.01)
            await client.load_adapter("red", "folder")
        finally:
            await client.close()

    asyncio.run(main())


def test_the_reference_is_no_other_than_a_request_without_adapters() -> None:
    plain = request("r", None)
    assert alone(None, plain) == run_alone(stub(vocab_size=199), plain)
    assert alone("red", request("r", "red")) != alone(None, plain)
