"""The list of models in the shape of Google's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.core.serving import ModelCard
from dragoman.dialects.model_list import ListedModel
from dragoman.dialects.pooled import embeds

PREFIX = "models/"
GENERATING = ("generateContent", "streamGenerateContent", "countTokens")
EMBEDDING = ("embedContent", "batchEmbedContents")
MOST_OF_PAGE = 1000
OF_PAGE = 50


def model(listed: ListedModel) -> dict[str, Any]:
    """Return the description of a model: of one that is not in memory what is known. ``status`` is not Google's."""
    described = {
        "name": PREFIX + listed.name,
        "version": "1",
        "displayName": listed.name,
        "description": f"The model '{listed.name}', served by Dragoman.",
    }
    if listed.card is not None:
        described |= _limits(listed.card)
    return described | {"status": listed.status}


def _limits(card: ModelCard) -> dict[str, Any]:
    methods = (*GENERATING * card.generates, *EMBEDDING * embeds(card))
    output = {"outputTokenLimit": card.context_tokens - 1} if card.generates else {}
    return {
        "baseModelId": card.base or card.name,
        "inputTokenLimit": card.prompt_tokens,
        **output,
        "supportedGenerationMethods": list(methods),
        "maxTemperature": 2.0,
        "thinking": card.reasoning is not None,
    }


def page(listed: Sequence[ListedModel], query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the list. Its token is the name of the model that comes next. Raises BadRequest."""
    size, token = page_size(query.get("pageSize", query.get("page_size", ""))), query.get("pageToken")
    token = query.get("page_token", "") if token is None else token
    names = [each.name for each in listed]
    if token and token not in names:
        raise BadRequest("Invalid value at 'pageToken': it is of no list, or its model is gone.", param="pageToken")
    first = names.index(token) if token else 0
    rest = names[first + size :]
    shown: dict[str, Any] = {"models": [model(each) for each in listed[first : first + size]]}
    return shown | ({"nextPageToken": rest[0]} if rest else {})


def page_size(given: str) -> int:
    """Return how many models a page has at most. Raises BadRequest."""
    if given in ("", "0"):
        return OF_PAGE
    if not (given.isascii() and given.isdigit() and len(given) <= 9):
        raise BadRequest("Invalid value at 'pageSize': expected a whole number.", param="pageSize")
    return min(int(given), MOST_OF_PAGE)
