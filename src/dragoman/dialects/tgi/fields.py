"""What every request field of TGI's native endpoints does."""

from __future__ import annotations

from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, ListOf, String
from dragoman.dialects.tgi.grammar import GRAMMAR, constraint_of
from dragoman.dialects.tgi.serde_errors import F32, I32, U32, U64, USIZE

MOST_STOPS = 1 << 16
"""No limit of the original's: its own, ``max_stop_sequences``, is looked at later and has a message of its own."""

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

INPUTS = Field(name="inputs", kind=String(), required=True, becomes="prompt", note="The text to continue.")

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
