"""How the next token is chosen, and when a sequence ends. Meanings and order are in ``docs/generation.md``."""

from __future__ import annotations

import msgspec

MAX_SEED = 2**64 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step's choice of token. The defaults ask for nothing: plain sampling from the model's distribution.

    Attributes:
        temperature: logits are divided by it; 0 is greedy.
        top_k: keep the k most likely tokens, ties stay; 0 is off.
        top_p: keep the smallest set whose mass reaches p; 1 is off.
        min_p: drop tokens less likely than min_p times the most likely one; 0 is off.
        repetition_penalty: each distinct id of prompt and output once: logit > 0 is divided, else multiplied; 1 is off.
        frequency_penalty: subtracted per occurrence among generated tokens.
        presence_penalty: subtracted once for each id among generated tokens.
        logit_bias: added to the logit of each given token id.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}


class EndingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a sequence ends.

    Attributes:
        max_tokens: most tokens to generate; None: as many as the context has room for. 0 generates nothing.
        min_tokens: while fewer exist, every EOS id is forbidden.
        ignore_eos: EOS ids are ordinary tokens.
        stop_token_ids: ids that end the sequence (``FinishReason.STOP_TOKEN``).
        stop: strings that end the sequence wherever they appear in the decoded text.
        include_stop: the matched stop string stays in the text.
        skip_special_tokens: special tokens (EOS too) have no text.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True


class LogprobParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which log-probabilities to report: log-softmax of the model's own logits.

    Attributes:
        top: how many alternatives beside the chosen token.
        prompt: report the prompt's tokens too (the first has none).
    """

    top: int = 0
    prompt: bool = False
