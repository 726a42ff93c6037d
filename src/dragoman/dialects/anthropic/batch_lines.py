"""Requests of Anthropic's message batches, and their results (``core.batches.BatchFormat``)."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.batches import BatchLine, BatchUsage, LineRequest, LineResult, ReadLine, StoredBatch
from dragoman.core.errors import BadRequest, DragomanError, GenerationFailed, UnsupportedFeature
from dragoman.dialects.anthropic.errors import render_error
from dragoman.dialects.json_lines import json_line

MAX_REQUESTS = 100_000
MESSAGES = "/v1/messages"

_GIVEN_UP = {"batch_canceled": "canceled", "batch_cancelled": "canceled", "batch_expired": "expired"}


class Line(msgspec.Struct):
    """A line of a batch's input, as ``input_of`` writes it."""

    custom_id: str
    params: msgspec.Raw


class _Params(msgspec.Struct):
    """The members of a request that a batch has to know of."""

    stream: Any = None
    max_tokens: Any = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage = _Usage()


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(Line).decode
_decode_params = msgspec.json.Decoder(_Params).decode
_decode_message = msgspec.json.Decoder(_Message).decode


def line_of(custom_id: str, params: dict[str, Any]) -> bytes:
    """Return the line of the input for a request."""
    return _encode({"custom_id": custom_id, "params": params}) + b"\n"


class AnthropicBatchFormat:
    """``core.batches.BatchFormat``. Each request names its own model, and what is wrong with one is its result."""

    max_lines = MAX_REQUESTS

    def read(self, raw: bytes, endpoint: str) -> ReadLine:
        return ReadLine(_decode_line(raw).custom_id, "")

    def request(self, raw: bytes, batch: StoredBatch, line: BatchLine) -> LineRequest:
        params = bytes(_decode_line(raw).params)
        refusal = _refusal(_decode_params(params))
        error = None if refusal is None else render_error(refusal)
        answer = None if error is None else (error.status, _encode(error.body))
        return LineRequest(f"/anthropic{batch.endpoint}", params, answer)

    def answered(self, batch: StoredBatch, line: BatchLine, status: int, request_id: str, body: bytes) -> LineResult:
        if status != 200:
            return _result(line, "errored", error=msgspec.Raw(body)) if body else self._errored(line, _FAILED)
        used = _decode_message(body).usage
        cached = used.cache_read_input_tokens or 0
        usage = BatchUsage(
            input_tokens=used.input_tokens + cached, cached_tokens=cached, output_tokens=used.output_tokens
        )
        return _result(line, "succeeded", usage, message=msgspec.Raw(body))

    def unanswered(self, batch: StoredBatch, line: BatchLine, code: str) -> LineResult:
        kind = _GIVEN_UP.get(code)
        return self._errored(line, _NOT_RUN[code]) if kind is None else _result(line, kind)

    def _errored(self, line: BatchLine, error: DragomanError) -> LineResult:
        return _result(line, "errored", error=render_error(error).body)


_FAILED = GenerationFailed("The request ended without an answer.")
_NOT_RUN = {
    "storage_full": GenerationFailed("This request was not executed because there is no room for more results."),
    "model_not_loaded": GenerationFailed("This request was not executed because its model cannot be loaded."),
    "file_not_found": GenerationFailed("This request was not executed because its file is gone."),
    "file_damaged": GenerationFailed("This request was not executed because its file has changed."),
}


def _refusal(params: _Params) -> DragomanError | None:
    """Return why a request that would be answered alone is not in a batch; None: it is."""
    if params.stream is True:
        return UnsupportedFeature("stream: not supported in a batch", param="stream")
    if params.max_tokens == 0 and not isinstance(params.max_tokens, bool):
        return BadRequest("max_tokens: Input should be greater than or equal to 1 in a batch", param="max_tokens")
    return None


def _result(line: BatchLine, kind: str, usage: BatchUsage = BatchUsage(), **members: Any) -> LineResult:  # noqa: B008
    text = json_line({"custom_id": line.custom_id, "result": {"type": kind, **members}})
    return LineResult(text, kind == "succeeded", usage)
