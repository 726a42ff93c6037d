"""Vectors and ranks, as the classes of LangChain, LlamaIndex and LiteLLM ask for them: all have the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import litellm
import openai
from checking import run
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

TEXTS = ["The capital of France is Paris.", "A hedgehog sleeps in winter.", "Two and two make four."]


def of_langchain(url: str, **more: int) -> OpenAIEmbeddings:
    # Without the last option it sends token ids of OpenAI's tokenizer.
    base = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "check_embedding_ctx_length": False}
    return OpenAIEmbeddings(model="embedded", **base, **more)


def close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-6 for a, b in zip(one, other, strict=True))


def check_vectors(url: str) -> None:
    langchain = of_langchain(url)
    like = OpenAILikeEmbedding(model_name="embedded", api_base=f"{url}/v1", api_key="none", max_retries=0)
    ollama = OllamaEmbedding(model_name="embedded", base_url=url)
    route = {"model": "openai/embedded", "api_base": f"{url}/v1", "api_key": "none"}
    expected = langchain.embed_documents(TEXTS)
    assert all(abs(math.hypot(*vector) - 1) < 1e-4 for vector in expected)
    for name, found in {
        "langchain alone": [langchain.embed_query(text) for text in TEXTS],
        "langchain ollama": OllamaEmbeddings(model="embedded", base_url=url).embed_documents(TEXTS),
        "llamaindex": like.get_text_embedding_batch(TEXTS),
        "llamaindex ollama": ollama.get_text_embedding_batch(TEXTS),
        "litellm": [each["embedding"] for each in litellm.embedding(input=TEXTS, **route).data],
        "litellm ollama": [
            each["embedding"] for each in litellm.embedding(model="ollama/embedded", input=TEXTS, api_base=url).data
        ],
    }.items():
        assert len(found) == len(TEXTS), name
        assert all(close(one, other) for one, other in zip(found, expected, strict=True)), name


async def check_async(url: str) -> None:
    langchain = of_langchain(url)
    (found,) = await langchain.aembed_documents(TEXTS[:1])
    assert close(found, langchain.embed_query(TEXTS[0]))


def check_fewer_dimensions(url: str) -> None:
    whole, short = of_langchain(url).embed_query(TEXTS[0]), of_langchain(url, dimensions=8).embed_query(TEXTS[0])
    length = math.hypot(*whole[:8])
    assert close([each / length for each in whole[:8]], short)


def check_a_store_of_vectors(url: str) -> None:
    store = InMemoryVectorStore.from_texts(TEXTS, of_langchain(url))
    assert [found.page_content for found in store.similarity_search(TEXTS[1], k=1)] == TEXTS[1:2]


def check_a_rank(url: str) -> None:
    found = litellm.rerank(
        model="hosted_vllm/embedded",
        query=TEXTS[1],
        documents=TEXTS,
        top_n=2,
        api_base=f"{url}/v1",
        api_key="none",
    )
    best, _ = found.results
    assert best["index"] == 1, found


def check_tokens_of_another_tokenizer_are_refused(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with suppress(openai.BadRequestError):
        raise AssertionError(client.embeddings.create(model="embedded", input=[[100_000, 7]]))


if __name__ == "__main__":
    run(globals())
