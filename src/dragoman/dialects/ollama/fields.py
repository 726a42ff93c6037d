"""What every request field of the Ollama dialect does. The options are in ``options``."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema
from dragoman.core.image_sources import MAX_IMAGES
from dragoman.core.sampling import LogprobParams
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import (
    Anything,
    Boolean,
    FieldError,
    FieldRule,
    Integer,
    ListOf,
    Number,
    OneOf,
    Path,
    String,
    Wrapped,
)
from dragoman.dialects.ollama.durations import parsed
from dragoman.dialects.ollama.options import OPTIONS

REFUSED, REPORTED = Treatment.REFUSED, Treatment.REPORTED
TEXT = String()
MOST_TOP = 20
MOST_TEXTS = 2048
LEVELS = ("low", "medium", "high", "max")
OBJECT = Anything(object_only=True, depth=32)


class Format(Wrapped, frozen=True):
    """``"json"``, a JSON Schema, or nothing."""

    def accepts(self, value: Any) -> bool:
        return value in ("", "json") or isinstance(value, dict)

    def check(self, value: Any, path: Path) -> Any:
        if not self.accepts(value):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        return self.inner.check(value, path)


class Duration(Wrapped, frozen=True):
    """Seconds, or a duration in Go's notation."""

    def check(self, value: Any, path: Path) -> Any:
        value = self.inner.check(value, path)
        try:
            parsed(value)
        except ValueError as error:
            fault = FieldError(FieldRule.PATTERN, path, value, kind=self)
            fault.message = str(error)
            raise fault from None
        return value


class LowerCase(Wrapped, frozen=True):
    """A string in any case."""

    def check(self, value: Any, path: Path) -> Any:
        return self.inner.check(value.lower() if isinstance(value, str) else value, path)


def _constraint(value: Any) -> Constraint | None:
    if not value:
        return None
    return JsonObject() if value == "json" else JsonSchema(msgspec.json.encode(value).decode())


_MODEL = Field(
    name="model",
    kind=String(maximum=512),
    becomes="model",
    note="A served or offered model, alias or adapter, also with `:latest`; an offered one is loaded.",
)
_REQUIRED_MODEL = msgspec.structs.replace(_MODEL, required=True, kind=String(minimum=1, maximum=512))
_KEEP_ALIVE = Field(
    name="keep_alive",
    kind=Duration(OneOf((Number(), TEXT))),
    note="How long the model stays in memory when it is idle: seconds, or `5m`; 0: not at all, below 0: for ever.",
)
_IMAGES = Field(
    name="images",
    kind=ListOf(String(minimum=1), maximum=MAX_IMAGES),
    note="Images in base64, which come before the text; for models that see.",
)
_OPTIONS = Field(name="options", kind=OPTIONS, note="Parameters of sampling, lengths and the runner.")

_SHARED: tuple[Field, ...] = (
    Field(
        name="format",
        kind=Format(Anything()),
        becomes="constraint",
        convert=_constraint,
        note='The form of the answer behind its reasoning: `"json"`, or a JSON Schema.',
    ),
    _OPTIONS,
    _KEEP_ALIVE,
    Field(name="stream", kind=Boolean(), default=True, note="Send lines of JSON as they happen."),
    Field(
        name="think",
        kind=OneOf((Boolean(), String(choices=LEVELS))),
        note="Whether the model reasons before its answer. Absent: if it can. A level goes to templates that read "
        "`reasoning_effort`.",
    ),
    Field(
        name="truncate",
        kind=Boolean(),
        note="`true`: leave out the oldest messages of a chat that is too long, and report it. `false`, and anything "
        "else than a chat: an error. Absent: the operator's choice, `--ollama-truncate`.",
    ),
    Field(
        name="shift",
        kind=Anything(),
        treatment=REPORTED,
        neutral=(False,),
        note="The text ends where the context does; nothing of it is dropped to go on.",
    ),
    Field(
        name="logprobs",
        kind=Boolean(),
        default=False,
        becomes="logprobs",
        convert=lambda wanted: LogprobParams() if wanted else None,
        note="Report each token's log-probability, of the model's own distribution.",
    ),
    Field(
        name="top_logprobs",
        kind=Integer(0, MOST_TOP),
        default=0,
        becomes="logprobs.top",
        note="So many alternatives, with `logprobs`.",
    ),
    Field(
        name="_debug_render_only",
        kind=Boolean(),
        default=False,
        note="Answer with the prompt as the chat template renders it.",
    ),
)

GENERATE = Table(
    name="generate",
    fields=(
        _MODEL,
        Field(
            name="prompt",
            kind=TEXT,
            default="",
            becomes="prompt",
            note="The user's turn; verbatim with `raw`, and for models without a chat template. Empty: the model is "
            "loaded, or with `keep_alive` 0 unloaded.",
        ),
        Field(
            name="suffix",
            kind=TEXT,
            default="",
            becomes="prompt.suffix",
            note="The text behind a gap that is filled, for models with tokens for that.",
        ),
        Field(name="system", kind=TEXT, default="", becomes="prompt.system", note="The system message."),
        Field(
            name="template",
            kind=Anything(),
            treatment=REFUSED,
            neutral=("",),
            note="The model's own chat template is rendered.",
        ),
        Field(
            name="context",
            kind=ListOf(Integer(0, 2**31 - 1), maximum=2**20),
            note="The `context` of an earlier answer, whose conversation is continued.",
        ),
        Field(name="raw", kind=Boolean(), default=False, note="The prompt as it is, special tokens in it too."),
        _IMAGES,
        *_SHARED,
        *(
            Field(name=name, kind=Anything(), treatment=REPORTED, neutral=(0,), note="Of models that make images.")
            for name in ("width", "height", "steps")
        ),
    ),
)

FUNCTION = Table(
    name="function",
    fields=(
        Field(name="name", kind=String(minimum=1, maximum=256), required=True, note="Unique among the tools."),
        Field(name="description", kind=TEXT, note="Given to the chat template."),
        Field(name="parameters", kind=OBJECT, note="The JSON Schema of an object, at most 65536 characters."),
    ),
)

TOOL = Table(
    name="tool",
    fields=(
        Field(
            name="type",
            kind=String(choices=("function",)),
            default="function",
            note="A function; others are refused.",
        ),
        Field(name="function", kind=FUNCTION, required=True, note="What may be called."),
    ),
)

CALLED = Table(
    name="called function",
    fields=(
        Field(name="name", kind=String(minimum=1, maximum=256), required=True, note="Its name."),
        Field(name="arguments", kind=OneOf((OBJECT, TEXT)), note="An object, or the JSON of one."),
        Field(name="index", kind=Anything(), treatment=REPORTED, neutral=tuple(range(1024)), note="Its place is."),
    ),
)

CALL = Table(
    name="call",
    fields=(
        Field(name="id", kind=TEXT, note="Absent: one is made up."),
        Field(name="type", kind=String(choices=("function",)), note="A function."),
        Field(name="function", kind=CALLED, required=True, note="What was called."),
    ),
)

MESSAGE = Table(
    name="message",
    fields=(
        Field(
            name="role",
            kind=LowerCase(String(choices=("system", "user", "assistant", "tool"))),
            required=True,
            note="In any case of letters.",
        ),
        Field(name="content", kind=TEXT, default="", note="The text."),
        Field(name="thinking", kind=TEXT, note="Given to the chat template as the turn's reasoning."),
        _IMAGES,
        Field(name="tool_calls", kind=ListOf(CALL, maximum=1024), note="The calls of an assistant's turn."),
        Field(name="tool_name", kind=TEXT, note="Of a result: the tool's name."),
        Field(name="name", kind=TEXT, note="The same."),
        Field(
            name="tool_call_id", kind=TEXT, note="Of a result: the call that it answers. Absent: the oldest open one."
        ),
    ),
)

CHAT = Table(
    name="chat",
    fields=(
        _REQUIRED_MODEL,
        Field(
            name="messages",
            kind=ListOf(MESSAGE, maximum=100_000),
            becomes="prompt.messages",
            note="The conversation. A last turn of the assistant is continued. None: the model is loaded, or with "
            "`keep_alive` 0 unloaded.",
        ),
        Field(
            name="tools",
            kind=ListOf(TOOL, maximum=512),
            becomes="tools.functions",
            note="What the model may call, if its chat template knows tools: see [tools.md](tools.md).",
        ),
        *_SHARED,
    ),
)

_NO_OPTIONS = Field(
    name="options", kind=OBJECT, treatment=REPORTED, neutral=({},), note="Nothing is drawn, and the context is there."
)

EMBED = Table(
    name="embed",
    fields=(
        _REQUIRED_MODEL,
        Field(
            name="input",
            kind=OneOf((TEXT, ListOf(TEXT, maximum=MOST_TEXTS))),
            becomes="prompt",
            convert=lambda given: tuple(given) if not isinstance(given, str) else (given,) if given else (),
            note="A text, or a list of texts. None, or an empty one: the model is loaded, and there are no vectors.",
        ),
        Field(
            name="truncate",
            kind=Boolean(),
            default=False,
            note="`true`: of a text that is too long its beginning is read, and that is reported. Absent, as with "
            "`false`: an error.",
        ),
        Field(
            name="dimensions",
            kind=Integer(0, 2**31 - 1),
            default=0,
            note="Only the first so many numbers of each vector, normalized again; 0: all.",
        ),
        _NO_OPTIONS,
        _KEEP_ALIVE,
    ),
)

OLD_EMBED = Table(
    name="embeddings",
    fields=(
        _REQUIRED_MODEL,
        Field(
            name="prompt",
            kind=TEXT,
            default="",
            becomes="prompt",
            note="The text. Empty: the model is loaded, and the vector is empty.",
        ),
        _NO_OPTIONS,
        _KEEP_ALIVE,
    ),
)

_OLD_NAME = Field(name="name", kind=String(maximum=512), note="The older name of `model`.")
_NAMED = Field(name="model", kind=String(maximum=512), note="A served or offered model.")

SHOW = Table(
    name="show",
    fields=(
        _NAMED,
        _OLD_NAME,
        Field(name="verbose", kind=Anything(), treatment=REPORTED, neutral=(False,), note="Adds nothing."),
        *(
            Field(name=name, kind=Anything(), treatment=REPORTED, neutral=("", {}), note="No effect.")
            for name in ("system", "template", "options")
        ),
    ),
)

CREATE = Table(
    name="create",
    fields=(
        msgspec.structs.replace(_NAMED, note="The new name."),
        _OLD_NAME,
        Field(name="from", kind=String(maximum=512), note="A served or offered model, an adapter, or a derived model."),
        Field(name="system", kind=TEXT, default="", note="The system message of requests that have none."),
        Field(
            name="parameters",
            kind=OPTIONS,
            note="Options of requests that have none, where the operator has none.",
        ),
        Field(
            name="messages", kind=ListOf(MESSAGE, maximum=1024), note="Turns that precede those of every conversation."
        ),
        Field(name="license", kind=OneOf((TEXT, ListOf(TEXT, maximum=64))), note="Shown by `/api/show`."),
        Field(
            name="template",
            kind=TEXT,
            default="",
            note="The model's own, as `/api/show` has it; no other one is rendered.",
        ),
        Field(name="stream", kind=Boolean(), default=True, note="Send lines of JSON as they happen."),
        *(
            Field(name=name, kind=Anything(), treatment=REFUSED, neutral=("", {}), note="No weights are written here.")
            for name in ("files", "adapters", "quantize", "quantization", "modelfile", "path")
        ),
        Field(
            name="remote_host",
            kind=Anything(),
            treatment=REFUSED,
            neutral=("",),
            note="Models of other servers are not passed on.",
        ),
        *(
            Field(
                name=name,
                kind=Anything(),
                treatment=REPORTED,
                neutral=("", {}),
                note="How the model writes is read from its own template.",
            )
            for name in ("renderer", "parser")
        ),
        *(
            Field(name=name, kind=Anything(), treatment=REPORTED, neutral=("", {}), note="Of Ollama's own models.")
            for name in ("requires", "info")
        ),
    ),
)

COPY = Table(
    name="copy",
    fields=(
        Field(name="source", kind=String(minimum=1, maximum=512), required=True, note="A model, of any kind."),
        Field(name="destination", kind=String(minimum=1, maximum=512), required=True, note="The new name."),
    ),
)

DELETE = Table(name="delete", fields=(msgspec.structs.replace(_NAMED, note="A derived model."), _OLD_NAME))

PULL = Table(
    name="pull",
    fields=(
        _NAMED,
        _OLD_NAME,
        Field(name="stream", kind=Boolean(), default=True, note="Send lines of JSON as they happen."),
        *(
            Field(name=name, kind=Anything(), treatment=REPORTED, neutral=("", False), note="No effect.")
            for name in ("insecure", "username", "password")
        ),
    ),
)
