"""A generated text as OpenAI's chat message, whole and in deltas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.dialects.chat_output import gathered
from dragoman.dialects.tools import MessageShape
from dragoman.text.call_parser import CallArguments, CallStart, Content, Part, Reasoning


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to a call's function."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class CallDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the call ``index``; the first of a call has its id and name."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: FunctionDelta | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the message."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallDelta] | msgspec.UnsetType = msgspec.UNSET


def deltas(parts: Iterable[Part]) -> list[ChatDelta]:
    """One delta for each part that shows; the end of a call does not."""
    shown = []
    for part in parts:
        match part:
            case Content(text):
                shown.append(ChatDelta(content=text))
            case Reasoning(text):
                shown.append(ChatDelta(reasoning_content=text))
            case CallStart(index, id, name):
                start = CallDelta(index, id, "function", FunctionDelta(name, ""))
                shown.append(ChatDelta(tool_calls=[start]))
            case CallArguments(index, text):
                more = CallDelta(index, function=FunctionDelta(arguments=text))
                shown.append(ChatDelta(tool_calls=[more]))
    return shown


def message(
    text: str, shape: MessageShape, *, reasoning_begun: bool, earlier_text: str = "", is_cut: bool = False
) -> dict[str, Any]:
    """The whole message. ``content`` is null when there are calls only; ``tool_calls`` is there when there are any.

    ``earlier_text``: what earlier calls have delivered of it; ``is_cut``: a later call goes on with it.
    """
    reader = shape.reader(reasoning_begun=reasoning_begun)
    reader.push(earlier_text)
    whole = gathered(reader.push(text) + ([] if is_cut else reader.flush()))
    made: dict[str, Any] = {"role": "assistant", "content": whole.content, "refusal": None}
    if shape.separate:
        made["reasoning_content"] = whole.reasoning or None
    return made | {"tool_calls": whole.calls} if whole.calls else made
