"""The request fields of the OctoAI dialect: completions, chats and ``response_format``."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import JsonObject, JsonSchema
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.sampling import MAX_SEED, LogprobParams
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, Integer, ListOf, MapOf, Number, OneOf, String
from dragoman.dialects.shared_fields import INCLUDE_PROGRESS, MAX_TOOLS, tool_choice_table, tool_table

PLACE = "response_format"
LORAS = "octoai.loras"

RESPONSE_FORMAT = Table(
    name="response_format",
    fields=(
        Field(
            name="type",
            kind=String(choices=("text", "json_object", "json_schema")),
            required=True,
            note="`text` asks for nothing; `json_object` for an object; `json_schema` for what it is given.",
        ),
        Field(
            name="schema",
            kind=Anything(object_only=True),
            note="With `json_object`: the JSON Schema of the object.",
        ),
        Field(
            name="json_schema",
            kind=Table(
                name="json_schema",
                fields=(
                    Field(name="name", kind=String(maximum=256), note="No effect."),
                    Field(name="description", kind=String(), note="No effect."),
                    Field(name="schema", kind=Anything(object_only=True), note="A JSON Schema. Absent: any object."),
                    Field(name="strict", kind=Anything(), note="No effect: schemas are always enforced."),
                ),
            ),
            note="Only, and always, with the type `json_schema`.",
        ),
    ),
)


def constraint_of(value: dict[str, Any]) -> JsonObject | JsonSchema | None:
    """Return the constraint of a checked ``response_format``. Raises BadRequest."""
    if value["type"] == "text":
        return None
    described = value["json_schema"]
    if value["type"] == "json_schema" and described is None:
        raise BadRequest(f"'{PLACE}' of type 'json_schema' needs 'json_schema'.", param=f"{PLACE}.json_schema")
    schema = value["schema"] if value["type"] == "json_object" else described["schema"]
    return JsonObject() if schema is None else JsonSchema(msgspec.json.encode(schema).decode())


TOKEN_ID = Integer(0, 2**31 - 1)
TOKEN_IDS = ListOf(TOKEN_ID, minimum=1, maximum=2**20)
TEXT = String()
MAX_CHOICES = 128
MAX_PROMPTS = 2048
CHOICES = Integer(1, MAX_CHOICES)

GREEDY_BELOW = 1e-5
# The bias that 100 becomes: above any difference of a model's logits, so that it forces or bans a token.
CERTAIN = 1e4


def stops_of(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Stop strings, the empty ones left out."""
    return tuple(filter(None, (value,) if isinstance(value, str) else value))


def if_true(on: bool) -> bool | None:
    """Return the value of a switch that several fields turn on."""
    return on or None


def _only(names: tuple[str, ...]) -> str | None:
    """Return the one adapter of a list. Raises UnsupportedFeature for several."""
    if len(set(names)) > 1:
        raise UnsupportedFeature("A request runs with one adapter, and 'octoai.loras' names several.", param=LORAS)
    return next(iter(names), None)


def _bias(bias: dict[int, float]) -> dict[int, float]:
    return {token_id: value if abs(value) < 100 else value / 100 * CERTAIN for token_id, value in bias.items()}


# Fields that completions and chats share, with the same meaning.
SHARED: tuple[Field, ...] = (
    Field(
        name="model",
        kind=String(minimum=1, maximum=512),
        required=True,
        becomes="model",
        note="A served name. What is not served is not found.",
    ),
    Field(
        name="max_tokens",
        kind=Integer(1),
        default=512,
        becomes="ending.max_tokens",
        note="Most tokens of each choice; no more than the context has room for.",
    ),
    Field(name="n", kind=CHOICES, default=1, becomes="n", note="Choices for each prompt."),
    Field(
        name="temperature",
        kind=Number(0, 2),
        default=1.0,
        becomes="sampling.temperature",
        convert=lambda temperature: temperature if temperature >= GREEDY_BELOW else 0.0,
        note="Logits are divided by it; below 0.00001 the most likely token is taken.",
    ),
    Field(
        name="top_p",
        kind=Number(above=0),
        default=1.0,
        becomes="sampling.top_p",
        note="Keeps the smallest set of tokens whose probabilities reach this sum.",
    ),
    Field(
        name="min_p",
        kind=Number(),
        default=0.0,
        becomes="sampling.min_p",
        note="Drops tokens less likely than this share of the most likely one's probability.",
    ),
    Field(
        name="frequency_penalty",
        kind=Number(-2, 2),
        default=0.0,
        becomes="sampling.frequency_penalty",
        note="Subtracted from a token's logit as often as the token was generated before.",
    ),
    Field(
        name="presence_penalty",
        kind=Number(-2, 2),
        default=0.0,
        becomes="sampling.presence_penalty",
        note="Subtracted once from the logit of every token that was generated before.",
    ),
    Field(
        name="repetition_penalty",
        kind=Number(),
        default=1.0,
        becomes="sampling.repetition_penalty",
        note="Divides the positive and multiplies the negative logit of each token of prompt and output.",
    ),
    Field(
        name="logit_bias",
        kind=MapOf(Number(-100, 100), TOKEN_ID, nulls=True),
        becomes="sampling.logit_bias",
        convert=_bias,
        note="Token id (as a string) to what is added to its logit; null is nothing, -100 bans, 100 forces.",
    ),
    Field(
        name="stop",
        kind=OneOf((TEXT, ListOf(TEXT, maximum=4096))),
        becomes="ending.stop",
        convert=stops_of,
        note="Strings that end the generation wherever they appear in its text, which is cut before them.",
    ),
    Field(
        name="ignore_eos",
        kind=Boolean(),
        default=False,
        becomes="ending.ignore_eos",
        convert=if_true,
        note="End-of-sequence tokens are ordinary tokens, without text.",
    ),
    Field(
        name="seed",
        kind=Integer(-(2**255), 2**255),
        becomes="seeds",
        convert=lambda seed: (seed & MAX_SEED,),
        note="Choice i of a prompt uses (seed + i) mod 2^64. Absent, each answer is another.",
    ),
    Field(
        name="loglikelihood",
        kind=Boolean(),
        default=False,
        becomes="logprobs.prompt",
        note="Log-probabilities of all tokens of the prompt but the first, before those of the answer.",
    ),
    Field(
        name="log_prompt",
        kind=Boolean(),
        default=False,
        note="The operator may store the prompt; nothing is stored unless the operator wants to, too.",
    ),
    Field(
        name="peft",
        kind=String(minimum=1, maximum=512),
        becomes="adapter",
        note="The adapter to run the model with; one that is not loaded is not found. The answer names the model.",
    ),
    Field(name="stream", kind=Boolean(), default=False, note="Answer with server-sent events."),
    Field(
        name="stream_options",
        kind=Table(
            name="stream_options",
            fields=(
                Field(
                    name="include_usage",
                    kind=Boolean(),
                    default=False,
                    note="The last event that has choices holds the token counts.",
                ),
                INCLUDE_PROGRESS,
            ),
        ),
        note="Without effect unless `stream`.",
    ),
    Field(name="user", kind=String(maximum=1024), note="Stored with the prompt, where that is stored."),
)

COMPLETIONS = Table(
    name="completions",
    fields=(
        Field(
            name="prompt",
            kind=OneOf(
                (
                    TEXT,
                    ListOf(TEXT, minimum=1, maximum=MAX_PROMPTS),
                    TOKEN_IDS,
                    ListOf(TOKEN_IDS, minimum=1, maximum=MAX_PROMPTS),
                )
            ),
            becomes="prompt",
            note="Text, token ids, or a list of either: choices are numbered prompt by prompt. Absent: the model "
            "begins with its first (BOS) token.",
        ),
        Field(
            name="suffix",
            kind=TEXT,
            becomes="prompt.suffix",
            note="The text after the gap; refused unless the model has fill-in-the-middle tokens.",
        ),
        Field(
            name="best_of",
            kind=CHOICES,
            becomes="best_of",
            note="Makes that many and returns the `n` with the highest mean log-probability, best first. More than `n` "
            "are not streamed.",
        ),
        Field(name="echo", kind=Boolean(), default=False, becomes="echo", note="The prompt precedes the answer."),
        Field(
            name="logprobs",
            kind=Integer(0, 5),
            becomes="logprobs",
            convert=lambda top: LogprobParams(top=top),
            note="Log-probabilities of the tokens and of this many alternatives.",
        ),
        *SHARED,
    ),
)


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
            note="Text, or parts of type `text` (joined as they are) and, for models that see, `image_url`. "
            "Null is empty text.",
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
            convert=_only,
            note="Old name of `peft`, for one adapter.",
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
