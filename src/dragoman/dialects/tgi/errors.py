"""Errors in the format of TGI: ``{"error", "error_type"}``, plain text for bodies that cannot be read, or nothing."""

from __future__ import annotations

import re

import msgspec

from dragoman.core.errors import (
    BadConstraint,
    BadImage,
    BadRequest,
    Cancelled,
    ContextOverflow,
    DragomanError,
    EngineUnavailable,
    Forbidden,
    GenerationFailed,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    RequestTimeout,
    ShuttingDown,
    TemplateFailed,
    TemplateMissing,
    Unauthorized,
    UnsupportedConstraint,
)
from dragoman.dialects.api import EncodedBody, ErrorResponse, NotJson, WrongMediaType
from dragoman.dialects.field_types import FieldError
from dragoman.dialects.tgi.body import ShapeFault, misshapen, without_texts

PLAIN = {"content-type": "text/plain; charset=utf-8"}


class Fault(DragomanError):
    """An error with a body of TGI's own: ``message`` is the ``error``, word for word.

    ``label``: of its kind, the value of ``err`` under which ``tgi_request_failure`` counts it. ``logged``: the text for
    the log, where the message has more that a client wrote than it quotes.
    """

    status = 422
    error_type = "validation"
    label = "validation"
    logged: str | None = None


class InvalidInput(Fault):
    """A rule of the validation that the request breaks."""

    def __init__(self, message: str, *, logged: str | None = None) -> None:
        super().__init__(f"Input validation error: {message}")
        self.rule = message
        self.logged = None if logged is None else f"Input validation error: {logged}"


class TemplateFault(Fault):
    """The chat template cannot be filled in."""

    error_type = "template_error"
    label = "template"

    def __init__(self, message: str) -> None:
        super().__init__(f"Template error: {message}")


class MissingVariable(Fault):
    """The chat template uses a variable that the request does not set. The spelling is the original's."""

    error_type = "missing_template_variable"
    label = "template"

    def __init__(self, name: str) -> None:
        super().__init__(f"Missing template vatiable: {name}")


class ToolFault(Fault):
    """Tools that cannot be offered."""

    error_type = "tool_error"

    def __init__(self, message: str, *, logged: str | None = None) -> None:
        super().__init__(f"Tool error: {message}")
        self.logged = None if logged is None else f"Tool error: {logged}"


class CallFault(ToolFault, GenerationFailed):
    """A call that cannot be read: the model did not end it."""


class SuffixFault(Fault):
    """A completion with a suffix."""

    error_type = "suffix not supported"

    def __init__(self) -> None:
        super().__init__("Suffix is not supported and can be achieved by preprocessing the prompt.")


class BatchFault(Fault):
    """More prompts than one request may bring."""

    error_type = "batch size exceeded"

    def __init__(self, most: int) -> None:
        super().__init__(f"Number of prompts exceeds the maximum allowed batch size of {most}")


class Incomplete(Fault):
    """The engine ended without a last message."""

    status = 500
    error_type = "incomplete_generation"
    label = "incomplete"

    def __init__(self) -> None:
        super().__init__("Incomplete generation")


class IncompleteStream(Fault):
    """The same, in a stream."""

    status = 500
    error_type = "incomplete_generation_stream"
    label = "incomplete"

    def __init__(self) -> None:
        super().__init__("Incomplete generation stream")


class BatchIncomplete(Fault):
    """The error of Vertex and KServe for any internal failure."""

    status = 500
    error_type = "Incomplete generation"
    label = "incomplete"

    def __init__(self) -> None:
        super().__init__("Incomplete generation")


class Unhealthy(Fault):
    """The health probe failed."""

    status = 503
    error_type = "healthcheck"
    label = "generation"

    def __init__(self) -> None:
        super().__init__("unhealthy")


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error, also inside a stream."""

    error: str
    error_type: str


def fault_of(error: DragomanError) -> Fault:
    """Return the TGI error for any error with a JSON body."""
    match error:
        case Fault():
            return error
        case RateLimited():
            return _fault(error.message, "overloaded", 429)
        case Overloaded():
            return _fault("Model is overloaded", "overloaded", 429)
        case ShuttingDown():  # clients know the type, and may ask again
            return _fault(error.message, "overloaded", 503)
        case Forbidden():
            return _fault(error.message, "forbidden", 403)
        case EngineUnavailable():
            return Unhealthy()
        case ContextOverflow():
            return InvalidInput(_overflow(error))
        case BadConstraint():
            return InvalidInput(f"{BAD_GRAMMAR}: {error.reason}", logged=BAD_GRAMMAR)
        case UnsupportedConstraint():
            return InvalidInput(f"{NOT_COMPILED}: {error.reason}", logged=NOT_COMPILED)
        case TemplateMissing():
            return TemplateFault("template not found")
        case TemplateFailed():
            fault = TemplateFault(f"syntax error: {error.reason} (in <string>:1)" if error.raised else error.reason)
            fault.logged = TemplateFault("it cannot be filled in").message
            return fault
        case BadImage():
            kind = _OF_IMAGES.get(error.code, "invalid image")
            return InvalidInput(f"{kind}: {error.reason}", logged=kind)
        case BadRequest():
            return InvalidInput(error.message)
    return _fault(f"Request failed during generation: Server error: {error.message}", "generation", 424)


BAD_GRAMMAR = "grammar is not valid"
NOT_COMPILED = "cannot compile regex from schema"

_OF_IMAGES = {
    "invalid_image_url": "invalid image content",
    "invalid_base64_image": "base64 encoding is invalid",
    "failed_to_download_image": "Could not fetch image",
}


def error_body(error: DragomanError) -> ErrorBody:
    """Return the JSON of an error."""
    fault = fault_of(error)
    return ErrorBody(fault.message, fault.error_type)


def render_error(error: DragomanError) -> ErrorResponse:
    """Return the status, body and headers of the error response."""
    match error:
        case EncodedBody():
            return _plain(415, error.message)
        case WrongMediaType():
            return _plain(415, "Expected request with `Content-Type: application/json`")
        case PayloadTooLarge():
            return _plain(413, "Failed to buffer the request body: length limit exceeded")
        case NotJson():
            return _plain(400, f"Failed to parse the request body as JSON: {error.message}")
        case ShapeFault():
            return _plain(422, error.message)
        case FieldError():
            return _plain(422, misshapen(error))
        case RequestTimeout():
            return _plain(408, "Failed to buffer the request body: it did not arrive in time")
        case Unauthorized():
            return ErrorResponse(status=401)
        case ModelNotFound():
            return ErrorResponse(status=422, body=error_body(InvalidInput(error.message)))
        case NotFound():
            return ErrorResponse(status=404)
        case MethodNotAllowed():
            return ErrorResponse(status=405)
        case Cancelled():
            return ErrorResponse(status=499)
    fault = fault_of(error)
    headers = {"retry-after": str(max(1, round(error.retry_after_s)))} if isinstance(error, Overloaded) else {}
    return ErrorResponse(status=fault.status, body=ErrorBody(fault.message, fault.error_type), headers=headers)


def visible(error: DragomanError) -> str:
    """Return the text of an error for the client."""
    body = render_error(error).body
    return body.error if isinstance(body, ErrorBody) else error.message if body is None else body.decode()


_QUOTED = re.compile(r"([\"']).*[\"']", re.DOTALL)
MAX_LOGGED = 512


def logged(error: DragomanError) -> str:
    """Return the text of an error for the log, on one line: what its client reads, without what a client or the model
    has written."""
    match error:
        case ShapeFault():
            text = error.logged
        case FieldError():
            text = misshapen(without_texts(error))
        case ModelNotFound() | EncodedBody():
            text = type(error).__name__
        case _:
            text = fault_of(error).logged or visible(error)
    text = _QUOTED.sub(r"\1…\1", text)
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_LOGGED])


FAILURE_LABELS: tuple[tuple[type[DragomanError], str], ...] = (
    (Cancelled, "dropped"),
    (Overloaded, "overloaded"),
    (ShuttingDown, "overloaded"),
    (Forbidden, "forbidden"),
    (TemplateMissing, "template"),
    (TemplateFailed, "template"),
    (BadRequest, "validation"),
)
"""Errors of the core that count as something else than a failure of the generation."""


def failure_label(kind: type[BaseException]) -> str:
    """Return the value of ``err`` under which the metric ``tgi_request_failure`` counts errors of this kind."""
    if issubclass(kind, Fault):
        return kind.label
    return next((label for each, label in FAILURE_LABELS if issubclass(kind, each)), "generation")


def _plain(status: int, text: str) -> ErrorResponse:
    return ErrorResponse(status=status, body=text.encode(), headers=dict(PLAIN))


def _fault(error: str, error_type: str, status: int) -> Fault:
    fault = Fault(error)
    fault.status, fault.error_type = status, error_type
    return fault


def _overflow(error: ContextOverflow) -> str:
    given, new, total = error.prompt_tokens, error.max_tokens, error.context_tokens
    if given is None or total is None or not error.is_exact:
        return error.message
    if new is None or given >= total:
        return f"`inputs` must have less than {total - 1} tokens. Given: {given}"
    return (
        f"`inputs` tokens + `max_new_tokens` must be <= {total}. "
        f"Given: {given} `inputs` tokens and {new} `max_new_tokens`"
    )
