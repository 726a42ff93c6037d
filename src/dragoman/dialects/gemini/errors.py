"""Errors in Google's format: ``{"error": {"code", "message", "status", "details"}}``."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import (
    BadConstraint,
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
    TemplateFailed,
    Unauthorized,
    UnsupportedConstraint,
)
from dragoman.dialects.api import ErrorResponse, error_row, retry_after
from dragoman.dialects.field_types import FieldError, FieldRule

INVALID = "INVALID_ARGUMENT"
RPC = "type.googleapis.com/google.rpc."

# The first class that matches decides: error class, status of HTTP, Google's status.
TABLE: tuple[tuple[type[DragomanError], int, str], ...] = (
    (BadRequest, 400, INVALID),
    (LoadFailed, 400, "FAILED_PRECONDITION"),
    (Unauthorized, 401, "UNAUTHENTICATED"),
    (Forbidden, 403, "PERMISSION_DENIED"),
    (NotFound, 404, "NOT_FOUND"),
    (MethodNotAllowed, 405, "UNIMPLEMENTED"),
    (RequestTimeout, 408, "DEADLINE_EXCEEDED"),
    (Conflict, 409, "ABORTED"),
    (PayloadTooLarge, 413, INVALID),
    (RateLimited, 429, "RESOURCE_EXHAUSTED"),
    (Overloaded, 429, "RESOURCE_EXHAUSTED"),
    (Cancelled, 499, "CANCELLED"),
    (EngineUnavailable, 503, "UNAVAILABLE"),
    (GenerationTimeout, 504, "DEADLINE_EXCEEDED"),
    (GenerationFailed, 500, "INTERNAL"),
    (DragomanError, 500, "INTERNAL"),
)


def render_error(error: DragomanError) -> ErrorResponse:
    """Return the status, body and headers of the error response."""
    code, status = error_row(error, TABLE)
    message = _message(error)
    described: dict[str, Any] = {"code": code, "message": message, "status": status}
    headers = retry_after(error)
    if isinstance(error, BadRequest) and error.param:
        violation = {"field": error.param, "description": message}
        described["details"] = [{"@type": f"{RPC}BadRequest", "fieldViolations": [violation]}]
    elif isinstance(error, Unauthorized):
        reason = {"reason": "API_KEY_INVALID", "domain": "googleapis.com"}
        described["details"] = [{"@type": f"{RPC}ErrorInfo", **reason}]
    elif headers:
        described["details"] = [{"@type": f"{RPC}RetryInfo", "retryDelay": f"{headers['retry-after']}s"}]
    return ErrorResponse(status=code, body={"error": described}, headers=headers)


def _message(error: DragomanError) -> str:
    match error:
        case FieldError(rule=FieldRule.UNKNOWN):
            names = ", ".join(f'"{name}"' for name in error.bound or ())
            return f"Invalid JSON payload received. Unknown name {names}: Cannot find field."
        case FieldError(rule=FieldRule.MISSING):
            return f"Invalid request: {error.message}."
        case FieldError(path=()):
            return "Invalid JSON payload received: it is no object."
        case FieldError():
            return f"Invalid value at {error.message}."
        case ContextOverflow(prompt_tokens=int(given), context_tokens=int(context)):
            count, most = max(given, context), context - 1
            return f"The input token count ({count}) exceeds the maximum number of tokens allowed ({most})."
        case BadConstraint(reason=reason) | UnsupportedConstraint(reason=reason) if reason:
            return f"Invalid value at '{error.param}': {reason}"
        case Unauthorized(reason="missing"):
            return "API key is missing. Send it in the header 'x-goog-api-key'."
        case Unauthorized():
            return "API key not valid. Please pass a valid API key."
        case TemplateFailed():
            return f"Invalid value at 'contents': {error.reason or error.message}"
    return error.message
