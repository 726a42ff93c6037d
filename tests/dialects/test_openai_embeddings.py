"""Embeddings, rerank and score of the OpenAI dialect, with the real client; on the stub model but for the encoder."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from stub_runtime import TOKENIZER, LocalServer

pytestmark = pytest.mark.anyio
PATH = "/openai/v1/embeddings"
SAME = [f"text {i}" for i in range(20)]
TEXTS = ["Once upon a time", "The cat sat on the mat", "a"]
LONG = "a cat " * 300


async def post(runtime: LocalServer, path: str, **body: Any) -> httpx.Response:
    return await runtime.client.post(path, json=body)


async def vectors(runtime: LocalServer, **body: Any) -> list[list[float]]:
    answer = await post(runtime, PATH, **body)
    assert answer.status_code == 200, answer.text
    assert [each["index"] for each in answer.json()["data"]] == list(range(len(answer.json()["data"])))
    return [each["embedding"] for each in answer.json()["data"]]


def test_the_openai_client_decodes_what_it_asks_for(client: openai.OpenAI) -> None:
    """It asks for base64 where the caller names no encoding."""
    decoded = client.embeddings.create(model="stub", input=TEXTS)
    numbers = client.embeddings.create(model="stub", input=TEXTS, encoding_format="float")
    assert len(decoded.data) == 3
    for theirs, ours in zip(decoded.data, numbers.data, strict=True):
        assert np.array_equal(np.float32(theirs.embedding), np.float32(ours.embedding))
        assert np.linalg.norm(ours.embedding) == pytest.approx(1, abs=1e-6)
    assert decoded.model == "stub"
    assert decoded.usage.prompt_tokens == sum(len(TOKENIZER.encode(text)) for text in TEXTS)
    assert decoded.usage.total_tokens == decoded.usage.prompt_tokens


async def test_base64_is_of_little_endian_float32(runtime: LocalServer) -> None:
    (numbers,) = await vectors(runtime, input="hello")
    (encoded,) = await vectors(runtime, input="hello", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(str(encoded)), "<f4").tolist() == np.float32(numbers).tolist()


async def test_a_text_its_tokens_and_a_list_of_both_are_the_same(runtime: LocalServer) -> None:
    ids = [list(TOKENIZER.encode(text)) for text in TEXTS]
    expected = await vectors(runtime, input=TEXTS)
    assert await vectors(runtime, input=ids) == expected
    assert await vectors(runtime, input=ids[1]) == [expected[1]]
    assert await vectors(runtime, input=TEXTS[2]) == [expected[2]]


async def test_dimensions_are_the_first_ones_normalized_again(runtime: LocalServer) -> None:
    (whole,) = await vectors(runtime, input="hello", normalize=False)
    (cut,) = await vectors(runtime, input="hello", dimensions=3)
    assert cut == pytest.approx(list(np.array(whole[:3]) / np.linalg.norm(whole[:3])), abs=1e-6)
    assert len(whole) == 8


async def test_pooling_can_be_chosen(runtime: LocalServer) -> None:
    found = [await vectors(runtime, input="Once upon a time", pooling=kind) for kind in ("mean", "cls", "last")]
    assert found[2] == await vectors(runtime, input="Once upon a time")
    assert found[0] != found[1] != found[2]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": ""}, "input", "empty_string"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["a", ""]}, "input[1]", "empty_string"),
        ({}, "input", "missing_required_parameter"),
        ({"input": [1, 2**30]}, "input", None),
        ({"input": "a", "dimensions": 9}, "dimensions", None),
        ({"input": "a", "dimensions": 0}, "dimensions", "integer_below_min_value"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"input": [1] * 300}, "input", "context_length_exceeded"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "integer_below_min_value"),
        ({"input": "a", "model": "unknown"}, "model", "model_not_found"),
    ],
)
async def test_errors_name_their_field(
    runtime: LocalServer, body: dict[str, Any], param: str, code: str | None
) -> None:
    answer = await post(runtime, PATH, **body)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404)
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {"input": ["a", LONG]}, "input[1]"),
        ("/openai/v1/rerank", {"query": "a", "documents": ["b", {"text": LONG}]}, "documents[1]"),
        ("/openai/v2/rerank", {"query": LONG, "documents": ["b"]}, "query"),
        ("/openai/v1/score", {"text_1": "a", "text_2": LONG}, "text_2"),
        ("/openai/v1/score", {"queries": ["a", LONG], "documents": ["b", "c"]}, "queries[1]"),
    ],
)
async def test_a_text_that_is_too_long_is_named(
    runtime: LocalServer, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await post(runtime, path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")


async def test_a_long_text_is_cut_only_where_that_is_asked_for(runtime: LocalServer) -> None:
    ids = [5] * 300
    assert await vectors(runtime, input=ids, truncate_prompt_tokens=-1) == await vectors(runtime, input=ids[:256])
    assert await vectors(runtime, input=ids, truncate_prompt_tokens=7) == await vectors(runtime, input=ids[:7])
    text = "Once upon a time there was a cat"
    begin = list(TOKENIZER.encode(text))[:4]
    assert await vectors(runtime, input=text, truncate_prompt_tokens=4) == await vectors(runtime, input=begin)


async def test_many_texts_are_in_their_order(runtime: LocalServer) -> None:
    texts = [f"text {index}" for index in range(120)]
    found = await vectors(runtime, input=texts)
    assert found[77] == (await vectors(runtime, input=texts[77]))[0]
    assert len({str(vector) for vector in found}) == len(texts)


async def test_rerank_of_an_embedding_model_orders_by_cosine(runtime: LocalServer) -> None:
    query, *others = await vectors(runtime, input=["what is it", *TEXTS])
    cosines = [float(np.dot(query, other)) for other in others]
    body = {"query": "what is it", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]}
    answer = (await post(runtime, "/openai/v1/rerank", **body)).json()
    order = sorted(range(3), key=lambda index: -cosines[index])
    assert [each["index"] for each in answer["results"]] == order
    assert [each["relevance_score"] for each in answer["results"]] == pytest.approx(
        [cosines[i] for i in order], abs=1e-6
    )
    assert [each["document"]["text"] for each in answer["results"]] == [TEXTS[i] for i in order]
    second = (await post(runtime, "/openai/v2/rerank", **body, top_n=1)).json()["results"]
    assert second == [{"index": order[0], "relevance_score": answer["results"][0]["relevance_score"]}]


async def test_score_pairs_one_to_one_one_to_many_and_pairwise(runtime: LocalServer) -> None:
    many = (await post(runtime, "/openai/v1/score", text_1="a", text_2=TEXTS)).json()
    assert [each["object"] for each in many["data"]] == ["score"] * 3
    pairwise = (await post(runtime, "/openai/v1/score", queries=["a", "a", "a"], documents=TEXTS)).json()
    assert [each["score"] for each in pairwise["data"]] == [each["score"] for each in many["data"]]
    assert many["data"][2]["score"] == pytest.approx(1)
    same = (await post(runtime, "/openai/v1/score", text_1=SAME, text_2=SAME)).json()
    assert all(1 - 1e-6 < each["score"] <= 1 for each in same["data"])
    refused = await post(runtime, "/openai/v1/score", text_1=["a", "b"], text_2=TEXTS)
    assert refused.status_code == 400
    assert (await post(runtime, "/openai/v1/score", text_2="a")).json()["error"]["param"] == "text_1"
