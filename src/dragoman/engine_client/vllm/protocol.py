"""What vLLM's token-in, token-out path ``POST /inference/v1/generate`` takes and sends, and the events of its streams.

Only the fields that are used here; vLLM's ``entrypoints/scale_out/token_in_token_out/protocol.py`` has all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

GENERATE = "/inference/v1/generate"
MODELS = "/v1/models"
VERSION = "/version"
HEALTH = "/health"
METRICS = "/metrics"

MAX_EVENT_BYTES = 64 * 1024 * 1024

NO_LOGPROB = -9999.0
"""What vLLM sends in place of a log-probability of minus infinity, which JSON cannot say."""


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a request for one sequence. ``priority``: lower runs first."""

    request_id: str
    token_ids: tuple[int, ...]
    sampling_params: dict[str, Any]
    model: str
    stream: bool = False
    cache_salt: str | None = None
    priority: int = 0


class WireLogprob(msgspec.Struct, frozen=True):
    """A token's log-probability. ``rank``: from 1, where known."""

    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprobs(msgspec.Struct, frozen=True):
    """The log-probability of a generated token; ``top_logprobs``: its own, then the likeliest others."""

    token_id: int
    logprob: float
    top_logprobs: tuple[WireLogprob, ...] = ()


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    content: tuple[TokenLogprobs, ...] | None = None


class Choice(msgspec.Struct, frozen=True):
    """New tokens of the sequence. The last of its choices has a ``finish_reason``."""

    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChoiceLogprobs | None = None


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 500


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of a stream: new tokens, or an error, after which the stream ends."""

    choices: tuple[Choice, ...] = ()
    error: ErrorInfo | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Body of an answer with an error status."""

    error: ErrorInfo | None = None
    detail: Any = None


class PromptLogprob(msgspec.Struct, frozen=True):
    logprob: float
    rank: int | None = None


class WholeAnswer(msgspec.Struct, frozen=True):
    """The parts of an answer that is not streamed. ``prompt_logprobs``: of each prompt token but the first, by token
    id as text; the token's own, then the likeliest."""

    choices: tuple[Choice, ...] = ()
    prompt_logprobs: tuple[dict[str, PromptLogprob] | None, ...] | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """A model of ``GET /v1/models``. ``root``: the path or hub id that it was loaded from."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct, frozen=True):
    data: tuple[ListedModel, ...] = ()


class VersionAnswer(msgspec.Struct, frozen=True):
    version: str


_decode_event = msgspec.json.Decoder(StreamEvent).decode
_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


class EventReader:
    """Splits a stream of server-sent events. ``is_done``: the last one has come."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._is_after_return = False
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """Yield the events that ``data`` completes. Raises ValueError for what is none."""
        if self._is_after_return and data[:1] == b"\n":
            data = data[1:]
        if b"\r" in data:  # of a proxy: vLLM's own lines end with a line feed
            self._is_after_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            self._is_after_return = False
        self._pending += data
        while (end := self._pending.find(b"\n\n")) >= 0:
            lines = bytes(self._pending[:end]).split(b"\n")
            del self._pending[: end + 2]
            payload = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
            if payload == b"[DONE]":
                self.is_done = True
            elif payload:
                yield _decode_event(payload)
        if len(self._pending) > MAX_EVENT_BYTES:
            raise ValueError("an event is too large")


def error_message(body: bytes) -> str:
    """Return vLLM's message in the body of an error; the body's beginning where it has none."""
    try:
        answer = _decode_error(body)
    except ValueError:
        answer = ErrorAnswer()
    if answer.error is not None and answer.error.message:
        return answer.error.message[:2000]
    if answer.detail is not None:
        return str(answer.detail)[:2000]
    return body[:200].decode("utf-8", "replace")
