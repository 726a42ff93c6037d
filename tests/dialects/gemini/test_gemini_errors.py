"""What the Gemini dialect refuses and reports, its queries, and its lists of models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gemini_calls import CITY, HI, TOOLS, V1BETA, WEATHER, choice, events_of, post
from scripted import ScriptedServer, scripted_server

from dragoman.text import ChatTemplate


@pytest.fixture(scope="module")
def calling(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


# What has no effect, and errors --------------------------------------------------------------------------------------


def test_what_has_no_effect_is_told(calling: ScriptedServer) -> None:
    calling.engine.texts = ["Hm."]
    fields = {
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "labels": {"a": "b"},
        "serviceTier": "flex",
        "store": True,
        "generationConfig": {
            "speechConfig": {"languageCode": "de"},
            "responseModalities": ["TEXT"],
            "mediaResolution": "MEDIA_RESOLUTION_LOW",
            "thinkingConfig": {"thinkingBudget": 5},
            "temprature": 1,
        },
        "tools": [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}],
    }
    answer = post(calling, f"{V1BETA}:generateContent", {"contents": HI, **fields})
    assert answer.headers["x-dragoman-warnings"] == (
        "unknown: generationConfig.temprature; ignored: safetySettings, labels, serviceTier, store, "
        "tools[0].functionDeclarations[0].behavior, generationConfig.speechConfig, generationConfig.thinkingConfig, "
        "generationConfig.mediaResolution"
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"contents": []}, "contents"),
        ({"contents": None}, "contents"),
        ({"contents": [{"role": "assistant", "parts": []}]}, "contents[0].role"),
        ({"contents": [{"role": "user"}]}, "contents[0].parts"),
        ({"contents": [{"parts": [{}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"parts": [{"text": 7}]}]}, "contents[0].parts[0].text"),
        ({"generationConfig": {"temperature": 3}}, "generationConfig.temperature"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"topK": 1.5}}, "generationConfig.topK"),
        ({"generationConfig": {"logprobs": 3}}, "generationConfig.logprobs"),
        ({"generationConfig": {"responseMimeType": "application/xml"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        (
            {"generationConfig": {"responseMimeType": "text/plain", "responseSchema": CITY}},
            "generationConfig.responseMimeType",
        ),
        (
            {"generationConfig": {"responseSchema": CITY, "responseJsonSchema": {}}},
            "generationConfig.responseJsonSchema",
        ),
        ({"generationConfig": {"responseSchema": {"type": "TEXT"}}}, "generationConfig.responseSchema.type"),
        ({"generationConfig": {"responseSchema": {"items": 1}}}, "generationConfig.responseSchema.items"),
        (
            {"generationConfig": {"responseSchema": {"propertyOrdering": ["a"]}}},
            "generationConfig.responseSchema.propertyOrdering",
        ),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "generationConfig.responseModalities"),
        ({"cachedContent": "cachedContents/a"}, "cachedContent"),
        ({"modelArmorConfig": {"promptTemplateName": "a"}}, "modelArmorConfig"),
        ({"tools": [{"googleSearch": {}}]}, "tools[0].googleSearch"),
        ({"tools": [{"url_context": {}}]}, "tools[0].urlContext"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"functionDeclarations": [WEATHER, WEATHER]}]}, "tools[0].functionDeclarations[1].name"),
        (
            {"tools": [{"functionDeclarations": [WEATHER | {"parametersJsonSchema": {}}]}]},
            "tools[0].functionDeclarations[0].parametersJsonSchema",
        ),
        (choice("ANY"), "toolConfig.functionCallingConfig"),
        (
            {"tools": [{"functionDeclarations": [{"name": f"f{i}_{j}"} for i in range(300)]} for j in range(2)]},
            "tools",
        ),
        (TOOLS | choice("ANY", "nobody"), "toolConfig.functionCallingConfig.allowedFunctionNames[0]"),
        (TOOLS | choice("AUTO", "weather"), "toolConfig.functionCallingConfig.allowedFunctionNames"),
        ({"toolConfig": {"functionCallingConfig": {"type": "any"}}}, "toolConfig.functionCallingConfig.type"),
        (
            {
                "contents": [*HI, {"role": "model", "parts": [{"text": "It"}]}],
                "generationConfig": {"responseSchema": {}},
            },
            "generationConfig.responseSchema",
        ),
    ],
)  # fmt: skip
def test_errors_are_googles_and_name_the_field(calling: ScriptedServer, fields: dict[str, Any], field: str) -> None:
    before = len(calling.engine.requests)
    for method in ("generateContent", "streamGenerateContent?alt=sse"):
        answer = post(calling, f"{V1BETA}:{method}", {"contents": HI, **fields})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert list(error) == ["code", "message", "status", "details"]
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
        (violation,) = error["details"][0]["fieldViolations"]
        assert violation == {"field": field, "description": error["message"]}
        assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.BadRequest"
        assert field in error["message"] or field.rpartition(".")[0] in error["message"]
    assert len(calling.engine.requests) == before


def test_queries(calling: ScriptedServer) -> None:
    calling.engine.texts = ["Hm."]
    for query, status in (
        ("alt=json&prettyPrint=false&key=any", 200),
        ("$alt=json", 200),
        ("$alt=json%3Benum-encoding=int", 200),
        ("alt=sse", 400),
        ("alt=proto", 400),
        ("fields=candidates", 400),
        ("nonsense=1", 400),
    ):
        answer = post(calling, f"{V1BETA}:generateContent?{query}", {"contents": HI})
        assert answer.status_code == status, query
    streamed = post(calling, f"{V1BETA}:streamGenerateContent?$alt=sse", {"contents": HI})
    assert events_of(streamed)
    assert post(calling, f"{V1BETA}:streamGenerateContent?alt=media", {"contents": HI}).status_code == 400


def test_what_is_not_there_is_unknown_in_googles_words(calling: ScriptedServer) -> None:
    for method, path in (("GET", "/v1beta/files"), ("POST", "/v1beta/cachedContents"), ("GET", "/v1beta/operations/a")):
        answer = httpx.request(method, calling.url + path)
        assert (answer.status_code, answer.json()["error"]["status"]) == (404, "NOT_FOUND"), path
    upload = httpx.post(f"{calling.url}/upload/v1beta/files", headers={"x-goog-api-client": "google-genai-sdk/3"})
    assert (upload.status_code, upload.json()["error"]["status"]) == (404, "NOT_FOUND")
    wrong = httpx.get(f"{calling.url}{V1BETA}:generateContent")
    assert wrong.status_code in (404, 405)
    assert wrong.json()["error"]["code"] == wrong.status_code


# Models --------------------------------------------------------------------------------------------------------------


def test_models(calling: ScriptedServer) -> None:
    page = httpx.get(f"{calling.url}/v1beta/models?pageSize=1000").json()
    (entry, *_) = page["models"]
    assert "nextPageToken" not in page
    assert (entry["name"], entry["inputTokenLimit"], entry["outputTokenLimit"]) == ("models/stub", 4096, 4095)
    assert entry["supportedGenerationMethods"][:3] == ["generateContent", "streamGenerateContent", "countTokens"]
    assert httpx.get(f"{calling.url}/v1beta/models/gemini-2.5-pro").json() == entry
    headers = {"x-goog-api-key": "any"}
    assert httpx.get(f"{calling.url}/v1/models", headers=headers).json() == page
    assert httpx.get(f"{calling.url}/v1/models/stub", headers=headers).json() == entry
    assert httpx.get(f"{calling.url}/v1/models").json()["object"] == "list"
    assert httpx.get(f"{calling.url}/v1/models/stub").json()["object"] == "model"
    assert httpx.get(f"{calling.url}/v1beta/models/nobody").json()["error"]["status"] == "NOT_FOUND"


def test_pages_of_models(calling: ScriptedServer) -> None:
    names, token = [], ""
    whole = [each["name"] for each in httpx.get(f"{calling.url}/v1beta/models").json()["models"]]
    for _ in range(len(whole) + 1):
        page = httpx.get(f"{calling.url}/v1beta/models", params={"pageSize": 1, "pageToken": token}).json()
        names += [each["name"] for each in page["models"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert names == whole
    for query in ("pageSize=many", "pageSize=-1", "pageToken=nobody"):
        bad = httpx.get(f"{calling.url}/v1beta/models?{query}")
        assert (bad.status_code, bad.json()["error"]["status"]) == (400, "INVALID_ARGUMENT"), query
