"""Lines of OpenAI's batches: requests of the input, and lines of the result files (``core.batches.BatchFormat``)."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.batches import BatchFault, BatchLine, BatchUsage, LineRequest, LineResult, ReadLine, StoredBatch
from dragoman.core.errors import UnsupportedFeature
from dragoman.dialects.json_lines import json_line
from dragoman.dialects.openai.errors import render_error

MAX_CUSTOM_ID = 512
MAX_LINES = 50_000
V1 = "/v1"
RESPONSES = V1 + "/responses"

WORDS = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed because its batch was cancelled.",
    "storage_full": "This request was not executed because there is no room for more results.",
    "model_not_loaded": "This request was not executed because its model cannot be loaded.",
    "file_not_found": "This request was not executed because its file is gone.",
    "file_damaged": "This request was not executed because its file has changed.",
}


class _Line(msgspec.Struct):
    custom_id: Any = msgspec.UNSET
    method: Any = msgspec.UNSET
    url: Any = msgspec.UNSET
    body: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    """The members of a body that a batch has to know of."""

    model: Any = None
    stream: Any = None
    background: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Both forms: that of completions, and that of responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_body = msgspec.json.Decoder(_Body).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


class OpenAIBatchFormat:
    """``core.batches.BatchFormat``."""

    max_lines = MAX_LINES

    def read(self, raw: bytes, endpoint: str) -> ReadLine:
        try:
            line = _decode_line(raw)
            body = _decode_body(line.body) if line.body else None
            raw.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _faulty("", "invalid_json_line", "This line is not parseable as valid JSON.")
        for name in ("custom_id", "method", "url", "body"):
            if getattr(line, name) in (msgspec.UNSET, msgspec.Raw(b"")):
                return _faulty("", "missing_required_parameter", f"Missing required parameter: '{name}'.", name)
        custom_id = line.custom_id
        if not (isinstance(custom_id, str) and 1 <= len(custom_id) <= MAX_CUSTOM_ID):
            words = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID} characters."
            return _faulty("", "invalid_custom_id", words, "custom_id")
        if line.method != "POST":
            return _faulty(custom_id, "invalid_method", "'method' must be 'POST'.", "method")
        if line.url != endpoint:
            return _faulty(custom_id, "url_mismatch", f"'url' must be '{endpoint}', as the batch's endpoint.", "url")
        model = None if body is None else body.model
        return ReadLine(custom_id, model if isinstance(model, str) else "")

    def request(self, raw: bytes, batch: StoredBatch, line: BatchLine) -> LineRequest:
        body = bytes(_decode_line(raw).body)
        known = _decode_body(body)
        endpoint = V1 + batch.endpoint.removeprefix(V1)  # Azure's clients leave it out
        path = f"/openai{endpoint}"
        for name in ("stream", "background"):
            if getattr(known, name) is True:
                error = UnsupportedFeature(f"'{name}' is not supported in a batch.", param=name)
                refusal = render_error(error)
                return LineRequest(path, body, (refusal.status, _encode(refusal.body)))
        if endpoint == RESPONSES:
            body = _kept_in_the_file_alone(body)
        return LineRequest(path, body)

    def answered(self, batch: StoredBatch, line: BatchLine, status: int, request_id: str, body: bytes) -> LineResult:
        response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body or b"null")}
        is_answer = status == 200
        return LineResult(_text(batch, line, response=response), is_answer, _usage(body) if is_answer else BatchUsage())

    def unanswered(self, batch: StoredBatch, line: BatchLine, code: str) -> LineResult:
        return LineResult(_text(batch, line, error={"code": code, "message": WORDS[code]}), is_answer=False)


def _kept_in_the_file_alone(body: bytes) -> bytes:
    """Return the body of a response that is stored nowhere else, unless it asks for that. What cannot be read stays as
    it is, and is refused as any request."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return body
    return body if fields.get("store") is not None else _encode(fields | {"store": False})


def _text(batch: StoredBatch, line: BatchLine, *, response: Any = None, error: Any = None) -> bytes:
    id = f"batch_req_{batch.id.removeprefix('batch_')}_{line.position}"
    return json_line({"id": id, "custom_id": line.custom_id, "response": response, "error": error})


def _faulty(custom_id: str, code: str, message: str, param: str | None = None) -> ReadLine:
    return ReadLine(custom_id, "", BatchFault(code=code, message=message, param=param))


def _usage(body: bytes) -> BatchUsage:
    used = _decode_answer(body).usage
    if used is None:
        return BatchUsage()
    read = used.prompt_tokens_details or used.input_tokens_details or _Details()
    written = used.completion_tokens_details or used.output_tokens_details or _Details()
    return BatchUsage(
        input_tokens=used.prompt_tokens or used.input_tokens,
        cached_tokens=read.cached_tokens or 0,
        output_tokens=used.completion_tokens or used.output_tokens,
        reasoning_tokens=written.reasoning_tokens or 0,
    )
