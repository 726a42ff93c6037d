"""Errors of requests. Each dialect maps these to its own status and body in one table."""

from __future__ import annotations


class DragomanError(Exception):
    """Base of all errors that may be shown to a client.

    ``message`` is written for the sender of the request; ``param`` names the wrong wire field, if any.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(DragomanError):
    """The request can never be served as it is: wrong type, impossible value, missing field."""


class IdempotencyError(BadRequest):
    """The request's Idempotency-Key cannot be honoured. ``status``: of the answer, in every dialect."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, param="Idempotency-Key")
        self.status = status


class UnsupportedFeature(BadRequest):
    """The request needs something that this server or model does not support, and refuses by name."""


class UnsupportedOperation(UnsupportedFeature):
    """The model does not do what the path is for: it makes no vectors of texts, or it generates none."""


class BadImage(BadRequest):
    """An image cannot be read. ``code``: what is wrong with it, in OpenAI's word. ``reason``: the same as a part of a
    sentence."""

    def __init__(self, code: str, reason: str, *, param: str | None = None) -> None:
        place = f"'{param}': " if param else ""
        super().__init__(f"{place}the image cannot be used: {reason}.", param=param)
        self.code = code
        self.reason = reason


class BadConstraint(BadRequest):
    """The constraint cannot be read, or allows no text. ``reason``: why, without the field's name."""

    def __init__(self, message: str, *, param: str | None = None, reason: str = "") -> None:
        super().__init__(message, param=param)
        self.reason = reason


class UnsupportedConstraint(UnsupportedFeature):
    """The constraint is valid, but cannot be enforced. ``reason``: why, without the field's name."""

    def __init__(self, message: str, *, param: str | None = None, reason: str = "") -> None:
        super().__init__(message, param=param)
        self.reason = reason


class TemplateFailed(BadRequest):
    """The chat template cannot render these messages. ``raised``: it refuses them itself, and ``reason`` is its
    message."""

    def __init__(self, message: str, *, param: str | None = None, reason: str = "", raised: bool = False) -> None:
        super().__init__(message, param=param)
        self.reason = reason
        self.raised = raised


class TemplateMissing(UnsupportedFeature):
    """The request has messages, but the model has no chat template."""


class ContextOverflow(BadRequest):
    """The prompt, or prompt and requested output together, exceed the model's context.

    The counts of tokens, where they are known, are for dialects with their own messages. ``is_exact`` False: the text
    was not read to its end, and ``prompt_tokens`` is an estimate from parts of it.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
        context_tokens: int | None = None,
        is_exact: bool = True,
    ) -> None:
        super().__init__(message, param=param)
        self.is_exact = is_exact
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context_tokens = context_tokens


class PayloadTooLarge(DragomanError):
    """The body is larger than the server accepts."""


class RequestTimeout(DragomanError):
    """The body did not arrive in time."""


class Unauthorized(DragomanError):
    """No credentials, or wrong ones. ``reason``: which, in one word."""

    def __init__(self, message: str, *, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason


class Forbidden(DragomanError):
    """Valid credentials without permission for this request."""


class NotFound(DragomanError):
    """An unknown path or object."""


class ModelNotFound(NotFound):
    """The request names a model that is not served here."""


class AdapterNotFound(ModelNotFound):
    """The request names an adapter that is not loaded."""


class MethodNotAllowed(DragomanError):
    """A known path with a method it does not take."""


class Conflict(DragomanError):
    """The request conflicts with the current state: repeat it when that has changed."""


class LoadFailed(DragomanError):
    """A requested model cannot be loaded; the previous one is still served."""


class Overloaded(DragomanError):
    """The queue is full: try again later. ``retry_after_s`` is the suggested wait, in seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """The caller has used up its limits, while the server itself has room."""


SHUTTING_DOWN = "The server is shutting down."


class EngineUnavailable(DragomanError):
    """The engine cannot take requests: it is starting, or has stopped for good.

    ``retry_after_s`` is the suggested wait, in seconds.
    """

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class EngineFailed(EngineUnavailable):
    """The engine has stopped for good: asking again changes nothing."""


class ShuttingDown(EngineUnavailable):
    """The server is shutting down. The request is fine: another server, or the next one here, can answer it."""

    def __init__(self, message: str = SHUTTING_DOWN, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class GenerationFailed(DragomanError):
    """The request was accepted and could not be finished, through no fault of its sender."""


class GenerationTimeout(GenerationFailed):
    """The generation did not finish in the time that the request, or the server, allows."""


class GenerationCancelled(GenerationFailed):
    """The generation was cancelled, and not by its client leaving: by a request for that."""


class Cancelled(DragomanError):
    """The client disconnected, or cancelled the request."""


class ModelError(DragomanError):
    """A model cannot be loaded: missing, unknown, unsafe, corrupt or too large. Raised before serving starts."""


def drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that is handled, and of those that led to it.

    They refer to the frames of all functions that it passed through, and these to the request's body and all that was
    made of it. Where a frame refers to the error again, only the garbage collector frees them, which looks rarely: 96
    refused requests of 700 KB held 550 MB.
    """
    pending = [error]
    while pending:
        each = pending.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            pending += [each.__cause__, each.__context__]
