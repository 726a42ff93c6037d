"""Embeddings, rerank and score: the operations of the OpenAI dialect that generate no text."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.entropy import token_hex, wall_time
from dragoman.core.errors import BadRequest
from dragoman.core.request import Prompt, TextPrompt, TokenPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.field_types import FieldError, FieldRule, Integer
from dragoman.dialects.openai.embedding_fields import EMBEDDINGS, MAX_PAIRS, RERANK, SCORE
from dragoman.dialects.pooled import as_numbers, embed, places_in, score

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


async def embeddings(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/embeddings``."""
    values = (await context.read(EMBEDDINGS)).values
    card = serving.model(values["model"])
    work = embed(
        serving,
        _prompts(values["input"]),
        f"embd-{token_hex(12)}",
        places=places_in("input", values["input"]),
        model=values["model"],
        dimensions=values["dimensions"],
        normalize=values["normalize"],
        pooling=values["pooling"],
        truncate=_most_tokens(values, card),
    )
    found = await context.unless_gone(work)
    shown = _as_base64 if values["encoding_format"] == "base64" else as_numbers
    answer = await context.run_blocking(
        lambda: {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": shown(vector)}
                for index, vector in enumerate(found.vectors)
            ],
            "model": values["model"] or card.name,
            "usage": _usage(found.prompt_tokens),
        }
    )
    await context.reply(answer)


async def rerank(serving: Serving, context: RequestContext, *, with_documents: bool = True) -> None:
    """Handle ``POST /v1/rerank`` and ``/v2/rerank``. ``with_documents``: what absence of ``return_documents`` means."""
    values = (await context.read(RERANK)).values
    card = serving.model(values["model"])
    texts = [each if isinstance(each, str) else each["text"] for each in values["documents"]]
    read = texts
    if (most := values["max_tokens_per_doc"]) is not None:
        read = [await context.unless_gone(_beginning(serving, text, values["model"], most)) for text in texts]
    pairs = [(values["query"], text) for text in read]
    request_id = f"rerank-{token_hex(12)}"
    work = score(
        serving,
        pairs,
        request_id,
        places=[("query", place) for place in places_in("documents", texts)],
        model=values["model"],
        truncate=_most_tokens(values, card),
    )
    found = await context.unless_gone(work)
    best = sorted(range(len(texts)), key=lambda index: (-found.scores[index], index))
    if values["return_documents"] is not None:
        with_documents = values["return_documents"]
    results = []
    for index in best[: values["top_n"] or None]:
        document = {"document": {"text": texts[index]}} if with_documents else {}
        results.append({"index": index, **document, "relevance_score": found.scores[index]})
    await context.reply(
        {
            "id": request_id,
            "model": values["model"] or card.name,
            "usage": _usage(found.prompt_tokens),
            "results": results,
        }
    )


async def scores(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/score``."""
    values = (await context.read(SCORE)).values
    card = serving.model(values["model"])
    request_id = f"score-{token_hex(12)}"
    pairs, places = _pairs(values)
    work = score(serving, pairs, request_id, places=places, model=values["model"], truncate=_most_tokens(values, card))
    found = await context.unless_gone(work)
    await context.reply(
        {
            "id": request_id,
            "object": "list",
            "created": int(wall_time()),
            "model": values["model"] or card.name,
            "data": [{"index": index, "object": "score", "score": each} for index, each in enumerate(found.scores)],
            "usage": _usage(found.prompt_tokens),
        }
    )


def _prompts(given: Any) -> tuple[Prompt, ...]:
    if isinstance(given, str) or isinstance(given[0], int):
        given = (given,)
    return tuple(
        TextPrompt(text=each) if isinstance(each, str) else TokenPrompt(token_ids=tuple(each)) for each in given
    )


def _most_tokens(values: dict[str, Any], card: ModelCard) -> int | None:
    """Return the limit of ``truncate_prompt_tokens``; None: too long a text is refused."""
    most: int | None = values["truncate_prompt_tokens"]
    if most == 0:
        raise FieldError(FieldRule.BELOW, ("truncate_prompt_tokens",), 0, kind=Integer(1), bound=1)
    return card.prompt_tokens if most == -1 else most


async def _beginning(serving: Serving, text: str, model: str | None, most: int) -> str:
    """Return the part of a text that its first tokens have."""
    tokens = await serving.tokenize_text(text, model, add_special_tokens=False, bounded=False)
    return text if len(tokens) <= most else text.encode()[: tokens[most - 1].stop].decode("utf-8", "ignore")


def _pairs(values: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the pairs of a request to score, one to one, one to many, or pairwise, and the places of their texts."""
    firsts = _side(values, ("text_1", "queries", "data_1"))
    seconds = _side(values, ("text_2", "documents", "data_2"))
    if len(firsts) == 1:
        firsts *= len(seconds)
    if len(firsts) != len(seconds):
        message = f"{len(firsts)} first texts cannot be paired with {len(seconds)} second ones."
        raise BadRequest(f"{message} Give one, or as many.", param="text_2")
    if len(firsts) > MAX_PAIRS:
        raise BadRequest(f"There can be {MAX_PAIRS} pairs at most.", param="text_2")
    pairs = list(zip(firsts, seconds, strict=True))
    return [(a.text, b.text) for a, b in pairs], [(a.place, b.place) for a, b in pairs]


class _Text(NamedTuple):
    """A text, and the field that it is in."""

    text: str
    place: str


def _side(values: dict[str, Any], names: tuple[str, ...]) -> list[_Text]:
    given = [name for name in names if values[name] is not None]
    if not given:
        raise FieldError(FieldRule.MISSING, (names[0],), None, bound=names[0])
    if len(given) > 1:
        raise BadRequest(f"'{given[0]}' and '{given[1]}' are the same: give one.", param=given[1])
    value = values[given[0]]
    texts = (value,) if isinstance(value, str) else value
    return [_Text(*each) for each in zip(texts, places_in(given[0], value), strict=True)]


def _as_base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _usage(prompt_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/embeddings",
        summary="Return the vectors of texts.",
        handler=embeddings,
        table=EMBEDDINGS,
        media=("application/json",),
    ),
    Operation(
        method="POST",
        path="/v1/rerank",
        summary="Order documents by how well they fit a query.",
        handler=rerank,
        table=RERANK,
        media=("application/json",),
    ),
    Operation(
        method="POST",
        path="/v2/rerank",
        summary="Order documents by how well they fit a query; the answer does not repeat them.",
        handler=functools.partial(rerank, with_documents=False),
        table=RERANK,
        media=("application/json",),
    ),
    Operation(
        method="POST",
        path="/v1/score",
        summary="Score how well the second text of each pair fits the first.",
        handler=scores,
        table=SCORE,
        media=("application/json",),
    ),
)
