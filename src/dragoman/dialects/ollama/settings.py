"""Settings of the Ollama dialect."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dragoman.core.regular_file import FileName


class OllamaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the server answers Ollama's clients.

    Attributes:
        ollama_version: version of Ollama that clients are told, which some compare with the one they need.
        ollama_keep_alive: how long an idle model stays in memory where no request has said it, as 5m or in seconds;
            below 0 always. It counts from the first request of this dialect on.
        ollama_load: who may have another model loaded by naming it: keys with the scope admin, any request, or never.
        ollama_truncate: chats that are too long for the context, where the request does not say: refuse them, or leave
            out the oldest messages and report that.
        ollama_options: options for requests that do not give them, as a JSON object.
        derived_models: file that keeps the derived models that clients make with create and copy, for keys with the
            scope admin; empty: they may make none.
        ollama_origins: origin whose pages may call this dialect, beside local ones and those of --cors-origin, which
            has the patterns; may be given several times.
    """

    PANEL = "Ollama"

    ollama_version: Annotated[str, Meta(pattern=r"^[0-9]+([.][0-9]+)*$")] = "0.32.0"
    ollama_keep_alive: str = "-1"
    ollama_load: Literal["admin", "any", "never"] = "admin"
    ollama_truncate: Literal["refuse", "oldest"] = "refuse"
    ollama_options: str = "{}"
    derived_models: FileName = ""
    ollama_origins: tuple[str, ...] = ()
