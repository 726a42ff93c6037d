"""Parser of tool calls in a stream of text: the part common to all formats.

A format is a program that reads characters: a generator that yields for each next one (``""`` is the end of the
text). So the result does not depend on how the stream was cut, and a whole answer is a stream of one piece.

Text that only looks like a call is not lost. Characters are held back while they may belong to a call; when one
arrives that cannot, all held characters become content, in their place. A call is certain once its tool is known to
exist and its arguments have begun: what follows, up to the closing brace or the end of the text, is passed on as
generated, valid or not. Only the marks and braces around a call are left out, and white space next to it: always
before, and after it when another call or the end of the text follows.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

MAX_NAME_CHARS = 256
"""Maximum length of a name; longer strings in a call are not names."""

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, str, Result]


class Content(msgspec.Struct, frozen=True):
    """Text of the answer."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text of a reasoning block."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins: the number ``index`` of this message, from 0. ``id`` is new."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, together one JSON object."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The arguments are complete, or the text has ended."""

    index: int


Part: TypeAlias = Content | Reasoning | CallStart | CallArguments | CallEnd


class NotACall(Exception):
    """The text looked like a call, or like more of one, but is not."""


class CallParser(abc.ABC):
    """Parses one generated text. ``names``: the available tools; ``new_id`` returns the id of a call.

    ``schemas``: of the tools' arguments, for formats that write values without their types. Adjacent parts of the same
    kind are joined.
    """

    def __init__(
        self,
        names: Collection[str],
        new_id: Callable[[], str],
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._names = frozenset(names)
        self._schemas = schemas or {}
        self._new_id = new_id
        self._parts: list[tuple[Part, list[str]]] = []
        self._again = ""
        self._ended = False
        self._pending: list[str] = []
        self._gap = ""
        self._after_call = False
        self._calls = 0
        self._program = self._read()
        next(self._program)

    def push(self, text: str) -> list[Part]:
        """Parse a piece of text; return the parts that are certain now."""
        for char in text:
            self._program.send(char)
        return self._take_parts()

    def flush(self) -> list[Part]:
        """Return the rest: no text follows."""
        try:
            self._program.send("")
        except StopIteration:
            return self._take_parts()
        raise AssertionError("a format reads after the end")

    @abc.abstractmethod
    def _read(self) -> Steps[None]:
        """Read the format to its end."""

    # Characters ------------------------------------------------------------------------------------------------------

    def _next(self) -> Steps[str]:
        """Read the next character and hold it; empty at the end."""
        if self._again:
            char, self._again = self._again, ""
        elif self._ended:
            return ""
        else:
            char = yield
            self._ended = not char
        if char:
            self._pending.append(char)
        return char

    def _unread(self, char: str) -> None:
        """Unread the last character."""
        if char:
            self._again = char
            self._pending.pop()

    def _refuse(self, char: str) -> NotACall:
        """Unread a character that ends what looked like a call, as it may open another."""
        self._unread(char)
        return NotACall()

    def _visible(self) -> Steps[str]:
        """Read the next character that is not white space."""
        while True:
            char = yield from self._next()
            if not char or not char.isspace():
                return char

    def _peek(self) -> Steps[str]:
        """Return the next visible character without consuming it."""
        char = yield from self._visible()
        self._unread(char)
        return char

    def _expect(self, wanted: str) -> Steps[None]:
        """Read white space and this character."""
        char = yield from self._visible()
        if char != wanted:
            raise self._refuse(char)

    def _exactly(self, word: str) -> Steps[None]:
        """Read this text."""
        for wanted in word:
            char = yield from self._next()
            if char != wanted:
                raise self._refuse(char)

    def _one_of(self, *words: str) -> Steps[str]:
        """Read white space and one of these words, of which none begins another; return it.

        At the end of the text also a part of one, or nothing: returns an empty text. Raises NotACall.
        """
        char, text = (yield from self._visible()), ""
        while char:
            text += char
            if text in words:
                return text
            if not any(word.startswith(text) for word in words):
                raise self._refuse(char)
            char = yield from self._next()
        return ""

    def _word(self, word: str) -> Steps[None]:
        """Read white space and this word; at the end of the text also a part of it, or nothing."""
        char = yield from self._visible()
        for wanted in word:
            if not char:
                break
            if char != wanted:
                raise self._refuse(char)
            char = yield from self._next()
        else:
            self._unread(char)
        self._pending.clear()

    # Free text -------------------------------------------------------------------------------------------------------

    def _find(self, opener: str) -> Steps[bool]:
        """Pass on text up to the next opener, which is held. Returns False at the end of the text."""
        return bool((yield from self._find_one_of(opener)))

    def _find_one_of(self, *openers: str) -> Steps[str]:
        """Pass on text up to the next of these openers, of which none begins another; it is held. Returns an empty text
        at the end of the text."""
        tail = ""
        while char := (yield from self._next()):
            self._pending.clear()
            tail += char
            while not any(opener.startswith(tail) for opener in openers):
                self._text(tail[0])
                tail = tail[1:]
            if tail in openers:
                self._pending.append(tail)
                return tail
        self._text(tail)
        if not self._after_call:
            self._add(Content(self._gap))
        return ""

    def _pass_on(self, take: Callable[[str], None], *ends: str) -> Steps[str]:
        """Hand over a text, character by character, up to one of these marks, of which none begins another; return that
        mark, or an empty text where the text ended."""
        held = ""
        while char := (yield from self._next()):
            self._pending.clear()
            held += char
            while held and not any(end.startswith(held) for end in ends):
                take(held[0])
                held = held[1:]
            if held in ends:
                return held
        for char in held:
            take(char)
        return ""

    def _begins(self, mark: str) -> Steps[bool]:
        """Return whether the text begins with this character, which is not consumed."""
        begins = (yield from self._peek()) == mark
        if not begins:
            self._restore()
        return begins

    def _text(self, text: str) -> None:
        """Add content. White space waits until the following text is known."""
        for char in text:
            if char.isspace():
                self._gap += char
            else:
                self._add(Content(self._gap + char))
                self._gap, self._after_call = "", False

    def _restore(self) -> None:
        """Turn the held characters into content."""
        self._text("".join(self._pending))
        self._pending.clear()

    # Calls -----------------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self._add(CallStart(self._calls, self._new_id(), name))
        self._pending.clear()
        self._gap, self._after_call = "", True

    def _more(self, text: str) -> None:
        self._add(CallArguments(self._calls, text))
        self._pending.clear()

    def _end(self) -> None:
        self._add(CallEnd(self._calls))
        self._calls += 1

    def _add(self, part: Part) -> None:
        """Add a part; text of the same kind as the last is joined when the parts are taken."""
        text = [part.text] if isinstance(part, Content | Reasoning | CallArguments) else []
        if text and self._parts and type(self._parts[-1][0]) is type(part):
            self._parts[-1][1].extend(text)
        elif text != [""]:
            self._parts.append((part, text))

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return [msgspec.structs.replace(part, text="".join(text)) if text else part for part, text in parts]
