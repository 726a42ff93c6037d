"""Errors in the format of the Ollama dialect: ``{"error": "message"}``."""

from __future__ import annotations

import msgspec

from dragoman.core.errors import (
    BadRequest,
    Cancelled,
    Conflict,
    ContextOverflow,
    DragomanError,
    EngineUnavailable,
    Forbidden,
    GenerationFailed,
    GenerationTimeout,
    LoadFailed,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    RequestTimeout,
    TemplateMissing,
    Unauthorized,
    UnsupportedFeature,
)
from dragoman.dialects.api import ErrorResponse, error_row, retry_after
from dragoman.dialects.field_types import Boolean, FieldError, FieldRule, ListOf, Number, OneOf, String, Wrapped

TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the "
    "context length in settings, or use a model with a longer context length"
)
TEXT_TOO_LONG = "the input length exceeds the context length"
BUSY = "server busy, please try again.  maximum pending requests exceeded"
NO_TEMPLATE = "this server renders the model's own chat template"


class NotServed(DragomanError):
    """What Ollama has and this server, or the model, does not."""


# The first class that matches decides: error class, status.
TABLE: tuple[tuple[type[DragomanError], int], ...] = (
    (NotServed, 501),
    (BadRequest, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (MethodNotAllowed, 405),
    (RequestTimeout, 408),
    (Conflict, 409),
    (PayloadTooLarge, 413),
    (RateLimited, 429),
    (Overloaded, 503),
    (EngineUnavailable, 503),
    (Cancelled, 499),
    (GenerationTimeout, 504),
    (LoadFailed, 500),
    (GenerationFailed, 500),
    (DragomanError, 500),
)


def render_error(error: DragomanError) -> ErrorResponse:
    """Return the status, body and headers of the error response."""
    (status,) = error_row(error, TABLE)
    headers = {"content-type": "application/json; charset=utf-8"} | retry_after(error)
    return ErrorResponse(status=status, body={"error": message_of(error)}, headers=headers)


def message_of(error: DragomanError) -> str:
    """Return the error in Ollama's words, where it has some."""
    match error:
        case FieldError():
            return _field_message(error)
        case ContextOverflow(param="input"):
            return TEXT_TOO_LONG
        case ContextOverflow(prompt_tokens=int(given), context_tokens=int(context)):
            return f"{TOO_LONG} ({given} tokens, of {context})"
        case ContextOverflow():
            return TOO_LONG
        case TemplateMissing():
            return error.message
        case UnsupportedFeature(param="template"):
            return NO_TEMPLATE
        case Overloaded() if not isinstance(error, RateLimited):
            return BUSY
    return error.message


def _field_message(error: FieldError) -> str:
    path = error.path
    if not path:
        return "the request's body is not a JSON object"
    if path == ("model",) and (error.rule in (FieldRule.MISSING, FieldRule.SHORT) or error.value is None):
        return "model is required"
    if path[:1] == ("input",) and error.rule is FieldRule.TYPE:
        return "invalid input type"
    if path == ("format",) and error.rule is not FieldRule.DEEP:
        value = msgspec.json.encode(error.value).decode()[:256]
        quoted = msgspec.json.encode(value).decode()
        return f'invalid format: {quoted}; expected "json" or a valid JSON Schema object'
    if path == ("think",):
        shown = error.value if isinstance(error.value, str) else msgspec.json.encode(error.value).decode()
        return f'invalid think value: "{shown[:64]}" (must be "high", "medium", "low", "max", true, or false)'
    if path == ("top_logprobs",) and error.rule in (FieldRule.BELOW, FieldRule.ABOVE):
        return "top_logprobs must be between 0 and 20"
    if len(path) > 1 and path[0] in ("options", "parameters"):
        return _option_message(error)
    return error.message


def _option_message(error: FieldError) -> str:
    option = f'option "{str(error.path[1])[:64]}"'
    if error.rule is not FieldRule.TYPE:
        return f"{option} must be {error.kind.words().split(' ', 2)[2] if error.kind else error.rule.value}"
    kind = error.kind.inner if isinstance(error.kind, Wrapped) else error.kind
    match kind:
        case OneOf() | ListOf():
            return f"{option} must be of an array of strings"
        case String() if len(error.path) > 2 or error.path[1] == "stop":
            return f"{option} must be of an array of strings"
        case Number():
            return f"{option} must be of type float32"
        case Boolean():
            return f"{option} must be of type boolean"
        case String():
            return f"{option} must be of type string"
    return f"{option} must be of type integer"
