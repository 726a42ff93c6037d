"""The registered wire formats, in order of precedence: of dialects that share a bare path the first takes it.

Each is made from its own settings, which are options of ``dragoman serve``. Their names and settings are here; the
rest of a dialect is imported when it is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.dialects.alexandria.settings import AlexandriaSettings
from dragoman.dialects.anthropic.settings import AnthropicSettings
from dragoman.dialects.friendli.settings import FriendliSettings
from dragoman.dialects.gemini.settings import GeminiSettings
from dragoman.dialects.llamacpp.settings import LlamaCppSettings
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.dialects.octoai.settings import OctoAISettings
from dragoman.dialects.ollama.settings import OllamaSettings
from dragoman.dialects.openai.settings import OpenAISettings
from dragoman.dialects.tgi.settings import TgiSettings

if TYPE_CHECKING:
    from dragoman.dialects.api import Dialect

    DIALECTS: tuple[Dialect, ...]
    """All dialects with their default settings, for documents and tests. Made at first access."""


class Registered(msgspec.Struct, frozen=True):
    """A dialect by its name, which is that of its package, and the struct of settings that it is made from."""

    name: str
    settings_type: type[Any]

    def make(self, settings: Any) -> Dialect:
        """Return the dialect. Raises DragomanError where the settings contradict each other."""
        made: Dialect = importlib.import_module(f"{__name__}.{self.name}.dialect").make(settings)
        return made


REGISTRY: tuple[Registered, ...] = (
    Registered("openai", OpenAISettings),
    Registered("tgi", TgiSettings),
    Registered("friendli", FriendliSettings),
    Registered("octoai", OctoAISettings),
    Registered("ollama", OllamaSettings),
    Registered("locallab", LocalLabSettings),
    Registered("alexandria", AlexandriaSettings),
    Registered("anthropic", AnthropicSettings),
    Registered("llamacpp", LlamaCppSettings),
    Registered("gemini", GeminiSettings),
)


def made_dialects(settings: Mapping[str, Any] | None = None) -> tuple[Dialect, ...]:
    """Return every dialect, made from the settings under its name or, where there are none, from the defaults."""
    given = settings or {}
    return tuple(each.make(given.get(each.name) or each.settings_type()) for each in REGISTRY)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise DragomanError where the settings of a dialect contradict each other, as ``made_dialects`` would."""
    for each in settings.values():
        if hasattr(each, "check"):
            each.check()


def __getattr__(name: str) -> Any:
    if name != "DIALECTS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made = made_dialects()
    return made
