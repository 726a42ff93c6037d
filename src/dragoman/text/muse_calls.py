"""Parser of answers of Muse Glimmer: messages, each with a recipient.

An answer is one message or several: ``<|start|>assistant to=user<|message|>text<|eot|>``, of which the prompt has
written the beginning up to the recipient. Messages to ``self`` are reasoning, those to ``user``, or without a
recipient, text for the user; a message to a tool has a call between tags, in which arguments have no types.
"""

from __future__ import annotations

from dragoman.text.call_parser import NotACall, Reasoning, Steps
from dragoman.text.reasoning import AnswerFrame
from dragoman.text.tagged_calls import CallTags, TaggedCalls

START, MESSAGE, MORE, END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
ROLE = "assistant"
TO, SELF, USER = " to=", "self", "user"
MUSE_TAGS = CallTags(
    block="<atem:function_calls>",
    block_end="</atem:function_calls>",
    call='<atem:invoke name="',
    name_end='">',
    call_end="</atem:invoke>",
    key='<atem:parameter name="',
    key_end='">',
    value_end="</atem:parameter>",
    several=True,
)
MARKS = (START, MESSAGE, MORE, END, *MUSE_TAGS.texts)
FRAME = AnswerFrame(
    opening="to",
    before_text=(f"={USER}{MESSAGE}", f"{START}{ROLE}{MESSAGE}"),
    lead=(START, ROLE, TO + USER, MESSAGE),
    written=2,
)

_ENDS = (MORE, END)


class MuseMessages(TaggedCalls):
    """Muse Glimmer: messages to a recipient, and text outside of them. What follows a block of reasoning is read alike.

    Texts for the user are joined by an empty line. Reasoning of later messages is passed on where it stands. A message
    also ends where another begins.
    """

    tags = MUSE_TAGS
    _has_content = False

    def _read(self) -> Steps[None]:
        opener = ""
        if (yield from self._begins("t")):  # the prompt has written the role, and the recipient follows it
            opener = yield from self._message_or_text("")
        while opener or (opener := (yield from self._find_one_of(START, MESSAGE))):
            opener = yield from self._message_or_text(opener)

    def _message_or_text(self, opener: str) -> Steps[str]:
        """Read a message. Returns the mark that opens another, where that is what has ended it."""
        try:
            end = yield from self._message(opener)
        except NotACall:
            is_header = opener or "".join(self._pending).lstrip().startswith(TO.lstrip())
            if self._ended and is_header:  # of a header that is cut there is nothing to show
                self._pending.clear()
            self._restore()
            return ""
        if end != START:
            return ""
        self._pending.append(START)
        return START

    def _message(self, opener: str) -> Steps[str]:
        recipient = "" if opener == MESSAGE else (yield from self._header(opener))
        if recipient == SELF:
            return (yield from self._pass_on(lambda char: self._add(Reasoning(char)), START, *_ENDS))
        if recipient in ("", USER):
            if self._has_content:
                self._text("\n\n")
            self._has_content = True
            return (yield from self._pass_on(self._text, START, *_ENDS))
        if not (yield from self._one_of(self.tags.block)) or not (yield from self._one_of(self.tags.call)):
            raise NotACall
        yield from self._call()
        while (yield from self._one_of(self.tags.call, self.tags.block_end)) == self.tags.call:
            yield from self._call()
        end = yield from self._one_of(START, *_ENDS)
        self._pending.clear()
        return end

    def _header(self, opener: str) -> Steps[str]:
        """Read a header after its first mark, up to the text; return its recipient, empty where it has none."""
        if opener == START:
            yield from self._exactly(ROLE)
        recipient = ""
        if (yield from self._peek()) == "t":
            yield from self._exactly(TO.lstrip())
            recipient = yield from self._bare()
        if not (yield from self._one_of(MESSAGE)):
            raise NotACall
        return recipient
