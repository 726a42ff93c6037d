"""Parser of answers in gpt-oss' format: messages, each with a channel, of which some call tools.

An answer is one message or several: ``<|start|>assistant<|channel|>final<|message|>text<|end|>``, of which the prompt
has written the beginning up to the first channel. The channel ``analysis`` has reasoning, ``final`` and ``commentary``
have text for the user; a message to ``functions.NAME`` has the arguments of a call.
"""

from __future__ import annotations

from dragoman.text.call_formats import ObjectCalls
from dragoman.text.call_parser import NotACall, Reasoning, Steps
from dragoman.text.reasoning import AnswerFrame

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (CHANNEL, START, CONSTRAIN, MESSAGE, END, CALL, RETURN)
ROLE = "assistant"
FUNCTIONS = "functions."
"""What recipients that are tools begin with."""

FRAME = AnswerFrame(
    opening=CHANNEL, before_text=("final" + MESSAGE,), lead=(START, ROLE, CHANNEL, "final", MESSAGE), written=2
)

_ENDS = (END, CALL, RETURN)
_OPENERS = (START, CHANNEL)


class HarmonyMessages(ObjectCalls):
    """gpt-oss: messages in channels, and text outside of them. What follows a block of reasoning is read alike.

    Texts for the user are joined by an empty line. Reasoning of later messages is passed on where it stands.
    """

    _has_content = False

    def _read(self) -> Steps[None]:
        if (yield from self._begins("t")):  # the prompt has written the role, and the recipient follows it
            yield from self._message_or_text("")
        while opener := (yield from self._find_one_of(*_OPENERS)):
            yield from self._message_or_text(opener)

    def _message_or_text(self, opener: str) -> Steps[None]:
        try:
            yield from self._message(opener)
        except NotACall:
            if self._ended and opener:  # of a header that is cut there is nothing to show
                self._pending.clear()
            self._restore()

    def _message(self, opener: str) -> Steps[None]:
        channel, recipient = yield from self._header(opener)
        if recipient:
            name = recipient.removeprefix(FUNCTIONS)
            if name == recipient or name not in self._names:
                raise NotACall
            yield from self._arguments(name)
            yield from self._one_of(*_ENDS)
            self._pending.clear()
        elif channel == "analysis":
            yield from self._pass_on(lambda char: self._add(Reasoning(char)), *_ENDS)
        elif channel in ("final", "commentary", ""):
            if self._has_content:
                self._text("\n\n")
            self._has_content = True
            yield from self._pass_on(self._text, *_ENDS)
        else:
            raise NotACall

    def _header(self, mark: str) -> Steps[tuple[str, str]]:
        """Read a header after its first mark; return its channel and its recipient, empty where it has none."""
        channel = recipient = ""
        if mark == START:
            yield from self._exactly(ROLE)
        if mark != CHANNEL:
            recipient, mark = yield from self._recipient()
        if mark == CHANNEL:
            channel = yield from self._bare_name()
            named, mark = yield from self._recipient()
            recipient = named or recipient
        if mark == CONSTRAIN:
            yield from self._bare_name()
            mark = yield from self._one_of(MESSAGE)
        if mark != MESSAGE:
            raise NotACall
        return channel, recipient

    def _recipient(self) -> Steps[tuple[str, str]]:
        """Read ``to=NAME`` and the type of the content, where they are there, and the next mark."""
        recipient = ""
        char = yield from self._peek()
        if char == "t":
            yield from self._exactly("to=")
            recipient = yield from self._bare_name()
            char = yield from self._peek()
        if char != "<":
            yield from self._bare_name()
        return recipient, (yield from self._one_of(CHANNEL, CONSTRAIN, MESSAGE))
