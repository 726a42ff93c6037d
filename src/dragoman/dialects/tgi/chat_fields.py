"""The request fields of TGI's version of OpenAI's endpoints, messages included."""

from __future__ import annotations

from typing import Any

from dragoman.core.sampling import LogprobParams
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import (
    Anything,
    Boolean,
    FieldError,
    FieldRule,
    Integer,
    ListOf,
    MapOf,
    OneOf,
    Path,
    String,
)
from dragoman.dialects.shared_fields import INCLUDE_PROGRESS
from dragoman.dialects.tgi.body import F32, U32, U64, Custom
from dragoman.dialects.tgi.fields import GRAMMAR, MOST_STOPS, constraint_of
from dragoman.dialects.tgi.tools import TOOLS

_TEXT = String()
_CALL_ID = OneOf((Integer(), String()))

_URL = Table(
    name="Url",
    fields=(
        Field(
            name="url",
            kind=_TEXT,
            required=True,
            note="Of an image: a `data:` URL, and with `--image-hosts` an https URL.",
        ),
    ),
)


class _Chunk(Table, frozen=True, kw_only=True):
    """A part of a content. Clients send the member of the other type as ``null``."""

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        given = super().check(value, path)
        if given[given["type"]] is None:
            raise FieldError(FieldRule.MISSING, (*path, given["type"]), bound=given["type"])
        return given


MESSAGE_CHUNK = _Chunk(
    name="MessageChunk",
    fields=(
        Field(name="type", kind=String(choices=("text", "image_url")), required=True, note="Which of the two follows."),
        Field(name="text", kind=_TEXT, note="Joined with its neighbours as it is."),
        Field(name="image_url", kind=_URL, note="For models that see, as `![](URL)` in a text."),
    ),
)

TOOL_CALL = Table(
    name="ToolCall",
    fields=(
        Field(name="id", kind=_CALL_ID, required=True, note="Given to the chat template as a string."),
        Field(name="type", kind=_TEXT, note="`function`."),
        Field(
            name="function",
            kind=Table(
                name="CalledFunction",
                fields=(
                    Field(name="name", kind=_TEXT, required=True, note="The tool."),
                    Field(name="arguments", kind=Anything(depth=32), note="An object, or its JSON text."),
                    Field(name="description", kind=_TEXT, note="Given to the chat template."),
                ),
            ),
            required=True,
            note="What was called.",
        ),
    ),
)


class _Message(Table, frozen=True, kw_only=True):
    """A message, which has content or calls. The original tries both in turn, and reports only that neither matches."""

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        try:
            given = super().check(value, path)
        except FieldError as error:
            if len(error.path) > len(path) and error.path[len(path)] in ("content", "tool_calls"):
                raise _neither(path) from None
            raise
        if given["content"] is None and not given["tool_calls"]:
            raise _neither(path) if "content" in value else FieldError(FieldRule.MISSING, (*path, "content"))
        return given


def _neither(path: Path) -> Custom:
    return Custom(path, "data did not match any variant of untagged enum MessageBody")


CONTENT = OneOf((_TEXT, ListOf(MESSAGE_CHUNK, maximum=4096)))

MESSAGE = _Message(
    name="Message",
    fields=(
        Field(name="role", kind=_TEXT, required=True, note="Given to the chat template, which decides about it."),
        Field(
            name="content",
            kind=CONTENT,
            note="Text, or parts of it. Only messages with `tool_calls` may do without.",
        ),
        Field(name="name", kind=_TEXT, note="Given to the chat template."),
        Field(
            name="tool_calls",
            kind=ListOf(TOOL_CALL, maximum=256),
            note="Earlier calls: given to the chat template with their arguments as objects or, where it has no use "
            "for them, as JSON behind the content.",
        ),
        Field(name="tool_call_id", kind=_TEXT, note="The call that a `tool` message answers, for the chat template."),
    ),
)

MESSAGES = ListOf(MESSAGE, maximum=8192)


REPORTED = Treatment.REPORTED

STREAM_OPTIONS = Table(
    name="StreamOptions",
    fields=(
        Field(
            name="include_usage",
            kind=Boolean(),
            default=False,
            note="A last event without choices holds the token counts.",
        ),
        INCLUDE_PROGRESS,
    ),
)

# In alternatives the last one is the original's, which errors name.
_STOP = OneOf((String(), ListOf(String(), maximum=MOST_STOPS)))
_LOGIT_BIAS = OneOf((MapOf(F32), ListOf(F32, maximum=1 << 20)))


class _Prompts(ListOf, frozen=True):
    """At least one prompt; the original has a specific message for an empty list."""

    def check(self, value: Any, path: Path) -> tuple[Any, ...]:
        if value == []:
            raise Custom(path, "Empty array detected. Do not use an empty array for the prompt.")
        return super().check(value, path)


PROMPT = OneOf((_Prompts(String(), maximum=1 << 16), String()))

MODEL = Field(
    name="model",
    kind=String(),
    becomes="adapter",
    convert=lambda name: None if name == "tgi" else name,
    note="The name of the adapter to run the model with; whatever else it is, the base model answers. A chat's answer "
    "repeats it, unless it is `tgi`.",
)

SHARED: tuple[Field, ...] = (
    Field(
        name="temperature",
        kind=F32,
        becomes="sampling.temperature",
        convert=lambda temperature: temperature or None,
        note="Logits are divided by it; 0 takes the most likely token. Absent: 1.",
    ),
    Field(
        name="top_p",
        kind=F32,
        becomes="sampling.top_p",
        note="Keeps the smallest set of tokens whose probabilities reach this sum; above 0, at most 1.",
    ),
    Field(
        name="repetition_penalty",
        kind=F32,
        becomes="sampling.repetition_penalty",
        note="Above 0. Divides the positive and multiplies the negative logit of each token of prompt and output.",
    ),
    Field(
        name="frequency_penalty",
        kind=F32,
        becomes="sampling.frequency_penalty",
        note="From -2 to 2. Subtracted from a token's logit as often as the token was generated before.",
    ),
    Field(
        name="presence_penalty",
        kind=F32,
        becomes="sampling.presence_penalty",
        note="From -2 to 2. Subtracted once from the logit of every token that was generated before.",
    ),
    Field(
        name="logit_bias",
        kind=_LOGIT_BIAS,
        becomes="sampling.logit_bias",
        convert=lambda given: given if isinstance(given, dict) else {},
        note="Token id (as a string) to what is added to its logit. An array, which is what TGI takes, has no effect.",
    ),
    Field(
        name="stop",
        kind=_STOP,
        becomes="ending.stop",
        convert=lambda given: (given,) if isinstance(given, str) else given,
        note="At most `--max-stop-sequences` strings that end the text and stay in it; special tokens by their "
        "spelling too. Empty ones count for nothing.",
    ),
    Field(
        name="seed",
        kind=U64,
        becomes="seeds",
        note="Absent: one is drawn.",
    ),
    Field(name="stream", kind=Boolean(), default=False, note="Answer with server-sent events, one per token."),
    Field(name="user", kind=Anything(), treatment=REPORTED, note="Nothing is done for single end users."),
)

CHAT = Table(
    name="ChatRequest",
    fields=(
        Field(
            name="messages",
            kind=MESSAGES,
            required=True,
            becomes="prompt.messages",
            note="The conversation, rendered by the model's own chat template.",
        ),
        MODEL,
        Field(
            name="max_tokens",
            kind=U32,
            becomes="ending.max_tokens",
            note="Most tokens to generate, at least 1. Absent: as many as there is room for, or "
            "`--default-max-new-tokens`.",
        ),
        Field(
            name="max_completion_tokens", kind=U32, becomes="ending.max_tokens", note="Another name of `max_tokens`."
        ),
        *SHARED,
        Field(
            name="stream_options",
            kind=STREAM_OPTIONS,
            note="For streams only.",
        ),
        Field(
            name="logprobs",
            kind=Boolean(),
            default=False,
            becomes="logprobs",
            convert=lambda on: LogprobParams() if on else None,
            note="Report log-probabilities.",
        ),
        Field(
            name="top_logprobs",
            kind=U32,
            becomes="logprobs.top",
            note="That many alternatives for each token, at most `--max-top-n-tokens`. Shown only with `logprobs`.",
        ),
        *TOOLS,
        Field(
            name="response_format",
            kind=GRAMMAR,
            becomes="constraint",
            convert=lambda values: constraint_of(values, "response_format"),
            note="What the text has to be, in TGI's forms or OpenAI's. The model is not told. Not with `tools`.",
        ),
        Field(
            name="guideline",
            kind=String(),
            becomes="prompt.template_kwargs",
            convert=lambda text: {"guideline": text},
            note="A variable of the chat template.",
        ),
        Field(
            name="continue_final_message",
            kind=Boolean(),
            becomes="prompt.continue_final_message",
            note="The prompt ends with the last message's text. Absent: when that is the assistant's. `false`: never.",
        ),
        Field(name="n", kind=Anything(), treatment=REPORTED, neutral=(1,), note="There is one choice."),
    ),
)

COMPLETIONS = Table(
    name="CompletionRequest",
    fields=(
        Field(
            name="prompt",
            kind=PROMPT,
            required=True,
            becomes="prompt",
            note="One text, or at most `--max-client-batch-size` of them: one choice for each, all with the same seed.",
        ),
        MODEL,
        Field(
            name="max_tokens",
            kind=U32,
            becomes="ending.max_tokens",
            note="As for chats, for each prompt.",
        ),
        *SHARED,
        Field(
            name="stream_options",
            kind=STREAM_OPTIONS,
            note="The last event of each prompt has its token counts whatever this says.",
        ),
        Field(
            name="logprobs",
            kind=U32,
            becomes="logprobs, logprobs.top",
            convert=lambda top: (LogprobParams(), top),
            note="Log-probabilities of the tokens and of this many alternatives, at most `--max-top-n-tokens`.",
        ),
        Field(name="suffix", kind=Anything(), note="An error, whatever it is."),
        Field(name="echo", kind=Anything(), treatment=REPORTED, neutral=(False,), note="The prompt is not repeated."),
        Field(name="n", kind=Anything(), treatment=REPORTED, neutral=(1,), note="There is one choice for each prompt."),
        Field(
            name="best_of", kind=Anything(), treatment=REPORTED, neutral=(1,), note="There is no choice of the best."
        ),
    ),
)
