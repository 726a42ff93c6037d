"""The ``text-generation`` package as a witness: both clients, every option, the errors that they know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from native import tgi_served
from stub_runtime import TOKENIZER, RunningServer, running_server

# Its declared dependencies are older than those of other packages here; `make test` installs it without them.
text_generation = pytest.importorskip("text_generation")
errors = pytest.importorskip("text_generation.errors")
types = pytest.importorskip("text_generation.types")
Client, AsyncClient = text_generation.Client, text_generation.AsyncClient

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

PROMPT = "Once upon a time"
EVERYTHING: dict[str, Any] = {
    "do_sample": True,
    "max_new_tokens": 6,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.25,
    "return_full_text": True,
    "seed": 11,
    "stop_sequences": ["never to be seen"],
    "temperature": 0.75,
    "top_k": 40,
    "top_p": 0.9,
    "truncate": 3,
    "typical_p": 0.95,
    "watermark": True,
    "top_n_tokens": 3,
}


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with running_server(tgi_served()) as server:
        yield server


@pytest.fixture(params=["", "/tgi"], ids=["bare", "prefix"])
def client(request: pytest.FixtureRequest, served: RunningServer) -> Any:
    return Client(served.url + request.param, timeout=20)


def test_generate(client: Any) -> None:
    answer = client.generate(PROMPT, max_new_tokens=5, decoder_input_details=True)
    details = answer.details
    assert details.generated_tokens == len(details.tokens) <= 5
    assert details.finish_reason in (types.FinishReason.Length, types.FinishReason.EndOfSequenceToken)
    assert details.seed is None
    assert [token.id for token in details.prefill] == list(TOKENIZER.encode(PROMPT))
    assert details.prefill[0].logprob is None
    assert all(token.logprob <= 0 for token in details.prefill[1:])
    assert "".join(token.text for token in details.tokens if not token.special) == answer.generated_text


def test_every_option(client: Any) -> None:
    answer = client.generate(PROMPT, **EVERYTHING)
    assert answer.generated_text.startswith(PROMPT)
    assert answer.details.seed == 11
    assert [len(top) >= 3 for top in answer.details.top_tokens] == [True] * answer.details.generated_tokens
    assert client.generate(PROMPT, **EVERYTHING) == answer


def test_best_of(client: Any) -> None:
    answer = client.generate(PROMPT, best_of=2, do_sample=True, max_new_tokens=4)
    (loser,) = answer.details.best_of_sequences
    assert None not in (answer.details.seed, loser.seed)
    mean = sum(token.logprob for token in answer.details.tokens) / answer.details.generated_tokens
    assert mean >= sum(token.logprob for token in loser.tokens) / loser.generated_tokens


def test_a_grammar(client: Any) -> None:
    grammar = types.Grammar(type=types.GrammarType.Regex, value="[0-9]{3}-[0-9]{4}")
    answer = client.generate(PROMPT, grammar=grammar, max_new_tokens=40)
    assert len(answer.generated_text) == 8
    assert answer.details.finish_reason is types.FinishReason.EndOfSequenceToken


def test_a_stream_is_the_whole_answer(client: Any) -> None:
    options = {key: value for key, value in EVERYTHING.items() if key != "return_full_text"}
    whole = client.generate(PROMPT, **options)
    *before, last = client.generate_stream(PROMPT, **options)
    assert [event.token for event in (*before, last)] == whole.details.tokens
    assert all(event.generated_text is None and event.details is None for event in before)
    assert last.generated_text == whole.generated_text
    assert last.details.generated_tokens == whole.details.generated_tokens
    assert last.details.seed == 11


def test_errors_are_typed(client: Any) -> None:
    with pytest.raises(errors.ValidationError, match="must be <= 256"):
        client.generate("a b " * 400, max_new_tokens=1)
    with pytest.raises(errors.ValidationError, match="must be <= 256"):
        list(client.generate_stream(PROMPT, max_new_tokens=5000))


def test_a_chat(client: Any) -> None:
    answer = client.chat(messages=[{"role": "user", "content": "hello"}], max_tokens=3, seed=1)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage["completion_tokens"] <= 3


def test_the_async_client_gets_the_same(served: RunningServer) -> None:
    async def play() -> tuple[Any, list[Any]]:
        client = AsyncClient(served.url, timeout=20)
        whole = await client.generate(PROMPT, **EVERYTHING)
        return whole, [event.token async for event in client.generate_stream(PROMPT, **EVERYTHING)]

    whole, tokens = asyncio.run(play())
    assert whole == Client(served.url, timeout=20).generate(PROMPT, **EVERYTHING)
    assert tokens == whole.details.tokens
