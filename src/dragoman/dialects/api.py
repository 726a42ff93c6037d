"""The interface between server and dialects: the context of a request, operations, and the description of a dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from math import inf
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, TypeVarTuple
from urllib.parse import quote

import msgspec

from dragoman.core.batches import BatchFormat
from dragoman.core.errors import BadRequest, DragomanError, EngineUnavailable, IdempotencyError, Overloaded
from dragoman.core.measurements import Measurements
from dragoman.core.observer import Observer
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.field import Reading, Table

Result = TypeVar("Result")
Columns = TypeVarTuple("Columns")


class NotJson(BadRequest):
    """The body is not JSON; some dialects answer this differently from JSON of the wrong shape."""


class WrongMediaType(BadRequest):
    """The content type of the body is not JSON."""


class EncodedBody(WrongMediaType):
    """The body is compressed."""


class RequestContext(Protocol):
    """One HTTP request and its response. Errors raised by a handler are answered in the format of its dialect.

    Attributes:
        request_id: the client's own ``X-Request-Id`` where it is short and plain, otherwise a new one.
        path: without the query, as requested: with the dialect's prefix, where there is one.
        client: the address that the request came from.
        query: the query's parameters; of equal names the last one.
        tenant: a digest of the caller's API key, to separate the data of callers; empty without keys.
        scopes: the scopes of the caller's key; all scopes, without keys.
        fault: set by a handler that reports an error inside a stream itself, for the metrics.
        started: whether the answer has begun: its status is sent.
        explains: the request is only explained (``dry_run``): nothing is counted, written or remembered for it.
        is_strict: the server refuses requests with fields that it does not know.
        root_path: the path that a proxy took off, without a slash at its end; empty without one.
        base_url: scheme, host and port under which the client reached the server, and the ``root_path``.
        elapsed_s: seconds since the request arrived.
        not_ready: why requests cannot be served now; empty when they can.
    """

    request_id: str
    method: str
    path: str
    client: str
    headers: Mapping[str, str]
    path_params: Mapping[str, str]
    tenant: str
    scopes: tuple[str, ...]
    fault: DragomanError | None
    started: bool
    explains: bool
    is_strict: bool
    root_path: str

    @property
    def query(self) -> Mapping[str, str]: ...

    @property
    def elapsed_s(self) -> float: ...

    @property
    def base_url(self) -> str: ...

    @property
    def not_ready(self) -> str: ...

    async def read(self, table: Table, *, any_content_type: bool = False) -> Reading:
        """Return the JSON body, checked by the table; bounded in size and time.

        Fields without effect are named in a header of the answer, also of an error.

        Raises WrongMediaType, NotJson, the table's FieldError and UnsupportedFeature, PayloadTooLarge, RequestTimeout.
        """

    async def read_json(self, *, any_content_type: bool = False) -> Any:
        """Return the JSON body as it is, for operations whose table depends on it; ``check`` is then the rest of
        ``read``.

        Raises WrongMediaType, NotJson, PayloadTooLarge, RequestTimeout.
        """

    async def check(self, table: Table, body: Any) -> Reading:
        """Return ``body`` checked by the table, and name its fields without effect in the answer, as ``read`` does."""

    def report(self, reading: Reading) -> None:
        """Replace the list of fields without effect: some have no effect only with the requested model."""

    async def read_body(self) -> bytes:
        """Return the body's bytes, of any content type. Raises PayloadTooLarge, RequestTimeout."""

    def body_pieces(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield the body's bytes, of any content type, as they come: bodies that are too large to be held at once.

        Raises PayloadTooLarge, RequestTimeout where they come too slowly.
        """

    async def run_blocking(self, work: Callable[[], Result], pool: Literal["text", "disk"] = "text") -> Result:
        """Return what ``work`` returns in a thread: for what takes more than a millisecond (``text``), or looks at
        files (``disk``). Raises Overloaded where too much of the caller's work waits already."""

    def show_progress(self) -> None:
        """Tell the client how far its request is until the answer has begun: by comments in a stream of events."""

    def keep_bytes(self, size: int) -> None:
        """Count bytes that the request has beside its body, such as files that it names, until it ends.

        Raises EngineUnavailable where all requests together have too many.
        """

    async def unless_gone(self, work: Awaitable[Result]) -> Result:
        """Await the work; when the client disconnects first, cancel it and raise ``Cancelled``."""

    async def reply(
        self, content: Any, *, status: int = 200, content_type: str = ..., headers: Mapping[str, str] = ...
    ) -> None:
        """Answer with JSON (any msgspec value), with ``bytes`` as they are, or with nothing (None)."""

    async def reply_text(self, text: str, *, status: int = 200, headers: Mapping[str, str] = ...) -> None:
        """Answer with plain text, in UTF-8."""

    async def stream(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        content_type: str = ...,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] = ...,
        at_once: bool = ...,
        keep_alive: KeepAlive | None = ...,
    ) -> None:
        """Answer with the chunks as they come. The answer begins with the first, which may be empty, or ``at_once``;
        ``headers`` are called then, where they are a function. ``keep_alive``: what this stream gets while it is
        silent, once it has begun, in place of the dialect's.

        A stream of events also gets comments: the dialect's ``keep_alive`` where it is silent for long, and the
        progress where that is shown. Either may begin the answer before the first chunk, and sets ``started``: what is
        raised by the iterator before that is answered with its own status; later errors have to be a chunk.

        The iterator is closed in every case: at the end, when the client disconnects, and when it does not read for the
        server's write timeout. When it raises ``Abort``, the connection is closed after the bytes written so far.
        """


class KeepAlive(NamedTuple):
    """``event`` returns what a stream gets that has been silent for ``silence_s`` seconds."""

    event: Callable[[], bytes]
    silence_s: float


NEVER = KeepAlive(lambda: b"", inf)


class Abort(Exception):
    """Raised by a stream that cannot be finished, for clients that detect only a broken connection."""


Handler = Callable[[Serving, RequestContext], Awaitable[None]]


class Socket(Protocol):
    """An open WebSocket; the attributes are those of ``RequestContext``.

    One task must always be in ``receive``, which detects the end. Running work is not cancelled by it. The socket
    closes when the handler returns or raises.
    """

    request_id: str
    path: str
    client: str
    headers: Mapping[str, str]
    path_params: Mapping[str, str]
    tenant: str

    @property
    def query(self) -> Mapping[str, str]: ...

    @property
    def not_ready(self) -> str: ...

    async def receive(self) -> str | bytes:
        """Return the next message, text or binary, of bounded size.

        Raises Cancelled when the client has disconnected, EngineUnavailable when the server stops: running calls may
        then still be answered.
        """

    def answering(self, request_id: str) -> AbstractContextManager[None]:
        """Return the context of the work for one message that is a request: it is logged, counted and traced as a
        request of this id, in the handshake's trace. An exception inside it is recorded as its outcome and
        propagates."""

    async def run_blocking(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` as ``RequestContext.run_blocking`` does."""

    async def send(self, data: str | bytes) -> None:
        """Send a message once the client has read enough of the earlier ones. Raises Cancelled when it has
        disconnected."""

    async def close(self, code: int = ..., reason: str = ...) -> None:
        """Close for a reason of the dialect's own (RFC 6455, section 7.4)."""


SocketHandler = Callable[[Serving, Socket], Awaitable[None]]


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An error response in a dialect's format; ``body`` None is an empty body, ``bytes`` are sent unchanged.

    ``id_member``: the member of the body, an object, that gets the id of the request; empty: none does.
    """

    status: int
    body: Any = None
    headers: dict[str, str] = {}
    id_member: str = ""

    def body_of(self, request_id: str) -> Any:
        """Return the body, with the id of the request where it has a member for that."""
        return {**self.body, self.id_member: request_id} if self.id_member else self.body


def error_row(error: DragomanError, table: Iterable[tuple[type[DragomanError], *Columns]]) -> tuple[*Columns]:
    """Return the columns of a dialect's table of errors for the first class that the error is of."""
    return next(columns for cls, *columns in table if isinstance(error, cls))  # type: ignore[return-value]


def retry_after(error: DragomanError) -> dict[str, str]:
    """Return the header that says when to come back: whole seconds, one at least; none for errors that do not pass."""
    if not isinstance(error, Overloaded | EngineUnavailable):
        return {}
    return {"retry-after": str(max(1, round(error.retry_after_s)))}


class RouteHint(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a call that select among the dialects that share a bare path.

    ``body``: the decoded JSON; None without a body, or where it is not JSON. ``dialect``: the operator's choice,
    ``--dialect``. ``is_model`` returns whether a model is served under a name.
    """

    headers: Mapping[str, str]
    body: Any
    dialect: str
    is_model: Callable[[str], bool] = lambda name: False

    def has(self, *names: str) -> bool:
        """Return whether the body is an object with one of these keys, even as ``null``."""
        return isinstance(self.body, dict) and any(name in self.body for name in names)


class RequestHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A header that an operation reads in addition to the body: its name, its purpose, and the form of its value.

    ``pattern``: a regular expression for the whole value.
    """

    name: str
    note: str
    pattern: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one path of a dialect.

    Attributes:
        method: as HTTP has it. What answers GET answers HEAD too.
        path: in Starlette's notation, ``/models/{id:path}``.
        summary: one sentence for the documents.
        table: describes the body, if it has one. reads: headers that it also reads, for the documents.
        open: needs no API key, because the dialect's contract leaves it open. Never what generates, unless the operator
            says so.
        probe: a health check, which never needs an API key.
        scope: the scope that a key must have.
        media: content types of its answer, for the documents; None: JSON, and events where its table has ``stream``.
        statuses: of its answer, when all goes well.
        faults: further errors than those of every operation: one of each kind, for the documents.
        form: the fields of the form that it takes in place of JSON, in addition to the part ``file``. It is read piece
            by piece, and no ``IDEMPOTENCY_KEY`` is taken with it.
        name: how clients made from the documents call it; empty: by method and path.
        claims: on a bare path that several dialects have: whether the call is surely this one's. See ``RouteHint``.
        extends_limit: a body that is read for ``claims`` may be as large as this dialect allows; False: only as large
            as the others do.
        model_param: the parameter of the path that names the model, in place of the body's ``model``.
        render_error: renders its errors; None: as its dialect does.
        named_by: the operator's option that chose its path.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    table: Table | None = None
    reads: tuple[RequestHeader, ...] = ()
    open: bool = False
    probe: bool = False
    scope: Literal["infer", "admin"] = "infer"
    media: tuple[str, ...] | None = None
    statuses: tuple[int, ...] = (200,)
    faults: tuple[DragomanError, ...] = ()
    form: Table | None = None
    name: str = ""
    claims: Callable[[RouteHint], bool] | None = None
    extends_limit: bool = True
    model_param: str = ""
    render_error: Callable[[DragomanError], ErrorResponse] | None = None
    named_by: str = ""

    def with_model(self, body: Any, path_params: Mapping[str, str]) -> Any:
        """Return the JSON body with the model that the path names, where it does."""
        name = path_params.get(self.model_param)
        return {**body, "model": name} if name is not None and isinstance(body, dict) else body

    def for_model(self, name: str) -> tuple[str, Mapping[str, str]]:
        """Return the path and its parameters for a model; the path alone where that does not name one."""
        if not self.model_param:
            return self.path, {}
        path = self.path.replace(f"{{{self.model_param}:path}}", quote(name, safe="/:@"))
        return path, {self.model_param: name}


IDEMPOTENCY_KEY = RequestHeader(
    name="Idempotency-Key",
    note="A key of the client's own for this request. Where it is sent again with the same key, it gets the answer of "
    "the first one, which may still be under way.",
    pattern=r"[!-~]{1,255}",
)
REPLAY_HEADERS = ("idempotent-replayed", "x-dragoman-original-request")
"""Headers of an answer that was begun for an earlier request with its key: ``true``, and the id of that request."""
MALFORMED_KEY = IdempotencyError(
    "'Idempotency-Key' is one key of 1 to 255 visible ASCII characters, bare or in quotes.", status=400
)
LONG_ANSWER = IdempotencyError(
    "The answer under this 'Idempotency-Key' is under way, and has become too long to be kept.", status=409
)
REUSED_KEY = IdempotencyError(
    "This 'Idempotency-Key' was sent with another request. Another request needs a key of its own.", status=422
)


def keeps_answers(operation: Operation) -> bool:
    """Return whether an operation honours ``IDEMPOTENCY_KEY``: all that generate do, and others that only compute."""
    is_plain = not (operation.probe or operation.form)
    return operation.method == "POST" and operation.scope == "infer" and is_plain


class SocketOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A path of a dialect where a WebSocket may be opened; the attributes are those of ``Operation``.

    ``claims``: on a bare path that several dialects have, by the first message. Who has none is to be quiet: its
    handler runs until another dialect claims the socket, which ends it.
    """

    path: str
    summary: str
    handler: SocketHandler
    scope: Literal["infer", "admin"] = "infer"
    claims: Callable[[RouteHint], bool] | None = None


class Cors(msgspec.Struct, frozen=True, kw_only=True):
    """The CORS contract of a dialect (the Fetch standard, "CORS protocol"). Which pages may call is the operator's
    choice, ``--cors-origin``, for all dialects.

    Attributes:
        origins: patterns of origins that the operator allows for this dialect alone. origins_option: the option that
            names them.
        any_origin: the contract lets pages of any origin call. That is followed where the server asks for API keys and
            the operator names no origins.
        credentials: pages of origins that the operator has named may send cookies along.
        methods, headers: those that a page may use; empty: the requested ones.
        exposed: headers of an answer that a page may see; None: all that the answer has.
        max_age_s: how long a browser may remember the answer to its question.
        vary: the ``Vary`` header, sent with every answer.
        preflight_body: the answer to a browser's question is 200 with this text.
    """

    origins: tuple[str, ...] = ()
    origins_option: str = "--cors-origin"
    any_origin: bool = False
    credentials: bool = False
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] | None = ()
    max_age_s: int | None = None
    vary: str = "origin"
    preflight_body: str = ""


class MetricsContext(NamedTuple):
    """The sources of a dialect's page of metrics.

    ``measurements``: of the whole server; those that the page shows are read when it is made. ``state()``: by
    name, the gauges and counters of the server and its engine, as they are now (those of ``/metrics``, without
    ``dragoman_``). ``models()``: the served models.
    """

    measurements: Measurements
    state: Callable[[], Mapping[str, float]]
    models: Callable[[], tuple[ModelCard, ...]]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """A wire format: its operations, and its one table of errors.

    Its operations are served under ``/<name>``, and bare as ``docs/dialects.md`` says.

    Attributes:
        render_error: renders every error in the dialect's format, unknown paths and methods included.
        cors: its CORS contract; None: that of the server.
        headers: of every answer, errors included; those that the answer itself names come before them.
        max_body_bytes: largest body; None: as large as the server's ``--max-body-bytes`` allows.
        takes_image_bodies: where a model sees images, its bodies may be as large as ``--max-image-body-bytes`` allows,
            whatever ``max_body_bytes`` is.
        key_headers: headers that may hold an API key, in addition to ``Authorization: Bearer``. key_params: parameters
            of the query that may hold it where no header does.
        keep_alive: a comment, or an event without effect, for streams of events that are silent for long; empty where
            clients fail on them.
        keep_alive_s: the seconds of silence after which a stream begins with one, and after which a stream that has
            begun gets one, where they are less than the server's.
        stream_error: the event that ends a stream which has begun before its operation could say how it streams; None:
            none begins so early.
        service: what the dialect does besides answering, from the opening of the port to the end of the server; it
            ends what it has under way when the server begins to end.
        batches: the form of the lines of its batches; None: it has none.
        metrics: makes what returns the server's measurements under the metric names of the dialect's contract, in
            Prometheus' text format. Called when ``--metric-names`` selects these names.
        log: writes the lines of the log that the contract has, for requests in this dialect. Used by servers whose
            ``--dialect`` it is.
        notes: sentences for the operator about settings that the served model does not allow.
        metrics_port: a separate port on which its users look for the metrics, when it is the operator's choice.
        unknown: methods and paths that it words as an unknown URL, though it has other methods of the path.
        document_paths: where the dialect's clients look for its OpenAPI document, in addition to ``/openapi.json``.
        page_paths: where its users look for a page of it, in addition to ``/docs``.
        playground_paths: where its users look for a page to try it; at ``/`` browsers alone get it.
        is_client: whether the headers of a call are surely those of one of the dialect's clients, whatever the path;
            unknown paths are then answered in its words.
        clients_add: what its clients put between their base address and each of its paths, so that this address must
            not end in it; empty: the base address ends in ``/v1`` where the paths have it.
        absent_paths: beginnings of other dialects' bare paths that its contract does not have: for its clients they
            are unknown.
        model_choice: which model answers: the current one, that which the member ``model`` of the body names (or the
            path, ``Operation.model_param``), or the one that the handler asks the catalog for.
    """

    name: str
    title: str
    operations: tuple[Operation, ...]
    render_error: Callable[[DragomanError], ErrorResponse]
    sockets: tuple[SocketOperation, ...] = ()
    cors: Cors | None = None
    headers: Callable[[RequestContext], Mapping[str, str]] | None = None
    max_body_bytes: int | None = None
    takes_image_bodies: bool = False
    key_headers: tuple[str, ...] = ()
    key_params: tuple[str, ...] = ()
    keep_alive: bytes = b""
    keep_alive_s: tuple[float, float] = (inf, inf)
    stream_error: Callable[[DragomanError], bytes] | None = None
    service: Callable[[Serving], AbstractAsyncContextManager[None]] | None = None
    batches: BatchFormat | None = None
    metrics: Callable[[MetricsContext], Callable[[], str]] | None = None
    log: type[Observer] | None = None
    notes: Callable[[ModelCard], Sequence[str]] | None = None
    metrics_port: int | None = None
    unknown: frozenset[tuple[str, str]] = frozenset()
    document_paths: tuple[str, ...] = ()
    page_paths: tuple[str, ...] = ()
    playground_paths: tuple[str, ...] = ()
    is_client: Callable[[Mapping[str, str]], bool] | None = None
    clients_add: str = ""
    absent_paths: tuple[str, ...] = ()
    model_choice: Literal["current", "body", "handler"] = "current"

    def worded_for(self, operation: Operation) -> Dialect:
        """Return the dialect as it words the errors of an operation."""
        own = operation.render_error
        return self if own is None else msgspec.structs.replace(self, render_error=own)


def error_response(dialect: Dialect, error: DragomanError) -> ErrorResponse:
    """Return the error in the dialect's words. Faults of an ``Idempotency-Key`` have one status in all dialects."""
    answer = dialect.render_error(error)
    return msgspec.structs.replace(answer, status=error.status) if isinstance(error, IdempotencyError) else answer
