"""What every request field of the Gemini dialect does. Contents and ``generationConfig`` have tables of their own."""

from __future__ import annotations

from dragoman.core.sampling import MAX_COUNT
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, Integer, ListOf, String
from dragoman.dialects.gemini.config_fields import GENERATION_CONFIG
from dragoman.dialects.gemini.content_fields import CONTENT, SYSTEM
from dragoman.dialects.gemini.names import Known, Name, Whole
from dragoman.dialects.gemini.schemas import JSON_SCHEMA, SCHEMA

REFUSED, REPORTED = Treatment.REFUSED, Treatment.REPORTED

MAX_CONTENTS = 100_000
MAX_TEXTS = 2048
MAX_FUNCTIONS = 512
"""Of all tools together: each is part of one grammar."""
MODES = ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")

_MODEL = Field(
    name="model",
    kind=Anything(),
    becomes="model",
    note="That of the path, whatever a body has here: a served model, alias or adapter; names that begin with "
    "`gemini-` mean the model of `--gemini-model`.",
)

FUNCTION = Table(
    name="function declaration",
    fields=(
        Field(name="name", kind=String(minimum=1, maximum=256), required=True, note="Unique among the functions."),
        Field(name="description", kind=String(), note="Given to the chat template."),
        Field(
            name="parameters",
            kind=SCHEMA,
            note="The schema of an object, with the names of OpenAPI. Given to the chat template as a JSON Schema.",
        ),
        Field(name="parametersJsonSchema", kind=JSON_SCHEMA, note="The same as a JSON Schema; not both."),
        Field(name="response", kind=Anything(), treatment=REPORTED, note="Templates describe no results."),
        Field(name="responseJsonSchema", kind=Anything(), treatment=REPORTED, note="The same."),
        Field(
            name="behavior",
            kind=Anything(),
            treatment=REPORTED,
            neutral=("BLOCKING", "UNSPECIFIED"),
            note="An answer waits for all results.",
        ),
    ),
)

TOOL = Table(
    name="tool",
    fields=(
        Field(
            name="functionDeclarations",
            kind=ListOf(FUNCTION, maximum=MAX_FUNCTIONS),
            default=(),
            note="Functions of the client's, at most 512 in all tools.",
        ),
        *(
            Field(name=name, kind=Anything(), treatment=REFUSED, note="Run by Google's servers only.")
            for name in (
                "googleSearch",
                "googleSearchRetrieval",
                "enterpriseWebSearch",
                "parallelAiSearch",
                "exaAiSearch",
                "googleMaps",
                "urlContext",
                "fileSearch",
                "retrieval",
                "codeExecution",
            )
        ),
        Field(
            name="computerUse",
            kind=Anything(),
            treatment=REFUSED,
            note="Its functions are known to Google's models only; declare them.",
        ),
        Field(
            name="mcpServers",
            kind=Anything(),
            treatment=REFUSED,
            neutral=([],),
            note="No remote tools are called.",
        ),
    ),
)

FUNCTION_CALLING = Table(
    name="functionCallingConfig",
    fields=(
        Field(
            name="mode",
            kind=Name(String(choices=MODES)),
            default="AUTO",
            note="`AUTO`; `ANY`: at least one call; `NONE`: the model is not shown the functions; `VALIDATED`: as "
            "`AUTO`, and the arguments follow their schemas.",
        ),
        Field(
            name="allowedFunctionNames",
            kind=ListOf(String(minimum=1, maximum=256), maximum=MAX_FUNCTIONS),
            default=(),
            note="Only these are called, with `ANY` and `VALIDATED`.",
        ),
        Field(
            name="streamFunctionCallArguments",
            kind=Boolean(),
            treatment=REPORTED,
            neutral=(False,),
            note="Calls come whole.",
        ),
    ),
)

TOOL_CONFIG = Table(
    name="toolConfig",
    fields=(
        Field(
            name="functionCallingConfig",
            kind=Known(FUNCTION_CALLING),
            becomes="tools.choice",
            note="Which functions are called. Calls follow a grammar, also those that the model chooses to make.",
        ),
        Field(name="retrievalConfig", kind=Anything(), treatment=REPORTED, note="Nothing is retrieved."),
        Field(
            name="includeServerSideToolInvocations",
            kind=Boolean(),
            treatment=REPORTED,
            neutral=(False,),
            note="There are none.",
        ),
    ),
)

_CONTENTS = Field(
    name="contents",
    kind=ListOf(CONTENT, minimum=1, maximum=MAX_CONTENTS),
    required=True,
    becomes="prompt.messages",
    note="The conversation. A last turn of the model is continued.",
)

_SHOWN: tuple[Field, ...] = (
    Field(
        name="systemInstruction",
        kind=SYSTEM,
        becomes="prompt.system",
        note="The system prompt.",
    ),
    Field(
        name="tools",
        kind=ListOf(Known(TOOL), maximum=MAX_FUNCTIONS),
        becomes="tools.functions",
        note="What the model may call, if its chat template knows tools: see [tools.md](tools.md).",
    ),
    Field(name="toolConfig", kind=TOOL_CONFIG, note="How it calls them."),
)

_WITHOUT_EFFECT: tuple[Field, ...] = (
    Field(
        name="safetySettings",
        kind=Anything(),
        treatment=REPORTED,
        neutral=([],),
        note="Nothing is filtered, whatever they say.",
    ),
    Field(name="labels", kind=Anything(), treatment=REPORTED, neutral=({},), note="Nothing is stored."),
    Field(
        name="serviceTier",
        kind=Anything(),
        treatment=REPORTED,
        neutral=("standard", "unspecified"),
        note="There is one tier.",
    ),
    Field(name="store", kind=Anything(), treatment=REPORTED, neutral=(False,), note="Nothing is stored."),
    Field(
        name="cachedContent",
        kind=Anything(),
        treatment=REFUSED,
        neutral=("",),
        note="Send the content itself: equal prefixes are always found.",
    ),
    Field(name="continuationToken", kind=Anything(), treatment=REFUSED, neutral=("",), note="Nothing is kept."),
    Field(
        name="modelArmorConfig",
        kind=Anything(),
        treatment=REFUSED,
        neutral=({},),
        note="Nothing is screened.",
    ),
    Field(name="outputConfig", kind=Anything(), treatment=REFUSED, neutral=({},), note="Answers go to the client."),
)

GENERATE = Table(
    name="generateContent",
    fields=(
        _MODEL,
        _CONTENTS,
        *_SHOWN,
        Field(
            name="generationConfig",
            kind=GENERATION_CONFIG,
            note="How the answer is generated, and its form.",
        ),
        *_WITHOUT_EFFECT,
    ),
)

COUNTED = Table(
    name="generateContentRequest",
    fields=(
        Field(name="model", kind=String(), note="Not looked at: the path names the model."),
        _CONTENTS,
        *_SHOWN,
        Field(name="generationConfig", kind=Anything(), treatment=REPORTED, note="Nothing is generated."),
        *_WITHOUT_EFFECT,
    ),
)

COUNT_TOKENS = Table(
    name="countTokens",
    fields=(
        _MODEL,
        Field(
            name="generateContentRequest",
            kind=COUNTED,
            note="A whole request, whose prompt is counted: what else is shown to the model is then reported.",
        ),
        Field(
            name="contents",
            kind=_CONTENTS.kind,
            becomes="prompt.messages",
            note="The conversation; or, in its place, `generateContentRequest`.",
        ),
        *_SHOWN,
        Field(name="generationConfig", kind=Anything(), treatment=REPORTED, note="Nothing is generated."),
    ),
)

_EMBEDDED: tuple[Field, ...] = (
    Field(
        name="content",
        kind=CONTENT,
        required=True,
        becomes="prompt",
        note="The text: parts of other kinds are refused.",
    ),
    Field(
        name="outputDimensionality",
        kind=Whole(Integer(1, MAX_COUNT)),
        note="Only the first so many numbers, of length 1 again.",
    ),
    Field(
        name="taskType",
        kind=Anything(),
        treatment=REPORTED,
        neutral=("TASK_TYPE_UNSPECIFIED",),
        note="The client itself writes the prefix that a model was trained with.",
    ),
    Field(name="title", kind=Anything(), treatment=REPORTED, neutral=("",), note="No effect."),
    Field(
        name="embedContentConfig",
        kind=Anything(),
        treatment=REFUSED,
        neutral=({},),
        note="Its members are fields of the request.",
    ),
)

EMBED = Table(name="embedContent", fields=(_MODEL, *_EMBEDDED))

EMBED_REQUEST = Table(
    name="embed request",
    fields=(
        Field(name="model", kind=String(), note="The model of the path, as `models/NAME`; another one is an error."),
        *(
            Field(
                name=field.name,
                kind=field.kind,
                required=field.required,
                treatment=field.treatment,
                neutral=field.neutral,
                note=field.note,
            )
            for field in _EMBEDDED
        ),
    ),
)

BATCH_EMBED = Table(
    name="batchEmbedContents",
    fields=(
        _MODEL,
        Field(
            name="requests",
            kind=ListOf(EMBED_REQUEST, minimum=1, maximum=MAX_TEXTS),
            required=True,
            becomes="prompt",
            note="One for each vector.",
        ),
    ),
)
