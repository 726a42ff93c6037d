"""What OctoAI's answers say is so: likelihoods as transformers computes them, seeds that hold under load, and OpenAI's
package under every prefix."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from stub_runtime import TOKENIZER, RunningServer
from tiny_server import reference_logprobs

pytestmark = pytest.mark.anyio

PROMPT = "Once upon a time there was a mouse who had never seen the sea."
BODY: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "seed": 3, "ignore_eos": True}


def ask(server: RunningServer, **fields: Any) -> Any:
    answer = httpx.post(f"{server.url}/octoai/v1/completions", json=BODY | fields, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def logprobs_of(answer: Any, index: int = 0) -> list[float]:
    return [entry["logprob"] for entry in answer["choices"][index]["logprobs"]["content"]]


def test_likelihoods_are_those_of_transformers(server: RunningServer, folder: Path) -> None:
    ids = TOKENIZER.encode(PROMPT)
    expected = reference_logprobs(folder, ids)
    assert logprobs_of(ask(server, loglikelihood=True)) == pytest.approx(expected, abs=2e-4)
    assert logprobs_of(ask(server, loglikelihood=True, prompt=list(ids))) == pytest.approx(expected, abs=2e-4)


def test_likelihoods_of_generated_tokens_too(server: RunningServer, folder: Path) -> None:
    answer = ask(server, loglikelihood=True, logprobs=0, temperature=0.0)
    text = answer["choices"][0]["text"]
    spelled = "".join(entry["token"] for entry in answer["choices"][0]["logprobs"]["content"][-24:])
    assert spelled == text
    friendli = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "eos_token": [4095]}
    same = httpx.post(f"{server.url}/serverless/v1/completions", json=friendli, timeout=30).json()["choices"][0]
    assert same["text"] == text
    ids = [*TOKENIZER.encode(PROMPT), *same["tokens"]]
    assert logprobs_of(answer) == pytest.approx(reference_logprobs(folder, ids), abs=3e-4)


async def test_a_seed_gives_the_same_text_whatever_else_runs(server: RunningServer) -> None:
    alone = [ask(server, seed=seed)["choices"][0]["text"] for seed in range(6)]
    assert len(set(alone)) == 6
    async with httpx.AsyncClient(base_url=f"{server.url}/octoai", timeout=60) as client:

        async def again(seed: int) -> str:
            answer = await client.post("/v1/completions", json=BODY | {"seed": seed})
            text: str = answer.json()["choices"][0]["text"]
            return text

        async def noise(i: int) -> None:
            body = BODY | {"seed": 1000 + i, "prompt": f"{i} {PROMPT}" * (i % 5 + 1), "n": i % 3 + 1}
            await client.post("/v1/completions", json=body)

        crowd = [asyncio.create_task(noise(i)) for i in range(40)]
        crowded = await asyncio.gather(*(again(seed) for seed in range(6)))
        await asyncio.gather(*crowd)
    assert crowded == alone


def test_the_fingerprint_is_the_models(server: RunningServer) -> None:
    prints = {ask(server, seed=seed)["system_fingerprint"] for seed in range(3)}
    assert prints == {server.runtime.serving.model("tiny").fingerprint}


@pytest.mark.parametrize("prefix", ["/octoai/v1", "/v1"])
def test_openais_package_is_at_home(server: RunningServer, prefix: str) -> None:
    with openai.OpenAI(base_url=server.url + prefix, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny", "tiny:alias"]
        asked: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "seed": 3, "logprobs": 2}
        whole = client.completions.create(**asked)
        chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        assert chunks[-1].usage == whole.usage
        assert whole.choices[0].logprobs is not None
        assert len(whole.choices[0].logprobs.tokens or []) == 6
        messages: Any = [{"role": "user", "content": "Hi."}]
        chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, seed=3)
        streamed = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, seed=3, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in streamed) == chat.choices[0].message.content
        with pytest.raises(openai.UnprocessableEntityError) as raised:
            client.completions.create(**asked | {"temperature": 3})
        assert raised.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(**asked | {"model": "nobody"})


async def test_openais_package_async(server: RunningServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/octoai/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "seed": 3}
        whole = await client.completions.create(**asked)
        parts = [chunk.choices[0].text async for chunk in await client.completions.create(**asked, stream=True)]
        assert "".join(parts) == whole.choices[0].text
