"""Vectors of texts and scores of pairs, for all dialects: each text is one request, on the way that prompts go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.errors import BadRequest, DragomanError, UnsupportedOperation
from dragoman.core.events import GenerationResult
from dragoman.core.lazy_imports import np
from dragoman.core.pooling import PoolingKind, PoolingParams, embedding, sigmoid
from dragoman.core.request import GenerationRequest, PairPrompt, Prompt, TextPrompt
from dragoman.core.sampling import EndingParams
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.multi_prompt import generate_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENDING = EndingParams(max_tokens=0)
_SEEDS = (0,)  # nothing is drawn


class Embedded(NamedTuple):
    """The vectors of some texts, in order, and the tokens that all of them have."""

    vectors: list[NDArray[np.float32]]
    prompt_tokens: int


class Scored(NamedTuple):
    """The scores of some pairs, in order, and the tokens that all of them have."""

    scores: list[float]
    prompt_tokens: int


def embeds(card: ModelCard) -> bool:
    """Return whether the model makes embeddings."""
    return card.pooling is not None and not card.pooling.scores


def compares(card: ModelCard) -> bool:
    """Return whether the model scores pairs of texts."""
    return card.pooling is not None and (not card.pooling.scores or card.pooling.pairs is not None)


def as_numbers(vector: NDArray[np.float32]) -> list[float]:
    """Return the numbers of a vector as the shortest decimals that are read as the same float32."""
    return [float(str(number)) for number in vector]


def places_in(name: str, value: Any) -> list[str]:
    """Return the place of each text of a field that has one text, or one prompt in tokens, or a list of such."""
    is_list = not isinstance(value, str) and not (value and isinstance(value[0], int))
    return [f"{name}[{index}]" for index in range(len(value))] if is_list else [name]


async def embed(
    serving: Serving,
    prompts: Sequence[Prompt],
    request_id: str,
    *,
    places: Sequence[str] = (),
    model: str | None = None,
    dimensions: int | None = None,
    normalize: bool = True,
    pooling: PoolingKind | None = None,
    truncate: int | None = None,
    priority: int = 0,
    timeout_s: float | None = None,
) -> Embedded:
    """Return the vectors of texts (``TextPrompt``, ``TokenPrompt``).

    ``places``: of each text, the field that it is in, for errors; empty: ``input`` for all.
    ``dimensions``: only the first so many numbers. ``normalize``: to length 1, afterwards. ``pooling``: None: as the
    model does it. ``truncate``: of each text only the first so many tokens; None: a text that is too long is refused.

    Raises UnsupportedOperation where the model makes no embeddings, BadRequest, ContextOverflow, and all that
    generating raises.
    """
    card = serving.model(model)
    if not embeds(card):
        raise UnsupportedOperation(f"The model '{card.name}' makes no embeddings.", param="model")
    assert card.pooling is not None
    if dimensions is not None and dimensions > card.pooling.width:
        message = f"The vectors of the model '{card.name}' have {card.pooling.width} numbers."
        raise BadRequest(f"{message} 'dimensions' can be no more.", param="dimensions")
    params = PoolingParams(kind=pooling)
    requests = [
        GenerationRequest(
            request_id=request_id if len(prompts) == 1 else f"{request_id}-{index}",
            prompt=prompt,
            model=model,
            seeds=_SEEDS,
            ending=_ENDING,
            pooling=params,
            truncate=truncate,
            priority=priority,
            timeout_s=timeout_s,
        )
        for index, prompt in enumerate(prompts)
    ]
    results = await _generated(serving, requests, places or ["input"] * len(requests))
    vectors = [embedding(result.prompt.pooled, dimensions=dimensions, normalize=normalize) for result in results]
    return Embedded(vectors, _tokens(results))


async def score(
    serving: Serving,
    pairs: Sequence[tuple[str, str]],
    request_id: str,
    *,
    places: Sequence[tuple[str, str]],
    model: str | None = None,
    truncate: int | None = None,
) -> Scored:
    """Return how well the second text of each pair fits the first: a cross-encoder's or a reranker's probability, or
    the cosine of the texts' embeddings.

    ``places``: of each pair, the fields of its texts. ``truncate``: of each text, or pair, as in ``embed``. Raises as
    ``embed`` does.
    """
    card = serving.model(model)
    if not compares(card):
        raise UnsupportedOperation(f"The model '{card.name}' compares no texts.", param="model")
    assert card.pooling is not None
    if card.pooling.pairs is None:
        return await _cosines(serving, pairs, request_id, places, model, truncate)
    requests = [
        GenerationRequest(
            request_id=request_id if len(pairs) == 1 else f"{request_id}-{index}",
            prompt=PairPrompt(query=first, document=second),
            model=model,
            seeds=_SEEDS,
            ending=_ENDING,
            pooling=PoolingParams(),
            truncate=truncate,
        )
        for index, (first, second) in enumerate(pairs)
    ]
    results = await _generated(serving, requests, [second for _, second in places])
    return Scored([_probability(result.prompt.pooled) for result in results], _tokens(results))


class _WithPlaces:
    """Serving whose errors name the fields that the requests' texts are in. ``places``: by the requests' ids."""

    def __init__(self, serving: Serving, places: Mapping[str, str]) -> None:
        self._serving, self._places = serving, places
        self.stream = serving.stream

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        try:
            return await self._serving.generate(request)
        except DragomanError as error:
            if error.param == "prompt":
                error.param = self._places[request.request_id]
            elif error.param == "truncate":
                error.param = "truncate_prompt_tokens"
            raise


async def _generated(
    serving: Serving, requests: Sequence[GenerationRequest], places: Sequence[str]
) -> list[GenerationResult]:
    by_id = {request.request_id: place for request, place in zip(requests, places, strict=True)}
    return await generate_all(_WithPlaces(serving, by_id), requests)


async def _cosines(
    serving: Serving,
    pairs: Sequence[tuple[str, str]],
    request_id: str,
    places: Sequence[tuple[str, str]],
    model: str | None,
    truncate: int | None,
) -> Scored:
    place_of: dict[str, str] = {}
    for pair, names in zip(pairs, places, strict=True):
        for text, name in zip(pair, names, strict=True):
            place_of.setdefault(text, name)
    prompts = [TextPrompt(text=text) for text in place_of]
    found = await embed(serving, prompts, request_id, places=tuple(place_of.values()), model=model, truncate=truncate)
    vectors = dict(zip(place_of, found.vectors, strict=True))
    cosines = (float(np.multiply(vectors[a], vectors[b], dtype=np.float64).sum()) for a, b in pairs)
    # The vectors are rounded to float32: of two that are equal the product may be beyond 1.
    return Scored([max(-1.0, min(1.0, cosine)) for cosine in cosines], found.prompt_tokens)


def _probability(pooled: bytes) -> float:
    """Return the sigmoid of a classifier's one logit, or of what the answer yes has more than no."""
    logits = np.frombuffer(pooled, np.float32).astype(np.float64)
    return sigmoid(float(logits[-1] - logits[0]) if len(logits) == 2 else float(logits[0]))


def _tokens(results: Sequence[GenerationResult]) -> int:
    return sum(result.usage.prompt_tokens for result in results)
