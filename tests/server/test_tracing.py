"""Traces: a span for each request, in the caller's trace, at a collector; and nothing where none is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sockets import until
from stub_runtime import QUICK, STUB, LocalServer, running_server
from websockets.sync.client import connect

from dragoman.core.errors import DragomanError
from dragoman.server.tracing import Tracing, TracingSettings, exporting, tracing_of

pytestmark = pytest.mark.anyio

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAMED = msgspec.structs.replace(QUICK, metric_names=("tgi",))
BODY = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True, "seed": 11, "temperature": 0.5}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def traced(runtime: LocalServer, spans: InMemorySpanExporter) -> Tracing:
    tracing = exporting(spans, "a-server")
    runtime.metrics.observers.add(tracing)
    return tracing


def sent(tracing: Tracing, spans: InMemorySpanExporter) -> list[Any]:
    tracing.close()
    return list(spans.get_finished_spans())


async def test_a_span_tells_what_was_asked_and_how_long_it_took(
    runtime: LocalServer, traced: Tracing, spans: InMemorySpanExporter
) -> None:
    answer = await runtime.client.post("/v1/completions", json={**BODY, "stop": ["secret word"]})
    [span] = sent(traced, spans)
    assert span.name == "/v1/completions"
    assert span.resource.attributes["service.name"] == "a-server"
    told = dict(span.attributes)
    assert json.loads(told["parameters"]) == {
        "temperature": 0.5,
        "ignore_eos": True,
        "stop": 1,
        "max_tokens": 5,
        "n": 1,
    }
    assert told["seed"] == "11" == answer.headers["x-dragoman-seed"]
    assert told["generated_tokens"] == 5
    assert told["http.response.status_code"] == 200
    assert told["request_id"] == answer.headers["x-request-id"]
    parts = [told[name] for name in ("validation_time", "queue_time", "inference_time")]
    assert 0 < sum(parts) <= told["total_time"]
    assert told["time_per_token"] == pytest.approx(told["inference_time"] / 5)
    assert "secret" not in str(told)
    assert "Once upon" not in str(told)


async def test_the_callers_trace_goes_on(runtime: LocalServer, traced: Tracing, spans: InMemorySpanExporter) -> None:
    answer = await runtime.client.post("/v1/completions", json=BODY, headers={"traceparent": CALLER})
    [span] = sent(traced, spans)
    assert f"{span.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{span.parent.span_id:016x}" == CALLER.split("-")[2]
    assert answer.headers["traceparent"] == f"00-{CALLER.split('-')[1]}-{span.context.span_id:016x}-01"


@pytest.mark.parametrize("header", ["", "nonsense", CALLER.replace("00-", "ff-", 1), CALLER[:-3], "00-" + "0" * 32])
async def test_a_header_that_names_no_span_begins_a_trace(
    runtime: LocalServer, traced: Tracing, spans: InMemorySpanExporter, header: str
) -> None:
    answer = await runtime.client.post("/v1/completions", json=BODY, headers={"traceparent": header})
    assert answer.status_code == 200
    [span] = sent(traced, spans)
    assert span.parent is None


async def test_a_stream_ends_its_span_at_its_end(
    runtime: LocalServer, traced: Tracing, spans: InMemorySpanExporter
) -> None:
    async with runtime.client.stream("POST", "/v1/completions", json={**BODY, "stream": True, "n": 2}) as answer:
        assert [line async for line in answer.aiter_lines()][-2] == "data: [DONE]"
    [span] = sent(traced, spans)
    assert span.attributes["generated_tokens"] == 10


async def test_errors_are_named_and_only_the_servers_own_are_faults(
    runtime: LocalServer, traced: Tracing, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runtime.client.post("/v1/completions", json={"prompt": 5})
    monkeypatch.setattr(runtime.serving, "generate", lambda _: 1 / 0)
    await runtime.client.post("/v1/completions", json=BODY)
    await runtime.client.get("/v1/models")
    wrong, failed = sent(traced, spans)
    assert (wrong.attributes["error.type"], wrong.status.is_ok) == ("FieldError", True)
    assert (failed.attributes["error.type"], failed.status.is_ok) == ("ZeroDivisionError", False)
    assert failed.attributes["http.response.status_code"] == 500


def span_named(request_id: str, spans: InMemorySpanExporter) -> dict[str, Any]:
    """The attributes of it, once it has ended."""
    until(lambda: request_id in {span.attributes["request_id"] for span in spans.get_finished_spans()})
    [span] = [s for s in spans.get_finished_spans() if s.attributes["request_id"] == request_id]
    assert f"{span.parent.span_id:016x}" == CALLER.split("-")[2]
    return dict(span.attributes)


def test_each_message_of_a_socket_has_its_span_in_the_trace_of_the_handshake(spans: InMemorySpanExporter) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    slow = msgspec.structs.replace(STUB, step_s=0.03)  # the last answer takes 6 s, which its client does not stay for
    with running_server(NAMED, slow) as server:
        server.runtime.observers.add(Tracing(provider))
        url = f"ws://127.0.0.1:{server.port}/alexandria/api/ws"
        with connect(url, additional_headers={"traceparent": CALLER, "x-request-id": "here"}) as socket:
            for number, limit in ((1, 3), (2, 5)):
                prompt = {"request_id": f"a{number}", "prompt": "Once upon a time"}
                config = {"max_new_tokens": limit}
                socket.send(json.dumps({"prompts": [prompt], "generation_config": config}))
                while "COMPLETE" not in socket.recv(60):
                    pass
                told = span_named(f"here-{number}", spans)
                assert (told["generated_tokens"], told["http.response.status_code"]) == (limit, 200)
                assert (told["dialect"], told["http.route"]) == ("alexandria", "/api/ws")
                assert 0 < told["queue_time"] + told["inference_time"] <= told["total_time"]
                assert "Once upon" not in str(told)
            socket.send("no JSON")
            socket.recv(60)
            assert span_named("here-3", spans)["http.response.status_code"] == 400
            long = {"prompts": [{**prompt, "request_id": "b"}], "generation_config": {"max_new_tokens": 200}}
            socket.send(json.dumps(long))
            while "PROGRESS" not in socket.recv(60):
                pass
        told = span_named("here-4", spans)
        assert (told["error.type"], told["http.response.status_code"]) == ("Cancelled", 499)
        figures = httpx.get(f"{server.url}/tgi/metrics").text
    assert len(spans.get_finished_spans()) == 4
    assert "tgi_request_success 2" in figures


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes what exporters send."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, int]]:
    server, collector = grpc.server(futures.ThreadPoolExecutor(2)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, port
    server.stop(0).wait()


async def test_spans_reach_a_collector(runtime: LocalServer, collector: tuple[Collector, int]) -> None:
    heard, port = collector
    tracing = tracing_of(TracingSettings(otlp_endpoint=f"http://127.0.0.1:{port}"))
    assert tracing is not None
    runtime.metrics.observers.add(tracing)
    answers: list[httpx.Response] = [await runtime.client.post("/v1/completions", json=BODY) for _ in range(3)]
    tracing.close()
    ids = {attribute.value.string_value for span in heard.spans for attribute in span.attributes}
    assert {answer.headers["x-request-id"] for answer in answers} <= ids


async def test_without_an_endpoint_nothing_is_there(runtime: LocalServer) -> None:
    assert tracing_of(TracingSettings()) is None
    answer = await runtime.client.post("/v1/completions", json=BODY, headers={"traceparent": CALLER})
    assert "traceparent" not in answer.headers


@pytest.mark.parametrize(
    "endpoint",
    ["", "  ", "junk", "localhost:x", "http://", "ftp://host:1", "http://a b:4317", "http://[::1", "unix:", "dns:///"],
)
def test_what_is_no_address_of_a_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(DragomanError, match=r"--otlp-endpoint .*: an address such as"):
        tracing_of(TracingSettings(otlp_endpoint=endpoint))


@pytest.mark.parametrize(
    "endpoint", ["localhost:4317", "[::1]:4317", "https://host", "unix:///run/otel.sock", "dns:///host:4317"]
)
def test_each_address_that_grpc_takes_is_one(endpoint: str) -> None:
    tracing = tracing_of(TracingSettings(otlp_endpoint=endpoint))
    assert tracing is not None
    tracing.close()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(DragomanError, match=r"pip install 'dragoman\[otlp\]'"):
        tracing_of(TracingSettings(otlp_endpoint="http://127.0.0.1:4317"))
