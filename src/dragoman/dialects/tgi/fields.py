"""The request fields of TGI's native endpoints, grammars in TGI's forms and in OpenAI's included."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema, Regex
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, FieldError, FieldRule, ListOf, String
from dragoman.dialects.tgi.body import F32, I32, U32, U64, USIZE
from dragoman.dialects.tgi.errors import InvalidInput

PARAM = "grammar"
"""The name that requests of the core use for constraints of this dialect."""

_CONFIG = Table(
    name="JsonSchemaConfig",
    fields=(
        Field(name="name", kind=String(maximum=256), note="No effect."),
        Field(name="description", kind=String(), note="No effect: it is not shown to the model."),
        Field(name="schema", kind=Anything(), note="A JSON Schema. Absent: any object."),
        Field(name="strict", kind=Boolean(), note="No effect: schemas are always enforced."),
    ),
)

GRAMMAR = Table(
    name="GrammarType",
    fields=(
        Field(
            name="type",
            kind=String(choices=("json", "json_object", "regex", "json_schema", "text")),
            required=True,
            note="`json` and `json_object`: one JSON document; `regex`: all of the text matches; `json_schema`: as "
            "`json`, with the schema inside an object; `text`: anything.",
        ),
        Field(
            name="value",
            kind=Anything(),
            note="With `json` a JSON Schema, as an object or as text; `json_object` may do without, for any object. "
            'With `regex` the pattern. With `json_schema` `{"name", "schema", "strict"}`.',
        ),
        Field(name="json_schema", kind=_CONFIG, note="With type `json_schema`, in place of `value`, as OpenAI has it."),
    ),
)


def constraint_of(values: dict[str, Any], field: str) -> Constraint | None:
    """Return the constraint of checked values. ``field``: their name on the wire.

    Raises FieldError for a value of the wrong type, InvalidInput for a JSON grammar that is neither text nor object.
    """
    if values["type"] == "text":
        return None
    value = values["value"]
    match values["type"]:
        case "json_object" if value is None:
            return JsonObject(one_line=True)
        case "json_schema":
            return _described(values, field)
    if value is None:
        raise FieldError(FieldRule.MISSING, (field, "value"))
    if values["type"] == "regex":
        return Regex(String().check(value, (field, "value")))
    return _schema(value)


def _described(values: dict[str, Any], field: str) -> Constraint:
    described = values["json_schema"]
    if described is None:
        if values["value"] is None:
            raise FieldError(FieldRule.MISSING, (field, "value"))
        described = _CONFIG.check(values["value"], (field, "value"))
    return JsonObject(one_line=True) if described["schema"] is None else _schema(described["schema"])


def _schema(value: Any) -> JsonSchema:
    if not isinstance(value, str | dict):
        raise InvalidInput("grammar is not supported")
    return JsonSchema(value if isinstance(value, str) else msgspec.json.encode(value).decode(), one_line=True)


MOST_STOPS = 1 << 16
"""A limit that is not the original's, which is ``max_stop_sequences``, checked later with a specific message."""

_STOPS = ListOf(String(), maximum=MOST_STOPS)

PARAMETERS = Table(
    name="GenerateParameters",
    fields=(
        Field(
            name="best_of",
            kind=USIZE,
            becomes="n",
            note="Makes that many, each with a random seed, and answers with the one of the highest mean token "
            "log-probability. At most `--max-best-of`; only with sampling, without `seed`, not streamed.",
        ),
        Field(
            name="temperature",
            kind=F32,
            becomes="sampling.temperature",
            note="Logits are divided by it; above 0. Given at all, tokens are drawn.",
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
            name="top_k",
            kind=I32,
            becomes="sampling.top_k",
            note="Keeps the k most likely tokens; at least 1. Given at all, tokens are drawn.",
        ),
        Field(
            name="top_p",
            kind=F32,
            becomes="sampling.top_p",
            note="Keeps the smallest set of tokens whose probabilities reach this sum; above 0, at most 1. Given at "
            "all, tokens are drawn.",
        ),
        Field(
            name="typical_p",
            kind=F32,
            becomes="sampling.typical_p",
            note="Keeps the tokens whose surprise is nearest to the entropy until their probabilities reach this sum; "
            "above 0, at most 1. Given at all, tokens are drawn.",
        ),
        Field(
            name="do_sample",
            kind=Boolean(),
            default=False,
            note="Draws tokens, rather than taking the most likely. On when the request has no `parameters` at all.",
        ),
        Field(
            name="max_new_tokens",
            kind=U32,
            becomes="ending.max_tokens",
            note="Most tokens to generate, at least 1. Absent: as many as there is room for, or "
            "`--default-max-new-tokens`; `null`: as many as there is room for.",
        ),
        Field(
            name="return_full_text",
            kind=Boolean(),
            note="The inputs precede the generated text. Absent: only on `POST /`.",
        ),
        Field(
            name="stop",
            kind=_STOPS,
            default=(),
            becomes="ending.stop",
            note="At most `--max-stop-sequences` strings that end the text and stay in it; special tokens by their "
            "spelling too. Empty ones count for nothing.",
        ),
        Field(name="stop_sequences", kind=_STOPS, default=(), becomes="ending.stop", note="Another name of `stop`."),
        Field(
            name="truncate",
            kind=USIZE,
            becomes="truncate",
            note="Only the last so many tokens of the inputs are kept, the tokenizer's own first token counted.",
        ),
        Field(
            name="watermark",
            kind=Boolean(),
            default=False,
            becomes="sampling.watermark",
            note="Favours a share of the vocabulary that follows from the token before.",
        ),
        Field(name="details", kind=Boolean(), default=False, note="Answer with the tokens, and how the text ended."),
        Field(
            name="decoder_input_details",
            kind=Boolean(),
            default=False,
            becomes="logprobs.prompt",
            note="Answer with the prompt's tokens too, and with `details`. Not streamed.",
        ),
        Field(
            name="seed",
            kind=U64,
            becomes="seeds",
            note="Absent: one is drawn. `details.seed` of an answer gives the same text again.",
        ),
        Field(
            name="top_n_tokens",
            kind=U32,
            becomes="logprobs.top",
            note="Answer with so many alternatives at each step, and those that are as likely as the last of them. At "
            "most `--max-top-n-tokens`.",
        ),
        Field(
            name="grammar",
            kind=GRAMMAR,
            becomes="constraint",
            convert=lambda values: constraint_of(values, "parameters.grammar"),
            note="What the text has to be.",
        ),
        Field(
            name="adapter_id",
            kind=String(),
            becomes="adapter",
            note="The name of the adapter to run the model with. While none is loaded the base model answers, as in "
            "the original; then one that is not loaded is an error, unless `--tgi-quirk unknown-adapter-is-base`.",
        ),
    ),
)

INPUTS = Field(
    name="inputs",
    kind=String(),
    required=True,
    becomes="prompt",
    note="The text to continue. `![](URL)` is an image, for models that see.",
)

GENERATE = Table(
    name="GenerateRequest",
    fields=(
        INPUTS,
        Field(name="parameters", kind=PARAMETERS, note="Without it tokens are drawn; with `{}` they are not."),
    ),
)

COMPAT_GENERATE = Table(
    name="CompatGenerateRequest",
    fields=(
        *GENERATE.fields,
        Field(name="stream", kind=Boolean(), default=False, note="Answer with server-sent events, one per token."),
    ),
)

TOKENIZE = Table(
    name="TokenizeRequest",
    fields=(
        INPUTS,
        Field(
            name="parameters",
            kind=Anything(),
            treatment=Treatment.REPORTED,
            note="Of no effect: `truncate` too.",
        ),
    ),
)
