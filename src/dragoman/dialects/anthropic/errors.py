"""Errors in the format of the Anthropic dialect: ``{"type": "error", "error": {"type", "message"}, "request_id"}``."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import (
    BadConstraint,
    BadImage,
    BadRequest,
    Cancelled,
    Conflict,
    ContextOverflow,
    DragomanError,
    EngineFailed,
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
    TemplateFailed,
    Unauthorized,
    UnsupportedConstraint,
    UnsupportedFeature,
)
from dragoman.dialects.api import EncodedBody, ErrorResponse, error_row, retry_after
from dragoman.dialects.field_types import (
    Boolean,
    FieldError,
    FieldRule,
    FieldType,
    Floats,
    Integer,
    ListOf,
    Number,
    Path,
    String,
)

INVALID = "invalid_request_error"

# The first class that matches decides: error class, status, type.
TABLE: tuple[tuple[type[DragomanError], int, str], ...] = (
    (BadRequest, 400, INVALID),
    (LoadFailed, 400, INVALID),
    (Unauthorized, 401, "authentication_error"),
    (Forbidden, 403, "permission_error"),
    (NotFound, 404, "not_found_error"),
    (MethodNotAllowed, 405, INVALID),
    (RequestTimeout, 408, "timeout_error"),
    (Conflict, 409, "conflict_error"),
    (PayloadTooLarge, 413, "request_too_large"),
    (RateLimited, 429, "rate_limit_error"),
    (Overloaded, 529, "overloaded_error"),
    (Cancelled, 499, INVALID),
    (EngineUnavailable, 503, "overloaded_error"),
    (GenerationTimeout, 504, "timeout_error"),
    (GenerationFailed, 500, "api_error"),
    (DragomanError, 500, "api_error"),
)

THREAD = "thread"
THREAD_MESSAGE = "thread: this server keeps no conversations"


class UnresolvedReference(BadRequest):
    """A reference to a tool that the request does not have."""


def render_error(error: DragomanError) -> ErrorResponse:
    """Return the status, body and headers of the error response; its id is added where it is sent."""
    status, kind = error_row(error, TABLE)
    described: dict[str, Any] = {"type": kind, "message": _message(error)}
    if isinstance(error, UnsupportedFeature) and error.param == THREAD:
        described |= {
            "message": THREAD_MESSAGE,
            "details": {"error_code": "thread_unsupported_request", "unsupported": []},
        }
    elif isinstance(error, UnresolvedReference):
        described["details"] = {"error_code": "tool_reference_unresolved"}
    elif isinstance(error, EncodedBody):
        described["details"] = {"error_code": "request_body_encoding_unsupported"}
    headers = retry_after(error)
    if isinstance(error, EngineFailed):
        headers = {"x-should-retry": "false"}
        described["type"] = "api_error"
    body = {"type": "error", "error": described}
    return ErrorResponse(status=status, body=body, headers=headers, id_member="request_id")


def _message(error: DragomanError) -> str:
    match error:
        case FieldError():
            return f"{path}: {_worded(error)}" if (path := numbered(error.path)) else _worded(error)
        case ContextOverflow(prompt_tokens=int(given), context_tokens=int(context)):
            return f"prompt is too long: {max(given, context)} tokens > {context - 1} maximum"
        case BadConstraint(reason=reason) | UnsupportedConstraint(reason=reason) if reason:
            return f"{error.param}: {reason}"
        case Unauthorized(reason="missing"):
            return "x-api-key header is required"
        case Unauthorized():
            return "invalid x-api-key"
        case BadImage():
            return f"{error.param}: Could not process image: {error.reason}" if error.param else error.message
        case TemplateFailed():
            return f"messages: {error.reason or error.message}"
        case Overloaded() if not isinstance(error, RateLimited):
            return "Overloaded"
    return error.message


def numbered(path: Path) -> str:
    """Return ``("messages", 0, "role")`` as ``messages.0.role``. Names chosen by a client are cut after 64
    characters."""
    return ".".join(str(part) if isinstance(part, int) or len(part) <= 64 else f"{part[:61]}..." for part in path)


def _worded(error: FieldError) -> str:
    """Return the message for a value that the table does not allow, without its place."""
    kind, bound = error.kind, error.bound
    match error.rule:
        case FieldRule.MISSING:
            return "Field required"
        case FieldRule.UNKNOWN:
            return "Extra inputs are not permitted"
        case FieldRule.CHOICE:
            quoted = [f"'{choice}'" for choice in bound]
            return "Input should be " + (f"{', '.join(quoted[:-1])} or {quoted[-1]}" if quoted[1:] else quoted[0])
        case FieldRule.BELOW:
            above = isinstance(kind, Number) and kind.above == bound
            return f"Input should be greater than {'' if above else 'or equal to '}{bound:g}"
        case FieldRule.ABOVE:
            return f"Input should be less than or equal to {bound:g}"
        case FieldRule.SHORT if isinstance(kind, String):
            return f"String should have at least {bound} character{'s' * (bound != 1)}"
        case FieldRule.LONG if isinstance(kind, String):
            return f"String should have at most {bound} characters"
        case FieldRule.SHORT if error.path == ("messages",):
            return "at least one message is required"
        case FieldRule.SHORT | FieldRule.LONG:
            side = "least" if error.rule is FieldRule.SHORT else "most"
            return f"List should have at {side} {bound} item{'s' * (bound != 1)}"
        case FieldRule.PATTERN:
            return f"String should match pattern '^{bound}$'"
        case FieldRule.DEEP:
            return f"Input should be nested at most {bound} levels deep"
    return f"Input should be a valid {_noun(kind)}"


def _noun(kind: FieldType | None) -> str:
    match kind:
        case Integer():
            return "integer"
        case Number():
            return "number"
        case Boolean():
            return "boolean"
        case String():
            return "string"
        case ListOf() | Floats():
            return "list"
        case None:
            return "value"
        case _ if hasattr(kind, "alternatives"):
            return " or ".join(_noun(each) for each in kind.alternatives)
    return "dictionary"
