"""What every field of OctoAI's chats does."""

from __future__ import annotations

from dragoman.core.sampling import LogprobParams
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, Integer, ListOf, OneOf, String
from dragoman.dialects.octoai.fields import CHOICES, SHARED, TEXT, TOKEN_ID, if_true
from dragoman.dialects.octoai.structured import RESPONSE_FORMAT, constraint_of
from dragoman.dialects.tool_tables import MAX_TOOLS, tool_choice_table, tool_table

REFUSED = Treatment.REFUSED
FUNCTION = String(choices=("function",))

TOOL = tool_table(
    Field(name="type", kind=FUNCTION, default="function", note="Tools are functions."),
    "The JSON Schema of an object. Absent: any object, or what a tool built into Llama takes.",
)

TOOL_CHOICE = tool_choice_table(Field(name="type", kind=FUNCTION, default="function", note="One tool that is called."))

MESSAGE = Table(
    name="message",
    fields=(
        Field(
            name="role",
            kind=String(choices=("system", "user", "assistant", "tool")),
            required=True,
            note="Who speaks.",
        ),
        Field(
            name="content",
            kind=OneOf((TEXT, ListOf(Anything(object_only=True), maximum=4096))),
            default="",
            note="Text, or parts of type `text` (joined as they are); images are refused. Null is empty text.",
        ),
        Field(name="name", kind=String(maximum=256), note="Given to the chat template."),
        Field(
            name="tool_calls",
            kind=ListOf(Anything(object_only=True), maximum=256),
            note="Earlier calls of the assistant, for the chat template; `id` and `type` may be missing.",
        ),
        Field(
            name="tool_call_id",
            kind=String(maximum=256),
            note="Which call a `tool` message answers. Absent: the first one before it that has no answer yet.",
        ),
    ),
)

EXTENSION = Table(
    name="octoai",
    fields=(
        Field(
            name="loras",
            kind=ListOf(String(minimum=1, maximum=512), maximum=16),
            becomes="adapter",
            convert=lambda names: next(iter(names), None),
            note="Old name of `peft`.",
        ),
        Field(
            name="vllm",
            kind=Table(
                name="vllm",
                fields=(
                    Field(name="best_of", kind=CHOICES, becomes="best_of", note="As `best_of` of completions."),
                    Field(
                        name="ignore_eos",
                        kind=Boolean(),
                        default=False,
                        becomes="ending.ignore_eos",
                        convert=if_true,
                        note="As `ignore_eos`.",
                    ),
                    Field(
                        name="top_k",
                        kind=Integer(-1, 2**31 - 1),
                        default=0,
                        becomes="sampling.top_k",
                        convert=lambda k: max(k, 0),
                        note="Keeps the k most likely tokens.",
                    ),
                    Field(
                        name="stop_token_ids",
                        kind=ListOf(TOKEN_ID, maximum=256),
                        becomes="ending.stop_token_ids",
                        note="Tokens that end the text.",
                    ),
                    Field(
                        name="skip_special_tokens",
                        kind=Boolean(),
                        default=True,
                        becomes="ending.skip_special_tokens",
                        note="Special tokens have no text.",
                    ),
                    Field(
                        name="use_beam_search",
                        kind=Boolean(),
                        treatment=REFUSED,
                        neutral=(False,),
                        note="Beams were never part of the service.",
                    ),
                ),
            ),
            note="Parameters of the engine that once ran behind the service.",
        ),
    ),
)

CHAT = Table(
    name="chat completions",
    fields=(
        Field(
            name="messages",
            kind=ListOf(MESSAGE, minimum=1, maximum=8192),
            required=True,
            becomes="prompt.messages",
            note="The conversation, rendered by the model's own chat template.",
        ),
        Field(
            name="logprobs",
            kind=OneOf((Boolean(), Integer(0, 1))),
            default=False,
            becomes="logprobs",
            convert=lambda on: LogprobParams() if on else None,
            note="Report log-probabilities. 1 and 0 are true and false.",
        ),
        Field(
            name="top_logprobs",
            kind=Integer(0, 20),
            default=0,
            becomes="logprobs.top",
            note="That many alternatives for each token. Only together with `logprobs`.",
        ),
        *SHARED,
        Field(
            name="response_format",
            kind=RESPONSE_FORMAT,
            becomes="constraint",
            convert=constraint_of,
            note="What the answer has to be. Beside tools: where it does not call one.",
        ),
        Field(
            name="tools",
            kind=ListOf(TOOL, maximum=MAX_TOOLS),
            becomes="tools.functions",
            note="Functions that the model may call, if its chat template knows tools: see [tools.md](tools.md).",
        ),
        Field(
            name="tool_choice",
            kind=OneOf((String(choices=("none", "auto", "required")), TOOL_CHOICE)),
            becomes="tools.choice",
            note="`none`: the model is not shown the tools. `auto`, the default where there are tools: it may call "
            "them. `required`: it calls at least one. Or one by name.",
        ),
        Field(name="functions", kind=Anything(), treatment=REFUSED, neutral=([], {}), note="The old form of `tools`."),
        Field(
            name="function_call",
            kind=Anything(),
            treatment=REFUSED,
            neutral=("", "none", "auto", {}),
            note="The old form of `tool_choice`.",
        ),
        Field(name="octoai", kind=EXTENSION, note="What the API had before June 2024."),
    ),
)
