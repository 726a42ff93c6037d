"""Messages of Anthropic's API as the conversation that a chat template takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.image_sources import ImageSource, image_part
from dragoman.core.serving import ModelCard
from dragoman.dialects.anthropic.errors import UnresolvedReference, numbered
from dragoman.dialects.anthropic.thinking import reasoning_of
from dragoman.dialects.field_types import Anything, Boolean, FieldError, FieldRule, FieldType, ListOf, Path, String
from dragoman.dialects.reasoning import MAX_HIDDEN_CHARS
from dragoman.dialects.turns import IMAGE_BELOW, Turns, document, joined, pieces_of

BILLING = "x-anthropic-billing-header:"
"""How the first system block of Claude Code begins. It differs between requests, so no prefix would ever be equal."""

FILLED = String(minimum=1)
TEXT, FLAG, OBJECT, ANY_LIST = String(), Boolean(), Anything(object_only=True, depth=32), ListOf(Anything())

HOSTED = (
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
    "compaction",
    "browser_state",
)
"""Blocks that only a hosted server writes."""

CHANGES = ("tool_addition", "tool_removal")
IN_RESULT = ("text", "image", "document", "search_result", "tool_reference")
IN_TURN: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "image", "document", "search_result", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use", "document"),
    "system": ("text",),
}


class Conversation(NamedTuple):
    """``continues``: the last message is the assistant's, and is left open. ``referenced``: the tools that a result
    names. ``cited``: a document asks for citations, which there are none of. ``billed``: a billing header is left
    out."""

    messages: tuple[dict[str, Any], ...]
    continues: bool
    referenced: frozenset[str]
    cited: bool
    billed: bool


def conversation(
    system: str | Sequence[dict[str, Any]] | None,
    messages: Sequence[dict[str, Any]],
    card: ModelCard,
    tools: Sequence[dict[str, Any]] = (),
    *,
    kept_turns: int | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Conversation:
    """Return the conversation for the model's chat template.

    ``tools``: of the request, for the references to them. ``kept_turns``: so many of the last assistant turns keep
    their reasoning; None: all. ``files``: those of images, by their ids.

    Raises BadRequest, UnsupportedFeature with the place of the error.
    """
    reader = _Reader(card, tools, files or {})
    reader.system_prompt(system)
    later = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not later:
        raise BadRequest("messages: at least one user message is required", param="messages")
    for i, message in enumerate(messages):
        if message["clear_at"] is not None and later[-1] > i:
            continue
        reader.message(message, i)
    return reader.finish(messages[-1]["role"], kept_turns)


class _Reader:
    """The conversation so far. ``_waiting``: texts of system messages between calls and their results."""

    def __init__(self, card: ModelCard, tools: Sequence[dict[str, Any]], files: Mapping[str, bytes]) -> None:
        self._card, self._turns, self._files = card, Turns(card), files
        self._tools = {tool["name"]: tool for tool in tools}
        self._system: list[str] = []
        self._waiting: list[str] = []
        self._begun = False
        self._calls: dict[str, str] = {}
        self._open: set[str] = set()
        """The calls whose results may come next."""
        self._last_kind = ""
        self._referenced: set[str] = set()
        self._cited = False
        self._billed = False
        self._hidden_left = MAX_HIDDEN_CHARS

    # The system prompt and messages ----------------------------------------------------------------------------------

    def system_prompt(self, system: str | Sequence[dict[str, Any]] | None) -> None:
        if isinstance(system, str):
            head, _, rest = system.partition("\n")
            self._billed = head.startswith(BILLING)
            self._system = [rest if self._billed else system]
        elif system is not None:
            texts = list(self._texts(system, ("system",), ("text",)))
            shown = [text for text in texts if not text.startswith(BILLING)]
            self._billed = len(shown) < len(texts)
            self._system = [joined(shown)]

    def message(self, message: dict[str, Any], i: int) -> None:
        role, content, place = message["role"], message["content"], ("messages", i, "content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role == "system":
            text = joined(self._texts(blocks, place, IN_TURN["system"]))
            if text:
                self._later_system(text)
        elif role == "user":
            self._begun = True
            self._user(blocks, place)
        else:
            self._begun = True
            self._assistant(blocks, place)

    def finish(self, last_role: str, kept_turns: int | None) -> Conversation:
        self._settle()
        self._turns.finish()
        messages = self._turns.messages
        while messages and messages[-1] == {"role": "assistant", "content": ""} and last_role == "assistant":
            messages.pop()
        continues = last_role == "assistant" and self._turns.last_role == "assistant"
        if continues and self._last_kind in ("tool_use", "thinking", "redacted_thinking"):
            message = f"messages: the final assistant message cannot end with a `{self._last_kind}` block"
            raise BadRequest(message, param="messages")
        self._turns.add_head(joined(self._system))
        _drop_reasoning(messages, kept_turns)
        return Conversation(tuple(messages), continues, frozenset(self._referenced), self._cited, self._billed)

    def _later_system(self, text: str) -> None:
        if not self._begun:
            self._system.append(text)
        elif self._open:
            self._waiting.append(text)
        else:
            self._turns.add_system(text)

    def _settle(self) -> None:
        """Place the system messages that waited for results."""
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            self._turns.add_system(text)

    # A user's turn ---------------------------------------------------------------------------------------------------

    def _user(self, blocks: Sequence[dict[str, Any]], place: Path) -> None:
        pieces: list[str | dict[str, Any]] = []
        for j, block in enumerate(blocks):
            kind = self._kind(block, (*place, j), IN_TURN["user"])
            if kind == "tool_result":
                pieces += self._result(block, (*place, j))
            elif kind == "image":
                pieces.append(self._image(block, (*place, j)))
            else:
                pieces.append(self._text(block, kind, (*place, j)))
        self._open.clear()
        self._settle()
        if content := pieces_of(pieces):
            self._turns.add_user(content)
        elif self._turns.last_role not in ("user", "tool"):
            self._turns.add_user("")

    def _result(self, block: dict[str, Any], place: Path) -> list[dict[str, Any]]:
        """Add a result, and return its images."""
        images: list[dict[str, Any]] = []
        call = _checked(block, "tool_use_id", TEXT, place, required=True)
        name = self._calls.get(call)
        if name is None:
            message = f"{numbered(place)}: unexpected `tool_use_id` found in `tool_result` blocks: {call[:64]}"
            raise BadRequest(message, param=numbered(place))
        content = block.get("content")
        if content is None or isinstance(content, str):
            text = content or ""
        else:
            parts = ANY_LIST.check(content, (*place, "content"))
            text = joined(self._texts(parts, (*place, "content"), IN_RESULT, images))
        if _checked(block, "is_error", FLAG, place) and "error" not in text[:64].lower():
            text = f"Error: {text}"
        self._turns.add_result(call, name, text)
        return images

    # An assistant's turn ---------------------------------------------------------------------------------------------

    def _assistant(self, blocks: Sequence[dict[str, Any]], place: Path) -> None:
        text, thoughts, calls = "", list[str](), list[dict[str, Any]]()
        for j, block in enumerate(blocks):
            at = (*place, j)
            kind = self._kind(block, at, IN_TURN["assistant"])
            if kind == "thinking":
                thought = _checked(block, "thinking", TEXT, at, required=True)
                signed = _checked(block, "signature", TEXT, at) or ""
                thoughts.append(reasoning_of(thought, signed, self._hidden_left))
                if not thought:
                    self._hidden_left -= len(thoughts[-1])
            elif kind == "tool_use":
                calls.append(self._call(block, at))
            elif kind != "redacted_thinking":
                text += self._text(block, kind, at)
            if kind != "text" or block.get("text"):
                self._last_kind = kind
        self._turns.add_assistant(text, joined(thoughts), calls)

    def _call(self, block: dict[str, Any], place: Path) -> dict[str, Any]:
        call = _checked(block, "id", TEXT, place, required=True)
        name = _checked(block, "name", TEXT, place, required=True)
        arguments = _checked(block, "input", OBJECT, place, required=True)
        self._calls[call] = name
        self._open.add(call)
        return self._turns.call(call, name, arguments)

    # Blocks ----------------------------------------------------------------------------------------------------------

    def _kind(self, block: Any, place: Path, allowed: Sequence[str]) -> str:
        OBJECT.check(block, place)
        kind: str = _checked(block, "type", TEXT, place, required=True)
        if kind in allowed:
            return kind
        where = numbered(place)
        if kind in CHANGES:
            message = f"{where}: `{kind}` blocks are not supported on this model"
            raise UnsupportedFeature(message, param=where)
        if kind in HOSTED:
            raise UnsupportedFeature(f"{where}: `{kind}` blocks are written by Anthropic's servers only", param=where)
        raise FieldError(FieldRule.CHOICE, (*place, "type"), kind, bound=tuple(allowed))

    def _texts(
        self, blocks: Sequence[Any], place: Path, allowed: Sequence[str], images: list[dict[str, Any]] | None = None
    ) -> Iterator[str]:
        """Yield the texts of blocks. ``images``: gets their images; None: they are refused."""
        found: list[str] = []
        for j, block in enumerate(blocks):
            kind = self._kind(block, (*place, j), allowed)
            if kind == "tool_reference":
                found.append(self._reference(block, (*place, j)))
                continue
            if found:
                yield _functions(found)
                found = []
            if kind == "image" and images is not None:
                images.append(self._image(block, (*place, j)))
                yield IMAGE_BELOW
            else:
                yield self._text(block, kind, (*place, j))
        if found:
            yield _functions(found)

    def _text(self, block: dict[str, Any], kind: str, place: Path) -> str:
        match kind:
            case "text":
                return str(_checked(block, "text", TEXT, place, required=True))
            case "image":
                if self._card.images is None:
                    self._image(block, place)
                message = f"{numbered(place)}.image: images are not read in documents"
                raise UnsupportedFeature(message, param=numbered(place))
            case "search_result":
                source = _checked(block, "source", TEXT, place, required=True)
                parts = ANY_LIST.check(_present(block, "content", place), (*place, "content"))
                text = joined(self._texts(parts, (*place, "content"), ("text",)))
                self._note_citations(block)
                return document(_checked(block, "title", TEXT, place, required=True), f"source: {source}", text)
        self._note_citations(block)
        title, context = (_checked(block, name, TEXT, place) for name in ("title", "context"))
        return document(title, context, self._source(block, place))

    def _image(self, block: dict[str, Any], place: Path) -> dict[str, Any]:
        where = f"{numbered(place)}.image"
        if self._card.images is None:
            message = f"Could not process image: the model '{self._card.name}' reads text only"
            raise UnsupportedFeature(f"{where}: {message}", param=numbered(place))
        at = (*place, "source")
        source = OBJECT.check(_present(block, "source", place), at)
        kind = _checked(source, "type", TEXT, at, required=True)
        if kind == "base64":
            _checked(source, "media_type", TEXT, at, required=True)
            return image_part(ImageSource(data=_checked(source, "data", TEXT, at, required=True), param=where))
        if kind == "url":
            return image_part(ImageSource(url=_checked(source, "url", FILLED, at, required=True), param=where))
        if kind == "file":
            id = _checked(source, "file_id", FILLED, at, required=True)
            return image_part(ImageSource(file=self._files[id], param=where))
        raise FieldError(FieldRule.CHOICE, (*at, "type"), kind, bound=("base64", "url", "file"))

    def _source(self, block: dict[str, Any], place: Path) -> str:
        at = (*place, "source")
        source = OBJECT.check(_present(block, "source", place), at)
        kind = _checked(source, "type", TEXT, at, required=True)
        if kind == "text":
            return str(_checked(source, "data", TEXT, at, required=True))
        if kind == "content":
            content = _present(source, "content", at)
            if isinstance(content, str):
                return content
            return joined(self._texts(ANY_LIST.check(content, (*at, "content")), (*at, "content"), ("text", "image")))
        if kind in ("base64", "url", "file"):
            message = f"{numbered(at)}: documents of type `{kind}` are not read; send their text"
            raise UnsupportedFeature(message, param=numbered(at))
        raise FieldError(FieldRule.CHOICE, (*at, "type"), kind, bound=("text", "content"))

    def _note_citations(self, block: dict[str, Any]) -> None:
        citations = block.get("citations")
        if isinstance(citations, dict) and citations.get("enabled") is True:
            self._cited = True

    def _reference(self, block: dict[str, Any], place: Path) -> str:
        name: str = _checked(block, "tool_name", TEXT, place, required=True)
        tool = self._tools.get(name)
        if tool is None:
            message = f"{numbered(place)}.tool_name: there is no tool '{name[:64]}' in `tools`"
            raise UnresolvedReference(message, param=numbered(place))
        self._referenced.add(name)
        described = {"description": tool["description"] or "", "name": name, "parameters": tool["input_schema"]}
        return f"<function>{json.dumps(described, ensure_ascii=False)}</function>"


def _functions(described: Sequence[str]) -> str:
    return "\n".join(("<functions>", *described, "</functions>"))


def _drop_reasoning(messages: Sequence[dict[str, Any]], kept_turns: int | None) -> None:
    if kept_turns is None:
        return
    turns = [message for message in messages if "reasoning_content" in message]
    for message in turns[: max(0, len(turns) - kept_turns)]:
        del message["reasoning_content"]


def _present(block: Mapping[str, Any], name: str, place: Path) -> Any:
    value = block.get(name)
    if value is None:
        raise FieldError(FieldRule.MISSING, (*place, name))
    return value


def _checked(block: Mapping[str, Any], name: str, kind: FieldType, place: Path, *, required: bool = False) -> Any:
    """Return a member of a block; None where it is absent and not required. Raises FieldError."""
    value = _present(block, name, place) if required else block.get(name)
    return None if value is None else kind.check(value, (*place, name))
