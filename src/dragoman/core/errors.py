"""Every way a request can fail. Each dialect maps these to its own status and body in one table."""

from __future__ import annotations


class DragomanError(Exception):
    """Base of all errors that a client may be told about.

    ``message`` is written for the sender of the request; ``param`` names the wire field at fault, where one is.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(DragomanError):
    """The request can never be served as it is: wrong type, impossible value, missing field."""


class UnsupportedFeature(BadRequest):
    """The request asks for something this server or model refuses by name rather than ignore."""


class BadConstraint(BadRequest):
    """What the text has to be cannot be read, or allows no text. ``reason``: why, without the field's name."""

    def __init__(self, message: str, *, param: str | None = None, reason: str = "") -> None:
        super().__init__(message, param=param)
        self.reason = reason


class UnsupportedConstraint(UnsupportedFeature):
    """What the text has to be makes sense and cannot be enforced. ``reason``: why, without the field's name."""

    def __init__(self, message: str, *, param: str | None = None, reason: str = "") -> None:
        super().__init__(message, param=param)
        self.reason = reason


class TemplateFailed(BadRequest):
    """The chat template cannot render these messages. ``raised``: it refuses them itself, ``reason`` is its words."""

    def __init__(self, message: str, *, param: str | None = None, reason: str = "", raised: bool = False) -> None:
        super().__init__(message, param=param)
        self.reason = reason
        self.raised = raised


class TemplateMissing(UnsupportedFeature):
    """The model has no chat template, and is asked with messages."""


class ContextOverflow(BadRequest):
    """The prompt, or prompt and asked-for output together, exceed the model's context.

    The counts of tokens, where they are known, for dialects with words of their own.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
        context_tokens: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
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
    """Known credentials that are not good for this."""


class NotFound(DragomanError):
    """An unknown path or object."""


class ModelNotFound(NotFound):
    """The request names a model that is not served here."""


class AdapterNotFound(ModelNotFound):
    """The request names an adapter that is not loaded."""


class MethodNotAllowed(DragomanError):
    """A known path with a method it does not take."""


class Conflict(DragomanError):
    """What is asked for cannot be while something else is going on: ask again when that is over."""


class LoadFailed(DragomanError):
    """A model that was asked for cannot be loaded; what was served before is served still."""


class Overloaded(DragomanError):
    """The queue is full: try again later. ``retry_after_s`` is the wait to suggest, in seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """The caller has used up what it may use within some time, while the server itself has room."""


SHUTTING_DOWN = "The server is shutting down."


class EngineUnavailable(DragomanError):
    """The engine is not able to take requests: starting, or stopped for good.

    ``retry_after_s`` is the wait to suggest, in seconds.
    """

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class ShuttingDown(EngineUnavailable):
    """The server ends. Nothing is wrong with the request: another server, or the next one here, will answer it."""

    def __init__(self, message: str = SHUTTING_DOWN, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class GenerationFailed(DragomanError):
    """The request was accepted and could not be finished; nothing the sender wrote is at fault."""


class GenerationTimeout(GenerationFailed):
    """The generation did not finish in the time that the request, or the server, gave it."""


class Cancelled(DragomanError):
    """The client left, or asked for the end."""


class ModelError(DragomanError):
    """A model cannot be loaded: missing, unknown, unsafe, corrupt or too large. Raised before serving starts."""
