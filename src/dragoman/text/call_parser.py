"""Tool calls in a stream of text: what every format has in common.

A format is a program that reads characters: a generator that yields for each next one (``""`` is the end of the text).
So a stream means the same however it was cut, and a whole answer is a stream of one piece.

What only looks like a call loses nothing. Characters are held back while a call may yet follow; when one comes that
cannot belong to it, all that was held becomes content, in its place. A call stands from the moment its tool is known to
exist and its arguments have begun: what follows, up to the brace that closes them or the end of the text, is passed on
as generated, valid or not. Left out are only the marks and braces around a call, and white space next to it: always
before, and behind it when another call or the end of the text follows.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Generator
from typing import TypeAlias, TypeVar

import msgspec

MAX_NAME_CHARS = 256
"""Longer strings in the head of a call are no name of anything."""

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, str, Result]


class Content(msgspec.Struct, frozen=True):
    """Text for the reader of the answer."""

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
    """More of a call's arguments, a JSON object in all."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The arguments are complete, or the text has ended."""

    index: int


Part: TypeAlias = Content | Reasoning | CallStart | CallArguments | CallEnd


class NotACall(Exception):
    """What looked like a call, or like more of one, is none."""


class CallParser(abc.ABC):
    """Reads one generated text. ``names``: the tools there are; ``new_id`` makes the id of a call.

    Parts of the same kind that come out together are one part.
    """

    def __init__(self, names: Collection[str], new_id: Callable[[], str]) -> None:
        self._names = frozenset(names)
        self._new_id = new_id
        self._parts: list[tuple[Part, list[str]]] = []
        self._again = ""
        self._ended = False
        self._held: list[str] = []
        self._gap = ""
        self._behind_call = False
        self._calls = 0
        self._program = self._read()
        next(self._program)

    def push(self, text: str) -> list[Part]:
        """What is certain after this piece."""
        for char in text:
            self._program.send(char)
        return self._taken()

    def flush(self) -> list[Part]:
        """The rest: no text follows."""
        try:
            self._program.send("")
        except StopIteration:
            return self._taken()
        raise AssertionError("a format reads on behind the end")

    @abc.abstractmethod
    def _read(self) -> Steps[None]:
        """The format: reads to the end."""

    # Characters ------------------------------------------------------------------------------------------------------

    def _next(self) -> Steps[str]:
        """The next character, which is held from now on; empty at the end."""
        if self._again:
            char, self._again = self._again, ""
        elif self._ended:
            return ""
        else:
            char = yield
            self._ended = not char
        if char:
            self._held.append(char)
        return char

    def _back(self, char: str) -> None:
        """Read this last character once more."""
        if char:
            self._again = char
            self._held.pop()

    def _refuse(self, char: str) -> NotACall:
        """The character ends what looked like a call; it is read again, as it may open another."""
        self._back(char)
        return NotACall()

    def _visible(self) -> Steps[str]:
        """The next character that is not white space."""
        while True:
            char = yield from self._next()
            if not char or not char.isspace():
                return char

    def _peek(self) -> Steps[str]:
        """``_visible``, which is read again."""
        char = yield from self._visible()
        self._back(char)
        return char

    def _expect(self, wanted: str) -> Steps[None]:
        """White space and this character."""
        char = yield from self._visible()
        if char != wanted:
            raise self._refuse(char)

    def _word(self, word: str) -> Steps[None]:
        """White space and this word; at the end of the text also part of it, or none."""
        char = yield from self._visible()
        for wanted in word:
            if not char:
                break
            if char != wanted:
                raise self._refuse(char)
            char = yield from self._next()
        else:
            self._back(char)
        self._held.clear()

    # Free text -------------------------------------------------------------------------------------------------------

    def _find(self, opener: str) -> Steps[bool]:
        """Pass on text up to the next opener, which is held. False at the end of the text."""
        tail = ""
        while char := (yield from self._next()):
            self._held.clear()
            tail += char
            while not opener.startswith(tail):
                self._text(tail[0])
                tail = tail[1:]
            if tail == opener:
                self._held.append(tail)
                return True
        self._text(tail)
        if not self._behind_call:
            self._add(Content(self._gap))
        return False

    def _begins(self, mark: str) -> Steps[bool]:
        """Whether this character, which is read again, comes first in the text."""
        begins = (yield from self._peek()) == mark
        if not begins:
            self._restore()
        return begins

    def _text(self, text: str) -> None:
        """Content. White space waits until what follows is known."""
        for char in text:
            if char.isspace():
                self._gap += char
            else:
                self._add(Content(self._gap + char))
                self._gap, self._behind_call = "", False

    def _restore(self) -> None:
        """What was held is content after all."""
        self._text("".join(self._held))
        self._held.clear()

    # Calls -----------------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self._add(CallStart(self._calls, self._new_id(), name))
        self._held.clear()
        self._gap, self._behind_call = "", True

    def _more(self, text: str) -> None:
        self._add(CallArguments(self._calls, text))
        self._held.clear()

    def _end(self) -> None:
        self._add(CallEnd(self._calls))
        self._calls += 1
        self._held.clear()

    def _add(self, part: Part) -> None:
        """One more part; text of the same kind as the last is joined when the parts are taken."""
        text = [part.text] if isinstance(part, Content | CallArguments) else []
        if text and self._parts and type(self._parts[-1][0]) is type(part):
            self._parts[-1][1].extend(text)
        elif text != [""]:
            self._parts.append((part, text))

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return [msgspec.structs.replace(part, text="".join(text)) if text else part for part, text in parts]
