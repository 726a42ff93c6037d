"""Input items of the Responses API as the conversation that a chat template takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.image_sources import ImageSource, image_part
from dragoman.core.serving import ModelCard
from dragoman.dialects.field_types import Anything, FieldError, FieldRule, ListOf, Path, String, dotted, member_of
from dragoman.dialects.images import DETAILS, URL
from dragoman.dialects.openai.custom_tools import INPUT
from dragoman.dialects.openai.errors import InvalidRequest
from dragoman.dialects.openai.text_files import FileReader, shown_file
from dragoman.dialects.reasoning import EFFORTS, MAX_HIDDEN_CHARS, revealed
from dragoman.dialects.turns import IMAGE_BELOW, Turns, joined

TEXT, OBJECT, PARTS = String(), Anything(object_only=True, depth=32), ListOf(Anything(object_only=True, depth=32))

MESSAGE, REFERENCE, REASONING = "message", "item_reference", "reasoning"
CALLS = {"function_call": "arguments", "custom_tool_call": INPUT}
RESULTS = ("function_call_output", "custom_tool_call_output")
FOUND_TOOLS = "tool_search_output"
MORE_TOOLS = ("additional_tools", FOUND_TOOLS)
SETTINGS = "configuration_update"
UNSHOWN = (*MORE_TOOLS, "tool_search_call", SETTINGS)
"""Items that the model is not shown: they change what it may call, and how it answers."""
KNOWN = (MESSAGE, *CALLS, *RESULTS, REASONING, REFERENCE, *UNSHOWN)
HOSTED = (
    "compaction",
    "compaction_trigger",
    "web_search_call",
    "file_search_call",
    "computer_call",
    "computer_call_output",
    "code_interpreter_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "program",
    "program_output",
)
"""Items that only a hosted server writes."""

ROLES = ("user", "assistant", "system", "developer")
SYSTEM = ("system", "developer")
TEXTS = ("input_text", "text", "output_text")
NO_IMAGE = "[image omitted: the model sees no images]"
NO_FILE = "[file omitted]"


class Placed(NamedTuple):
    """An input item of a known type, and where it is in the request."""

    item: dict[str, Any]
    path: Path

    @property
    def type(self) -> str:
        return str(self.item["type"])

    @property
    def is_system(self) -> bool:
        return self.type == MESSAGE and self.item.get("role") in SYSTEM

    @property
    def is_user(self) -> bool:
        return self.type == MESSAGE and self.item.get("role") == "user"


class Conversation(NamedTuple):
    """``reported``: places of what has no effect."""

    messages: tuple[dict[str, Any], ...]
    reported: tuple[str, ...]


def placed_items(given: str | Sequence[dict[str, Any]] | None, field: str = "input") -> list[Placed]:
    """Return the items of a request's ``field``, each with its type. Raises BadRequest, UnsupportedFeature."""
    if given is None:
        return []
    if isinstance(given, str):
        return [Placed({"type": MESSAGE, "role": "user", "content": given}, (field,))]
    return [Placed(_typed(item, (field, i)), (field, i)) for i, item in enumerate(given)]


def check_items(items: Iterable[Placed], card: ModelCard) -> None:
    """Check items one by one, whatever comes before and after them. Raises BadRequest, UnsupportedFeature."""
    for placed in items:
        reader = _Reader(card)
        if placed.type in RESULTS:
            reader.expect(placed)
        reader.item(placed)


def _typed(item: dict[str, Any], path: Path) -> dict[str, Any]:
    kind = item.get("type")
    if kind is None:
        kind = MESSAGE if "role" in item else REFERENCE if item.keys() <= {"id", "type"} else None
    if kind in HOSTED:
        raise UnsupportedFeature(f"'{dotted(path)}': items of type '{kind}' are not supported.", param=dotted(path))
    if kind not in KNOWN:
        raise FieldError(FieldRule.CHOICE, (*path, "type"), kind, bound=KNOWN)
    return {**item, "type": kind}


def with_settings(body: Mapping[str, Any], before: Iterable[Placed], own: Iterable[Placed]) -> Mapping[str, Any]:
    """Return a body with the settings that items of type ``configuration_update`` make: later ones hold, and the
    request's own fields stand between the items ``before`` its input and its ``own``. Raises BadRequest."""
    effort: Any = None
    format: Any = None
    is_changed = False
    for placed in (*before, None, *own):
        if placed is None:
            effort = _within(body, "reasoning", "effort") or effort
            format = _within(body, "text", "format") or format
        elif placed.type == SETTINGS:
            is_changed = True
            wanted = member_of(placed.item, "reasoning", OBJECT, placed.path) or {}
            effort = member_of(wanted, "effort", String(choices=EFFORTS), (*placed.path, "reasoning")) or effort
            text = member_of(placed.item, "text", OBJECT, placed.path) or {}
            format = member_of(text, "format", OBJECT, (*placed.path, "text")) or format
    if not is_changed:
        return body
    changed = dict(body)
    for name, inner, value in (("reasoning", "effort", effort), ("text", "format", format)):
        if value is not None:
            changed[name] = {**(body.get(name) or {}), inner: value}
    return changed


async def with_files(items: Sequence[Placed], files: FileReader) -> list[Placed]:
    """Return items with the contents of the stored files that messages name, and of the images that outputs of calls
    do. Raises NotFound, BadRequest."""
    found = []
    for placed in items:
        name = "content" if placed.type == MESSAGE else "output" if placed.type in RESULTS else ""
        content = placed.item.get(name)
        kinds = ("input_file", "input_image") if placed.type == MESSAGE else ("input_image",)
        if isinstance(content, list) and any(_names_file(part, kinds) for part in content):
            path = (*placed.path, name)
            parts = [
                await files.read(part, (*path, j)) if _names_file(part, kinds) else part
                for j, part in enumerate(content)
            ]
            placed = placed._replace(item={**placed.item, name: parts})
        found.append(placed)
    return found


def _names_file(part: Any, kinds: Sequence[str]) -> bool:
    return isinstance(part, dict) and part.get("type") in kinds and part.get("file_id") is not None


def _within(body: Mapping[str, Any], name: str, inner: str) -> Any:
    outer = body.get(name)
    return outer.get(inner) if isinstance(outer, Mapping) else None


def conversation(
    instructions: str | None, items: Iterable[Placed], card: ModelCard, *, continues: bool = False
) -> Conversation:
    """Return the conversation for the model's chat template. ``continues``: the last message is left open.

    Raises BadRequest, UnsupportedFeature with the place of the error.
    """
    reader = _Reader(card)
    if instructions:
        reader.head.append(instructions)
    for placed in items:
        reader.item(placed)
    messages = reader.finish()
    if continues and (not messages or messages[-1]["role"] != "assistant"):
        message = "'continue_final_message' needs a message of the assistant at the end."
        raise BadRequest(message, param="continue_final_message")
    return Conversation(messages, tuple(reader.reported))


def droppable(items: Sequence[Placed]) -> list[list[int]]:
    """Return the indices of the items that a prompt may lack, the oldest first: each a message of the user, or the
    assistant's turn with the results of its calls. System messages, and all from the user's last message on, stay."""
    last = max((i for i, placed in enumerate(items) if placed.is_user), default=0)
    units: list[list[int]] = []
    is_turn = had_results = False
    for i, placed in enumerate(items[:last]):
        if placed.is_system or placed.type in UNSHOWN:
            continue
        is_result = placed.type in RESULTS
        if placed.is_user or not is_turn or (had_results and not is_result):
            units.append([])
        units[-1].append(i)
        is_turn, had_results = not placed.is_user, is_result
    return units


class _Reader:
    """The conversation so far. ``_waiting``: texts of system messages between calls and their results."""

    def __init__(self, card: ModelCard) -> None:
        self.head: list[str] = []
        self.reported: list[str] = []
        self._card, self._turns = card, Turns(card)
        self._begun = False
        self._waiting: list[str] = []
        self._calls: dict[str, str] = {}
        self._open: dict[str, None] = {}
        """The calls without a result so far."""
        self._has_results = False
        self._images: list[dict[str, Any]] = []
        """Those of results, which come after all results of the turn."""
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._new_calls: list[dict[str, Any]] = []
        self._is_turn = False
        self._hidden_left = MAX_HIDDEN_CHARS

    def item(self, placed: Placed) -> None:
        item, path = placed
        match placed.type:
            case "message":
                self._message(item, path)
            case "reasoning":
                self._assistant()
                if thought := self._reasoning(item, path):
                    self._thoughts.append(thought)
            case "function_call" | "custom_tool_call":
                self._assistant()
                self._call(item, path)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, path)

    def expect(self, placed: Placed) -> None:
        """Take the call that a result answers as made."""
        self._calls[member_of(placed.item, "call_id", TEXT, placed.path, required=True)] = ""

    def finish(self) -> tuple[dict[str, Any], ...]:
        self._end_turn()
        self._turns.finish()
        self._turns.add_head("\n\n".join(filter(None, self.head)))
        return tuple(self._turns.messages)

    # Turns ------------------------------------------------------------------------------------------------------------

    def _message(self, item: dict[str, Any], path: Path) -> None:
        role = member_of(item, "role", String(choices=ROLES), path, required=True)
        pieces = self._texts(_present(item, "content", path), (*path, "content"))
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        if role != "user" and any(not isinstance(piece, str) for piece in pieces):
            message = "Invalid value: 'input_image'. Images are read in messages of the user and outputs of calls."
            raise InvalidRequest(message, param=dotted((*path, "content")))
        if role in SYSTEM:
            if not self._begun:
                self.head.append(text)
            elif self._open:
                self._waiting.append(text)
            elif text:
                self._write_turn()
                self._turns.add_system(text)
        elif role == "user":
            images, self._images = self._images, []
            self._end_turn()
            self._begun = True
            self._turns.begin_user([*images, *pieces])
        else:
            self._assistant()
            self._pieces.append(text)

    def _assistant(self) -> None:
        """Go on with the assistant's turn, or begin one."""
        if self._has_results:
            self._end_turn()
        self._begun = self._is_turn = True

    def _write_turn(self) -> None:
        """Add what has been read of the assistant's turn."""
        if self._is_turn:
            self._turns.add_assistant("".join(self._pieces), joined(self._thoughts), self._new_calls)
        self._pieces, self._thoughts, self._new_calls, self._is_turn = [], [], [], False

    def _end_turn(self) -> None:
        """End the assistant's turn, with the results of its calls. Raises BadRequest where one is missing."""
        self._write_turn()
        for call in self._open:
            raise InvalidRequest(f"No tool output found for function call {call[:64]}.", param="input", code=None)
        self._has_results = False
        if self._images:
            self._turns.add_user(self._images)
            self._images = []
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            self._turns.add_system(text)

    def _call(self, item: dict[str, Any], path: Path) -> None:
        call = member_of(item, "call_id", TEXT, path, required=True)
        name = member_of(item, "name", TEXT, path, required=True)
        if namespace := member_of(item, "namespace", TEXT, path):
            name = f"{namespace}.{name}"
        member = CALLS[item["type"]]
        given = member_of(item, member, TEXT, path, required=True)
        arguments = {INPUT: given} if member == INPUT else _arguments(given, (*path, member))
        self._calls[call] = name
        self._open[call] = None
        self._new_calls.append(self._turns.call(call, name, arguments))

    def _result(self, item: dict[str, Any], path: Path) -> None:
        call = member_of(item, "call_id", TEXT, path, required=True)
        name = self._calls.get(call)
        if name is None:
            message = f"No tool call found for function call output with call_id {call[:64]}."
            raise InvalidRequest(message, param="input", code=None)
        pieces = self._texts(_present(item, "output", path), (*path, "output"), is_result=True)
        text = "".join(piece if isinstance(piece, str) else IMAGE_BELOW for piece in pieces)
        self._write_turn()
        self._images += [piece for piece in pieces if not isinstance(piece, str)]
        self._has_results = True
        self._open.pop(call, None)
        self._turns.add_result(call, name, text)

    # Contents ---------------------------------------------------------------------------------------------------------

    def _texts(self, content: Any, path: Path, *, is_result: bool = False) -> Sequence[str | dict[str, Any]]:
        """Return the texts, and the parts of images, of a content."""
        if isinstance(content, str):
            return (content,)
        return [self._part(part, (*path, j), is_result) for j, part in enumerate(PARTS.check(content, path))]

    def _part(self, part: dict[str, Any], path: Path, is_result: bool) -> str | dict[str, Any]:
        kind = member_of(part, "type", TEXT, path, required=True)
        if part.get("prompt_cache_breakpoint") is not None:
            self.reported.append(dotted((*path, "prompt_cache_breakpoint")))
        if kind in TEXTS:
            return str(member_of(part, "text", TEXT, path, required=True))
        if kind == "refusal":
            return str(member_of(part, "refusal", TEXT, path, required=True))
        if kind in ("input_image", "input_file", "input_audio"):
            if kind == "input_image" and self._card.images is not None:
                return image_part(self._image(part, path))
            if is_result:
                self.reported.append(dotted(path))
                return NO_IMAGE if kind == "input_image" else NO_FILE
            return self._medium(part, kind, path)
        raise FieldError(FieldRule.CHOICE, (*path, "type"), kind, bound=(*TEXTS, "refusal", "input_file"))

    def _image(self, part: dict[str, Any], path: Path) -> ImageSource:
        url = member_of(part, "image_url", URL, path, required=True)
        detail = member_of(part, "detail", String(choices=tuple(DETAILS)), path)
        if detail not in (None, "auto") and not (self._card.images and self._card.images.has_detail):
            self.reported.append(dotted((*path, "detail")))
        return ImageSource(url=url, detail=DETAILS[detail or "auto"], param=dotted((*path, "image_url")))

    def _medium(self, part: dict[str, Any], kind: str, path: Path) -> str:
        if kind == "input_image":
            member = "image_url" if part.get("image_url") is not None or part.get("file_id") is None else "file_id"
            message = "Invalid value: 'input_image'. This model reads text only."
            raise InvalidRequest(message, param=dotted((*path, member)))
        if kind == "input_file" and (shown := shown_file(part, path)) is not None:
            return shown
        message = f"Invalid value: '{kind}'. Files are read where 'file_data' is a data URL of text or JSON."
        raise InvalidRequest(message, param=dotted(path))

    def _reasoning(self, item: dict[str, Any], path: Path) -> str:
        text = reasoning_text(item, path, self._hidden_left)
        if text is None:
            self.reported.append(dotted(path))
        elif item.get("encrypted_content") is not None:
            self._hidden_left -= len(text.encode("utf-8", "replace"))
        return text or ""


def reasoning_text(item: Mapping[str, Any], path: Path, most: int = MAX_HIDDEN_CHARS) -> str | None:
    """Return the text of a reasoning item; None where it holds none that can be read, or more than ``most`` hidden
    bytes. Raises BadRequest."""
    for member in ("content", "encrypted_content", "summary"):
        value = item.get(member)
        if member == "encrypted_content":
            try:
                text = revealed(value, most) if isinstance(value, str) else None
            except ValueError:
                text = None
            if text is not None:
                return text
        elif value:
            parts = PARTS.check(value, (*path, member))
            return joined(str(TEXT.check(part.get("text"), (*path, member, i, "text"))) for i, part in enumerate(parts))
    return None


def _arguments(text: str, path: Path) -> dict[str, Any] | str:
    """Return the arguments as templates take them: an object where the text is a JSON object."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    if not isinstance(value, dict):
        return text
    checked: dict[str, Any] = OBJECT.check(value, path)
    return checked


def _present(owner: Mapping[str, Any], name: str, path: Path) -> Any:
    value = owner.get(name)
    if value is None:
        raise FieldError(FieldRule.MISSING, (*path, name), bound=name)
    return value
