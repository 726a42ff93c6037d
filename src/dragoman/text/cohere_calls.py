"""Parser of answers of Cohere's models since Command R7B: text, reasoning and calls, each between marks.

Command A+ and North Mini Code write their text between ``<|START_TEXT|>`` and ``<|END_TEXT|>``, earlier models between
``<|START_RESPONSE|>`` and ``<|END_RESPONSE|>``, which later ones have kept. Calls are a list of objects with
``tool_call_id``, ``tool_name`` and ``parameters`` between ``<|START_ACTION|>`` and ``<|END_ACTION|>``.
"""

from __future__ import annotations

from dragoman.text.call_formats import ObjectCalls
from dragoman.text.call_parser import NotACall, Reasoning, Steps
from dragoman.text.reasoning import AnswerFrame

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
TEXT, TEXT_END = "<|START_TEXT|>", "<|END_TEXT|>"
RESPONSE, RESPONSE_END = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
THINKING, THINKING_END = "<|START_THINKING|>", "<|END_THINKING|>"
MARKS = (ACTION, ACTION_END, TEXT, TEXT_END, RESPONSE, RESPONSE_END)

_OPENING = "<|START_"
_BEFORE_TEXT = (TEXT.removeprefix(_OPENING), RESPONSE.removeprefix(_OPENING))
TEXT_FRAME = AnswerFrame(opening=_OPENING, before_text=_BEFORE_TEXT, lead=(TEXT,))
RESPONSE_FRAME = AnswerFrame(opening=_OPENING, before_text=_BEFORE_TEXT, lead=(RESPONSE,))


class CohereCalls(ObjectCalls):
    """Cohere: texts, blocks of reasoning after the first, and calls. Text outside of marks is content."""

    name_key = "tool_name"
    ignored_keys = ("tool_call_id",)

    def _read(self) -> Steps[None]:
        while opener := (yield from self._find_one_of(*MARKS, THINKING)):
            if opener == ACTION:
                yield from self._calls_or_text()
                continue
            self._pending.clear()
            if opener == THINKING:
                yield from self._pass_on(lambda char: self._add(Reasoning(char)), THINKING_END)

    def _calls_or_text(self) -> Steps[None]:
        try:
            yield from self._list()
            yield from self._word(ACTION_END)
        except NotACall:
            self._restore()

    def _list(self) -> Steps[None]:
        yield from self._expect("[")
        yield from self._object()
        while (yield from self._peek()) == ",":
            yield from self._next()
            yield from self._object()
        yield from self._word("]")
