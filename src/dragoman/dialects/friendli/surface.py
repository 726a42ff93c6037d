"""The three surfaces of the API: one behaviour under different paths, with different meanings of ``model``."""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

from dragoman.core.errors import AdapterNotFound, Forbidden, ModelNotFound
from dragoman.core.serving import ModelCard, Serving


class Surface(enum.StrEnum):
    """Where a request arrived; the value begins its path."""

    SERVERLESS = "/serverless/v1"
    DEDICATED = "/dedicated/v1"
    CONTAINER = "/v1"


class Target(msgspec.Struct, frozen=True):
    """The model a request goes to; ``shown`` is its name in the answer, None where the answer has none."""

    card: ModelCard
    shown: str | None


def target(surface: Surface, name: str | None, serving: Serving) -> Target:
    """What ``model`` means. Raises ModelNotFound.

    Under /dedicated it is an endpoint, which answers name, or one with the route of an adapter behind a colon. In a
    container it is the route of an adapter; there the names of served models are good too.
    """
    if name is None:
        return Target(serving.model(None), None)
    try:
        return Target(serving.model(name), name)
    except ModelNotFound:
        if surface is not Surface.DEDICATED or ":" not in name:
            raise
        endpoint, _, route = name.partition(":")
        serving.model(endpoint)
    try:
        return Target(serving.adapter(route), endpoint)
    except AdapterNotFound:
        message = f"The endpoint '{endpoint[:256]}' has no adapter '{route[:256]}'."
        raise AdapterNotFound(message, param="model") from None


def check_team(surface: Surface, team: str | None, teams: Collection[str]) -> None:
    """Raises Forbidden for a team that is not the operator's, where the operator has named any."""
    if surface is not Surface.CONTAINER and team is not None and teams and team not in teams:
        raise Forbidden("The team in 'X-Friendli-Team' is not known here.")
