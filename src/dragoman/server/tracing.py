"""Traces: a span for every request, sent to a collector over OTLP. Off, and not even imported, by default.

The caller's span is found in the header ``traceparent`` (W3C Trace Context); the answer names the request's own there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from dragoman.core.errors import Cancelled, DragomanError
from dragoman.core.observer import ObservedGeneration, ObservedRequest, Observer, RequestEnd

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

MISSING = "--otlp-endpoint needs packages that are not installed: pip install 'dragoman[otlp]'"
EXPORT_S = 3
"""Seconds for sending a batch to the collector, retries included: an absent collector delays the server's end by
this."""

CARRIED = ("traceparent", "tracestate")
RESOLVED = ("unix:", "dns:", "ipv4:", "ipv6:")
"""Beginnings of gRPC's other addresses."""


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of traces.

    Attributes:
        otlp_endpoint: address of a collector that takes OTLP over gRPC, such as http://localhost:4317; without it there
            are no traces.
        otlp_service_name: the server's name in traces.
    """

    PANEL = "Logs and traces"

    otlp_endpoint: str | None = None
    otlp_service_name: str = "dragoman"


class Tracing(Observer):
    """A span for each request that generates, and for each WebSocket message that does; GET requests have none.

    Its attributes are those of TGI: ``parameters`` (never the prompt), ``total_time``, ``validation_time``,
    ``queue_time``, ``inference_time``, ``time_per_token`` in seconds, ``seed``; for several prompts in one request the
    sums, and the first one's seed. The counts of tokens and the status are added.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("dragoman")
        self._propagator = TraceContextTextMapPropagator()
        self._spans: dict[ObservedRequest, Span] = {}

    def close(self) -> None:
        """Send the remaining spans, for a few seconds at most."""
        self._provider.shutdown()

    def arrived(self, request: ObservedRequest) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context

        if request.method == "GET":
            return
        carried = {name: request.headers[name] for name in CARRIED if name in request.headers}
        span = self._tracer.start_span(
            request.operation,
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            attributes={"dialect": request.dialect, "http.route": request.operation, "request_id": request.request_id},
        )
        self._propagator.inject(request.answer_headers, context=set_span_in_context(span))
        self._spans[request] = span

    def ended(self, request: ObservedRequest, end: RequestEnd) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._spans.pop(request, None)
        if span is None:
            return
        span.set_attributes({"http.response.status_code": end.status, "total_time": end.seconds})
        if request.generations:
            span.set_attributes(attributes_of(request.generations))
        if end.error is not None:
            span.set_attribute("error.type", type(end.error).__name__)
        if end.error is not None and end.status >= 500 and not isinstance(end.error, Cancelled):
            span.set_status(Status(StatusCode.ERROR, str(end.error)[:256]))
        span.end()


def attributes_of(generations: list[ObservedGeneration]) -> dict[str, Any]:
    """Return the span attributes of the generations of one request."""
    first = generations[0]
    tokens = sum(each.tokens for each in generations)
    inference_s = sum(each.inference_s for each in generations)
    return {
        "parameters": parameters_of(first),
        "validation_time": sum(each.validation_s for each in generations),
        "queue_time": sum(each.queue_s for each in generations),
        "inference_time": inference_s,
        "time_per_token": inference_s / tokens if tokens else 0.0,
        "seed": str(first.seeds[0]) if first.seeds else "",
        "prompt_tokens": sum(each.prompt_tokens for each in generations),
        "generated_tokens": tokens,
    }


def parameters_of(generation: ObservedGeneration) -> str:
    """Return the sampling and stopping parameters in JSON; only those that are not the default, and no text of a
    client."""
    asked = generation.requested
    given = _given(asked.sampling) | _given(asked.ending)
    return msgspec.json.encode({**given, "max_tokens": generation.max_tokens, "n": asked.n}).decode()


def _given(params: msgspec.Struct) -> dict[str, Any]:
    """Return the numbers and switches that differ from the defaults; for lists, maps and texts their length."""
    default = type(params)()
    values = {name: getattr(params, name) for name in params.__struct_fields__}
    given = {name: value for name, value in values.items() if value != getattr(default, name)}
    return {name: value if isinstance(value, int | float) else len(value) for name, value in given.items()}


def tracing_of(settings: TracingSettings) -> Tracing | None:
    """Return the sender of spans to the collector, in batches and in a thread; None where no collector is named.

    Raises DragomanError when the packages for it are not installed, and for what is no address.
    """
    if settings.otlp_endpoint is None:
        return None
    if not _is_address(settings.otlp_endpoint):
        message = f"--otlp-endpoint {settings.otlp_endpoint!r}: an address such as http://localhost:4317 is wanted"
        raise DragomanError(message)
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise DragomanError(MISSING) from None
    insecure = not settings.otlp_endpoint.startswith("https://")
    exporter = OTLPSpanExporter(endpoint=settings.otlp_endpoint, insecure=insecure, timeout=EXPORT_S)
    return exporting(exporter, settings.otlp_service_name)


def _is_address(text: str) -> bool:
    """Return whether gRPC may find a collector there: a host and a port, a URL, or a name that its resolvers read."""
    if any(map(str.isspace, text)):
        return False
    if text.startswith(RESOLVED):
        return bool(text.partition(":")[2].strip("/"))
    scheme, separator, rest = text.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        has_place = bool(parts.hostname) and (bool(separator) or parts.port is not None)
    except ValueError:  # no IPv6 address, or no number of a port
        return False
    return has_place and scheme in ("", "http", "https")


def exporting(exporter: SpanExporter, service_name: str) -> Tracing:
    """Return the same with any exporter."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service_name}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)
