"""Formats of tool calls in generated text."""

from __future__ import annotations

import json

from dragoman.text.call_parser import MAX_NAME_CHARS, CallParser, NotACall, Steps
from dragoman.text.literals import read_literal

_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")


class ObjectCalls(CallParser):
    """Formats that write a call as a JSON object.

    Attributes:
        name_key: its member with the tool's name. ignored_keys: members with texts that say nothing here.
    """

    name_key = "name"
    ignored_keys: tuple[str, ...] = ("id", "type")

    def _object(self) -> Steps[None]:
        """Read one call ``{"name": "…", "arguments": {…}}``.

        ``parameters`` is Llama's word for the arguments; ``id`` and ``type``, which some models add, are ignored.
        With any other member, or arguments that are not an object, it is not a call. Arguments before the name are
        kept until it is read; a call without arguments has empty ones.
        """
        yield from self._expect("{")
        name, early, given = "", "", False
        while True:
            key = yield from self._string()
            yield from self._expect(":")
            if key == self.name_key and not name:
                name = yield from self._string()
                if name not in self._names:
                    raise NotACall
            elif key in ("arguments", "parameters") and not given:
                given = True
                early = yield from self._arguments(name)
            elif key in self.ignored_keys:
                yield from self._string()
            else:
                raise NotACall
            char = yield from self._visible()
            if char == "}":
                break
            if char != ",":
                raise self._refuse(char)
        if not given or early:
            if not name:
                raise NotACall
            self._whole(name, early or "{}")
        self._pending.clear()

    def _arguments(self, name: str) -> Steps[str]:
        """Read an object, up to its closing brace: passed on as it arrives when ``name`` is known, else returned."""
        yield from self._expect("{")
        if name:
            self._start(name)
            self._more("{")
        text, depth, quoted, escaped = ["{"], 1, False, False
        while depth:
            char = yield from self._next()
            if not char:
                if name:
                    self._end()
                raise NotACall
            if name:
                self._more(char)
            else:
                text.append(char)
            if quoted:
                quoted = escaped or char != '"'
                escaped = char == "\\" and not escaped
            elif char == '"':
                quoted = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
        if name:
            self._end()
            return ""
        return "".join(text)

    def _whole(self, name: str, arguments: str) -> None:
        self._start(name)
        self._more(arguments)
        self._end()

    def _string(self) -> Steps[str]:
        yield from self._expect('"')
        text, escaped = ['"'], False
        while True:
            char = yield from self._next()
            if not char or len(text) > MAX_NAME_CHARS:
                raise self._refuse(char)
            text.append(char)
            if char == '"' and not escaped:
                break
            escaped = char == "\\" and not escaped
        try:
            return str(json.loads("".join(text)))
        except ValueError:
            raise NotACall from None

    def _name(self) -> Steps[str]:
        """Read the bare name of a tool. Raises NotACall for another name."""
        name = yield from self._bare_name()
        if name not in self._names:
            raise NotACall
        return name

    def _bare_name(self) -> Steps[str]:
        """Read a bare name, up to a character that cannot be part of one."""
        char = yield from self._visible()
        name = ""
        while char and char in _NAME_CHARS and len(name) <= MAX_NAME_CHARS:
            name += char
            char = yield from self._next()
        self._unread(char)
        return name


class HermesCalls(ObjectCalls):
    """Hermes, Qwen, and the embedded model: each call is an object between ``<tool_call>`` and ``</tool_call>``."""

    def _read(self) -> Steps[None]:
        while (yield from self._find("<tool_call>")):
            try:
                yield from self._object()
                yield from self._word("</tool_call>")
            except NotACall:
                self._restore()


class LlamaCalls(ObjectCalls):
    """Llama 3.1: the text consists of objects, or they follow ``<|python_tag|>``; ``;`` may separate them."""

    def _read(self) -> Steps[None]:
        found = yield from self._begins("{")
        while found or (yield from self._find("<|python_tag|>")):
            found = False
            try:
                yield from self._object()
                while (char := (yield from self._peek())) and char in ";{":
                    if char == ";":
                        yield from self._next()
                    yield from self._object()
            except NotACall:
                pass
            self._restore()


class MistralCalls(ObjectCalls):
    """Mistral: ``[TOOL_CALLS]`` and a list of objects; newer models write ``[TOOL_CALLS]name[ARGS]{…}``."""

    def _read(self) -> Steps[None]:
        while (yield from self._find("[TOOL_CALLS]")):
            try:
                if (yield from self._peek()) == "[":
                    yield from self._list()
                else:
                    yield from self._named()
            except NotACall:
                self._restore()

    def _list(self) -> Steps[None]:
        yield from self._expect("[")
        yield from self._object()
        while (yield from self._peek()) == ",":
            yield from self._next()
            yield from self._object()
        yield from self._word("]")

    def _named(self) -> Steps[None]:
        name = yield from self._name()
        yield from self._expect("[")
        kind = yield from self._next()
        if kind == "C":
            yield from self._exactly("ALL_ID]")
            while (char := (yield from self._next())).isalnum():
                pass
            self._unread(char)
            yield from self._expect("[")
            kind = yield from self._next()
        if kind != "A":
            raise self._refuse(kind)
        yield from self._exactly("RGS]")
        yield from self._arguments(name)
        self._pending.clear()


class NemotronCalls(MistralCalls):
    """Nemotron Nano 2: a list of objects between ``<TOOLCALL>`` and ``</TOOLCALL>``."""

    def _read(self) -> Steps[None]:
        while (yield from self._find("<TOOLCALL>")):
            try:
                yield from self._list()
                yield from self._word("</TOOLCALL>")
            except NotACall:
                self._restore()


class LinesOfCalls(ObjectCalls):
    """MiniMax M1: objects, each on a line, between ``<tool_calls>`` and ``</tool_calls>``."""

    def _read(self) -> Steps[None]:
        while (yield from self._find("<tool_calls>")):
            try:
                yield from self._object()
                while (yield from self._peek()) == "{":
                    yield from self._object()
                yield from self._word("</tool_calls>")
            except NotACall:
                self._restore()


class PythonicCalls(ObjectCalls):
    """Llama 3.2 and 4: a list of Python calls, at the beginning of the text or between ``<|python_start|>`` and
    ``<|python_end|>``: ``[weather(city="Paris", days=2), now()]``.

    A call is returned when it is complete, its literals as JSON; one with anything but named literals is content.
    """

    def _read(self) -> Steps[None]:
        found = yield from self._begins("[")
        marked = False
        while found or (marked := (yield from self._find("<|python_start|>"))):
            found = False
            try:
                yield from self._list()
                if marked:
                    yield from self._word("<|python_end|>")
            except NotACall:
                self._restore()

    def _list(self) -> Steps[None]:
        """Read ``[f(a=1), g()]``."""
        yield from self._expect("[")
        while True:
            name = yield from self._name()
            arguments = yield from self._named_literals()
            self._whole(name, "{" + ", ".join(arguments) + "}")
            if (yield from self._peek()) != ",":
                break
            yield from self._next()
        yield from self._word("]")

    def _named_literals(self) -> Steps[list[str]]:
        """Read ``(key=literal, …)`` and return the members of a JSON object."""
        yield from self._expect("(")
        given: dict[str, str] = {}
        while (yield from self._peek()) != ")":
            key = ""
            while (char := (yield from self._next())).isidentifier() or (key and char.isalnum()):
                key += char
            self._unread(char)
            if not key or key in given or len(key) > MAX_NAME_CHARS:
                raise NotACall
            yield from self._expect("=")
            given[key] = yield from read_literal(self._next, self._unread)
            if (yield from self._peek()) != ",":
                break
            yield from self._next()
        yield from self._expect(")")
        return [f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in given.items()]


class MarkedPythonicCalls(PythonicCalls):
    """LFM2: such a list between ``<|tool_call_start|>`` and ``<|tool_call_end|>``, and text around it."""

    def _read(self) -> Steps[None]:
        while (yield from self._find("<|tool_call_start|>")):
            try:
                yield from self._list()
                yield from self._word("<|tool_call_end|>")
            except NotACall:
                self._restore()
