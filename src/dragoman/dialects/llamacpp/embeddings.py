"""The operations of the llama.cpp dialect that generate no text: vectors of texts, and scores of documents."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.serving import Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.llamacpp.errors import NotServed
from dragoman.dialects.llamacpp.fields import EMBEDDING, RERANK
from dragoman.dialects.llamacpp.translate import prompts_from, prompts_of
from dragoman.dialects.pooled import as_numbers, compares, embed, embeds, places_in, score

NO_EMBEDDINGS = "This server does not support embeddings. Start it with `--embeddings`"
NO_RERANKING = "This server does not support reranking. Start it with `--reranking`"
NORMS = {-1: False, 2: True}
"""Values of ``embd_normalize``: as the model has it, and Euclidean."""


async def embedding(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /embedding`` and ``/embeddings``."""
    reading = await context.read(EMBEDDING, any_content_type=True)
    values, core = reading.values, reading.core
    card = serving.model(core.get("model"))
    if not embeds(card):
        raise NotServed(NO_EMBEDDINGS)
    _one_of(values, "input", "content")
    if values["embd_normalize"] not in NORMS:
        raise UnsupportedFeature('"embd_normalize" is 2, or -1 for no norm', param="embd_normalize")
    given = values["input"] if values["input"] is not None else values["content"]
    prompts = await context.unless_gone(prompts_from(serving, prompts_of(given), card.name))
    work = embed(serving, prompts, context.request_id, model=card.name, normalize=NORMS[values["embd_normalize"]])
    found = await context.unless_gone(work)
    answer = await context.run_blocking(
        lambda: [{"index": i, "embedding": [as_numbers(vector)]} for i, vector in enumerate(found.vectors)]
    )
    await context.reply(answer)


async def rerank(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /rerank`` and ``/reranking``: with ``texts`` the answer is a list, as of TEI."""
    reading = await context.read(RERANK, any_content_type=True)
    values, core = reading.values, reading.core
    card = serving.model(core.get("model"))
    if not compares(card):
        raise NotServed(NO_RERANKING)
    _one_of(values, "documents", "texts")
    is_list = values["texts"] is not None
    texts = values["texts"] if is_list else values["documents"]
    name = "texts" if is_list else "documents"
    work = score(
        serving,
        [(values["query"], text) for text in texts],
        context.request_id,
        places=[("query", place) for place in places_in(name, texts)],
        model=card.name,
    )
    found = await context.unless_gone(work)
    best = sorted(range(len(texts)), key=lambda index: (-found.scores[index], index))[: values["top_n"]]
    if is_list:
        await context.reply([{"index": index, "score": found.scores[index]} for index in best])
        return
    usage = {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
    results = [{"index": index, "relevance_score": found.scores[index]} for index in best]
    await context.reply({"model": card.name, "object": "list", "usage": usage, "results": results})


def _one_of(values: dict[str, Any], first: str, second: str) -> None:
    """Raise BadRequest unless one of two fields that are the same is given."""
    if values[first] is None and values[second] is None:
        raise BadRequest(f'"{first}" or "{second}" must be provided', param=first)
    if values[first] is not None and values[second] is not None:
        raise BadRequest(f'"{first}" and "{second}" are the same: give one', param=second)
