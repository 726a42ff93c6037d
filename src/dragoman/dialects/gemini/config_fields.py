"""What every field of ``generationConfig`` does."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import JsonSchema
from dragoman.core.sampling import MAX_COUNT, MAX_SEED, LogprobParams
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, Integer, ListOf, Number, String
from dragoman.dialects.gemini.content_fields import RESOLUTION
from dragoman.dialects.gemini.names import Name, Whole
from dragoman.dialects.gemini.schemas import JSON_SCHEMA, SCHEMA

REFUSED, REPORTED = Treatment.REFUSED, Treatment.REPORTED

MAX_CANDIDATES = 128
MAX_LOGPROBS = 20
LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")
UNSPECIFIED = "THINKING_LEVEL_UNSPECIFIED"
JSON, PLAIN, ENUM = "application/json", "text/plain", "text/x.enum"

ANY_JSON = JsonSchema('{"anyOf":[{"type":"object"},{"type":"array"}]}')
"""What JSON without a schema is: a bare word or number is hardly meant."""


def _schema(value: dict[str, Any]) -> JsonSchema:
    return JsonSchema(msgspec.json.encode(value).decode())


THINKING = Table(
    name="thinkingConfig",
    fields=(
        Field(
            name="includeThoughts",
            kind=Boolean(),
            default=False,
            note="The answer has the reasoning, in parts with `thought`. Without it a `thoughtSignature` keeps it.",
        ),
        Field(
            name="thinkingBudget",
            kind=Whole(Integer(-1, MAX_COUNT)),
            becomes="reasoning_budget",
            convert=lambda tokens: tokens if tokens > 0 else None,
            note="Most tokens of the reasoning; 0 turns it off, -1 leaves its length to the model.",
        ),
        Field(
            name="thinkingLevel",
            kind=Name(String(choices=(UNSPECIFIED, *LEVELS))),
            note="Given to templates that read `reasoning_effort`, otherwise reported. Not with a budget.",
        ),
    ),
)

GENERATION_CONFIG = Table(
    name="generationConfig",
    fields=(
        Field(
            name="maxOutputTokens",
            kind=Whole(Integer(1, MAX_COUNT)),
            becomes="ending.max_tokens",
            note="Most tokens of each answer, its reasoning included; lowered to the room that the context has, which "
            "is also the default.",
        ),
        Field(
            name="temperature",
            kind=Number(0, 2),
            default=1.0,
            model_default=True,
            becomes="sampling.temperature",
            note="0 is greedy.",
        ),
        Field(
            name="topP",
            kind=Number(0, 1),
            default=1.0,
            model_default=True,
            becomes="sampling.top_p",
            note="Keep the most likely tokens of this mass.",
        ),
        Field(
            name="topK",
            kind=Whole(Integer(0, MAX_COUNT)),
            default=0,
            model_default=True,
            becomes="sampling.top_k",
            note="Keep so many of the most likely tokens; 0: all.",
        ),
        Field(
            name="candidateCount",
            kind=Whole(Integer(1, MAX_CANDIDATES)),
            default=1,
            becomes="n",
            note="Answers, each with its `index`. Google's own limit is 8.",
        ),
        Field(
            name="stopSequences",
            kind=ListOf(String(minimum=1), maximum=64),
            becomes="ending.stop",
            note="The answer ends before the first of these, wherever its text has one; the reasoning and the "
            "arguments of calls are not looked at. Google's own limit is 5.",
        ),
        Field(
            name="seed",
            kind=Whole(Integer(-(2**63), MAX_SEED)),
            becomes="seeds",
            convert=lambda seed: (seed & MAX_SEED,),
            note="The same request with the same seed gives the same answer; the header `x-dragoman-seed` names the "
            "one that was used.",
        ),
        Field(
            name="presencePenalty",
            kind=Number(-2, 2),
            default=0.0,
            becomes="sampling.presence_penalty",
            note="Subtracted once from the logit of each token that was generated.",
        ),
        Field(
            name="frequencyPenalty",
            kind=Number(-2, 2),
            default=0.0,
            becomes="sampling.frequency_penalty",
            note="Subtracted for each time that a token was generated.",
        ),
        Field(
            name="responseLogprobs",
            kind=Boolean(),
            default=False,
            becomes="logprobs",
            convert=lambda on: LogprobParams() if on else None,
            note="Report log-probabilities: `logprobsResult`, and `avgLogprobs` of whole answers.",
        ),
        Field(
            name="logprobs",
            kind=Whole(Integer(0, MAX_LOGPROBS)),
            becomes="logprobs.top",
            note="That many alternatives for each token. Only together with `responseLogprobs`.",
        ),
        Field(
            name="responseSchema",
            kind=SCHEMA,
            becomes="constraint",
            convert=_schema,
            note="The form of the answer, behind the reasoning: a schema with the names of OpenAPI. What cannot be "
            "enforced is refused by its name.",
        ),
        *(
            Field(name=name, kind=JSON_SCHEMA, becomes="constraint", convert=_schema, note=note)
            for name, note in (
                ("responseJsonSchema", "The same as a JSON Schema; one of the three."),
                ("_responseJsonSchema", "The older name of `responseJsonSchema`."),
            )
        ),
        Field(
            name="responseMimeType",
            kind=String(choices=(PLAIN, JSON, ENUM)),
            becomes="constraint",
            convert=lambda kind: ANY_JSON if kind == JSON else None,
            note="`application/json`, without a schema an object or an array; `text/x.enum`: the text is one of the "
            "schema's `enum`. A schema alone asks for JSON.",
        ),
        Field(name="thinkingConfig", kind=THINKING, note="Whether the model reasons before its answer, and how long."),
        Field(
            name="mediaResolution",
            kind=RESOLUTION,
            note="The detail of images: low, or high; `MEDIUM` is the model's own. Reported where the model makes the "
            "same of every image.",
        ),
        Field(
            name="responseModalities",
            kind=Anything(),
            treatment=REFUSED,
            neutral=([], ["TEXT"], ["text"], ["Text"]),
            note="Answers are text.",
        ),
        Field(name="responseFormat", kind=Anything(), treatment=REFUSED, neutral=([],), note="Not Gemini's API."),
        Field(name="translationConfig", kind=Anything(), treatment=REFUSED, note="Speech is not translated."),
        *(
            Field(name=name, kind=Anything(), treatment=REPORTED, note="About sound and pictures: no effect on text.")
            for name in ("speechConfig", "imageConfig", "audioTranscriptionConfig")
        ),
        *(
            Field(name=name, kind=Boolean(), treatment=REPORTED, neutral=(False,), note="No effect.")
            for name in ("audioTimestamp", "enableAffectiveDialog", "enableEnhancedCivicAnswers")
        ),
        *(
            Field(name=name, kind=Anything(), treatment=REPORTED, note="The path names the model.")
            for name in ("routingConfig", "modelConfig", "modelSelectionConfig")
        ),
    ),
)
