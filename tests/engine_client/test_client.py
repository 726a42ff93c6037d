"""The server's end of the engine: taking, streaming, cancelling, refusing, stopping."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec
import psutil
import pytest
from engine_clients import read

from dragoman.core.constraint import Choice
from dragoman.core.errors import BadRequest, EngineUnavailable, ModelError, Overloaded
from dragoman.core.events import FinishEvent, FinishReason, TokenEvent
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import Vocabulary
from dragoman.engine.messages import LoadModel, StubModel, WorkerSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.health import State
from dragoman.grammar.lark import grammar_of
from simulation import Transcript, random_request, run_alone, stub

STUB = StubModel(vocab_size=199, num_blocks=4096, max_context=60_000, step_s=0.002)


@asynccontextmanager
async def started(model: StubModel = STUB, **scheduler: int) -> AsyncIterator[EngineClient]:
    client = EngineClient(WorkerSettings(model=model, scheduler=SchedulerSettings(**scheduler)))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def endless(request_id: str, sequences: int = 1, max_tokens: int = 30_000) -> EngineRequest:
    """A request that runs for longer than this process stands still."""
    return EngineRequest(
        request_id=request_id, prompt=(1, 2, 3), seeds=tuple(range(sequences)), max_tokens=max_tokens, logprobs=None
    )


async def idle(client: EngineClient) -> None:
    """Wait until nothing runs and nothing waits."""
    while client.stats().running or client.stats().waiting or client.stats().blocks == 0:
        await asyncio.sleep(0.005)


def test_streams_what_the_engine_makes() -> None:
    rng = random.Random(1)
    requests = [random_request(rng, f"r{index}", STUB.vocab_size) for index in range(20)]

    async def play() -> list[Transcript]:
        async with started() as client:
            return await asyncio.gather(*(read(client, request) for request in requests))

    runner = stub(vocab_size=STUB.vocab_size)
    assert asyncio.run(play()) == [run_alone(runner, request) for request in requests]


def test_start_says_what_runs() -> None:
    async def play() -> None:
        client = EngineClient(WorkerSettings(model=STUB))
        assert client.health().state is State.STARTING
        with pytest.raises(EngineUnavailable):
            client.submit(endless("early"))
        info = await client.start()
        assert (info.vocab_size, info.max_context, info.num_blocks) == (199, 60_000, 4096)
        assert client.health().state is State.READY
        await client.close()
        assert client.health().state is State.CLOSED
        with pytest.raises(EngineUnavailable):
            client.submit(endless("late"))

    asyncio.run(play())


def test_a_model_that_cannot_be_loaded_is_said_at_the_start() -> None:
    async def play() -> None:
        client = EngineClient(WorkerSettings(model=LoadModel(source="./no-such-folder")))
        with pytest.raises(ModelError, match="no-such-folder"):
            await client.start()
        assert client.health().pid is None

    asyncio.run(play())


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.2])
def test_a_start_that_is_given_up_leaves_nothing_to_complain_about(after_s: float) -> None:
    complaints: list[object] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        client = EngineClient(WorkerSettings(model=STUB))
        start = asyncio.create_task(client.start())
        await asyncio.sleep(after_s)
        if start.cancel():
            with pytest.raises(asyncio.CancelledError):
                await start
        else:  # this process stood still until the other one was ready
            await client.close()
        await asyncio.sleep(0.1)
        gc.collect()

    asyncio.run(play())
    gc.collect()
    assert complaints == []


def test_cancel_ends_a_request_and_frees_its_blocks() -> None:
    async def play() -> None:
        async with started() as client:
            stream = client.submit(endless("r", sequences=3))
            seen = 0
            async for event in stream:
                seen += isinstance(event, TokenEvent)
                if seen == 5:
                    client.cancel("r")
                    break
            rest = [event async for event in stream]
            ends = [event for event in rest if isinstance(event, FinishEvent)]
            assert [(event.sequence, event.finish) for event in ends] == [(i, FinishReason.CANCELLED) for i in range(3)]
            await idle(client)
            assert client.stats().free_blocks == STUB.num_blocks

    asyncio.run(play())


def test_cancel_of_one_sequence_leaves_the_others() -> None:
    async def play() -> None:
        async with started() as client:
            request = endless("r", sequences=3, max_tokens=40)
            for _ in range(100):
                output_processor = Transcript()
                async for event in client.submit(request):
                    output_processor.add(event)
                    if isinstance(event, TokenEvent) and event.sequence == 1 and event.index == 9:
                        client.cancel("r", 1)
                if output_processor.finish[1] is FinishReason.CANCELLED:
                    break
                assert output_processor.finish[1] is FinishReason.LENGTH, "while this process stood still"
            assert output_processor.finish == {
                0: FinishReason.LENGTH,
                1: FinishReason.CANCELLED,
                2: FinishReason.LENGTH,
            }
            whole = run_alone(stub(vocab_size=STUB.vocab_size), request)
            assert output_processor.of(0) == whole.of(0)
            assert output_processor.ids(1) == whole.ids(1)[: len(output_processor.ids(1))]

    asyncio.run(play())


def test_closing_a_stream_cancels() -> None:
    async def play() -> None:
        async with started() as client:
            async with aclosing(client.submit(endless("r"))) as stream:
                await anext(stream)
            assert [event async for event in stream] == []
            await idle(client)
            assert client.stats().free_blocks == STUB.num_blocks
            assert client.stats().generated_tokens < 30_000

    asyncio.run(play())


def test_a_request_that_cannot_be_encoded_is_refused_and_not_sent_again() -> None:
    """Later processes are given every unfinished request: it would end the start of each."""

    async def play() -> None:
        async with started() as client:
            with pytest.raises(UnicodeEncodeError):
                client.submit(msgspec.structs.replace(endless("r"), cache_salt="\ud800"))
            assert not client._requests
            assert not client._streams

    asyncio.run(play())


def test_closing_a_stream_that_ended_leaves_the_next_of_its_name_alone() -> None:
    async def play() -> None:
        async with started() as client:
            short = msgspec.structs.replace(endless("r"), max_tokens=3)
            first = client.submit(short)
            assert len([event async for event in first]) == 4
            second = client.submit(short)
            await first.aclose()
            ends = [event.finish async for event in second if isinstance(event, TokenEvent)]
            assert ends == [None, None, FinishReason.LENGTH]

    asyncio.run(play())


def test_a_full_queue_refuses_and_goes_on() -> None:
    async def play() -> None:
        async with started(max_running=2, max_waiting=3) as client:
            for index in range(5):
                client.submit(endless(f"r{index}", max_tokens=500))
            with pytest.raises(Overloaded):
                client.submit(endless("one more"))
            with pytest.raises(BadRequest):
                client.submit(endless("r0"))
            client.cancel("r3")
            stream = client.submit(msgspec.structs.replace(endless("fits"), max_tokens=2, priority=1))
            assert len([event async for event in stream]) == 3

    asyncio.run(play())


def test_a_request_that_never_fits_is_refused_with_the_numbers() -> None:
    async def play() -> None:
        async with started(msgspec.structs.replace(STUB, num_blocks=4)) as client:
            request = msgspec.structs.replace(endless("big"), max_tokens=400)
            (event,) = [event async for event in client.submit(request)]
            assert isinstance(event, FinishEvent)
            assert event.finish is FinishReason.ERROR
            assert "403" in event.message
            assert "128" in event.message

    asyncio.run(play())


def test_an_idle_engine_sleeps() -> None:
    async def play() -> tuple[float, int]:
        async with started() as client:
            process = psutil.Process(client.health().pid)
            for _ in range(20):  # on a busy machine it may still be starting
                before = sum(process.cpu_times()[:2])
                wakings = process.num_ctx_switches().voluntary
                await asyncio.sleep(0.5)
                found = sum(process.cpu_times()[:2]) - before, process.num_ctx_switches().voluntary - wakings
                if found < (0.1, 0) and found[1] < 5:
                    break
            return found

    seconds, wakings = asyncio.run(play())
    assert seconds < 0.1
    assert wakings < 5


@pytest.mark.parametrize("sent_to_all", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_leaves_the_engine_to_its_server(sent_to_all: signal.Signals) -> None:
    async def run() -> None:
        async with started() as client:
            pid = client.health().pid
            assert pid is not None
            stream = client.submit(endless("a", max_tokens=500))
            await anext(stream)
            os.kill(pid, sent_to_all)
            rest = [event async for event in stream]
            assert isinstance(rest[-1], TokenEvent)
            assert rest[-1].finish is FinishReason.LENGTH
            assert client.stats().restarts == 0

    asyncio.run(run())


def test_the_engine_leaves_with_its_parent() -> None:
    """A server that is killed outright leaves no engine behind."""
    program = (
        "import asyncio\n"
        "from dragoman.engine_client.client import EngineClient\n"
        "from dragoman.engine.messages import StubModel, WorkerSettings\n"
        "async def main():\n"
        "    client = EngineClient(WorkerSettings(model=StubModel()))\n"
        "    await client.start()\n"
        "    print(client.health().pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        engine = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    engine.wait(timeout=60)


def test_close_ends_open_streams_and_the_process() -> None:
    async def play() -> None:
        client = EngineClient(WorkerSettings(model=STUB))
        await client.start()
        process = psutil.Process(client.health().pid)
        stream = client.submit(endless("r"))
        await anext(stream)
        await client.close()
        last = [event async for event in stream][-1]
        assert isinstance(last, FinishEvent)
        assert last.finish is FinishReason.ERROR
        assert not process.is_running()

    asyncio.run(play())


def test_a_row_that_is_no_distribution_fails_its_sequence_only() -> None:
    async def play() -> None:
        async with started(msgspec.structs.replace(STUB, nan_token=0)) as client:
            bad = client.submit(msgspec.structs.replace(endless("bad"), prompt=(0, 1)))
            good = client.submit(
                EngineRequest(request_id="good", prompt=(1,), seeds=(1,), max_tokens=3, stop_token_ids=())
            )
            last = [event async for event in bad][-1]
            assert isinstance(last, FinishEvent)
            assert last.finish is FinishReason.ERROR
            ends = [event.finish async for event in good if isinstance(event, TokenEvent)]
            assert ends == [None, None, FinishReason.LENGTH]
            assert client.stats().restarts == 0

    asyncio.run(play())


def test_each_life_learns_the_vocabulary_before_its_first_grammar() -> None:
    vocabulary = Vocabulary(tokens=(*(bytes([byte]) for byte in range(256)), b""), special_ids=(256,), end_ids=(256,))
    asked: list[int | None] = []

    async def answer(client: EngineClient, name: str, grammar: str | None) -> bytes:
        request = EngineRequest(
            request_id=name, prompt=(1, 2), seeds=(1,), max_tokens=8, end_token_ids=(256,), grammar=grammar
        )
        tokens = [event.token_id async for event in client.submit(request) if isinstance(event, TokenEvent)]
        return b"".join(vocabulary.tokens[token] for token in tokens)

    def learn() -> Vocabulary:
        asked.append(client.health().pid)
        return vocabulary

    async def play() -> None:
        client.set_vocabulary(learn)
        await client.start()
        try:
            await answer(client, "free", None)
            assert asked == []
            grammar = grammar_of(Choice(("yes", "no")))
            for life in (1, 2):
                assert await answer(client, f"first {life}", grammar) in (b"yes", b"no")
                assert await answer(client, f"second {life}", grammar) in (b"yes", b"no")
                assert (len(asked), asked[-1]) == (life, client.health().pid)
                os.kill(client.health().pid or 0, signal.SIGKILL)
                while client.health().state is State.READY:
                    await asyncio.sleep(0.005)
        finally:
            await client.close()

    client = EngineClient(WorkerSettings(model=msgspec.structs.replace(STUB, vocab_size=257)))
    asyncio.run(play())
