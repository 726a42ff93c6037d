"""What every field of OctoAI's completions does, and what completions and chats share."""

from __future__ import annotations

from dragoman.core.sampling import MAX_SEED, LogprobParams
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import Boolean, Integer, ListOf, MapOf, Number, OneOf, String
from dragoman.dialects.progress import INCLUDE_PROGRESS

TOKEN_ID = Integer(0, 2**31 - 1)
TOKEN_IDS = ListOf(TOKEN_ID, minimum=1, maximum=2**20)
TEXT = String()
MAX_CHOICES = 128
MAX_PROMPTS = 2048
CHOICES = Integer(1, MAX_CHOICES)

GREEDY_BELOW = 1e-5
# What 100 stands for: more than any model's logits differ by, so that it forces, and bans.
CERTAIN = 1e4


def stops_of(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Stop strings, the empty ones left out."""
    return tuple(filter(None, (value,) if isinstance(value, str) else value))


def if_true(on: bool) -> bool | None:
    """The value of a switch that several fields turn on."""
    return on or None


def _bias(bias: dict[int, float]) -> dict[int, float]:
    return {token_id: value if abs(value) < 100 else value / 100 * CERTAIN for token_id, value in bias.items()}


# What completions and chats take, with one meaning.
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
