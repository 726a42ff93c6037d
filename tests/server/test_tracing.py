"""Traces: a span for each request, in the caller's trace, at a collector; and nothing where none is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from stub_house import LocalHouse

from dragoman.core.errors import DragomanError
from dragoman.server.tracing import Tracing, TracingSettings, exporting, tracing_of

pytestmark = pytest.mark.anyio

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True, "seed": 11, "temperature": 0.5}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def traced(house: LocalHouse, spans: InMemorySpanExporter) -> Tracing:
    tracing = exporting(spans, "a-server")
    house.metrics.observers.append(tracing)
    return tracing


def sent(tracing: Tracing, spans: InMemorySpanExporter) -> list[Any]:
    tracing.close()
    return list(spans.get_finished_spans())


async def test_a_span_tells_what_was_asked_and_how_long_it_took(
    house: LocalHouse, traced: Tracing, spans: InMemorySpanExporter
) -> None:
    answer = await house.client.post("/v1/completions", json={**BODY, "stop": ["secret word"]})
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


async def test_the_callers_trace_goes_on(house: LocalHouse, traced: Tracing, spans: InMemorySpanExporter) -> None:
    answer = await house.client.post("/v1/completions", json=BODY, headers={"traceparent": CALLER})
    [span] = sent(traced, spans)
    assert f"{span.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{span.parent.span_id:016x}" == CALLER.split("-")[2]
    assert answer.headers["traceparent"] == f"00-{CALLER.split('-')[1]}-{span.context.span_id:016x}-01"


@pytest.mark.parametrize("header", ["", "nonsense", CALLER.replace("00-", "ff-", 1), CALLER[:-3], "00-" + "0" * 32])
async def test_a_header_that_names_no_span_begins_a_trace(
    house: LocalHouse, traced: Tracing, spans: InMemorySpanExporter, header: str
) -> None:
    answer = await house.client.post("/v1/completions", json=BODY, headers={"traceparent": header})
    assert answer.status_code == 200
    [span] = sent(traced, spans)
    assert span.parent is None


async def test_a_stream_ends_its_span_at_its_end(
    house: LocalHouse, traced: Tracing, spans: InMemorySpanExporter
) -> None:
    async with house.client.stream("POST", "/v1/completions", json={**BODY, "stream": True, "n": 2}) as answer:
        assert [line async for line in answer.aiter_lines()][-2] == "data: [DONE]"
    [span] = sent(traced, spans)
    assert span.attributes["generated_tokens"] == 10


async def test_errors_are_named_and_only_the_servers_own_are_faults(
    house: LocalHouse, traced: Tracing, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.client.post("/v1/completions", json={"prompt": 5})
    monkeypatch.setattr(house.serving, "generate", lambda _: 1 / 0)
    await house.client.post("/v1/completions", json=BODY)
    await house.client.get("/v1/models")
    wrong, failed = sent(traced, spans)
    assert (wrong.attributes["error.type"], wrong.status.is_ok) == ("Violation", True)
    assert (failed.attributes["error.type"], failed.status.is_ok) == ("ZeroDivisionError", False)
    assert failed.attributes["http.response.status_code"] == 500


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


async def test_spans_reach_a_collector(house: LocalHouse, collector: tuple[Collector, int]) -> None:
    heard, port = collector
    tracing = tracing_of(TracingSettings(otlp_endpoint=f"http://127.0.0.1:{port}"))
    assert tracing is not None
    house.metrics.observers.append(tracing)
    answers: list[httpx.Response] = [await house.client.post("/v1/completions", json=BODY) for _ in range(3)]
    tracing.close()
    ids = {attribute.value.string_value for span in heard.spans for attribute in span.attributes}
    assert {answer.headers["x-request-id"] for answer in answers} <= ids


async def test_without_an_endpoint_nothing_is_there(house: LocalHouse) -> None:
    assert tracing_of(TracingSettings()) is None
    answer = await house.client.post("/v1/completions", json=BODY, headers={"traceparent": CALLER})
    assert "traceparent" not in answer.headers


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(DragomanError, match=r"pip install 'dragoman\[otlp\]'"):
        tracing_of(TracingSettings(otlp_endpoint="http://127.0.0.1:4317"))
