"""What a request asks of a generation, in TGI's terms, whichever of its endpoints it came through."""

from __future__ import annotations

import msgspec

from dragoman.core.constraint import Constraint


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as the client gave them: None where it said nothing. Not validated.

    Attributes:
        sampling: whether tokens are drawn; otherwise the likeliest is taken.
        max_new_tokens: None: ``fills``, or what the operator set for those who say nothing.
        fills: as many tokens as there is room for, whatever the operator set.
        logit_bias, presence_penalty: of the chat endpoint only.
        logprobs: whether the log-probabilities of the tokens are shown; they take a pass over the vocabulary each.
        details, decoder_input_details: what the answer shows of its tokens, and of the prompt's.
        adapter_id: the adapter to run with. any_adapter: where there is none of that name, none is meant.
        constraint: what ``grammar`` comes to. grammar_fault: why it comes to nothing; said after everything else.
    """

    sampling: bool = False
    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] = {}
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    max_new_tokens: int | None = None
    fills: bool = False
    stop: tuple[str, ...] = ()
    truncate: int | None = None
    watermark: bool = False
    logprobs: bool = True
    details: bool = False
    decoder_input_details: bool = False
    return_full_text: bool = False
    seed: int | None = None
    top_n_tokens: int | None = None
    adapter_id: str | None = None
    any_adapter: bool = False
    constraint: Constraint | None = None
    grammar_fault: str = ""

    @property
    def sequences(self) -> int:
        """How many are generated, of which the best is the answer."""
        return self.best_of or 1
