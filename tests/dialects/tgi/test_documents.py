"""The OpenAPI document: it says what the server does, under the original's names, and holds against schemathesis."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from chat_runtime import ChatServer, chat_runtime

from dragoman.dialects.tgi import dialect as tgi
from dragoman.dialects.tgi.chat_fields import CHAT, COMPLETIONS
from dragoman.dialects.tgi.fields import COMPAT_GENERATE, PARAMETERS
from dragoman.dialects.tgi.openapi import DOCUMENTED, document
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

NAMES = [
    "BestOfSequence",
    "ChatCompletion",
    "ChatCompletionChoice",
    "ChatCompletionChunk",
    "ChatCompletionComplete",
    "ChatCompletionDelta",
    "ChatCompletionLogprob",
    "ChatCompletionLogprobs",
    "ChatCompletionTopLogprob",
    "ChatRequest",
    "ChatTokenizeResponse",
    "Chunk",
    "CompatGenerateRequest",
    "Completion",
    "CompletionComplete",
    "CompletionFinal",
    "CompletionRequest",
    "DeltaToolCall",
    "Details",
    "ErrorResponse",
    "FinishReason",
    "Function",
    "FunctionDefinition",
    "FunctionName",
    "GenerateParameters",
    "GenerateRequest",
    "GenerateResponse",
    "GrammarType",
    "Info",
    "JsonSchemaConfig",
    "Message",
    "MessageBody",
    "MessageChunk",
    "MessageContent",
    "ModelInfo",
    "OutputMessage",
    "PrefillToken",
    "Prompt",
    "SagemakerRequest",
    "SagemakerResponse",
    "SagemakerStreamResponse",
    "SimpleToken",
    "StreamDetails",
    "StreamOptions",
    "StreamResponse",
    "TextMessage",
    "Token",
    "TokenizeResponse",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallMessage",
    "ToolChoice",
    "ToolType",
    "Url",
    "Usage",
]

IDS = {
    "/": "compat_generate",
    "/generate": "generate",
    "/generate_stream": "generate_stream",
    "/tokenize": "tokenize",
    "/chat_tokenize": "get_chat_tokenize",
    "/health": "health",
    "/info": "get_model_info",
    "/metrics": "metrics",
    "/v1/chat/completions": "chat_completions",
    "/v1/completions": "completions",
    "/v1/models": "openai_get_model_info",
    "/invocations": "sagemaker_compatibility",
}

MADE = document(TgiSettings())
SCHEMAS = MADE["components"]["schemas"]


@pytest.fixture
async def runtime(template: ChatTemplate) -> AsyncIterator[ChatServer]:
    async with chat_runtime(template) as runtime:
        yield runtime


def test_names_and_ids_are_the_originals() -> None:
    assert (MADE["openapi"], MADE["info"]["title"]) == ("3.0.3", "Text Generation Inference")
    assert set(NAMES) <= set(SCHEMAS)
    found = {path: next(iter(methods.values()))["operationId"] for path, methods in MADE["paths"].items()}
    assert found == IDS
    tags = {tag for methods in MADE["paths"].values() for each in methods.values() for tag in each["tags"]}
    assert tags == {"Text Generation Inference"}


def test_every_operation_is_served() -> None:
    served = {(operation.method, operation.path) for operation in tgi.make(TgiSettings()).operations}
    # Every dialect has the metrics.
    wanted = {("POST" if each.request else "GET", each.path) for each in DOCUMENTED} - {("GET", "/metrics")}
    assert wanted <= served


def test_every_reference_leads_somewhere() -> None:
    references = set(re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(MADE)))
    assert references <= set(SCHEMAS)
    assert set(SCHEMAS) - references <= {"Completion"}, "a schema that nothing uses"


@pytest.mark.parametrize(
    ("schema", "required"),
    [
        ("GenerateRequest", ["inputs"]),
        ("CompatGenerateRequest", ["inputs"]),
        ("ChatRequest", ["messages"]),
        ("CompletionRequest", ["prompt"]),
        ("Tool", ["type", "function"]),
        ("FunctionDefinition", ["name"]),
        ("FunctionName", ["name"]),
        ("ErrorResponse", ["error", "error_type"]),
        ("Token", ["id", "text", "logprob", "special"]),
    ],
)
def test_required_keys(schema: str, required: list[str]) -> None:
    assert SCHEMAS[schema]["required"] == required


def test_every_field_of_a_request_is_there() -> None:
    tables = {"CompatGenerateRequest": COMPAT_GENERATE, "GenerateParameters": PARAMETERS, "ChatRequest": CHAT}
    for name, table in {**tables, "CompletionRequest": COMPLETIONS}.items():
        assert list(SCHEMAS[name]["properties"]) == [field.name for field in table.fields]


def test_ranges() -> None:
    native = SCHEMAS["GenerateParameters"]["properties"]
    for name in ("temperature", "top_k", "best_of", "repetition_penalty", "max_new_tokens", "truncate"):
        assert (native[name]["minimum"], native[name]["exclusiveMinimum"]) == (0, True), name
    for name in ("top_p", "typical_p"):
        assert (native[name]["minimum"], native[name]["exclusiveMinimum"], native[name]["maximum"]) == (0, True, 1)
    assert (native["frequency_penalty"]["minimum"], native["frequency_penalty"]["maximum"]) == (-2, 2)
    assert native["stop"]["maxItems"] == 4
    assert native["seed"]["maximum"] == 2**64 - 1
    larger = document(TgiSettings(max_stop_sequences=9, max_best_of=3, tgi_strict=True))["components"]["schemas"]
    assert larger["GenerateParameters"]["properties"]["stop"]["maxItems"] == 9
    assert larger["GenerateParameters"]["properties"]["best_of"]["maximum"] == 3
    assert larger["GenerateParameters"]["properties"]["top_p"]["exclusiveMaximum"] is True


async def test_the_document_and_its_page_are_served(runtime: ChatServer) -> None:
    for prefix in ("", "/tgi"):
        answer = await runtime.client.get(f"{prefix}/api-doc/openapi.json")
        assert answer.json() == {**MADE, "servers": [{"url": "/tgi"}]}
        assert answer.headers["content-type"] == "application/json"
        moved = await runtime.client.get(f"{prefix}/docs")
        assert moved.status_code == 303
        page = await runtime.client.get(moved.url.join(moved.headers["location"]))
        assert str(page.url).endswith(f"{prefix}/docs/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert all(f"id='{id}'" in page.text for id in IDS.values())
        links = set(re.findall(r"href='#(\w+)'", page.text))
        assert links <= set(re.findall(r"id='(\w+)'", page.text))
        assert not re.search(r"<(script|link|img)|\bsrc=|url\(", page.text), "it loads nothing from anywhere"
