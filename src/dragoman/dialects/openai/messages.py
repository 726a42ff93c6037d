"""OpenAI's chat messages: the required parts of each role."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.image_sources import text_part
from dragoman.core.serving import ModelCard
from dragoman.dialects.chat_input import CALL, TEXT, flattened, template_call
from dragoman.dialects.field_types import FieldError, FieldRule, member_of
from dragoman.dialects.openai.custom_tools import INPUT
from dragoman.dialects.openai.text_files import with_documents
from dragoman.dialects.turns import joined, reminder


def template_messages(
    messages: tuple[dict[str, Any], ...], card: ModelCard, *, takes_later_system: bool = True
) -> tuple[dict[str, Any], ...]:
    """Return the checked messages as the core takes them. Raises BadRequest with the location of the error.

    ``card``: of the model, which may see images. ``takes_later_system``: the template shows a system message that is
    not at the head where it stands; otherwise it becomes a reminder in the user's turn or result before it, or a turn
    of the user.
    """
    made = [_message(message, i, card) for i, message in enumerate(messages)]
    return tuple(made if takes_later_system else _with_reminders(made))


def _with_reminders(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with reminders in place of later system messages; one between calls and their results comes
    after those."""
    made: list[dict[str, Any]] = []
    waiting: list[str] = []
    is_head = True

    def remind() -> None:
        for text in waiting:
            if made[-1]["role"] in ("user", "tool"):
                made[-1] = {**made[-1], "content": _reminded(made[-1]["content"], text)}
            else:
                made.append({"role": "user", "content": reminder(text)})
        waiting.clear()

    for message in messages:
        role = message["role"]
        is_head = is_head and role == "system"
        if role == "system" and not is_head:
            if message["content"]:
                waiting.append(message["content"])
            continue
        if role != "tool":
            remind()
        made.append(message)
    remind()
    return made


def _reminded(content: str | list[dict[str, Any]], text: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return joined((content, reminder(text)))
    return [*content, text_part(f"\n\n{reminder(text)}")]


def _message(message: dict[str, Any], i: int, card: ModelCard) -> dict[str, Any]:
    role, place = message["role"], f"messages[{i}]"
    calls = message["tool_calls"]
    if calls is not None and role != "assistant":
        raise BadRequest(f"Invalid '{place}.tool_calls': only an assistant calls tools.", param=f"{place}.tool_calls")
    content = message["content"]
    if content is None and role != "assistant":
        raise FieldError(FieldRule.MISSING, ("messages", i, "content"))
    if role == "tool" and message["tool_call_id"] is None:
        raise FieldError(FieldRule.MISSING, ("messages", i, "tool_call_id"))
    if role == "function" and message["name"] is None:
        raise FieldError(FieldRule.MISSING, ("messages", i, "name"))
    flat: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        # Clients send empty answers back as they got them.
        "content": flattened(
            "" if content is None and not calls else with_documents(content, ("messages", i, "content")), i, card
        ),
    }
    if isinstance(flat["content"], list) and role not in ("user", "tool"):
        place = f"messages[{i}].content"
        raise UnsupportedFeature(f"'{place}': images are read in messages of the user and results only.", param=place)
    for name in ("name", "tool_call_id", "reasoning_content"):
        if message[name] is not None:
            flat[name] = message[name]
    if message["reasoning"] is not None:
        flat.setdefault("reasoning_content", message["reasoning"])
    if calls:
        flat["tool_calls"] = [_call(call, i, j) for j, call in enumerate(calls)]
    return flat


def _call(call: dict[str, Any], i: int, j: int) -> dict[str, Any]:
    """Return an earlier call; that of a custom tool as the model wrote it."""
    if call.get("type") != "custom":
        return template_call(call, i, j)
    path = ("messages", i, "tool_calls", j)
    custom = member_of(call, "custom", CALL, path, required=True)
    name, text = (member_of(custom, member, TEXT, (*path, "custom"), required=True) for member in ("name", INPUT))
    called = {"type": "function", "function": {"name": name, "arguments": {INPUT: text}}}
    return called if call.get("id") is None else {"id": member_of(call, "id", TEXT, path), **called}
