"""Settings of the LocalLab dialect."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dragoman.core.regular_file import FileName

PromptMode = Literal["auto", "raw", "chat"]


class LocalLabSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults and limits of the LocalLab dialect.

    Attributes:
        locallab_rate_limit: requests that one caller may start within a minute; 0 is no limit, nor a burst.
        locallab_burst: requests that one caller may start within a second; 0 is no limit.
        locallab_max_body_bytes: largest body of a request.
        locallab_prompt_mode: auto puts prompts through the chat template of a model that has one; chat insists on it;
            raw takes them as they are.
        locallab_max_length: most tokens of an answer, where a request does not say.
        locallab_temperature: temperature where a request does not say.
        locallab_top_p: top-p where a request does not say.
        locallab_top_k: top-k where a request does not say.
        locallab_repetition_penalty: repetition penalty where a request does not say.
        locallab_max_time_s: seconds for one generation, where a request does not say.
        locallab_lenient_model_id: answer with the current model where a request names an unknown one; a header says so.
        locallab_instructions: what the model is told first, where neither the request nor a stored instruction says it.
        locallab_folder: where instructions that clients store are kept.
        locallab_cors_origins: origin whose pages may call this dialect, beside those of --cors-origin, which has the
            patterns; may be given several times.
    """

    PANEL = "LocalLab"

    locallab_rate_limit: Annotated[int, Meta(ge=0)] = 60
    locallab_burst: Annotated[int, Meta(ge=0)] = 10
    locallab_max_body_bytes: Annotated[int, Meta(ge=1024)] = 2 * 1024 * 1024
    locallab_prompt_mode: PromptMode = "auto"
    locallab_max_length: Annotated[int, Meta(ge=1)] = 8192
    locallab_temperature: Annotated[float, Meta(ge=0, le=2)] = 0.7
    locallab_top_p: Annotated[float, Meta(ge=0, le=1)] = 0.9
    locallab_top_k: Annotated[int, Meta(ge=0, le=1000)] = 80
    locallab_repetition_penalty: Annotated[float, Meta(ge=1, le=2)] = 1.15
    locallab_max_time_s: Annotated[float, Meta(gt=0)] = 180.0
    locallab_lenient_model_id: bool = False
    locallab_instructions: str = ""
    locallab_folder: FileName = "~/.locallab"
    locallab_cors_origins: tuple[str, ...] = ()
