"""Calls as each format writes them."""

from __future__ import annotations

import json
from typing import Any

from dragoman.text.deepseek_calls import BLOCK, BLOCK_END, CALL, CALL_END, SEPARATOR
from dragoman.text.tagged_calls import DSML
from dragoman.text.tool_calls import CALL_FORMATS


def gemma_value(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f'<|"|>{key}<|"|>:{gemma_value(each)}' for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(gemma_value, value)) + "]"
        case _:
            return json.dumps(value)


def tagged(format: str, made: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls between tags; strings are written as they are."""
    blocks = []
    for name, given in made:
        pairs = [(k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in given.items()]
        match format:
            case "qwen":
                inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in pairs)
                blocks.append(f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>")
            case "glm":
                inner = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in pairs)
                blocks.append(f"<tool_call>{name}\n{inner}</tool_call>")
            case "deepseek_tagged":
                stated = [(k, str(isinstance(given[k], str)).lower(), v) for k, v in pairs]
                inner = "".join(
                    f'<{DSML}parameter name="{k}" string="{t}">{v}</{DSML}parameter>\n' for k, t, v in stated
                )
                blocks.append(f'<{DSML}invoke name="{name}">\n{inner}</{DSML}invoke>')
            case _:
                inner = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in pairs)
                blocks.append(f'<invoke name="{name}">\n{inner}</invoke>')
    text = "\n".join(blocks)
    if format == "deepseek_tagged":
        return f"<{DSML}function_calls>\n{text}\n</{DSML}function_calls>"
    return f"<minimax:tool_call>\n{text}\n</minimax:tool_call>" if format == "minimax" else text


def written(format: str, made: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls as the format writes them."""
    dumped = [(name, json.dumps(given, ensure_ascii=False)) for name, given in made]
    match format:
        case "gemma":
            return "".join(f"<|tool_call>call:{n}{gemma_value(given)}<tool_call|>" for n, given in made)
        case "hermes":
            return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in dumped)
        case "llama":
            return "<|python_tag|>" + "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in dumped)
        case "mistral":
            return "[TOOL_CALLS] [" + ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in dumped) + "]"
        case "nemotron":
            inner = ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in dumped)
            return f"<TOOLCALL>[{inner}]</TOOLCALL>"
        case "minimax_lines":
            inner = "\n".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in dumped)
            return f"<tool_calls>\n{inner}\n</tool_calls>"
        case "mistral_named":
            return "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in dumped)
        case "qwen" | "glm" | "minimax" | "deepseek_tagged":
            return tagged(format, made)
        case "deepseek":
            inner = [f"{CALL}function{SEPARATOR}{n}\n```json\n{a}\n```{CALL_END}" for n, a in dumped]
            return BLOCK + "\n".join(inner) + BLOCK_END
        case "deepseek_bare":
            return BLOCK + "".join(f"{CALL}{n}{SEPARATOR}{a}{CALL_END}" for n, a in dumped) + BLOCK_END
        case _:
            inner = [f"{n}({', '.join(f'{k}={v!r}' for k, v in given.items())})" for n, given in made]
            opener, closer = CALL_FORMATS[format].marks
            return f"{opener}[" + ", ".join(inner) + f"]{closer}"
