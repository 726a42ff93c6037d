"""Detection of a model's tool call format from its chat template, and the known formats."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from dragoman.core.entropy import random_bits, token_hex
from dragoman.core.serving import ReasoningBlocks, ToolCalls
from dragoman.text import cohere_calls, deepseek_calls, harmony, muse_calls
from dragoman.text.argument_types import ToolSchemas
from dragoman.text.call_formats import (
    HermesCalls,
    LinesOfCalls,
    LlamaCalls,
    MarkedPythonicCalls,
    MistralCalls,
    NemotronCalls,
    PythonicCalls,
)
from dragoman.text.call_parser import CallParser
from dragoman.text.chat_template import ChatTemplate
from dragoman.text.cohere_calls import CohereCalls
from dragoman.text.deepseek_calls import DeepSeekCalls
from dragoman.text.gemma_calls import CLOSER, OPENER, QUOTE, GemmaCalls
from dragoman.text.harmony import HarmonyMessages
from dragoman.text.muse_calls import MuseMessages
from dragoman.text.reasoning import KNOWN_BY_OPENING, KNOWN_MARKS, AnswerFrame, ReasoningMarks
from dragoman.text.tagged_calls import (
    DSML,
    DSML_TAGS,
    GLM_TAGS,
    MINIMAX_TAGS,
    QWEN_TAGS,
    DsmlCalls,
    GlmCalls,
    MinimaxCalls,
    QwenCalls,
)
from dragoman.text.template_names import TemplateNames
from dragoman.text.tokenizer import Tokenizer


class CallFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One format of calls.

    Attributes:
        marks: texts around calls; some are special tokens in some models.
        written: patterns that a template contains, all of them, when its model uses this format.
        unlike: a pattern that the template then does not contain.
        leads: a character that an answer begins with which is a call from there on.
        frame: how the text of an answer is marked; None: it is not.
        is_typed: False where the parser needs the schemas of the tools to know the types of values.
    """

    name: str
    parser: Callable[[Collection[str], Callable[[], str], ToolSchemas], CallParser]
    marks: tuple[str, ...]
    written: tuple[str, ...]
    unlike: str | None = None
    leads: str = ""
    frame: AnswerFrame | None = None
    is_typed: bool = True
    new_id: Callable[[], str] = lambda: "call_" + token_hex(12)

    @property
    def is_framed(self) -> bool:
        """Whether the text of an answer is between marks, too, so that it is read by the parser also without tools, and
        reasoning is never part of the content."""
        return self.frame is not None

    def start(self, names: Collection[str], schemas: ToolSchemas | None = None) -> CallParser:
        """Return a parser for one generated text; ``names`` are the tools that may be called, ``schemas`` are of their
        arguments."""
        return self.parser(names, self.new_id, schemas or {})


def _nine_characters() -> str:
    """Return a new id of nine characters: Mistral's templates refuse any other."""
    number, digits = random_bits(64), string.ascii_letters + string.digits
    return "".join(digits[number // len(digits) ** place % len(digits)] for place in range(9))


# In order of precedence: the first that fits a template.
_ALL = (
    CallFormat(
        name="gemma",
        parser=GemmaCalls,
        marks=(OPENER, CLOSER, QUOTE),
        written=(r"<\|tool_call>call:", r"<tool_call\|>"),
    ),
    CallFormat(
        name="harmony",
        parser=HarmonyMessages,
        marks=harmony.MARKS,
        written=(r"<\|channel\|>commentary", r"functions\."),
        frame=harmony.FRAME,
    ),
    CallFormat(
        name="muse",
        parser=MuseMessages,
        marks=muse_calls.MARKS,
        written=(r"to=self<\|message\|>", r"<atem:invoke name="),
        frame=muse_calls.FRAME,
        is_typed=False,
    ),
    CallFormat(
        name="cohere",
        parser=CohereCalls,
        marks=cohere_calls.MARKS,
        written=(r"<\|START_ACTION\|>", r"tool_name", r"<\|START_TEXT\|>"),
        frame=cohere_calls.TEXT_FRAME,
    ),
    CallFormat(
        name="cohere_response",
        parser=CohereCalls,
        marks=cohere_calls.MARKS,
        written=(r"<\|START_ACTION\|>", r"tool_name", r"<\|START_RESPONSE\|>"),
        frame=cohere_calls.RESPONSE_FRAME,
    ),
    CallFormat(
        name="pythonic",
        parser=PythonicCalls,
        marks=("<|python_start|>", "<|python_end|>"),
        written=(r"func_name\d?\(",),
        leads="[",
    ),
    CallFormat(
        name="lfm2",
        parser=MarkedPythonicCalls,
        marks=("<|tool_call_start|>", "<|tool_call_end|>"),
        # Templates show the tools in these words, and do not describe a call: models are trained to write it.
        written=(r"List of tools: ", r"<\|im_start\|>"),
        unlike=r"<tool_call>|[\"']parameters\\?[\"']\s*:",
    ),
    CallFormat(
        name="mistral",
        parser=MistralCalls,
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        written=(r"\[TOOL_CALLS\]",),
        unlike=r"\[ARGS\]",
        new_id=_nine_characters,
    ),
    CallFormat(
        name="mistral_named",
        parser=MistralCalls,
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        written=(r"\[TOOL_CALLS\]", r"\[ARGS\]"),
        new_id=_nine_characters,
    ),
    CallFormat(
        name="nemotron",
        parser=NemotronCalls,
        marks=("<TOOLCALL>", "</TOOLCALL>"),
        written=(r"<TOOLCALL>\s*\[", r"</TOOLCALL>"),
    ),
    CallFormat(
        name="minimax_lines",
        parser=LinesOfCalls,
        marks=("<tool_calls>", "</tool_calls>"),
        written=(r"<tool_calls>(\\n|\s)*\{\\?[\"']name", r"</tool_calls>", r"\\?[\"']arguments\\?[\"']\s*:"),
    ),
    CallFormat(
        name="qwen",
        parser=QwenCalls,
        marks=QWEN_TAGS.texts,
        written=(r"<tool_call>", r"<function=", r"<parameter="),
        is_typed=False,
    ),
    CallFormat(
        name="glm",
        parser=GlmCalls,
        marks=GLM_TAGS.texts,
        written=(r"<tool_call>", r"<arg_key>", r"<arg_value>"),
        is_typed=False,
    ),
    CallFormat(
        name="minimax",
        parser=MinimaxCalls,
        marks=MINIMAX_TAGS.texts,
        written=(r"<minimax:tool_call>", r"<invoke name=", r"<parameter name="),
        is_typed=False,
    ),
    CallFormat(
        name="deepseek_tagged",
        parser=DsmlCalls,
        marks=(*DSML_TAGS.texts, DSML),
        is_typed=False,
        written=(DSML, r"function_calls>", r"invoke name=", r"parameter name="),
    ),
    CallFormat(
        name="deepseek",
        parser=DeepSeekCalls,
        marks=deepseek_calls.MARKS,
        written=(deepseek_calls.BLOCK, deepseek_calls.SEPARATOR, deepseek_calls.FENCE),
    ),
    CallFormat(
        name="deepseek_bare",
        parser=DeepSeekCalls,
        marks=deepseek_calls.MARKS,
        written=(deepseek_calls.BLOCK, deepseek_calls.SEPARATOR),
        unlike=deepseek_calls.FENCE,
    ),
    CallFormat(
        name="hermes",
        parser=HermesCalls,
        marks=("<tool_call>", "</tool_call>"),
        written=(r"<tool_call>", r"\\?[\"']arguments\\?[\"']\s*:"),
        # Formats that share the mark, but write the call as XML.
        unlike=r"<function=|<arg_key>",
    ),
    CallFormat(
        name="llama",
        parser=LlamaCalls,
        marks=("<|python_tag|>",),
        written=(r"\\?[\"']name\\?[\"']\s*:", r"\\?[\"']parameters\\?[\"']\s*:"),
        # Marks of other formats, whose templates may write definitions of tools in these words.
        unlike=r"<\|?tool|tool▁call|\[TOOL",
        leads="{",
    ),
)
CALL_FORMATS: Mapping[str, CallFormat] = {format.name: format for format in _ALL}


def find_call_format(template: str, names: TemplateNames) -> CallFormat | None:
    """Return the call format of a model with this chat template; None where it has none, or an unknown one.

    ``names``: names that the template reads. One that does not use the variable ``tools`` would hide them from the
    model.
    """
    if "tools" not in names.variables:
        return None
    for format in _ALL:
        fits = all(re.search(pattern, template) for pattern in format.written)
        if fits and not (format.unlike and re.search(format.unlike, template)):
            return format
    return None


def find_reasoning_marks(template: str, has_token: Callable[[str], bool]) -> ReasoningMarks | None:
    """Return the marks of the model's reasoning blocks: its template writes them, or its vocabulary has them
    as tokens."""
    if found := next((m for m in KNOWN_BY_OPENING if m.opening in template), None):
        return found
    return next((m for m in KNOWN_MARKS if m.closing in template or all(map(has_token, m))), None)


def tool_calls_of(template: ChatTemplate, tokenizer: Tokenizer) -> ToolCalls | None:
    """Return how the model calls tools; None where it does not, or in an unknown format."""
    format = find_call_format(template.source, template.names)
    if format is None:
        return None
    return ToolCalls(format=format.name, special_ids=_special_ids(format.marks, tokenizer))


def reasoning_of(template: ChatTemplate, tokenizer: Tokenizer) -> ReasoningBlocks | None:
    """Return the marks around the model's reasoning; None where it is not known to reason."""
    marks = find_reasoning_marks(template.source, lambda token: tokenizer.token_id(token) is not None)
    if marks is None or not template.available:
        return None
    inside = re.findall(r"<[^<>]+>", marks.opening)  # a mark may be several tokens
    special_ids = _special_ids((*inside, *marks), tokenizer)
    return ReasoningBlocks(opening=marks.opening, closing=marks.closing, special_ids=special_ids)


def _special_ids(marks: Sequence[str], tokenizer: Tokenizer) -> dict[str, int]:
    ids = {mark: token_id for mark in marks if (token_id := tokenizer.token_id(mark)) is not None}
    return {mark: token_id for mark, token_id in ids.items() if tokenizer.is_special(token_id)}
