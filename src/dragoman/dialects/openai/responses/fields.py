"""The request fields of the Responses API. Input items are checked in ``content``, tools in ``tools``."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema
from dragoman.core.errors import BadRequest
from dragoman.dialects.field import Field, Outline, Table, Treatment
from dragoman.dialects.field_types import (
    Anything,
    Boolean,
    FieldError,
    FieldRule,
    Integer,
    ListOf,
    OneOf,
    Path,
    String,
    Wrapped,
)
from dragoman.dialects.openai.fields import MODEL, SHARED
from dragoman.dialects.openai.sampler_fields import BEAMS, extension
from dragoman.dialects.openai.structured import STRUCTURED
from dragoman.dialects.reasoning import EFFORTS
from dragoman.dialects.shared_fields import INCLUDE_PROGRESS

REFUSED, REPORTED = Treatment.REFUSED, Treatment.REPORTED

TEXT = String()
ID = String(minimum=1, maximum=128)
MAX_ITEMS = 100_000
MAX_TOOLS = 128

ENCRYPTED, LOGPROBS, IMAGE_URL = (
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
)
INCLUDES = (
    ENCRYPTED,
    LOGPROBS,
    IMAGE_URL,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


class Metadata(Wrapped, frozen=True):
    """At most 16 pairs of a key of at most 64 characters and a text of at most 512."""

    def check(self, value: Any, path: Path) -> Any:
        checked = self.inner.check(value, path)
        if len(checked) > 16:
            raise FieldError(FieldRule.LONG, path, checked, kind=self.inner, bound=16)
        for name, text in checked.items():
            String(maximum=64).check(name, path)
            String(maximum=512).check(text, (*path, name))
        return checked


def _members(*pairs: tuple[str, str]) -> tuple[Field, ...]:
    return tuple(Field(name=name, kind=Anything(), note=note) for name, note in pairs)


PART = Table(
    name="content part",
    fields=_members(
        ("type", "`input_text`, `text`, `output_text`, `refusal`, `input_file`, `input_image`; audio is refused."),
        ("text", "Of a text; parts are joined as they are."),
        ("refusal", "Of a refusal, which is text."),
        ("image_url", "Of an image, for models that see: a data URL, and with `--image-hosts` an https URL."),
        ("file_id", "Of a file of text or an image that was uploaded."),
        ("detail", "Of an image: `auto`, `low`, `high`, `original`."),
        ("file_data", "Of a file, a data URL: text and JSON are shown as a document."),
        ("file_url", "Of a file: refused."),
        ("filename", "Of a file: the title of the document."),
        ("annotations", "No effect."),
        ("logprobs", "No effect."),
        ("prompt_cache_breakpoint", "Equal beginnings are always found."),
        ("input_audio", "Of audio."),
    ),
)

ITEM = Table(
    name="input item",
    fields=_members(
        (
            "type",
            "`message` (also where there is a `role`), `function_call`, `function_call_output`, `custom_tool_call`, "
            "`custom_tool_call_output`, `reasoning`, `item_reference` (also where there is an `id` alone), "
            "`additional_tools`, `tool_search_output` (its tools may be called), `tool_search_call`, "
            "`configuration_update` (later settings hold); others are refused by name.",
        ),
        ("id", "Of an item that was an output before."),
        ("status", "No effect."),
        ("phase", "No effect."),
        ("caller", "No effect."),
        ("created_by", "No effect."),
        ("role", "Of a message: user, assistant, system or developer."),
        ("content", "Of a message, text or parts of it; of reasoning, its text."),
        ("call_id", "Which call it is, or which one it answers."),
        ("name", "Of the called tool."),
        ("namespace", "Of the called tool."),
        ("arguments", "Of a call: JSON, as text."),
        ("input", "Of a custom tool's call: text."),
        (
            "output",
            "Of a call's result: text or parts. Images are shown after the results to models that see; otherwise "
            "images, and always files, are left out and reported.",
        ),
        ("summary", "Of reasoning: its text, where there is no other."),
        ("encrypted_content", "Of reasoning: its text, as an answer had it."),
        ("tools", "More tools."),
        ("execution", "No effect."),
        ("reasoning", "Of new settings: `effort`."),
        ("text", "Of new settings: `format`."),
    ),
)

TOOL = Table(
    name="tool",
    fields=(
        Field(
            name="type",
            kind=TEXT,
            required=True,
            note="`function`, `custom` or `namespace`. Those of OpenAI's servers are left out and reported: the model "
            "is not told of them. With `--strict` they are refused.",
        ),
        *_members(
            ("name", "Unique, also as the members of a namespace are called: `NAMESPACE.MEMBER`."),
            ("description", "Given to the chat template."),
            ("parameters", "The JSON Schema of an object; null: no arguments."),
            ("strict", "Absent: calls follow the schema where it can be enforced, and the answer's `tools` say so."),
            ("format", "Of a custom tool: text, or a grammar; a regex is enforced, others are shown to the model."),
            ("tools", "The members of a namespace."),
            ("defer_loading", "No effect."),
            ("allowed_callers", "No effect."),
            ("output_schema", "No effect."),
            ("async", "No effect."),
        ),
    ),
)


def _format(value: dict[str, Any]) -> Constraint | None:
    if value["type"] == "text":
        return None
    if value["type"] == "json_object":
        return JsonObject()
    for name in ("name", "schema"):
        if value[name] is None:
            raise FieldError(FieldRule.MISSING, ("text", "format", name), bound=name)
    return JsonSchema(msgspec.json.encode(value["schema"]).decode())


TEXT_FIELD = Field(
    name="text",
    kind=Table(
        name="text",
        fields=(
            Field(
                name="format",
                kind=Table(
                    name="format",
                    fields=(
                        Field(
                            name="type",
                            kind=String(choices=("text", "json_object", "json_schema")),
                            required=True,
                            note="`json_object`: any JSON object; `json_schema`: by the schema.",
                        ),
                        Field(
                            name="name",
                            kind=String(minimum=1, maximum=64, pattern="[a-zA-Z0-9_-]+"),
                            note="Required with a schema; echoed.",
                        ),
                        Field(
                            name="schema",
                            kind=Anything(object_only=True),
                            note="A JSON Schema. What cannot be enforced is refused.",
                        ),
                        Field(name="strict", kind=Boolean(), note="Schemas are always enforced; echoed."),
                        Field(name="description", kind=TEXT, note="Not shown to the model; echoed."),
                    ),
                ),
                becomes="constraint",
                convert=_format,
                note="The form of the answer's message. With tools, an answer is calls, or has the form.",
            ),
            Field(
                name="verbosity",
                kind=String(choices=("low", "medium", "high")),
                treatment=REPORTED,
                neutral=("medium",),
                note="No effect.",
            ),
        ),
    ),
    note="The form of the answer.",
)

REASONING_FIELD = Field(
    name="reasoning",
    kind=Table(
        name="reasoning",
        fields=(
            Field(
                name="effort",
                kind=String(choices=EFFORTS),
                note="Given to templates that read `reasoning_effort`; a switch of the template is off for `none` and "
                "on for others; reported where there is neither.",
            ),
            Field(
                name="summary",
                kind=String(choices=("auto", "concise", "detailed")),
                note="The reasoning is a summary part, unabridged, not content.",
            ),
            Field(
                name="generate_summary",
                kind=String(choices=("auto", "concise", "detailed")),
                note="The older name of `summary`.",
            ),
            Field(
                name="context",
                kind=String(choices=("auto", "current_turn", "all_turns")),
                treatment=REPORTED,
                neutral=("auto",),
                note="What earlier reasoning is shown is the template's business.",
            ),
            Field(
                name="mode",
                kind=String(choices=("standard", "pro")),
                treatment=REPORTED,
                neutral=("standard",),
                note="There is one mode.",
            ),
        ),
    ),
    note="The model's reasoning, which is always an item of its own.",
)

_PROMPT: tuple[Field, ...] = (
    MODEL,
    Field(
        name="input",
        kind=OneOf((TEXT, ListOf(Outline(ITEM), maximum=MAX_ITEMS))),
        becomes="prompt.messages",
        note="A text, which is one user message, or items. Required unless `previous_response_id` or `conversation` is "
        "given.",
    ),
    Field(
        name="instructions",
        kind=TEXT,
        becomes="prompt.system",
        note="The head of the system prompt of this response; the next one does not inherit it.",
    ),
    Field(
        name="previous_response_id",
        kind=ID,
        note="A stored response whose input and output, with those before it, precede the input.",
    ),
    Field(
        name="conversation",
        kind=OneOf(
            (
                ID,
                Table(
                    name="conversation",
                    fields=(Field(name="id", kind=ID, required=True, note="Its id."),),
                ),
            )
        ),
        note="A conversation, by its id: its items precede the input, and input and output are added to it. Not "
        "together with `previous_response_id`.",
    ),
    Field(
        name="tools",
        kind=ListOf(Outline(TOOL), maximum=MAX_TOOLS),
        becomes="tools.functions",
        note="What the model may call: functions, custom tools and namespaces of them.",
    ),
    Field(
        name="tool_choice",
        kind=OneOf((String(choices=("none", "auto", "required")), Anything(object_only=True, depth=8))),
        becomes="tools.choice",
        note="`none`, `auto`, `required`, one tool by type and name, or `allowed_tools`.",
    ),
    Field(
        name="parallel_tool_calls",
        kind=Boolean(),
        default=True,
        becomes="tools.parallel",
        note="The model may call several tools at once.",
    ),
    TEXT_FIELD,
    REASONING_FIELD,
    Field(
        name="truncation",
        kind=String(choices=("auto", "disabled")),
        default="disabled",
        note="`auto`: where the prompt leaves too little room, the oldest items are left out, and a header names them.",
    ),
)

_LEFT_OUT = {
    "n",
    "stream",
    "stream_options",
    "user",
    "return_token_ids",
    "truncate_prompt_tokens",
    "max_total_tokens",
    "clamp_to_context",
    "stop_in_answer",
    "forced_output_tokens",
    "logprobs_mode",
    *(field.name for field in BEAMS),
}

_OURS: tuple[Field, ...] = (
    *(field for field in SHARED if field.name not in _LEFT_OUT),
    *(field for field in STRUCTURED if field.name != "response_format"),
    Field(
        name="continue_final_message",
        kind=Boolean(),
        default=False,
        becomes="prompt.continue_final_message",
        note=extension("The assistant's message at the end of the input is left open and continued."),
    ),
    Field(
        name="chat_template_kwargs",
        kind=Anything(object_only=True, depth=8),
        becomes="prompt.template_kwargs",
        note=extension("Variables for the chat template."),
    ),
    Field(
        name="reasoning_budget",
        kind=Integer(1, 2**31 - 1),
        becomes="reasoning_budget",
        note="Most tokens of the reasoning block. Not OpenAI's.",
    ),
)

METADATA = Field(
    name="metadata",
    kind=Metadata(Anything(object_only=True, depth=3)),
    note="At most 16 texts by name: kept and answered.",
)

RESPONSES = Table(
    name="responses",
    fields=(
        *_PROMPT,
        Field(
            name="max_output_tokens",
            kind=Integer(1),
            becomes="ending.max_tokens",
            note="Most tokens, the reasoning's included; lowered to the room behind the prompt.",
        ),
        Field(name="stream", kind=Boolean(), default=False, note="Answer with server-sent events."),
        Field(
            name="stream_options",
            kind=Table(
                name="stream_options",
                fields=(
                    INCLUDE_PROGRESS,
                    Field(
                        name="include_obfuscation",
                        kind=Boolean(),
                        treatment=REPORTED,
                        neutral=(False,),
                        note="Events are never padded.",
                    ),
                ),
            ),
            note="Only together with `stream`.",
        ),
        Field(name="store", kind=Boolean(), default=True, note="The response is kept, for `--responses-ttl-s`."),
        Field(
            name="background",
            kind=Boolean(),
            default=False,
            note="Answered at once; it is generated without a client, also when the server is started again.",
        ),
        Field(
            name="background_options",
            kind=Anything(object_only=True),
            treatment=REPORTED,
            neutral=({}, {"completion_window": "soonest"}),
            note="It comes as soon as it can.",
        ),
        Field(name="top_logprobs", kind=Integer(0, 20), note=f"Alternatives of each token, with `{LOGPROBS}`."),
        Field(
            name="include",
            kind=ListOf(String(choices=INCLUDES), maximum=32),
            note=f"`{ENCRYPTED}`, `{LOGPROBS}`; of the others there is nothing to add.",
        ),
        Field(
            name="max_tool_calls",
            kind=Integer(1, 2**31 - 1),
            note="Counts calls of hosted tools, of which there are none.",
        ),
        METADATA,
        *(
            Field(name=name, kind=String(maximum=1024), treatment=REPORTED, note="Answered as given.")
            for name in ("user", "safety_identifier", "prompt_cache_key")
        ),
        Field(name="prompt_cache_retention", kind=TEXT, treatment=REPORTED, note="The cache keeps what memory allows."),
        Field(
            name="prompt_cache_options",
            kind=Table(
                name="prompt_cache_options",
                fields=(
                    *(
                        Field(name=name, kind=Anything(), treatment=REPORTED, note="The cache is always on.")
                        for name in ("mode", "ttl", "comparison_response_id")
                    ),
                    Field(
                        name="prewarm",
                        kind=Boolean(),
                        default=False,
                        note="The prompt is computed, and nothing is generated.",
                    ),
                ),
            ),
            note="Options of the prefix cache.",
        ),
        Field(
            name="service_tier",
            kind=TEXT,
            treatment=REPORTED,
            neutral=("auto", "default"),
            note="There is one tier, `default`.",
        ),
        Field(
            name="context_management",
            kind=Anything(),
            treatment=REPORTED,
            neutral=([],),
            note="Nothing is compacted.",
        ),
        Field(name="prompt", kind=Anything(), treatment=REFUSED, note="There are no stored templates."),
        Field(name="moderation", kind=Anything(), treatment=REFUSED, note="Nothing is moderated."),
        Field(
            name="access_programs",
            kind=Anything(),
            treatment=REFUSED,
            neutral=({}, {"cyber": "standard"}),
            note="There are none.",
        ),
        Field(
            name="image",
            kind=Anything(),
            treatment=REFUSED,
            neutral=(
                {},
                {"context_compression": "auto"},
                {"context_compression": "disabled"},
            ),
            note="The model sees no images.",
        ),
        *_OURS,
    ),
)

INPUT_TOKENS = Table(
    name="response input tokens",
    fields=(
        *_PROMPT,
        Field(name="personality", kind=Anything(), treatment=REFUSED, note="There are none."),
        *(field for field in _OURS if field.becomes.startswith("prompt.")),
    ),
)


def check_values(values: dict[str, Any]) -> None:
    """Check what no single field says. Raises BadRequest."""
    if values["stream_options"] is not None and not values["stream"]:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise BadRequest(message, param="stream_options")
    if values["background"] and not values["store"]:
        raise BadRequest("Background mode requires store to be true.", param="background")
