"""The request fields of the OpenAI dialect: completions and chat completions."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from dragoman.core.sampling import MAX_SEED, LogprobParams
from dragoman.dialects.field import Field, Outline, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, Integer, ListOf, MapOf, Number, OneOf, String
from dragoman.dialects.openai.sampler_fields import BEAMS, SAMPLERS, TOKEN_ID
from dragoman.dialects.openai.sampler_fields import extension as _extension
from dragoman.dialects.openai.structured import STRUCTURED
from dragoman.dialects.openai.tools import TOOLS
from dragoman.dialects.reasoning import EFFORTS
from dragoman.dialects.shared_fields import EMBEDDING_FIELDS, INCLUDE_PROGRESS

REFUSED, REPORTED = Treatment.REFUSED, Treatment.REPORTED

TOKEN_IDS = ListOf(TOKEN_ID, minimum=1, maximum=2**20)
TEXT = String()
STOP = String(minimum=1, maximum=4096)
MAX_CHOICES = 128
MAX_PROMPTS = 2048


def _stops(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


MODEL = Field(
    name="model",
    kind=String(minimum=1, maximum=512),
    becomes="model",
    note="A served name, as `GET /v1/models` lists them. Absent: the default model.",
)

# Fields that both endpoints share, with the same meaning.
SHARED: tuple[Field, ...] = (
    Field(
        name="temperature",
        kind=Number(maximum=2),
        default=1.0,
        becomes="sampling.temperature",
        model_default=True,
        note="Logits are divided by it; 0 takes the most likely token.",
    ),
    Field(
        name="top_p",
        kind=Number(),
        default=1.0,
        becomes="sampling.top_p",
        model_default=True,
        note="Keeps the smallest set of tokens whose probabilities reach this sum, at least one.",
    ),
    Field(
        name="n",
        kind=Integer(1, MAX_CHOICES),
        default=1,
        becomes="n",
        note="Choices returned for each prompt.",
    ),
    Field(
        name="stop",
        kind=OneOf((STOP, ListOf(STOP, maximum=64))),
        becomes="ending.stop",
        convert=_stops,
        note="Strings that end the generation wherever they appear in its text, also across tokens. OpenAI allows 4.",
    ),
    Field(
        name="presence_penalty",
        kind=Number(-2, 2),
        default=0.0,
        becomes="sampling.presence_penalty",
        note="Subtracted once from the logit of every token that was generated before.",
    ),
    Field(
        name="frequency_penalty",
        kind=Number(-2, 2),
        default=0.0,
        becomes="sampling.frequency_penalty",
        note="Subtracted from a token's logit as often as the token was generated before.",
    ),
    Field(
        name="logit_bias",
        kind=MapOf(Number(-100, 100), TOKEN_ID),
        becomes="sampling.logit_bias",
        note="Token id (as a string) to what is added to its logit.",
    ),
    Field(
        name="seed",
        kind=Integer(-(2**63), MAX_SEED),
        becomes="seeds",
        note="Choice k (all choices counted, prompt by prompt) uses (seed + k) mod 2^64. Absent: one is drawn. "
        "The header `x-dragoman-seed` of the answer names the one used; sent again, it gives the same text.",
    ),
    Field(name="stream", kind=Boolean(), default=False, note="Answer with server-sent events, one per token."),
    Field(
        name="stream_options",
        kind=Table(
            name="stream_options",
            fields=(
                Field(
                    name="include_usage",
                    kind=Boolean(),
                    default=False,
                    note="A last event without choices holds the token counts.",
                ),
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
    Field(
        name="user",
        kind=String(maximum=1024),
        treatment=REPORTED,
        note="Nothing is done for single end users.",
    ),
    Field(
        name="top_k",
        kind=Integer(-1, 2**31 - 1),
        default=0,
        becomes="sampling.top_k",
        model_default=True,
        convert=lambda k: max(k, 0),
        note=_extension("Keeps the k most likely tokens; 0 and -1 are off."),
    ),
    Field(
        name="min_p",
        kind=Number(),
        default=0.0,
        becomes="sampling.min_p",
        model_default=True,
        note=_extension("Drops tokens less likely than this share of the most likely one's probability."),
    ),
    Field(
        name="repetition_penalty",
        kind=Number(maximum=100),
        default=1.0,
        becomes="sampling.repetition_penalty",
        model_default=True,
        note=_extension("Divides the positive and multiplies the negative logit of each token of prompt and output."),
    ),
    Field(
        name="min_tokens",
        kind=Integer(),
        default=0,
        becomes="ending.min_tokens",
        note=_extension("While fewer exist, the end-of-sequence tokens are forbidden. At most `max_tokens`."),
    ),
    Field(
        name="ignore_eos",
        kind=Boolean(),
        default=False,
        becomes="ending.ignore_eos",
        note=_extension("End-of-sequence tokens are ordinary tokens."),
    ),
    Field(
        name="stop_token_ids",
        kind=ListOf(TOKEN_ID, maximum=256),
        becomes="ending.stop_token_ids",
        note=_extension("Tokens that end the generation; their text is left out unless `include_stop_str_in_output`."),
    ),
    Field(
        name="include_stop_str_in_output",
        kind=Boolean(),
        default=False,
        becomes="ending.include_stop",
        note=_extension("The stop string stays in the text."),
    ),
    Field(
        name="skip_special_tokens",
        kind=Boolean(),
        default=True,
        becomes="ending.skip_special_tokens",
        note=_extension("Special tokens have no text in the output."),
    ),
    Field(
        name="return_token_ids",
        kind=Boolean(),
        default=False,
        note=_extension(
            "The answer has the token ids of the prompt, `prompt_token_ids`, and of each choice, `token_ids`; each "
            "token among the log-probabilities has its `id`, in a list `content` of completions too."
        ),
    ),
    Field(
        name="priority",
        kind=Integer(-(2**31), 2**31 - 1),
        default=0,
        becomes="priority",
        note=_extension(
            "Higher runs first among the requests of one caller, and has a head start before others where the caller "
            "has a right to it; below 0 is background."
        ),
    ),
    Field(
        name="cache_salt",
        kind=String(minimum=1, maximum=1024),
        becomes="cache_salt",
        note=_extension("Cached prefixes are shared only with requests of the same caller that give the same salt."),
    ),
    *SAMPLERS,
    *BEAMS,
)

_PREDICTED_PART = Table(
    name="predicted_part",
    fields=(
        Field(name="type", kind=String(choices=("text",)), required=True),
        Field(name="text", kind=TEXT, required=True),
    ),
)
PREDICTION = Field(
    name="prediction",
    kind=Table(
        name="prediction",
        fields=(
            Field(name="type", kind=String(choices=("content",)), required=True),
            Field(
                name="content",
                kind=OneOf((TEXT, ListOf(_PREDICTED_PART))),
                required=True,
                becomes="prediction",
                convert=lambda content: (
                    content if isinstance(content, str) else "".join(part["text"] for part in content)
                ),
                note="A text that the answer repeats much of, such as a file that is edited. Tokens come faster where "
                "it is right; none of them changes, and it counts neither as prompt nor as output.",
            ),
        ),
    ),
    note="Its use is in `usage.completion_tokens_details`.",
)

COMPLETIONS = Table(
    name="completions",
    fields=(
        MODEL,
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
            default="",
            becomes="prompt",
            note="Text, token ids, or a list of either: one choice list for all, prompt by prompt. Empty text starts "
            "from the model's first token (its BOS, or else EOS, token).",
        ),
        Field(
            name="suffix",
            kind=String(),
            becomes="prompt.suffix",
            note="The text after the gap; refused unless the model has fill-in-the-middle tokens. One text prompt.",
        ),
        Field(
            name="max_tokens",
            kind=Integer(),
            default=16,
            becomes="ending.max_tokens",
            note="Most tokens to generate. 0 only together with `echo`.",
        ),
        Field(
            name="best_of",
            kind=Integer(1, MAX_CHOICES),
            becomes="best_of",
            note="Makes that many and returns the `n` with the highest mean token log-probability. Streamed only of a "
            "beam search, which has that many beams.",
        ),
        Field(
            name="echo",
            kind=Boolean(),
            default=False,
            becomes="echo, logprobs.prompt",
            convert=lambda on: (on, on),
            note="The prompt precedes the answer.",
        ),
        Field(
            name="logprobs",
            kind=Integer(0, 20),
            becomes="logprobs",
            convert=lambda top: LogprobParams(top=top),
            note="Log-probabilities of the tokens and of this many alternatives; with `echo` the prompt's too. "
            "OpenAI's own limit is 5.",
        ),
        *SHARED,
        Field(
            name="add_special_tokens",
            kind=Boolean(),
            default=True,
            becomes="prompt.add_special_tokens",
            note=_extension("Text prompts get the tokenizer's own first and last tokens (BOS)."),
        ),
        *(structs.replace(field, note=_extension(field.note)) for field in EMBEDDING_FIELDS),
        *STRUCTURED,
    ),
)

PART = Table(
    name="part",
    fields=(
        Field(
            name="type",
            kind=String(choices=("text", "refusal", "image_url", "file")),
            required=True,
            note="What the part is.",
        ),
        Field(name="text", kind=TEXT, note="With type `text`."),
        Field(name="refusal", kind=TEXT, note="With type `refusal`: what the assistant said instead."),
        Field(
            name="image_url",
            kind=Anything(),
            note="With type `image_url`, for models that see: an object of a `url` (a data URL; with `--image-hosts` "
            "also https) and a `detail` (`auto`, `low`, `high`, `original`).",
        ),
        Field(name="input_audio", kind=Anything(), treatment=REFUSED, note="The model hears nothing."),
        Field(
            name="file",
            kind=Anything(),
            note="With type `file`: `file_data`, a data URL of text or JSON, shown as a document, and `filename`; "
            "other files are refused.",
        ),
        Field(
            name="prompt_cache_breakpoint",
            kind=Anything(),
            treatment=REPORTED,
            note="Equal beginnings are always found.",
        ),
    ),
)

MESSAGE = Table(
    name="message",
    fields=(
        Field(
            name="role",
            kind=String(choices=("system", "developer", "user", "assistant", "tool", "function")),
            required=True,
            note="`developer` is given to the chat template as `system`. Where the template takes that at the head "
            "only, later ones are reminders in the user's turn before them.",
        ),
        Field(
            name="content",
            kind=OneOf((TEXT, ListOf(Outline(PART), minimum=1, maximum=4096))),
            note="Text, or parts of type `text` and files of text (joined as they are), and `image_url`; audio is "
            "refused. Only an assistant may leave it out.",
        ),
        Field(name="name", kind=String(maximum=256), note="Given to the chat template."),
        Field(
            name="tool_calls",
            kind=ListOf(Anything(object_only=True), maximum=256),
            note="Earlier calls of the assistant, for the chat template.",
        ),
        Field(name="tool_call_id", kind=String(maximum=256), note="Which call a `tool` message answers."),
        Field(name="reasoning_content", kind=TEXT, note="Given to the chat template. " + _extension("").strip()),
        Field(name="reasoning", kind=TEXT, note="The same, where there is no `reasoning_content`. Not OpenAI's."),
        Field(name="refusal", kind=TEXT, treatment=REPORTED, neutral=("",), note="No effect."),
        Field(name="annotations", kind=Anything(), treatment=REPORTED, neutral=([],), note="No effect."),
        Field(name="audio", kind=Anything(), treatment=REFUSED, note="The model hears and speaks nothing."),
        Field(
            name="function_call",
            kind=Anything(object_only=True),
            treatment=REFUSED,
            note="The old form of `tool_calls`.",
        ),
    ),
)

CHAT = Table(
    name="chat completions",
    fields=(
        MODEL,
        Field(
            name="messages",
            kind=ListOf(MESSAGE, minimum=1, maximum=8192),
            required=True,
            becomes="prompt.messages",
            note="The conversation, rendered by the model's own chat template.",
        ),
        Field(
            name="max_tokens",
            kind=Integer(1),
            becomes="ending.max_tokens",
            note="Most tokens to generate. Absent: as many as the context has room for.",
        ),
        Field(
            name="max_completion_tokens",
            kind=Integer(1),
            becomes="ending.max_tokens",
            note="The newer name of `max_tokens`; with both, they are equal.",
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
            kind=Integer(0, 20),
            becomes="logprobs.top",
            note="That many alternatives for each token. Only together with `logprobs`.",
        ),
        *SHARED,
        Field(
            name="add_generation_prompt",
            kind=Boolean(),
            becomes="prompt.add_generation_prompt",
            note=_extension("The template opens the assistant's turn: the default unless `continue_final_message`."),
        ),
        Field(
            name="continue_final_message",
            kind=Boolean(),
            default=False,
            becomes="prompt.continue_final_message",
            note=_extension("The last message is left open and continued. Not together with `add_generation_prompt`."),
        ),
        Field(
            name="chat_template_kwargs",
            kind=Anything(object_only=True, depth=8),
            becomes="prompt.template_kwargs",
            note=_extension("Variables for the chat template."),
        ),
        *STRUCTURED,
        *TOOLS,
        Field(
            name="separate_reasoning",
            kind=Boolean(),
            note=_extension(
                "A reasoning block (`<think>`) goes to the message's `reasoning_content`, and a format such as "
                "`response_format` is that of the content behind it; refused unless the model is known to write such "
                "blocks. Of models that mark their text (gpt-oss) the reasoning is left out otherwise. Absent: the "
                "operator's choice, `--openai-separate-reasoning`."
            ),
        ),
        Field(name="functions", kind=Anything(), treatment=REFUSED, neutral=([],), note="The old form of `tools`."),
        Field(
            name="function_call",
            kind=Anything(),
            treatment=REFUSED,
            neutral=("none", "auto"),
            note="The old form of `tool_choice`.",
        ),
        Field(
            name="modalities",
            kind=ListOf(TEXT),
            treatment=REFUSED,
            neutral=(["text"], []),
            note='Text only: `["text"]` is accepted.',
        ),
        Field(name="audio", kind=Anything(), treatment=REFUSED, note="The model speaks nothing."),
        Field(name="web_search_options", kind=Anything(), treatment=REFUSED, note="Nothing is looked up."),
        Field(name="moderation", kind=Anything(), treatment=REFUSED, note="Nothing is moderated."),
        PREDICTION,
        Field(
            name="reasoning_effort",
            kind=String(choices=EFFORTS),
            note="Given to templates that read it, `xhigh` and `max` as `high`; a switch of the template for reasoning "
            "is off for `none` and on for others; reported where there is neither.",
        ),
        Field(name="verbosity", kind=TEXT, treatment=REPORTED, neutral=("medium",), note="No effect."),
        Field(
            name="service_tier",
            kind=TEXT,
            treatment=REPORTED,
            neutral=("auto", "default"),
            note="There is one tier: the answer says `default`.",
        ),
        Field(name="store", kind=Boolean(), treatment=REPORTED, neutral=(False,), note="Nothing is stored."),
        Field(name="metadata", kind=Anything(), treatment=REPORTED, neutral=({},), note="Nothing is stored."),
        Field(name="prompt_cache_key", kind=TEXT, treatment=REPORTED, note="Equal prefixes are found without a key."),
        Field(name="prompt_cache_options", kind=Anything(), treatment=REPORTED, note="The cache is always on."),
        Field(name="prompt_cache_retention", kind=TEXT, treatment=REPORTED, note="The cache keeps what memory allows."),
        Field(name="safety_identifier", kind=TEXT, treatment=REPORTED, note="Nothing is kept about users."),
    ),
)
