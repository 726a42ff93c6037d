"""What every request field of the llama.cpp dialect does."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.constraint import JsonSchema, Lark
from dragoman.core.image_sources import MAX_IMAGES
from dragoman.core.sampling import MAX_COUNT, MAX_SEED, LogprobParams
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, Integer, ListOf, Number, OneOf, String
from dragoman.dialects.llama_samplers import LOWEST, mirostat, model_default, plain, steps

REFUSED, REPORTED = Treatment.REFUSED, Treatment.REPORTED
TEXT = String()
TOKENS = ListOf(Integer(0, 2**31 - 1), maximum=2**20)
MOST_PROMPTS = 32
MOST_PROBS = 20
MOST_DOCUMENTS = 2048
RANDOM_SEEDS = (-1, 2**32 - 1)


_ID = Integer(0, 2**31 - 1)
_PROMPT_OBJECT = Table(
    name="prompt",
    fields=(
        Field(name="prompt_string", kind=TEXT, required=True, note="A text."),
        Field(
            name="multimodal_data",
            kind=ListOf(String(minimum=1), maximum=MAX_IMAGES),
            note="Images in base64, one for each `<__media__>` in the text; for models that see.",
        ),
    ),
)
_MIXED = ListOf(OneOf((_ID, TEXT)), minimum=1, maximum=2**20)
PROMPT = OneOf((TEXT, _PROMPT_OBJECT, ListOf(OneOf((_ID, TEXT, _PROMPT_OBJECT, _MIXED)), minimum=1, maximum=2**20)))


def _length(name: str, note: str) -> Field:
    return Field(
        name=name,
        kind=Integer(-1, MAX_COUNT),
        becomes="ending.max_tokens",
        convert=lambda count: None if count < 0 else count,
        note=note,
    )


def _probs(name: str, note: str) -> Field:
    return Field(
        name=name,
        kind=Integer(0, MOST_PROBS),
        becomes="logprobs",
        convert=lambda top: LogprobParams(top=top) if top else None,
        note=note,
    )


def _without_effect(name: str, note: str, *neutral: Any) -> Field:
    return Field(name=name, kind=Anything(), treatment=REPORTED, neutral=neutral, note=note)


_MODEL = Field(name="model", kind=String(maximum=512), becomes="model", note="A served model, alias or adapter.")

_SAMPLING: tuple[Field, ...] = (
    *steps(top_p=0.95, min_p=0.05, whole=lambda kind: kind),
    plain("dry_multiplier", Number(0, 1000), 0.0, "sampling.dry_multiplier", "A penalty of repetitions; 0 is off."),
    plain("dry_base", Number(1, 100), 1.75, "sampling.dry_base", "How it grows."),
    plain("dry_allowed_length", Integer(1, MAX_COUNT), 2, "sampling.dry_allowed_length", "From which length on."),
    plain("dry_penalty_last_n", Integer(-1, MAX_COUNT), -1, "sampling.dry_penalty_last_n", "Newest tokens searched."),
    Field(
        name="dry_sequence_breakers",
        kind=ListOf(String(minimum=1), minimum=1, maximum=64),
        becomes="sampling.dry_sequence_breakers",
        note="Texts that no repetition reaches across; absent: line ends, colons, quotes and asterisks.",
    ),
    model_default(
        "xtc_probability", Number(0, 1), 0.0, "xtc_probability", "How often the likeliest tokens are dropped."
    ),
    model_default("xtc_threshold", Number(0, 1), 0.1, "xtc_threshold", "How likely these are."),
    *mirostat(lambda kind: kind),
    *(
        _without_effect(name, "There is no such step.", *neutral)
        for name, neutral in (
            ("dynatemp_range", (0, 0.0)),
            ("dynatemp_exponent", (1, 1.0)),
            ("top_n_sigma", (-1, -1.0, 0, 0.0)),
            ("adaptive_target", (-1, -1.0)),
            ("adaptive_decay", (0.9,)),
            ("min_keep", (0,)),
        )
    ),
    Field(
        name="samplers",
        kind=OneOf((ListOf(TEXT, maximum=64), TEXT)),
        note="The steps that run, by names or letters; those that are not named are off. Their order is always the "
        "same; another one, and `infill`, is reported.",
    ),
    Field(
        name="seed",
        kind=Integer(LOWEST, MAX_SEED),
        default=-1,
        becomes="seeds",
        convert=lambda seed: None if seed in RANDOM_SEEDS else (seed & MAX_SEED,),
        note="-1 and 4294967295: drawn; `generation_settings.seed` is the one that was used.",
    ),
    Field(
        name="logit_bias",
        kind=Anything(),
        note="Numbers added to logits, `false` for −∞: `[[id or text, number]]`, or an object. Of a text: all of its "
        "tokens.",
    ),
)

_ENDING: tuple[Field, ...] = (
    _length("n_predict", "Most tokens of the answer, lowered to the room that the context has; -1: all there is."),
    _length("max_tokens", "The same."),
    _length("max_completion_tokens", "The same."),
    Field(
        name="stop",
        kind=OneOf((ListOf(TEXT, maximum=64), TEXT)),
        becomes="ending.stop",
        convert=lambda stop: tuple(each for each in ((stop,) if isinstance(stop, str) else stop) if each),
        note="The text ends before the first of these. One that spells a special token is that token.",
    ),
    plain("ignore_eos", Boolean(), False, "ending.ignore_eos", "End tokens are tokens like others."),
    Field(
        name="grammar",
        kind=TEXT,
        becomes="constraint",
        convert=lambda grammar: Lark(grammar) if grammar else None,
        note="A grammar in GBNF that the text follows.",
    ),
    Field(
        name="json_schema",
        kind=Anything(object_only=True),
        becomes="constraint",
        convert=lambda schema: JsonSchema(msgspec.json.encode(schema).decode()),
        note="A JSON Schema that the text follows; reported beside `grammar`.",
    ),
    Field(
        name="n_indent",
        kind=Integer(0, MAX_COUNT),
        default=0,
        note="The text ends at the first line that is indented by fewer characters.",
    ),
    Field(
        name="t_max_predict_ms",
        kind=Integer(-1, MAX_COUNT),
        default=-1,
        note="The text ends when so long has passed since its first token, once it has a line end.",
    ),
)

_ANSWER: tuple[Field, ...] = (
    Field(name="stream", kind=Boolean(), default=False, note="Send events as they happen."),
    Field(name="n_cmpl", kind=Integer(1, MOST_PROMPTS), note="How many answers to each prompt."),
    Field(name="n", kind=Integer(1, MOST_PROMPTS), note="The same."),
    _probs("n_probs", "So many alternatives of each token."),
    _probs("logprobs", "The same."),
    Field(
        name="post_sampling_probs",
        kind=Boolean(),
        default=False,
        becomes="logprobs.mode",
        convert=lambda after: "processed" if after else "raw",
        note="Of what tokens were drawn from, as probabilities.",
    ),
    Field(name="return_tokens", kind=Boolean(), default=False, note="The answer has the ids of its tokens."),
    Field(name="timings_per_token", kind=Boolean(), default=False, note="Each event has the durations so far."),
    Field(
        name="response_fields",
        kind=ListOf(TEXT, maximum=256),
        note="The last object has only these; `timings/prompt_n` is a key of that name.",
    ),
    Field(name="lora", kind=ListOf(Anything(object_only=True), maximum=64), note="One adapter with scale 1, or none."),
    _MODEL,
)

_REPORTED: tuple[Field, ...] = (
    *(
        _without_effect(name, "Prefixes are always cached, and nothing of a prompt is dropped.", *neutral)
        for name, neutral in (
            ("cache_prompt", (True,)),
            ("id_slot", (-1, 0)),
            ("n_keep", (0, -1)),
            ("n_discard", (0,)),
            ("n_cache_reuse", (0,)),
        )
    ),
    _without_effect("return_progress", "There are no such events.", False),
    Field(
        name="sse_ping_interval",
        kind=Integer(-1, 2**31 - 1),
        note="Seconds of silence after which a stream gets a comment, where the server has no shorter ones; 0 and -1: "
        "as the server has it.",
    ),
    Field(
        name="grammar_lazy", kind=Anything(), treatment=REFUSED, neutral=(False,), note="Grammars hold from the start."
    ),
    *(
        _without_effect(name, "About llama-server's own chats.", False, [], "")
        for name in (
            "grammar_triggers",
            "preserved_tokens",
            "chat_format",
            "parse_tool_calls",
            "reasoning_format",
            "reasoning_in_content",
            "generation_prompt",
        )
    ),
)

COMPLETION = Table(
    name="completion",
    fields=(
        Field(
            name="prompt",
            kind=PROMPT,
            required=True,
            becomes="prompt",
            note="A text, token ids, a list of both, or a list of these: one answer to each. BOS comes before a text, "
            "and special tokens spelled in it are these.",
        ),
        *_ENDING,
        *_SAMPLING,
        *_ANSWER,
        *_REPORTED,
        _without_effect("t_max_prompt_ms", "There is no such limit."),
    ),
)

EXTRA = Table(
    name="file",
    fields=(
        Field(name="text", kind=TEXT, required=True, note="Its text."),
        Field(name="filename", kind=TEXT, note="Its name."),
    ),
)

INFILL = Table(
    name="infill",
    fields=(
        Field(name="input_prefix", kind=TEXT, required=True, note="The text before the gap."),
        Field(name="input_suffix", kind=TEXT, required=True, becomes="prompt.suffix", note="The text behind the gap."),
        Field(
            name="input_extra",
            kind=ListOf(EXTRA, maximum=1024),
            becomes="prompt.files",
            convert=lambda files: tuple((file["filename"] or "tmp", file["text"]) for file in files),
            note="Other files, which come first. Where not all fit, the first ones are left out and reported.",
        ),
        Field(name="prompt", kind=TEXT, default="", note="The end of the text before the gap."),
        *_ENDING,
        *_SAMPLING,
        *_ANSWER,
        *_REPORTED,
        Field(name="t_max_prompt_ms", kind=Anything(), note="No effect in llama-server either."),
    ),
)

EMBEDDING = Table(
    name="embedding",
    fields=(
        Field(name="input", kind=PROMPT, note="A text, token ids, a list of both, or a list of at most 32 of these."),
        Field(name="content", kind=PROMPT, note="The same as `input`."),
        Field(
            name="embd_normalize",
            kind=Integer(-1, MAX_COUNT),
            default=2,
            note="2: to Euclidean length 1; -1: as the model has it. Other norms are refused.",
        ),
        _MODEL,
    ),
)

_DOCUMENTS = ListOf(TEXT, minimum=1, maximum=MOST_DOCUMENTS)
RERANK = Table(
    name="rerank",
    fields=(
        Field(name="query", kind=TEXT, required=True, note="What the documents are compared with."),
        Field(name="documents", kind=_DOCUMENTS, note="Texts."),
        Field(name="texts", kind=_DOCUMENTS, note="The same; the answer is a list of `index` and `score`."),
        Field(name="top_n", kind=Integer(0, MAX_COUNT), note="Only the best so many are returned. Absent: all."),
        _MODEL,
    ),
)

TOKENIZE = Table(
    name="tokenize",
    fields=(
        Field(name="content", kind=TEXT, becomes="prompt.text", note="Absent: no tokens."),
        plain("add_special", Boolean(), False, "prompt.add_special_tokens", "As the tokenizer does around a text."),
        plain(
            "parse_special", Boolean(), True, "prompt.parse_special_tokens", "Special tokens spelled in it are these."
        ),
        Field(name="with_pieces", kind=Boolean(), default=False, note="Each token with its text."),
        _MODEL,
    ),
)

DETOKENIZE = Table(
    name="detokenize",
    fields=(Field(name="tokens", kind=TOKENS, becomes="prompt.token_ids", note="Ids of tokens."), _MODEL),
)

APPLY_TEMPLATE = Table(
    name="apply-template",
    fields=(
        Field(
            name="messages",
            kind=ListOf(Anything(object_only=True), minimum=1, maximum=100_000),
            required=True,
            becomes="prompt.messages",
            note="The conversation, as OpenAI's.",
        ),
        Field(
            name="tools",
            kind=ListOf(Anything(object_only=True), maximum=512),
            becomes="prompt.tools",
            note="As OpenAI's.",
        ),
        plain("add_generation_prompt", Boolean(), True, "prompt.add_generation_prompt", "Begin the answer's turn."),
        Field(
            name="chat_template_kwargs",
            kind=Anything(object_only=True, depth=8),
            becomes="prompt.template_kwargs",
            note="Variables for the chat template.",
        ),
        _MODEL,
    ),
)

MODEL = Table(
    name="model",
    fields=(
        Field(name="model", kind=String(minimum=1, maximum=512), required=True, note="A served or offered model."),
    ),
)
