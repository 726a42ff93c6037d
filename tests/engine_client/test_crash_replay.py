"""Promise 2: an accepted request is never lost. The engine's process is really killed here, with signal 9."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from engine_clients import POISON, STUB, read, started
from tiny_model import make_tiny_llama, make_tiny_t5

from dragoman import models
from dragoman.core.events import EngineEvent, FinishEvent, FinishReason, TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import BeamParams, LogprobParams, SamplingParams
from dragoman.engine.messages import EngineStats, LoadModel, WorkerSettings
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.health import State
from dragoman.engine_client.watchdog import Watchdog
from dragoman.models.settings import AskedKVPrecision, Precision
from simulation import Transcript, random_request, run_alone, stub

T = TypeVar("T")


def kill(client: EngineClient) -> bool:
    """Kill the process where there is one that has started."""
    state, _, pid = client.health()
    if state is not State.READY or pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def killed_in_time(play: Callable[[], Coroutine[Any, Any, tuple[T, int]]], kills: int) -> Iterator[T]:
    """Yield what becomes of a play that kills the process: again and again, until none of the ``kills`` came when the
    process had computed everything, for the one of the test had stood still."""
    for _ in range(100):
        told, restarts = asyncio.run(play())
        yield told
        assert restarts <= kills
        if restarts == kills:
            return
    pytest.fail("no kill comes in time")


def harmless(rng: random.Random, request_id: str, output: int = 60) -> EngineRequest:
    """A request that neither holds nor can draw the poison."""
    request = random_request(rng, request_id, STUB.vocab_size, output=output)
    return msgspec.structs.replace(
        request,
        prompt=tuple(token_id or 1 for token_id in request.prompt),
        sampling=msgspec.structs.replace(request.sampling, logit_bias={POISON: -1000.0}),
        logprobs=LogprobParams(top=2, prompt=rng.random() < 0.5),
    )


def test_mirostat_knows_what_it_had_learned_before_the_process_was_killed() -> None:
    """Its state does not follow from token ids: it comes with each token, and goes back with the replay."""
    sampling = SamplingParams(mirostat_mode=2, mirostat_tau=3.0, mirostat_eta=0.4)
    request = EngineRequest(request_id="ours", prompt=(5, 6), seeds=(1, 2), max_tokens=60, sampling=sampling)

    async def main() -> tuple[Transcript, int]:
        async with started() as client:
            output_processor, seen = Transcript(), 0
            async for event in client.submit(request):
                output_processor.add(event)
                seen += isinstance(event, TokenEvent) and event.sequence == 0
                if seen in (10, 30):
                    seen += kill(client)
            return output_processor, client.stats().restarts

    for told in killed_in_time(main, 2):
        assert told == run_alone(stub(vocab_size=STUB.vocab_size), request)


def test_an_encoder_s_input_is_encoded_again(tmp_path: Path) -> None:
    """It goes along with the request; what the process had made of it died with it."""
    settings = models.ModelSettings(precision="int8", cache_bytes=0)
    model = LoadModel(source=str(make_tiny_t5(tmp_path)), settings=settings)
    request = EngineRequest(
        request_id="ours",
        prompt=(0,),
        encoder_input=tuple(range(3, 90)),
        seeds=(1, 2),
        max_tokens=300,
        sampling=SamplingParams(encoder_repetition_penalty=1.2, encoder_no_repeat_ngram_size=3),
        logprobs=LogprobParams(top=1),
    )

    async def main() -> tuple[Transcript, int]:
        async with started(model) as client:
            output_processor, seen = Transcript(), 0
            async for event in client.submit(request):
                output_processor.add(event)
                seen += isinstance(event, TokenEvent) and event.sequence == 0
                if seen in (10, 150):
                    seen += kill(client)
            return output_processor, client.stats().restarts

    for told in killed_in_time(main, 2):
        assert told == run_alone(models.load(model.source, settings), request)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough) for kind in ("deterministic", "sampling")] + ["stochastic"]
)
def test_a_beam_search_goes_on_where_it_was(kind: str) -> None:
    """Nothing of it is delivered before its end; yet no death costs more than the step in which it came."""
    beams = BeamParams(num_beams=4, kind=kind)
    request = EngineRequest(request_id="ours", prompt=(5, 6), seeds=(1, 1), max_tokens=60, beams=beams)

    async def main() -> tuple[tuple[Transcript, EngineStats], int]:
        async with started() as client:
            reading = asyncio.create_task(read(client, request))
            for goal in (60, 120):
                while client.stats().generated_tokens < goal or not kill(client):
                    await asyncio.sleep(0.001)
            output_processor = await asyncio.wait_for(reading, 60)
            return (output_processor, client.stats()), client.stats().restarts

    for output_processor, stats in killed_in_time(main, 2):
        assert output_processor == run_alone(stub(vocab_size=STUB.vocab_size), request)
        assert stats.generated_tokens < 4 * 60 + 2 * 4 * 10


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.thorough), pytest.param(2, marks=pytest.mark.thorough)]
)
def test_killed_at_random_moments_streams_go_on_as_they_would_have(seed: int) -> None:
    rng = random.Random(seed)
    requests = [harmless(rng, f"r{index}", output=150) for index in range(12)]
    alone = [run_alone(stub(vocab_size=STUB.vocab_size, max_context=600), request) for request in requests]

    async def play() -> tuple[list[Transcript], int]:
        async with started() as client:
            reading = asyncio.gather(*(read(client, request) for request in requests))
            kills, made = 0, 0
            while not reading.done():
                await asyncio.sleep(rng.random() * 0.3)
                # A request that is killed three times without a token is taken for the cause, also on a slow machine.
                if client.stats().generated_tokens > made and kill(client):
                    made = client.stats().generated_tokens
                    kills += not reading.done()
                if kills >= 4:
                    break
            return await asyncio.wait_for(reading, 60), client.stats().restarts

    for _ in range(100):
        told, restarts = asyncio.run(play())
        assert told == alone
        if restarts:  # this process did not stand still until everything was computed
            break
    assert restarts >= 1


@pytest.mark.parametrize(("precision", "kept"), [("bfloat16", "int4"), ("int8", "auto")])
def test_a_real_decoder_goes_on_bit_for_bit(precision: Precision, kept: AskedKVPrecision, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "tiny")
    settings = models.ModelSettings(precision=precision, kv_precision=kept, cache_folder=str(tmp_path / "cache"))
    rng = random.Random(9)
    requests = [
        msgspec.structs.replace(harmless(rng, f"r{index}"), max_tokens=300, end_token_ids=(), stop_token_ids=())
        for index in range(6)
    ]
    runner = models.load(folder, settings)
    alone = [run_alone(runner, request) for request in requests]

    async def play() -> tuple[list[Transcript], int]:
        async with started(LoadModel(source=str(folder), settings=settings)) as client:
            reading = asyncio.gather(*(read(client, request) for request in requests))
            for _ in range(2):
                before = client.stats().generated_tokens
                while not reading.done() and (client.stats().generated_tokens < before + 200 or not kill(client)):
                    await asyncio.sleep(0.001)
            told = await asyncio.wait_for(reading, 60)
            return told, client.stats().restarts

    for told in killed_in_time(play, 2):
        assert told == alone


def test_killed_while_starting_again() -> None:
    request = harmless(random.Random(5), "r")
    request = msgspec.structs.replace(request, max_tokens=200, end_token_ids=(), stop_token_ids=())

    async def play() -> Transcript:
        async with started() as client:
            output_processor = Transcript()
            stream = client.submit(request)
            for index in range(4):
                for _ in range(10):
                    output_processor.add(await anext(stream))
                while not kill(client):  # it is starting, while this process had the tokens already
                    await asyncio.sleep(0.002)
                killed = client.health().pid
                while (starting := client.health().pid) in (None, killed):
                    await asyncio.sleep(0.002)
                await asyncio.sleep(0.02 * index)
                assert starting is not None
                with contextlib.suppress(ProcessLookupError):
                    os.kill(starting, signal.SIGKILL)
            async for event in stream:
                output_processor.add(event)
            assert client.stats().restarts >= 4
            return output_processor

    assert asyncio.run(play()) == run_alone(stub(vocab_size=STUB.vocab_size), request)


def test_a_process_that_hangs_is_killed_and_its_streams_go_on() -> None:
    """Stopped by a signal, it neither dies nor speaks."""
    request = harmless(random.Random(6), "r")
    request = msgspec.structs.replace(request, max_tokens=120, end_token_ids=(), stop_token_ids=())

    async def play() -> Transcript:
        client = EngineClient(WorkerSettings(model=STUB))
        await client.start()
        try:
            output_processor, stream = Transcript(), client.submit(request)
            for _ in range(10):
                output_processor.add(await anext(stream))
            os.kill(client.health().pid or 0, signal.SIGSTOP)
            client._watchdog = Watchdog(0.4)
            while not client.stats().restarts:
                await asyncio.sleep(0.001)
            client._watchdog = Watchdog(60.0)  # the next process may get no processor for a while
            async with asyncio.timeout(60):
                async for event in stream:
                    output_processor.add(event)
            assert client.stats().restarts == 1
            client._watchdog = Watchdog(0.4)
            await asyncio.sleep(0.8)  # without work, silence is no sign of anything
            assert client.stats().restarts == 1
            return output_processor
        finally:
            await client.close()

    assert asyncio.run(play()) == run_alone(stub(vocab_size=STUB.vocab_size, max_context=600), request)


def test_three_deaths_of_a_request_on_its_own_fail_it() -> None:
    async def play() -> tuple[list[EngineEvent], int]:
        async with started(msgspec.structs.replace(STUB, crash_token=POISON)) as client:
            stream = client.submit(EngineRequest(request_id="bad", prompt=(POISON,), seeds=(1,), max_tokens=3))
            return [event async for event in stream], client.stats().restarts

    (event,), restarts = asyncio.run(play())
    assert isinstance(event, FinishEvent)
    assert event.finish is FinishReason.ERROR
    assert "died 3 times" in event.message
    assert restarts == 3


@pytest.mark.parametrize("fault", ["crash_token", "raise_token"])
def test_three_deaths_on_one_request_fail_it_alone(fault: str) -> None:
    rng = random.Random(3)
    requests = [harmless(rng, f"r{index}", output=120) for index in range(6)]
    poisoned = msgspec.structs.replace(harmless(rng, "poisoned"), prompt=(5, POISON, 7), seeds=(1, 2), max_tokens=20)
    alone = [run_alone(stub(vocab_size=STUB.vocab_size, max_context=600), request) for request in requests]

    async def play() -> tuple[list[Transcript], list[FinishEvent], int]:
        async with started(msgspec.structs.replace(STUB, **{fault: POISON})) as client:
            reading = asyncio.gather(*(read(client, request) for request in requests))
            await asyncio.sleep(0.02)
            ends = [event async for event in client.submit(poisoned)]
            late = await read(client, msgspec.structs.replace(requests[0], request_id="late"))
            assert late == alone[0]
            return await asyncio.wait_for(reading, 60), ends, client.stats().restarts

    for _ in range(100):
        told, ends, restarts = asyncio.run(play())
        assert told == alone
        assert [(event.sequence, event.finish) for event in ends] == [(0, FinishReason.ERROR), (1, FinishReason.ERROR)]
        assert f"died {restarts} times" in ends[0].message
        if restarts != 3:  # there were others, for this process did not stand still until they had ended
            break
    assert restarts == 4


def test_two_poisoned_requests_are_both_found() -> None:
    rng = random.Random(4)
    requests = [harmless(rng, f"r{index}", output=100) for index in range(4)]
    poisoned = [msgspec.structs.replace(harmless(rng, f"p{i}"), prompt=(5 + i, POISON, 7)) for i in range(2)]
    alone = [run_alone(stub(vocab_size=STUB.vocab_size, max_context=600), request) for request in requests]

    async def play() -> tuple[list[Transcript], list[Transcript]]:
        async with started(msgspec.structs.replace(STUB, crash_token=POISON)) as client:
            good = asyncio.gather(*(read(client, request) for request in requests))
            bad = asyncio.gather(*(read(client, request) for request in poisoned))
            return await asyncio.wait_for(good, 60), await asyncio.wait_for(bad, 60)

    good, bad = asyncio.run(play())
    assert good == alone
    assert all(set(output_processor.finish.values()) == {FinishReason.ERROR} for output_processor in bad)


def test_what_came_before_the_deaths_is_kept() -> None:
    """The process dies of the sixth token that the request draws."""
    request = EngineRequest(request_id="r", prompt=(4, 5), seeds=(1,), max_tokens=9)
    ids = run_alone(stub(vocab_size=STUB.vocab_size), request).ids()
    assert ids[5] not in ids[:5]

    async def play() -> list[EngineEvent]:
        async with started(msgspec.structs.replace(STUB, crash_token=ids[5])) as client:
            return [event async for event in client.submit(request)]

    *events, last = asyncio.run(play())
    assert [event.token_id for event in events if isinstance(event, TokenEvent)] == ids[:6]
    assert isinstance(last, FinishEvent)
    assert last.finish is FinishReason.ERROR
