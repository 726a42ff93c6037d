"""OctoAI's chat messages. Its own examples leave out most of what other APIs insist on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.dialects.chat_input import flattened, template_call


def template_messages(messages: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """The checked messages of the table, as the core wants them, with an id for every call and every result.

    A result that does not say which call it answers belongs to the first one before it that has no result yet. Raises
    BadRequest with the place of the fault.
    """
    flat: list[dict[str, Any]] = []
    unanswered: deque[str] = deque()
    made = 0
    for i, message in enumerate(messages):
        role, calls = message["role"], message["tool_calls"]
        if calls and role != "assistant":
            place = f"messages[{i}].tool_calls"
            raise BadRequest(f"Invalid '{place}': only an assistant calls tools.", param=place)
        one: dict[str, Any] = {"role": role, "content": flattened(message["content"], i)}
        if message["name"] is not None:
            one["name"] = message["name"]
        if calls:
            one["tool_calls"] = []
            unanswered.clear()
            for j, call in enumerate(calls):
                # Nine letters and digits: what some templates want of an id.
                named = {"type": "function"} | {key: value for key, value in call.items() if value is not None}
                one["tool_calls"].append(template_call({"id": f"call{made:05d}"} | named, i, j))
                unanswered.append(str(one["tool_calls"][-1]["id"]))
                made += 1
        if role == "tool":
            given = message["tool_call_id"]
            if given is not None:
                one["tool_call_id"] = given
                if given in unanswered:
                    unanswered.remove(given)
            elif unanswered:
                one["tool_call_id"] = unanswered.popleft()
        flat.append(one)
    return tuple(flat)


def has_neighbours(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the same speaker speaks twice in a row, in plain words: some chat templates insist on turns."""
    return any(_goes_on(one, other) for one, other in pairwise(messages))


def in_turns(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The messages with what the same speaker says in a row as one message, a blank line between."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if turns and _goes_on(turns[-1], message):
            turns[-1] = turns[-1] | {"content": f"{turns[-1]['content']}\n\n{message['content']}"}
        else:
            turns.append(message)
    return tuple(turns)


def _goes_on(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["role"] == other["role"] != "tool" and not ("tool_calls" in one or "tool_calls" in other)
