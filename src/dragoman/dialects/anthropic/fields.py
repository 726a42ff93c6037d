"""What every request field of the Anthropic dialect does. Content blocks are checked in ``content``."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import JsonSchema
from dragoman.core.errors import UnsupportedFeature
from dragoman.core.sampling import MAX_COUNT, MAX_SEED
from dragoman.dialects.anthropic.errors import THREAD, numbered
from dragoman.dialects.field import Field, Outline, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, Integer, ListOf, Number, OneOf, Path, String, Wrapped

HONOURED, REFUSED, REPORTED = Treatment.HONOURED, Treatment.REFUSED, Treatment.REPORTED

TEXT = String()
MAX_TOOLS = 512
EFFORTS = ("low", "medium", "high", "xhigh", "max")
CLEAR_THINKING = "clear_thinking_20251015"

_CACHE_CONTROL = Field(
    name="cache_control",
    kind=Anything(object_only=True),
    note="Equal prefixes are always found, so there is nothing to mark. No promise about `ttl`.",
)

_SCHEMA_FORMAT = Table(
    name="format",
    fields=(
        Field(name="type", kind=String(choices=("json_schema",)), required=True, note="The answer is JSON."),
        Field(
            name="schema",
            kind=Anything(object_only=True),
            required=True,
            note="A JSON Schema. What cannot be enforced is refused by its name.",
        ),
    ),
)


def _constraint(value: dict[str, Any]) -> JsonSchema:
    return JsonSchema(msgspec.json.encode(value["schema"]).decode())


BLOCK = Table(
    name="content block",
    fields=tuple(
        Field(name=name, kind=Anything(), note=note)
        for name, note in (
            (
                "type",
                "`text`, `thinking`, `redacted_thinking`, `tool_use`, `tool_result`, `document`, `search_result`; "
                "others are refused by name.",
            ),
            ("text", "Of a text."),
            ("citations", "Dropped."),
            (
                "source",
                "Of a document: text, or blocks; of an image: `base64`, a `url` (https: `--image-hosts`) or "
                "a `file` by its id.",
            ),
            ("transformations", "Of an image."),
            ("title", "Of a document or a search result."),
            ("context", "Of a document."),
            ("content", "Of a tool's result or a search result."),
            ("id", "Of a call."),
            ("name", "Of a called tool."),
            ("input", "The arguments of a call, an object."),
            ("caller", "No effect."),
            ("toolset_name", "No effect."),
            ("tool_use_id", "Which call a result answers."),
            ("is_error", "The result is an error: `Error: ` comes before a text that does not say so."),
            ("thinking", "Given to the chat template as the turn's reasoning."),
            ("signature", "Of a block that was not shown, its text; any other means nothing."),
            ("data", "Of a block that nobody may read."),
            ("cache_control", "See the request's field."),
        )
    ),
)

MESSAGE = Table(
    name="message",
    fields=(
        Field(
            name="role",
            kind=String(choices=("user", "assistant", "system")),
            required=True,
            note="Neighbours of one role are one turn. A `system` message stays where it is, see "
            "[anthropic.md](anthropic.md).",
        ),
        Field(
            name="content",
            kind=OneOf((TEXT, ListOf(Outline(BLOCK), maximum=100_000))),
            required=True,
            note="Text, or content blocks.",
        ),
        Field(
            name="clear_at",
            kind=String(choices=("next_user_message",)),
            note="Of a system message: it is not shown once a later user message exists.",
        ),
        Field(name="output_config", kind=Anything(), treatment=REPORTED, note="Of a system message: no effect."),
        _CACHE_CONTROL,
    ),
)


CLIENT_TOOLS = ("bash_", "text_editor_", "computer_", "browser_", "memory_")
"""How the types of tools begin that clients run, whose schemas only Anthropic's own models know."""


class ToolType(Wrapped, frozen=True):
    """Tools of the client's own; those of other types have other members, and are refused by their type first."""

    def check(self, value: Any, path: Path) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":
            place = numbered((*path, "type"))
            message = f"{place}: '{kind[:64]}' is a tool of Anthropic's servers; this server runs none"
            if kind.startswith(CLIENT_TOOLS):
                message = (
                    f"{place}: '{kind[:64]}' is a tool whose schema only Anthropic's models know; "
                    "give it as type 'custom', with its 'input_schema'"
                )
            raise UnsupportedFeature(message, param=place)
        return self.inner.check(value, path)


TOOL = Table(
    name="tool",
    fields=(
        Field(name="type", kind=String(choices=("custom",)), note="A tool of the client's; others are refused."),
        Field(name="name", kind=String(minimum=1, maximum=256), required=True, note="Unique among the tools."),
        Field(
            name="input_schema",
            kind=Anything(object_only=True, depth=32),
            required=True,
            note="The JSON Schema of an object, at most 65536 characters. Given to the chat template.",
        ),
        Field(name="description", kind=TEXT, note="Given to the chat template."),
        Field(
            name="strict",
            kind=Boolean(),
            default=False,
            becomes="constraint",
            note="The input follows the schema; otherwise it is any object.",
        ),
        Field(
            name="defer_loading",
            kind=Boolean(),
            default=False,
            note="Not shown to the model until a `tool_reference` names it.",
        ),
        Field(
            name="eager_input_streaming",
            kind=Boolean(),
            treatment=REPORTED,
            neutral=(True,),
            note="Arguments always stream as they come.",
        ),
        _CACHE_CONTROL,
        Field(name="input_examples", kind=Anything(), treatment=REPORTED, note="No effect."),
        Field(
            name="allowed_callers",
            kind=Anything(),
            treatment=REPORTED,
            neutral=(["direct"],),
            note="The model calls tools, nothing else does.",
        ),
    ),
)

TOOL_CHOICE = Table(
    name="tool choice",
    fields=(
        Field(
            name="type",
            kind=String(choices=("auto", "any", "tool", "none")),
            required=True,
            note="`auto`, the default where there are tools; `any`: at least one call; `tool`: one call of that "
            "tool; `none`: the model is not shown the tools.",
        ),
        Field(name="name", kind=String(minimum=1, maximum=256), note="The tool, with the type `tool`."),
        Field(
            name="disable_parallel_tool_use",
            kind=Boolean(),
            default=False,
            note="At most one call; exactly one with `any`.",
        ),
    ),
)

THINKING = Table(
    name="thinking",
    fields=(
        Field(
            name="type",
            kind=String(choices=("enabled", "adaptive", "disabled", "between_tools")),
            required=True,
            note="`enabled` and `adaptive` turn the template's reasoning on, the others off.",
        ),
        Field(
            name="budget_tokens",
            kind=Integer(1),
            becomes="reasoning_budget",
            note="Most tokens of the block, with the type `enabled`. Less than `max_tokens`.",
        ),
        Field(
            name="display",
            kind=String(choices=("summarized", "omitted", "updates")),
            note="`omitted`: the block is empty, and its signature holds the text. `updates` is reported.",
        ),
        Field(name="block_binding", kind=Anything(), treatment=REPORTED, note="No effect."),
    ),
)

_SHARED: tuple[Field, ...] = (
    Field(
        name="model",
        kind=String(minimum=1, maximum=256),
        required=True,
        becomes="model",
        note="A served model, alias or adapter; names that begin with `claude-` mean the model of `--claude-model`.",
    ),
    Field(
        name="messages",
        kind=ListOf(MESSAGE, minimum=1, maximum=100_000),
        required=True,
        becomes="prompt.messages",
        note="The conversation. A last turn of the assistant is continued.",
    ),
    Field(
        name="system",
        kind=OneOf((TEXT, ListOf(Outline(BLOCK), maximum=1024))),
        becomes="prompt.system",
        note="The system prompt: text, or blocks of it. A block or first line that begins with "
        "`x-anthropic-billing-header:` is left out, and reported.",
    ),
    Field(
        name="tools",
        kind=ListOf(ToolType(TOOL), maximum=MAX_TOOLS),
        becomes="tools.functions",
        note="What the model may call, if its chat template knows tools: see [tools.md](tools.md).",
    ),
    Field(
        name="tool_choice",
        kind=TOOL_CHOICE,
        becomes="tools.choice, tools.parallel",
        convert=lambda choice: (choice, not choice["disable_parallel_tool_use"]),
        note="Which tools are called. Calls follow a grammar, also those that the model chooses to make.",
    ),
    Field(
        name="thinking",
        kind=THINKING,
        note="Whether the model reasons before its answer; reported where it is not known to.",
    ),
    Field(
        name="output_config",
        kind=Table(
            name="output_config",
            fields=(
                Field(
                    name="format",
                    kind=_SCHEMA_FORMAT,
                    becomes="constraint",
                    convert=_constraint,
                    note="The form of the answer, behind the reasoning.",
                ),
                Field(
                    name="effort",
                    kind=String(choices=EFFORTS),
                    note="Given to templates that read `reasoning_effort`, reported otherwise.",
                ),
                Field(name="task_budget", kind=Anything(), treatment=REPORTED, note="No effect."),
            ),
        ),
        note="The form of the answer, and the effort.",
    ),
    Field(
        name="output_format",
        kind=_SCHEMA_FORMAT,
        becomes="constraint",
        convert=_constraint,
        note="The older name of `output_config.format`; not both.",
    ),
    _CACHE_CONTROL,
    Field(
        name="context_management",
        kind=Table(
            name="context_management",
            fields=(
                Field(
                    name="edits",
                    kind=ListOf(Anything(object_only=True), maximum=64),
                    note=f"`{CLEAR_THINKING}`: the turns whose reasoning is kept. Others are reported.",
                ),
            ),
        ),
        note="What of the conversation is not shown to the model.",
    ),
    Field(
        name="chat_template_kwargs",
        kind=Anything(object_only=True, depth=8),
        becomes="prompt.template_kwargs",
        note="Variables for the chat template. Not Anthropic's.",
    ),
    Field(name="metadata", kind=Anything(), treatment=REPORTED, note="Nothing is stored."),
    Field(
        name="service_tier",
        kind=TEXT,
        treatment=REPORTED,
        neutral=("standard", "standard_only"),
        note="There is one tier.",
    ),
    Field(name="speed", kind=TEXT, treatment=REPORTED, neutral=("standard",), note="There is one speed."),
    *(
        Field(name=name, kind=Anything(), treatment=REPORTED, note="About hosting and accounts: no effect.")
        for name in (
            "inference_geo",
            "user_profile_id",
            "billing_policy",
            "fallback_credit_token",
            "fallbacks",
            "safeguards",
        )
    ),
    Field(
        name="diagnostics",
        kind=Anything(),
        treatment=REPORTED,
        note="Why the cache missed is not told: the answer has `diagnostics` null.",
    ),
    Field(
        name="container",
        kind=Anything(),
        treatment=REFUSED,
        neutral=("", {}, []),
        note="Nothing is run on the server.",
    ),
    Field(
        name="mcp_servers",
        kind=Anything(),
        treatment=REFUSED,
        neutral=([], {}, ""),
        note="No remote tools are called.",
    ),
    Field(name="compaction", kind=Anything(), treatment=REFUSED, note="Nothing is summarized."),
    Field(
        name=THREAD,
        kind=Anything(),
        treatment=REFUSED,
        note="The server keeps no conversations; clients then send the whole one.",
    ),
)

_SAMPLING: tuple[Field, ...] = (
    Field(
        name="temperature",
        kind=Number(0, 2),
        default=1.0,
        model_default=True,
        becomes="sampling.temperature",
        note="0 is greedy. Anthropic's own range ends at 1.",
    ),
    Field(
        name="top_p",
        kind=Number(above=0, maximum=1),
        default=1.0,
        model_default=True,
        becomes="sampling.top_p",
        note="Keep the most likely tokens of this mass.",
    ),
    Field(
        name="top_k",
        kind=Integer(-1, MAX_COUNT),
        default=0,
        model_default=True,
        becomes="sampling.top_k",
        convert=lambda k: max(0, k),
        note="Keep so many of the most likely tokens; 0 and -1: all.",
    ),
    Field(
        name="min_p",
        kind=Number(0, 1),
        default=0.0,
        model_default=True,
        becomes="sampling.min_p",
        note="Drop tokens less likely than this share of the most likely one. Not Anthropic's.",
    ),
    Field(
        name="repetition_penalty",
        kind=Number(above=0),
        default=1.0,
        model_default=True,
        becomes="sampling.repetition_penalty",
        note="Above 1: tokens that have occurred are less likely. Not Anthropic's.",
    ),
    Field(
        name="seed",
        kind=Integer(-(2**63), MAX_SEED),
        becomes="seeds",
        convert=lambda seed: (seed & MAX_SEED,),
        note="The same request with the same seed gives the same answer. Not Anthropic's; the header "
        "`x-dragoman-seed` names the one that was used.",
    ),
    Field(
        name="stop_sequences",
        kind=ListOf(String(minimum=1), maximum=64),
        becomes="ending.stop",
        note="The answer ends before the first of these, wherever its text has one; the reasoning and the inputs of "
        "calls are not looked at.",
    ),
)

MESSAGES = Table(
    name="messages",
    fields=(
        *_SHARED[:2],
        Field(
            name="max_tokens",
            kind=Integer(0),
            required=True,
            becomes="ending.max_tokens",
            note="Most tokens of the answer, its reasoning included; lowered to the room that the context has. 0 "
            "only computes the prompt.",
        ),
        Field(name="stream", kind=Boolean(), default=False, note="Send events as they happen."),
        *_SAMPLING,
        *_SHARED[2:],
    ),
)

_NOT_COUNTED = ("max_tokens", "stream", *(field.name for field in _SAMPLING))

COUNT_TOKENS = Table(
    name="count_tokens",
    fields=(
        *_SHARED[:2],
        *(Field(name=name, kind=Anything(), treatment=REPORTED, note="Nothing is generated.") for name in _NOT_COUNTED),
        *_SHARED[2:],
    ),
)
