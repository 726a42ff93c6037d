"""Scores of given texts over HTTP, in the three ways that clients ask for them, against transformers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from stub_runtime import TOKENIZER
from tiny_server import make_tiny_model, tiny_server

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ("The sea was calm, and the moon stood over it.", "1 2 3 4 5 6 7 8", "\N{GRINNING FACE} naïve café", "a")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with tiny_server(folder) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logprobs(ids: list[int]) -> Any:
        """Row i: log-probabilities of all tokens behind the first i + 1."""
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1).numpy()

    return logprobs


def complete(client: httpx.Client, **fields: Any) -> Any:
    answer = client.post("/v1/completions", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    texts = [TOKENIZER.encode(text, add_special_tokens=False) for text in TEXTS]
    return [*texts, *([rng.randrange(TOKENIZER.vocab_size) for _ in range(n)] for n in (2, 33, 64, 200))]


def test_a_prompt_is_scored_without_a_token_more(client: httpx.Client, reference: Any) -> None:
    """``max_tokens`` 0, ``echo`` and ``logprobs``."""
    for ids in prompts():
        (choice,) = complete(client, prompt=ids, max_tokens=0, echo=True, logprobs=5)
        theirs = reference(ids)
        shape = choice["logprobs"]
        assert len(shape["tokens"]) == len(ids)
        assert shape["token_logprobs"][0] is None
        expected = [theirs[i - 1, ids[i]] for i in range(1, len(ids))]
        assert np.allclose(shape["token_logprobs"][1:], expected, atol=1e-4)
        for i, top in enumerate(shape["top_logprobs"][1:]):
            assert max(top.values()) == pytest.approx(theirs[i].max(), abs=1e-4)


def test_a_given_continuation_is_scored(client: httpx.Client, reference: Any) -> None:
    """``forced_output_tokens`` and ``logprobs``."""
    for ids in prompts():
        for cut in {1, len(ids) // 2, len(ids) - 1} - {0, len(ids)}:
            (choice,) = complete(client, prompt=ids[:cut], forced_output_tokens=ids[cut:], logprobs=0)
            theirs = reference(ids)
            expected = [theirs[i - 1, ids[i]] for i in range(cut, len(ids))]
            assert np.allclose(choice["logprobs"]["token_logprobs"], expected, atol=1e-4)


def test_a_batch_is_scored_as_harnesses_do(client: httpx.Client, reference: Any) -> None:
    """A list of token ids with ``echo``, ``logprobs`` 1 and one token that is not looked at; greedy by equality."""
    asked = prompts()
    choices = complete(client, prompt=asked, max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1234)
    greedy = 0
    for ids, choice in zip(asked, choices, strict=True):
        theirs = reference(ids)
        scored = choice["logprobs"]["token_logprobs"][1:-1]
        top = choice["logprobs"]["top_logprobs"][1:-1]
        assert sum(scored) == pytest.approx(sum(theirs[i - 1, ids[i]] for i in range(1, len(ids))), abs=1e-3)
        ours = [value == max(others.values()) for value, others in zip(scored, top, strict=True)]
        assert ours == [int(theirs[i - 1].argmax()) == ids[i] for i in range(1, len(ids))]
        greedy += sum(ours)
        continued = [*ids, int(reference(ids)[-1].argmax())]
        (again,) = complete(client, prompt=continued, max_tokens=1, echo=True, logprobs=1, temperature=0)
        assert again["logprobs"]["token_logprobs"][-2] == max(again["logprobs"]["top_logprobs"][-2].values())


def test_given_embeddings_are_those_of_inputs_embeds(client: httpx.Client, folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    table = model.get_input_embeddings()
    ids, places = prompts()[5], [20, 0, 7, 32]
    vectors = np.random.default_rng(4).normal(scale=0.3, size=(4, table.weight.shape[1])).astype(np.float32)
    given = {"token_index_to_replace": places, "embedding_to_replace": vectors.ravel().tolist()}
    (choice,) = complete(client, prompt=ids, max_tokens=8, temperature=0, echo=True, logprobs=0, **given)
    with torch.no_grad():
        embedded = table(torch.tensor([ids]))
        embedded[0, places] = torch.from_numpy(vectors)
        theirs = torch.log_softmax(model(inputs_embeds=embedded).logits[0], dim=-1).numpy()
    scored = choice["logprobs"]["token_logprobs"]
    assert np.allclose(scored[1 : len(ids)], [theirs[i - 1, ids[i]] for i in range(1, len(ids))], atol=1e-4)
    assert scored[len(ids)] == pytest.approx(theirs[-1].max(), abs=1e-4)
    (plain,) = complete(client, prompt=ids, max_tokens=8, temperature=0, echo=True, logprobs=0)
    assert not np.allclose(scored[1 : len(ids)], plain["logprobs"]["token_logprobs"][1 : len(ids)], atol=1e-2)
