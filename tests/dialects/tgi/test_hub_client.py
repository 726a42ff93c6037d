"""``huggingface_hub``'s clients as witnesses: ``text_generation`` with every option, with details and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError, ValidationError
from native import tgi_served
from stub_runtime import QUICK, TOKENIZER, RunningServer, running_server

from dragoman.dialects.api import RouteHint
from dragoman.dialects.tgi.chat import claims

PROMPT = "Once upon a time"
EVERYTHING: dict[str, Any] = {
    "do_sample": True,
    "frequency_penalty": 0.25,
    "max_new_tokens": 6,
    "repetition_penalty": 1.1,
    "return_full_text": True,
    "seed": 11,
    "stop": ["never to be seen"],
    "temperature": 0.75,
    "top_k": 40,
    "top_n_tokens": 3,
    "top_p": 0.9,
    "truncate": 3,
    "typical_p": 0.95,
    "watermark": True,
    "adapter_id": "nobody",
}


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with running_server(tgi_served()) as server:
        yield server


@pytest.fixture(params=["", "/tgi"], ids=["bare", "prefix"])
def client(request: pytest.FixtureRequest, served: RunningServer) -> InferenceClient:
    return InferenceClient(served.url + request.param, timeout=20)


def test_text(client: InferenceClient) -> None:
    text = client.text_generation(PROMPT, max_new_tokens=5, return_full_text=False)
    assert isinstance(text, str)
    assert not text.startswith(PROMPT)
    # Unsaid, the root answers with the prompt in front, as it does for models whose kind nobody knows.
    assert client.text_generation(PROMPT, max_new_tokens=5) == PROMPT + text


def test_every_option_with_details(client: InferenceClient) -> None:
    answer = client.text_generation(PROMPT, details=True, decoder_input_details=True, **EVERYTHING)
    assert answer.generated_text.startswith(PROMPT)
    details = answer.details
    assert details is not None
    assert details.seed == 11
    assert details.finish_reason in ("length", "eos_token")
    assert [token.id for token in details.prefill] == list(TOKENIZER.encode(PROMPT)[-3:])
    assert len(details.tokens) == details.generated_tokens
    assert details.top_tokens is not None
    assert all(len(top) >= 3 for top in details.top_tokens)
    assert client.text_generation(PROMPT, **EVERYTHING) == answer.generated_text


def test_best_of(client: InferenceClient) -> None:
    answer = client.text_generation(PROMPT, details=True, best_of=2, do_sample=True, max_new_tokens=3)
    assert answer.details is not None
    assert answer.details.best_of_sequences is not None
    assert len(answer.details.best_of_sequences) == 1


def test_a_schema(client: InferenceClient) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    text = client.text_generation(
        PROMPT,
        grammar={"type": "json", "value": schema},
        max_new_tokens=60,
        return_full_text=False,  # type: ignore[arg-type]
    )
    assert text.startswith("{")
    assert "\n" not in text


def test_streams(client: InferenceClient) -> None:
    whole = client.text_generation(PROMPT, details=True, **EVERYTHING)
    tokens = list(client.text_generation(PROMPT, stream=True, **EVERYTHING))
    assert "".join(tokens) == "".join(token.text for token in whole.details.tokens if not token.special)
    *_, last = client.text_generation(PROMPT, stream=True, details=True, **EVERYTHING)
    assert last.generated_text == whole.generated_text
    assert last.details is not None
    assert last.details.input_length == 3
    assert last.details.seed == 11


def test_errors_are_typed(client: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="strictly positive"):
        client.text_generation(PROMPT, top_k=0)
    with pytest.raises(TextGenerationError, match="must be <= 256"):
        list(client.text_generation(PROMPT, max_new_tokens=5000, stream=True))


def test_health_and_information(served: RunningServer) -> None:
    client = InferenceClient(provider="hf-inference", timeout=20)
    assert client.health_check(served.url)
    assert client.get_endpoint_info(model=served.url)["model_id"] == "stub"


def test_the_async_client_gets_the_same(served: RunningServer) -> None:
    async def play() -> tuple[str, str]:
        async with AsyncInferenceClient(served.url, timeout=20) as client:
            whole = await client.text_generation(PROMPT, **EVERYTHING)
            stream = await client.text_generation(PROMPT, stream=True, details=True, **EVERYTHING)
            return whole, [event async for event in stream][-1].generated_text

    whole, streamed = asyncio.run(play())
    assert whole == streamed == InferenceClient(served.url, timeout=20).text_generation(PROMPT, **EVERYTHING)


def test_chats_of_clients_that_name_no_model_are_known_where_nobody_was_chosen() -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5, "seed": 3}
    for dialect, is_known in (("auto", True), ("openai", False)):
        with running_server(msgspec.structs.replace(QUICK, dialect=dialect)) as served:
            client = InferenceClient(base_url=f"{served.url}/v1", timeout=20)
            for model in ({}, {"model": "tgi"}):
                if is_known:
                    answer = client.chat.completions.create(**asked, **model)
                    assert answer.choices[0].message.content
                    assert answer.system_fingerprint.endswith("-native"), "it is TGI's answer"
                else:
                    with pytest.raises(HfHubHTTPError, match="404"):
                        client.chat.completions.create(**asked, **model)
    with running_server(msgspec.structs.replace(QUICK, dialect="auto", name="tgi", alias=("dummy",))) as served:
        client = InferenceClient(base_url=f"{served.url}/v1", timeout=20)
        for model in ({}, {"model": "tgi"}):
            answer = client.chat.completions.create(**asked, **model)
            assert not answer.system_fingerprint.endswith("-native"), "the model is called so"
    called = {"model": "dummy", **asked}
    assert not claims(RouteHint(headers={"user-agent": "OpenAI/Python 2.0"}, body=called, dialect="auto"))
    assert not claims(RouteHint(headers={"user-agent": "hf_hub/2.4.0"}, body=[called], dialect="auto"))


@pytest.mark.parametrize("model", ["tgi", "stub"])
def test_a_body_is_read_for_its_model_no_further_than_the_server_takes_bodies(model: str) -> None:
    """TGI's own limit is larger here."""
    with running_server(msgspec.structs.replace(QUICK, dialect="auto", max_body_bytes=10_000)) as served:
        for path, prompt in (("chat/completions", "messages"), ("completions", "prompt")):
            body = b'{"model": "%s", "max_tokens": 1, "%s": "' % (model.encode(), prompt.encode()) + b"a" * 10_000
            answer = httpx.post(f"{served.url}/v1/{path}", content=body + b'"}')
            assert answer.status_code == 413, answer.text
            assert "10000 bytes" in answer.text
