"""The wire formats, in order of precedence: of those that share a bare path the first has it, others being equal.

Each is made from settings of its own, which are options of ``dragoman serve``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.dialects import alexandria, friendli, locallab, octoai, openai, tgi
from dragoman.dialects.wire import Dialect


class Registered(msgspec.Struct, frozen=True):
    """A dialect by its name: how it is made, and the struct of settings that it is made from."""

    name: str
    make: Callable[[Any], Dialect]
    settings_type: type[Any]


REGISTRY: tuple[Registered, ...] = (
    Registered("openai", openai.make, openai.OpenAISettings),
    Registered("tgi", tgi.make, tgi.TgiSettings),
    Registered("friendli", friendli.make, friendli.FriendliSettings),
    Registered("octoai", octoai.make, octoai.OctoAISettings),
    Registered("locallab", locallab.make, locallab.LocalLabSettings),
    Registered("alexandria", alexandria.make, alexandria.AlexandriaSettings),
)


def made_dialects(settings: Mapping[str, Any] | None = None) -> tuple[Dialect, ...]:
    """Every dialect, from the settings under its name or, where there are none, from the defaults."""
    given = settings or {}
    return tuple(each.make(given.get(each.name) or each.settings_type()) for each in REGISTRY)


DIALECTS: tuple[Dialect, ...] = made_dialects()
"""All with their default settings: for documents and tests."""
