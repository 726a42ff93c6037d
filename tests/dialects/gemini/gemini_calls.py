"""Ways to ask a server of scripted texts in Google's form, whole and streamed."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from scripted import ScriptedServer

V1BETA = "/v1beta/models/stub"
HI: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": "Hi."}]}]
WEATHER = {
    "name": "weather",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING", "nullable": True}}},
}
TIME = {"name": "get_time", "description": "The time."}
TOOLS: dict[str, Any] = {"tools": [{"functionDeclarations": [WEATHER]}, {"functionDeclarations": [TIME]}]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
SOURCE = (
    "{% for m in messages %}[{{ m.role }}: {{ m.content }}{{ m.reasoning_content }}]{% endfor %}"
    "{{ enable_thinking }}{{ reasoning_effort }}{# <think></think> #}"
)
THOUGHT = "<think>\nIs it?\n</think>\n\nIt is."
CITY = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}


def choice(mode: str, *names: str) -> dict[str, Any]:
    allowed = {"allowedFunctionNames": [*names]} if names else {}
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, **allowed}}}


def post(server: ScriptedServer, path: str, body: Any, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=20, **more)


def ask(server: ScriptedServer, text: str | list[str], config: Any = None, **fields: Any) -> dict[str, Any]:
    """The whole answer, which is also what its streams come to, in events and in an array."""
    server.engine.texts = [text] if isinstance(text, str) else text
    body = {"contents": HI, **fields} | ({} if config is None else {"generationConfig": config})
    answer = post(server, f"{V1BETA}:generateContent", body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    events = events_of(post(server, f"{V1BETA}:streamGenerateContent?alt=sse", body))
    array = post(server, f"{V1BETA}:streamGenerateContent", body)
    assert array.headers["content-type"] == "application/json"
    for chunks in (events, array.json()):
        assert unnumbered(gathered(chunks)) == unnumbered(whole)
    return whole


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = answer.text.removesuffix("\n\n").split("\n\n")
    return [json.loads(re.fullmatch("data: (.*)", line)[1]) for line in lines]  # type: ignore[index]


def gathered(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that chunks come to: texts of a kind put together, and empty ones left out."""
    candidates: dict[int, dict[str, Any]] = {}
    for i, chunk in enumerate(chunks):
        assert ("usageMetadata" in chunk) == (i == len(chunks) - 1)
        assert {chunk["modelVersion"], chunk["responseId"]} == {"stub", chunks[0]["responseId"]}
        for each in chunk["candidates"]:
            index = each["index"]
            made = candidates.setdefault(index, {"content": {"parts": [], "role": "model"}, "index": index})
            assert each["content"]["role"] == "model"
            for part in each["content"]["parts"]:
                last = made["content"]["parts"][-1] if made["content"]["parts"] else {}
                if "text" in part and "text" in last and part.get("thought") == last.get("thought"):
                    last["text"] += part["text"]
                elif part != {"text": ""}:
                    made["content"]["parts"].append(dict(part))
            made |= {name: each[name] for name in ("finishReason", "finishMessage") if name in each}
            if "logprobsResult" in each:
                known = made.setdefault("logprobsResult", {"chosenCandidates": [], "topCandidates": []})
                for name in known:
                    known[name] += each["logprobsResult"].get(name, [])
    for made in candidates.values():
        made["content"]["parts"] = made["content"]["parts"] or [{"text": ""}]
    return chunks[-1] | {"candidates": [candidates[index] for index in sorted(candidates)]}


def unnumbered(response: dict[str, Any]) -> dict[str, Any]:
    assert re.fullmatch("[0-9a-f]{24}", response["responseId"])
    made: dict[str, Any] = json.loads(re.sub('"call_[0-9a-f]+"', '"call_"', json.dumps(response)))
    made["usageMetadata"].pop("cachedContentTokenCount", None)
    for candidate in made["candidates"]:
        candidate.pop("avgLogprobs", None)
        for name in ("logProbabilitySum", "topCandidates"):
            candidate.get("logprobsResult", {}).pop(name, None)
    return {**made, "responseId": ""}


def parts(response: dict[str, Any]) -> list[dict[str, Any]]:
    (candidate,) = response["candidates"]
    found: list[dict[str, Any]] = candidate["content"]["parts"]
    return found
