"""What becomes of requests when vLLM servers die, hang, fail or come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_vllm import FakeVllm
from vllm_clients import PROMPT, all_have_tokens, greedy, in_loop, read, request, started, until

from dragoman.core.errors import EngineUnavailable
from dragoman.core.events import FinishReason, TokenEvent
from dragoman.core.sampling import SamplingParams
from dragoman.engine_client.client import State
from dragoman.engine_client.vllm import upstream
from dragoman.engine_client.vllm.probe import Probe


@in_loop
async def test_streams_of_a_dead_server_continue_on_another() -> None:
    first, second = FakeVllm(step_s=0.002), FakeVllm(step_s=0.002)
    async with started(first, second) as client:
        running = [asyncio.create_task(read(client, request(f"r{i}", max_tokens=60))) for i in range(4)]
        await until(lambda: first.running == 2 and second.running == 2 and all_have_tokens(client))
        await first.die()
        for found in await asyncio.gather(*running):
            assert found.ids() == greedy(60)
        assert client.health().state is State.READY
        assert client.stats().restarts == 1
    continued = [sent for sent in second.requests if len(sent["token_ids"]) > len(PROMPT)]
    assert len(continued) == 2, "with their tokens so far"


@in_loop
async def test_streams_wait_for_the_only_server_to_come_back() -> None:
    fake = FakeVllm(step_s=0.002)
    async with started(fake) as client:
        running = asyncio.create_task(read(client, request(max_tokens=60)))
        await until(lambda: fake.running == 1 and all_have_tokens(client))
        await fake.die()
        await until(lambda: client.health().state is State.RESTARTING)
        assert "no vLLM server can be used" in client.health().message
        late = asyncio.create_task(read(client, request("late")))
        await asyncio.sleep(0.05)
        await fake.start()
        assert (await running).ids() == greedy(60)
        assert (await late).ids() == greedy(8)
        assert client.health() == (State.READY, "", None)
        assert client.stats().restarts == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingParams(), "seeded": True},
        {"sampling": SamplingParams(temperature=0, presence_penalty=1.0)},
    ],
)
@in_loop
async def test_a_stream_that_depends_on_more_than_its_tokens_is_computed_again(changes: dict[str, Any]) -> None:
    fake = FakeVllm()
    async with started(fake) as client:
        whole = (await read(client, request("whole", max_tokens=40, **changes))).ids()
        fake.cut_after = 10
        assert (await read(client, request("cut", max_tokens=40, **changes))).ids() == whole
    assert [sent["token_ids"] for sent in fake.requests] == [list(PROMPT)] * 3


@in_loop
async def test_a_later_call_continues_a_text() -> None:
    async with started(FakeVllm()) as client:
        for sampling in (SamplingParams(), SamplingParams(temperature=0)):
            whole = (await read(client, request("whole", max_tokens=30, sampling=sampling, resumable=True))).ids()
            more = request("more", max_tokens=30, sampling=sampling, resumable=True, generated=(tuple(whole[:10]),))
            events = [event async for event in client.submit(more)]
            tokens = [event for event in events if isinstance(event, TokenEvent)]
            assert [event.index for event in tokens] == list(range(10, 30))
            assert [event.token_id for event in tokens] == whole[10:]


@in_loop
async def test_a_stream_fails_where_another_server_computes_other_tokens() -> None:
    fake = FakeVllm()
    async with started(fake) as client:
        fake.cut_after = 10
        task = asyncio.create_task(
            read(client, request(max_tokens=40, sampling=SamplingParams(), seeded=True)),
        )
        await until(lambda: fake.cut_after is None)
        fake.salt = "other"
        found = await task
    assert found.finish == {0: FinishReason.ERROR}
    assert len(found.ids()) == 10


@in_loop
async def test_a_stream_without_a_seed_continues_from_its_tokens() -> None:
    fake = FakeVllm()
    async with started(fake) as client:
        fake.cut_after = 10
        found = (await read(client, request(max_tokens=40, sampling=SamplingParams()))).ids()
    first, second = fake.requests
    assert second["token_ids"] == [*PROMPT, *found[:10]]
    assert second["sampling_params"]["max_tokens"] == 30
    assert second["sampling_params"]["seed"] != first["sampling_params"]["seed"], "not the same numbers again"


@in_loop
async def test_a_silent_stream_continues_elsewhere() -> None:
    fake = FakeVllm()
    async with started(fake, hang_s=2.5) as client:
        fake.stalls_after = 5
        assert (await read(client, request(max_tokens=20))).ids() == greedy(20)
    assert fake.aborted == 1


@pytest.mark.parametrize("fault", [{"error_in_stream": (500, "engine died")}, {"finish_reason": "abort"}])
@in_loop
async def test_a_request_that_fails_again_and_again_is_failed(fault: dict[str, Any]) -> None:
    fake = FakeVllm()
    async with started(fake) as client:
        for name, value in fault.items():
            setattr(fake, name, value)
        fake.fails_with = (500, "EngineCore encountered an issue.")
        events = [event async for event in client.submit(request())]
        assert getattr(events[-1], "message", "").startswith("computing this request on vLLM failed 3 times")
        assert len(fake.requests) == 3
        fake.fails_with = None
        found = await read(client, request("other", max_tokens=3))
        assert found.ids() == greedy(3), "each try makes a token more"


@in_loop
async def test_an_answer_that_cannot_be_used_fails_its_request() -> None:
    """It does not wait for an end that never comes."""
    fake = FakeVllm()
    async with started(fake) as client:
        client._upstreams[0]._traits = None
        async with asyncio.timeout(60):
            events = [event async for event in client.submit(request())]
        assert getattr(events[-1], "message", "").endswith("cannot be used (AssertionError)")


@in_loop
async def test_what_vllm_refuses_itself_is_told() -> None:
    fake = FakeVllm()
    async with started(fake) as client:
        fake.fails_with = (400, "min_p and logit_bias are not yet supported with speculative decoding.")
        events = [event async for event in client.submit(request())]
        assert "not yet supported with speculative decoding" in getattr(events[-1], "message", "")
        fake.fails_with, fake.error_in_stream = None, (400, "no such thing")
        events = [event async for event in client.submit(request("b"))]
        assert "no such thing" in getattr(events[-1], "message", "")
        fake.error_in_stream, fake.finish_reason = None, "repetition"
        events = [event async for event in client.submit(request("c"))]
        assert "with 'repetition', where the request does not end" in getattr(events[-1], "message", "")
    assert len(fake.requests) == 3


@in_loop
async def test_an_unhealthy_server_gets_no_requests() -> None:
    first, second = FakeVllm(), FakeVllm()
    async with started(first, second) as client:
        first.is_healthy = False
        await until(lambda: client.stats().restarts == 1)
        await read(client, request(seeds=(1, 2, 3, 4)))
        assert not first.requests
        first.is_healthy = True
        await until(lambda: client.stats().blocks == 200)


@in_loop
async def test_a_server_is_asked_again_whatever_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, answers = FakeVllm(), [ValueError("an answer not seen before"), None]
    answer, version = FakeVllm._logprobs, Probe._version

    def logprobs(fake: FakeVllm, token_id: int, params: dict[str, Any]) -> dict[str, Any] | None:
        if answers and params.get("logprobs"):
            answers.pop()
            return {"content": []}  # of a generation that was aborted
        return answer(fake, token_id, params)

    async def asked(probe: Probe) -> str:
        if len(answers) == 2 and (error := answers.pop(0)) is not None:
            raise error
        return await version(probe)

    async with started(fake) as client:
        await fake.die()
        await until(lambda: client.health().state is State.RESTARTING)
        monkeypatch.setattr(upstream, "CHECK_S", 0.1)
        monkeypatch.setattr(FakeVllm, "_logprobs", logprobs)
        monkeypatch.setattr(Probe, "_version", asked)
        await fake.start()
        await until(lambda: client.health().state is State.READY)
        assert not answers


@in_loop
async def test_a_server_that_is_back_with_another_model_gets_no_requests() -> None:
    fake = FakeVllm()
    async with started(fake, give_up_s=0.4) as client:
        reasons: list[str] = []
        client.on_failed = reasons.append
        await fake.die()
        await until(lambda: client.health().state is State.RESTARTING)
        fake.max_model_len = 300
        await fake.start()
        stream = client.submit(request())
        await until(lambda: bool(reasons))
        events = [event async for event in stream]
        assert "has been down for 0.4 s" in getattr(events[-1], "message", "")
        assert client.health().state is State.FAILED
        with pytest.raises(EngineUnavailable):
            client.submit(request("late"))
    assert not fake.requests
