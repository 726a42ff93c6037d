"""What two coding agents send in a conversation of many turns: Codex over Responses, Claude Code over Messages.

A recording is the list of requests of one conversation, with the answers that the agent had then; each request has
the one before it whole. ``size`` is about the number of characters of the head (instructions and tools), ``result``
that of what a tool answers.
"""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64encode
from typing import Any

TURNS = 20
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "authorization": "Bearer none",
    "x-app": "cli",
}
CODEX_HEADERS = {
    "originator": "codex_cli_rs",
    "session_id": "5d1f",
    "conversation_id": "5d1f",
    "accept": "text/event-stream",
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WORDS = "Read the file before you change it, and say what you did. "


def filled(text: str, size: int) -> str:
    return (text + " " + WORDS * (1 + size // len(WORDS)))[: max(size, len(text))]


def schema(*names: str) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": f"The {name}."} for name in names}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        "required": list(names),
        "additionalProperties": False,
    }


# Codex ----------------------------------------------------------------------------------------------------------------


def codex_tools(size: int) -> list[dict[str, Any]]:
    function: dict[str, Any] = {"type": "function", "strict": False}
    return [
        function
        | {"name": "shell", "description": filled("Runs a command.", size // 4), "parameters": schema("command")},
        function | {"name": "update_plan", "description": "Updates the plan.", "parameters": schema("plan")},
        {
            "type": "custom",
            "name": "apply_patch",
            "description": filled("Edits files.", size // 4),
            "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)*/'},
        },
        {
            "type": "namespace",
            "name": "mcp__files",
            "description": "Files.",
            "tools": [function | {"name": "search", "description": "Searches.", "parameters": schema("pattern")}],
        },
        {"type": "web_search", "external_web_access": False},
    ]


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def thought(turn: int) -> dict[str, Any]:
    text = f"Step {turn} needs a look."
    hidden = urlsafe_b64encode(zlib.compress(text.encode())).decode().rstrip("=")
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "summary": summary, "content": None, "encrypted_content": f"dgm1z.{hidden}"}


def codex_turn(turn: int, result: int) -> list[dict[str, Any]]:
    """What one turn adds: what the model had answered, and what came of it."""
    seen, call = filled(f"total {turn}", result), {"call_id": f"call_{turn}"}
    match turn % 4:
        case 0:
            asked = {"type": "custom_tool_call", "name": "apply_patch", "input": f"*** Begin Patch\n+{turn}", **call}
            return [thought(turn), asked, {"type": "custom_tool_call_output", "output": "Done!", **call}]
        case 1:
            output = [{"type": "input_text", "text": seen}]
            if turn % 8 == 1:
                output.append({"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"})
        case 2:
            asked = {
                "type": "function_call",
                "name": "search",
                "namespace": "mcp__files",
                "arguments": '{"pattern":"x"}',
            }
            answered = {"type": "function_call_output", "output": seen, **call}
            return [asked | call, answered, message("assistant", f"Step {turn} is done."), message("user", "Go on.")]
        case _:
            second = {"type": "function_call", "name": "shell", "arguments": '{"command":"ls"}', "call_id": f"{turn}b"}
            answers = [
                {"type": "function_call_output", "output": seen, **call},
                {"type": "function_call_output", "output": "a", "call_id": f"{turn}b"},
            ]
            first = {"type": "function_call", "name": "shell", "arguments": '{"command":"cat a"}', **call}
            return [thought(turn), message("assistant", "Both at once."), first, second, *answers]
    asked = {"type": "function_call", "name": "shell", "arguments": '{"command":"cat b"}', **call}
    developer = message("developer", "<permissions>The sandbox is read-only.</permissions>")
    return [thought(turn), asked, {"type": "function_call_output", "output": output, **call}, developer]


def codex(turns: int, size: int, result: int) -> list[dict[str, Any]]:
    items = [
        message("developer", "<permissions instructions>The sandbox may write.</permissions instructions>"),
        message("user", "<environment_context>\n  <cwd>/src</cwd>\n</environment_context>"),
        message("user", "Mend the test that fails."),
    ]
    requests = []
    for turn in range(turns):
        items = [*items, *(codex_turn(turn, result) if turn else [])]
        requests.append(
            {
                "model": "stub",
                "instructions": filled("You are a coding agent.", size // 2),
                "input": items,
                "tools": codex_tools(size),
                "tool_choice": "auto",
                "parallel_tool_calls": True,
                "reasoning": {"effort": "medium", "summary": "auto"},
                "store": False,
                "stream": True,
                "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "5d1f",
                "text": {"verbosity": "low"},
            }
        )
    return requests


# Claude Code ----------------------------------------------------------------------------------------------------------


def claude_tools(size: int) -> list[dict[str, Any]]:
    names = ["Bash", "Edit", "Glob", "Grep", "Read", "Task", "TodoWrite", "ToolSearch", "Write"]
    tools = [
        {
            "name": name,
            "description": filled(f"{name} does what its name says.", size // 2 // len(names)),
            "input_schema": schema("path", "what"),
            "eager_input_streaming": True,
        }
        for name in names
    ]
    return [*tools, {"name": "WebFetch", "description": "Reads.", "input_schema": schema("url"), "defer_loading": True}]


def claude_turn(turn: int, result: int) -> list[dict[str, Any]]:
    """What one turn adds: the model's calls, and their results with a reminder behind them."""
    ids = [f"toolu_{turn}_{i}" for i in range(1 + turn % 2)]
    uses = [
        {"type": "tool_use", "id": id, "name": "Read", "input": {"path": f"/src/{id}", "what": "all"}} for id in ids
    ]
    seen: list[dict[str, Any]] = [{"type": "text", "text": filled(f"{turn} lines", result)}]
    if turn == 3:
        uses = [
            {"type": "tool_use", "id": ids[0], "name": "ToolSearch", "input": {"path": "", "what": "fetch"}},
            *uses[1:],
        ]
        seen = [{"type": "tool_reference", "tool_name": "WebFetch"}]
    results = [{"type": "tool_result", "tool_use_id": id, "content": seen, "is_error": turn % 7 == 5} for id in ids]
    thinking = {"type": "thinking", "thinking": f"Step {turn}.", "signature": "EqQBCgIYAg"}
    return [
        {"role": "assistant", "content": [thinking, {"type": "text", "text": f"I look at {turn}."}, *uses]},
        {"role": "user", "content": results},
        {"role": "system", "content": [{"type": "text", "text": f"{turn} of {TURNS} steps are done."}]},
    ]


def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the agent sends them: system messages but the newest as strings, the newest block of a user marked."""
    sent = json.loads(json.dumps(messages))
    for each in sent[:-1]:
        if each["role"] == "system":
            each["content"] = each["content"][0]["text"]
    newest = next(each for each in reversed(sent) if each["role"] == "user")
    newest["content"][-1]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    return list(sent)


def claude_code(turns: int, size: int, result: int) -> list[dict[str, Any]]:
    reminder = "<system-reminder>\nThe date is 2026-11-23.\n</system-reminder>"
    first = [{"type": "text", "text": reminder}, {"type": "text", "text": "Mend the test that fails."}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": first},
        {"role": "system", "content": [{"type": "text", "text": "Deferred tools: WebFetch"}]},
    ]
    requests = []
    for turn in range(turns):
        messages = [*messages, *(claude_turn(turn, result) if turn else [])]
        billing = (
            f"x-anthropic-billing-header: cc_version=2.1.330.{turn:03x}; cc_entrypoint=cli; cch={turn * 7919:05x};"
        )
        system = [billing, "You are Claude Code.", filled("You help with software.", size // 2)]
        requests.append(
            {
                "model": "claude-opus-5-5",
                "max_tokens": 32_000,
                "stream": True,
                "system": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in system],
                "tools": claude_tools(size),
                "messages": marked(messages),
                "thinking": {"type": "adaptive", "display": "omitted"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                "output_config": {"effort": "high"},
                "metadata": {"user_id": json.dumps({"session_id": "5d1f"})},
            }
        )
    return requests
