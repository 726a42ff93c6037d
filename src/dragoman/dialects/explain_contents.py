"""Conversations, tools and choices in the form of Google's API, and from it: for ``explain_translation`` to try."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.core.image_sources import ImageSource
from dragoman.dialects.explain_messages import choice_forms, image_file, tool_forms

Message = Mapping[str, Any]

_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
"""How OpenAI and Google say whether tools are called."""


def contents(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages of a ``ChatPrompt`` as contents. Results of tools are in a content of the user, those of one
    turn in the same."""
    names: dict[str, str] = {}
    written: list[dict[str, Any]] = []
    for message in messages:
        role = {"assistant": "model", "tool": "user"}.get(message["role"], message["role"])
        parts = list(_parts(message))
        for call in message.get("tool_calls") or ():
            function, id = call["function"], call.get("id", "")
            names[id] = function["name"]
            parts.append({"functionCall": {"id": id, "name": function["name"], "args": _as_object(function)}})
        if message["role"] == "tool":
            id = message.get("tool_call_id", "")
            text = "".join(part.get("text", "") for part in parts)
            name = message.get("name") or names.get(id, "")
            answer = {"functionResponse": {"id": id, "name": name, "response": {"output": text}}}
            if written and "functionResponse" in written[-1]["parts"][-1]:
                written[-1]["parts"].append(answer)
                continue
            parts = [answer]
        written.append({"role": role, "parts": parts or [{"text": ""}]})
    return written


def declared_forms(tools: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield OpenAI's and Anthropic's list of tools as Google writes it, and Google's as both do."""
    match tools:
        case [{"function": {"name": _}}, *_]:
            yield [{"functionDeclarations": [_declared(each["function"]) for each in tools if "function" in each]}]
        case [{"name": _, "input_schema": _}, *_]:
            for theirs in tool_forms(tools):
                yield from declared_forms(theirs)
        case [{"functionDeclarations": [*_]}, *_]:
            declared = [each for tool in tools for each in tool.get("functionDeclarations") or ()]
            ours = [{"type": "function", "function": _function(each)} for each in declared]
            yield ours
            yield from tool_forms(ours)


def calling_forms(choice: Any) -> Iterator[Any]:
    """Yield which tools are called, as Google writes what OpenAI and Anthropic do, and the other way round."""
    match choice:
        case str() if choice in _MODES:
            yield {"mode": _MODES[choice]}
        case {"type": "function", "function": {"name": name}} | {"type": "tool", "name": name}:
            yield {"mode": "ANY", "allowedFunctionNames": [name]}
        case {"type": str()}:
            for ours in choice_forms(choice):
                yield from calling_forms(ours)
        case {"mode": "ANY", "allowedFunctionNames": [str(name)]}:
            yield (named := {"type": "function", "function": {"name": name}})
            yield from choice_forms(named)
        case {"mode": str(mode)}:
            for ours, theirs in _MODES.items():
                if theirs == mode:
                    yield ours
                    yield from choice_forms(ours)


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    if thought := message.get("reasoning_content"):
        yield {"text": thought, "thought": True}
    content = message.get("content")
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    for part in parts:
        if part["type"] == "image":
            yield _image(part["source"])
        elif part["text"]:
            yield {"text": part["text"]}


def _image(source: ImageSource) -> dict[str, Any]:
    resolution = {"low": "MEDIA_RESOLUTION_LOW", "high": "MEDIA_RESOLUTION_HIGH"}.get(source.detail)
    detail = {} if resolution is None else {"mediaResolution": {"level": resolution}}
    if source.url and not source.url.startswith("data:"):
        return {"fileData": {"fileUri": source.url, "mimeType": "image/png"}, **detail}
    file = image_file(source)
    return {"inlineData": {"mimeType": file.media_type, "data": file.data}, **detail}


def _declared(function: Mapping[str, Any]) -> dict[str, Any]:
    declared = {name: function[name] for name in ("name", "description") if function.get(name) is not None}
    schema = function.get("parameters")
    return declared if schema is None else {**declared, "parametersJsonSchema": schema}


def _function(declared: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: declared[name] for name in ("name", "description") if declared.get(name) is not None}
    schema = declared.get("parametersJsonSchema") or declared.get("parameters")
    return function if schema is None else {**function, "parameters": schema}


def _as_object(function: Mapping[str, Any]) -> Any:
    arguments = function["arguments"]
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return {}
