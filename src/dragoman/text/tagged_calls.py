"""Calls that write each argument between tags: those of Qwen 3.5 and Qwen3-Coder, GLM-4.5, MiniMax-M2 and DeepSeek
V3.2.

The text between the tags of an argument is its value: a string as it is, any other type as JSON. Which it is, the
schema of the tool says, or, in DeepSeek's format, the opening tag.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from dragoman.text.argument_types import ArgumentTypes
from dragoman.text.call_parser import MAX_NAME_CHARS, CallParser, NotACall, Steps

_NOT_IN_NAMES = frozenset('<>"')


class CallTags(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of one format, in their order.

    Attributes:
        block, block_end: around one call or several.
        call, name_end, call_end: around a call's name, and after its arguments; empty where the format has none.
        key, key_end, value, value_end: around an argument's name, and around its value.
        of_text, of_json: after an argument's name, says that its value is a text, or JSON; empty: the schema says it.
        unopened: a call may also follow without the text that opens a block.
        on_lines: a value is on lines between its tags, so a line end at its begin and one at its end are not its own.
        several: a block has all calls that are made at once.
    """

    block: str
    block_end: str
    call: str = ""
    name_end: str = ""
    call_end: str = ""
    key: str
    key_end: str
    value: str = ""
    value_end: str
    of_text: str = ""
    of_json: str = ""
    unopened: bool = False
    on_lines: bool = False
    several: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """All tags, the one that opens a block first."""
        tags = (
            self.block,
            self.block_end,
            self.call,
            self.call_end,
            self.key,
            self.key_end,
            self.value,
            self.value_end,
        )
        return tuple(tag for tag in tags if tag)


QWEN_TAGS = CallTags(
    block="<tool_call>",
    block_end="</tool_call>",
    call="<function=",
    name_end=">",
    call_end="</function>",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    unopened=True,
    on_lines=True,
)
GLM_TAGS = CallTags(
    block="<tool_call>",
    block_end="</tool_call>",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
)
MINIMAX_TAGS = CallTags(
    block="<minimax:tool_call>",
    block_end="</minimax:tool_call>",
    call='<invoke name="',
    name_end='">',
    call_end="</invoke>",
    key='<parameter name="',
    key_end='">',
    value_end="</parameter>",
    several=True,
)
DSML = "｜DSML｜"
"""What all tags of DeepSeek V3.2 have in them: one token of its vocabulary."""
DSML_TAGS = CallTags(
    block=f"<{DSML}function_calls>",
    block_end=f"</{DSML}function_calls>",
    call=f'<{DSML}invoke name="',
    name_end='">',
    call_end=f"</{DSML}invoke>",
    key=f'<{DSML}parameter name="',
    key_end='" string="',
    value_end=f"</{DSML}parameter>",
    of_text='true">',
    of_json='false">',
    several=True,
)


class TaggedCalls(CallParser):
    """Calls between ``tags``.

    A call is certain once its tool is known to exist and its first argument, or its end, has been opened. Strings
    are passed on as they arrive, other values when they are complete.
    """

    tags: CallTags

    def _read(self) -> Steps[None]:
        tags = self.tags
        openers = (tags.block, tags.call) if tags.unopened else (tags.block,)
        while opener := (yield from self._find_one_of(*openers)):
            try:
                if tags.call and opener == tags.block and not (yield from self._one_of(tags.call)):
                    raise NotACall
                yield from self._call()
                while tags.call and (yield from self._one_of(tags.call, tags.block_end)) == tags.call:
                    yield from self._call()
                self._pending.clear()
            except NotACall:
                self._restore()

    def _call(self) -> Steps[None]:
        """Read a call after its opening tag."""
        tags = self.tags
        name = yield from self._bare()
        if name not in self._names:
            raise NotACall
        yield from self._exactly(tags.name_end)
        end = tags.call_end or tags.block_end
        tag = yield from self._one_of(tags.key, end)
        if not tag:
            raise NotACall
        self._start(name)
        self._more("{")
        try:
            types, given = ArgumentTypes(self._schemas.get(name)), set[str]()
            while tag == tags.key:
                yield from self._argument(types, given)
                tag = yield from self._one_of(tags.key, end)
        except NotACall:
            self._end()
            raise
        if tag:
            self._more("}")
        self._pending.clear()
        self._end()

    def _argument(self, types: ArgumentTypes, given: set[str]) -> Steps[None]:
        """Read an argument after its opening tag; ``given`` are the names of those before it. Raises NotACall."""
        tags = self.tags
        key = yield from self._bare()
        yield from self._exactly(tags.key_end)
        if not key or key in given or (tags.value and not (yield from self._one_of(tags.value))):
            raise NotACall
        self._more((", " if given else "") + json.dumps(key, ensure_ascii=False) + ": ")
        given.add(key)
        is_string = types.is_string(key)
        if tags.of_text:
            stated = yield from self._one_of(tags.of_text, tags.of_json)
            if not stated:
                raise NotACall
            is_string = stated == tags.of_text
        if is_string:
            self._more('"')
            if (yield from self._value(lambda char: self._more(json.dumps(char, ensure_ascii=False)[1:-1]))):
                self._more('"')
            return
        text: list[str] = []
        is_whole = yield from self._value(text.append)
        self._more(types.as_json(key, "".join(text)) if is_whole else "".join(text))

    def _bare(self) -> Steps[str]:
        """Read a name up to the next tag; return it without white space around it."""
        name = ""
        char = yield from self._visible()
        while char and char not in _NOT_IN_NAMES and len(name) <= MAX_NAME_CHARS:
            name += char
            char = yield from self._next()
        self._unread(char)
        return name.rstrip()

    def _value(self, take: Callable[[str], None]) -> Steps[bool]:
        """Hand over a value, character by character, and read its closing tag. Returns False where the text ended."""
        tags = self.tags
        ends = (tags.value_end, "\n" + tags.value_end) if tags.on_lines else (tags.value_end,)
        char = yield from self._next()
        if not (tags.on_lines and char == "\n"):
            self._unread(char)
        return bool((yield from self._pass_on(take, *ends)))


class QwenCalls(TaggedCalls):
    """Qwen 3.5 and Qwen3-Coder: ``<tool_call><function=f><parameter=a>``, with values on lines between the tags.

    Qwen3-Coder leaves out the first tag at times.
    """

    tags = QWEN_TAGS


class GlmCalls(TaggedCalls):
    """GLM-4.5 and later: ``<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>``."""

    tags = GLM_TAGS


class MinimaxCalls(TaggedCalls):
    """MiniMax-M2: ``<minimax:tool_call><invoke name="f"><parameter name="a">``, with several calls in a block."""

    tags = MINIMAX_TAGS


class DsmlCalls(TaggedCalls):
    """DeepSeek V3.2: as MiniMax-M2, in tags of its own, of which each argument's says whether it is a string."""

    tags = DSML_TAGS
