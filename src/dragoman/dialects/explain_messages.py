"""Conversations and tools in the forms in which dialects write them, for ``explain_translation`` to try.

Dialects that call a field ``messages`` agree on roles and texts. They differ in where images, calls of tools and their
results are, and in how a tool is described.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.core.image_sources import ImageSource

Message = Mapping[str, Any]

_TYPES = {"iVBOR": "image/png", "/9j/": "image/jpeg", "UklGR": "image/webp", "R0lGO": "image/gif", "Qk": "image/bmp"}
"""By the first characters of its base64, the type of an image file."""

_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
"""How OpenAI and Anthropic say whether tools are called."""


class _File(NamedTuple):
    """An image in the request itself: its type, and its bytes in base64."""

    media_type: str
    data: str


def conversations(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    """Yield the messages of a ``ChatPrompt``, with the sources of their images, as OpenAI, Ollama and Anthropic write
    them; nothing for a conversation of texts alone, which all write alike."""
    if any(not isinstance(each.get("content"), str) or each.get("tool_calls") for each in messages):
        yield [_openai(each) for each in messages]
        yield [_ollama(each) for each in messages]
        yield _anthropic(messages)


def tool_forms(tools: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield OpenAI's list of tools as Anthropic writes it, and Anthropic's as OpenAI does."""
    match tools:
        case [{"function": {"name": _}}, *_]:
            yield [_flat_tool(tool["function"]) for tool in tools if "function" in tool]
        case [{"name": _, "input_schema": _}, *_]:
            yield [
                {"type": "function", "function": {**_described(tool), "parameters": tool.get("input_schema", {})}}
                for tool in tools
            ]


def choice_forms(choice: Any) -> Iterator[Any]:
    """Yield which tools are called, as the other of OpenAI and Anthropic writes it."""
    match choice:
        case str() if choice in _CHOICES:
            yield {"type": _CHOICES[choice]}
        case {"type": "function", "function": {"name": name}}:
            yield {"type": "tool", "name": name}
        case {"type": "tool", "name": name}:
            yield {"type": "function", "function": {"name": name}}
        case {"type": str(kind)}:
            yield from (ours for ours, theirs in _CHOICES.items() if theirs == kind)


def _flat_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {}
    return {**_described(function), "input_schema": {"type": "object", **schema}}


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}


def _openai(message: Message) -> dict[str, Any]:
    written = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        written["content"] = [_image_url(part["source"]) if part["type"] == "image" else dict(part) for part in content]
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _as_text(call["function"]["arguments"])}}
            for call in calls
        ]
    return written


def _image_url(source: ImageSource) -> dict[str, Any]:
    detail = {} if source.detail == "auto" else {"detail": source.detail}
    return {"type": "image_url", "image_url": {"url": _url(source), **detail}}


def _ollama(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message["role"], "content": "".join(_texts(message))}
    if images := [image_file(source).data for source in _sources(message)]:
        written["images"] = images
    if thinking := message.get("reasoning_content"):
        written["thinking"] = thinking
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [
            {"function": {name: call["function"][name] for name in ("name", "arguments")}} for call in calls
        ]
    if name := message.get("name"):
        written["tool_name"] = name
    return written


def _anthropic(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return them with blocks. Results of tools are in a message of the user, those of one turn in the same."""
    written: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = message["role"], _blocks(message)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            block = {"type": "tool_use", "id": call.get("id", ""), "name": function["name"]}
            blocks.append({**block, "input": function["arguments"]})
        if role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": blocks}
            if written and written[-1]["role"] == "user" and written[-1]["content"][-1]["type"] == "tool_result":
                written[-1]["content"].append(result)
                continue
            role, blocks = "user", [result]
        written.append({"role": role, "content": "".join(_texts(message)) if role == "system" else blocks})
    return written


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return [_image_block(part["source"]) if part["type"] == "image" else dict(part) for part in parts if part != _EMPTY]


_EMPTY = {"type": "text", "text": ""}


def _image_block(source: ImageSource) -> dict[str, Any]:
    if source.url and not source.url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": source.url}}
    file = image_file(source)
    return {"type": "image", "source": {"type": "base64", "media_type": file.media_type, "data": file.data}}


def _texts(message: Message) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if part["type"] == "text":
            yield part["text"]


def _sources(message: Message) -> Iterator[ImageSource]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if part["type"] == "image":
            yield part["source"]


def image_file(source: ImageSource) -> _File:
    """Return the file of a source in base64; of an address, which a request would have to fetch, nothing."""
    data = source.data or base64.b64encode(source.file).decode()
    if source.url.startswith("data:"):
        data = source.url.partition(",")[2]
    found = next((kind for start, kind in _TYPES.items() if data.startswith(start)), "image/png")
    return _File(found, data)


def _url(source: ImageSource) -> str:
    if source.url:
        return source.url
    file = image_file(source)
    return f"data:{file.media_type};base64,{file.data}"


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
