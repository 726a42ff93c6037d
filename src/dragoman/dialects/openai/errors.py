"""Errors in the format of the OpenAI dialect: ``{"error": {"message", "type", "param", "code"}}`` and a status."""

from __future__ import annotations

from typing import Any

from dragoman.core.batches import StorageFull, UnknownBatch, UnknownFile
from dragoman.core.errors import (
    BadImage,
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
    ModelNotFound,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    Unauthorized,
    UnsupportedFeature,
    UnsupportedOperation,
)
from dragoman.dialects.api import ErrorResponse, error_row
from dragoman.dialects.field_types import (
    Boolean,
    FieldError,
    FieldRule,
    FieldType,
    Floats,
    Integer,
    ListOf,
    Number,
    OneOf,
    String,
    dotted,
    shown,
)

INVALID = "invalid_request_error"


class InvalidRequest(BadRequest):
    """A request that is refused with a ``code`` of its own."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message, param=param)
        self.code = code


class NotAgain(GenerationTimeout):
    """A timeout that another attempt would meet again: clients are told not to make one."""


class ObjectNotFound(NotFound):
    """An unknown object of a known path."""


LONGEST_RETRY_S = 60
"""OpenAI's packages do not wait for longer, and would ask again at once: they heed ``x-should-retry`` instead."""

# The first class that matches decides: error class, status, type, code.
TABLE: tuple[tuple[type[DragomanError], int, str, str | None], ...] = (
    (UnsupportedOperation, 400, INVALID, "unsupported_operation"),
    (UnsupportedFeature, 400, INVALID, "unsupported_parameter"),
    (ContextOverflow, 400, INVALID, "context_length_exceeded"),
    (StorageFull, 400, INVALID, "storage_full"),
    (BadRequest, 400, INVALID, None),
    (Unauthorized, 401, INVALID, "invalid_api_key"),
    (Forbidden, 403, INVALID, "insufficient_permissions"),
    (ModelNotFound, 404, INVALID, "model_not_found"),
    (UnknownFile, 404, INVALID, None),
    (UnknownBatch, 404, INVALID, None),
    (Conflict, 409, INVALID, "conflict"),
    (LoadFailed, 400, INVALID, "load_failed"),
    (ObjectNotFound, 404, INVALID, None),
    (NotFound, 404, INVALID, "unknown_url"),
    (MethodNotAllowed, 405, INVALID, "method_not_supported"),
    (RequestTimeout, 408, INVALID, "request_timeout"),
    (PayloadTooLarge, 413, INVALID, "request_too_large"),
    (Overloaded, 429, "rate_limit_error", "rate_limit_exceeded"),
    (Cancelled, 499, INVALID, "client_closed_request"),
    (EngineUnavailable, 503, "server_error", "service_unavailable"),
    (GenerationFailed, 500, "server_error", None),
    (DragomanError, 500, "server_error", None),
)


def render_error(error: DragomanError) -> ErrorResponse:
    """Return the status, body and headers of the error response."""
    status, kind, code = error_row(error, TABLE)
    message, headers = error.message, {}
    if isinstance(error, FieldError):
        message, code = _worded(error)
    elif isinstance(error, InvalidRequest):
        code = error.code
    elif isinstance(error, BadImage):
        message, code = _of_image(error), error.code
    elif isinstance(error, NotAgain):
        headers["x-should-retry"] = "false"
    elif isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
        headers["retry-after-ms"] = str(max(1, round(1000 * error.retry_after_s)))  # the packages read this one first
        if error.retry_after_s > LONGEST_RETRY_S:
            headers["x-should-retry"] = "false"
    body = {"error": {"message": message, "type": kind, "param": error.param, "code": code}}
    return ErrorResponse(status=status, body=body, headers=headers)


_UNREAD = ("image_too_large", "image_too_small", "invalid_image_url", "failed_to_download_image")


def _of_image(error: BadImage) -> str:
    """Return the message for an image; of one that cannot be read in the words by which clients know it."""
    if error.code in _UNREAD:
        return error.message
    place = f"'{error.param}': " if error.param else ""
    return f"{place}The image data you provided does not represent a valid image: {error.reason}."


def _worded(error: FieldError) -> tuple[str, str | None]:
    """Return message and code for a value that the table does not allow."""
    name, kind, bound, value = dotted(error.path), error.kind, error.bound, error.value
    noun = _noun(kind)
    match error.rule:
        case FieldRule.MISSING:
            return f"Missing required parameter: '{name}'.", "missing_required_parameter"
        case FieldRule.UNKNOWN:
            return f"Unrecognized request argument{'s' * (len(bound) > 1)} supplied: {', '.join(bound)}", None
        case FieldRule.CHOICE:
            return f"Invalid value: {shown(value)}. Supported values are: {_listed(bound)}.", "invalid_value"
        case FieldRule.BELOW | FieldRule.ABOVE:
            below = error.rule is FieldRule.BELOW
            sign = (">" if isinstance(kind, Number) and kind.above == bound else ">=") if below else "<="
            side = "below minimum" if below else "above maximum"
            wanted = f"Expected a value {sign} {bound}, but got {shown(value)} instead."
            code = f"{noun}_{'below_min' if below else 'above_max'}_value"
            return f"Invalid '{name}': {noun} {side} value. {wanted}", code
        case FieldRule.SHORT if bound == 1:
            got = f"Expected {_article(noun)} with minimum length 1, but got an empty {noun} instead."
            return f"Invalid '{name}': empty {noun}. {got}", f"empty_{noun}"
        case FieldRule.SHORT | FieldRule.LONG:
            short = error.rule is FieldRule.SHORT
            side, limit = ("short", "minimum") if short else ("long", "maximum")
            got = f"but got {_article(noun)} with length {len(value)} instead."
            message = (
                f"Invalid '{name}': {noun} too {side}. Expected {_article(noun)} with {limit} length {bound}, {got}"
            )
            return message, f"{noun}_{'below_min' if short else 'above_max'}_length"
        case FieldRule.PATTERN:
            wanted = f"Expected a string that matches the pattern '^{bound}$'."
            return f"Invalid '{name}': string does not match pattern. {wanted}", "invalid_value"
        case FieldRule.DEEP:
            return f"Invalid '{name}': nested more than {bound} levels deep.", "invalid_value"
        case _:
            wanted = f"expected {_expected(kind)}, but got {_typed(value)} instead."
            return f"Invalid type for '{name}': {wanted}" if name else f"Invalid body: {wanted}", "invalid_type"


def _noun(kind: FieldType | None) -> str:
    match kind:
        case Integer():
            return "integer"
        case Number():
            return "decimal"
        case Boolean():
            return "boolean"
        case String():
            return "string"
        case ListOf() | Floats():
            return "array"
        case _:
            return "object"


def _expected(kind: FieldType | None) -> str:
    match kind:
        case OneOf(alternatives):
            return "one of " + " or ".join(_expected(alternative) for alternative in alternatives)
        case ListOf(item):
            return f"an array of {_plural(item)}"
        case _:
            return _article(_noun(kind))


def _plural(kind: FieldType) -> str:
    return f"arrays of {_plural(kind.item)}" if isinstance(kind, ListOf) else f"{_noun(kind)}s"


def _typed(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeio' else 'a'} {noun}"


def _listed(names: tuple[str, ...]) -> str:
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f", and {quoted[-1]}"
