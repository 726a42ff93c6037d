"""The served model: its card, its text processing, and the limits that a request must keep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec

from dragoman.core.capsule import Environment
from dragoman.core.errors import BadRequest
from dragoman.core.events import Token, TokenLogprob
from dragoman.core.serving import ModelCard
from dragoman.core.vocabulary import Vocabulary
from dragoman.models import EncoderInfo
from dragoman.models.vision.description import VisionDescription
from dragoman.text import ChatTemplate, Tokenizer
from dragoman.text.reasoning import ReasoningMarks, mark_texts


class Pieces(dict[int, tuple[str, bytes, bool]]):
    """Text, bytes and specialness of single tokens, each computed once. Bounded by the vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> tuple[str, bytes, bool]:
        raw = self._tokenizer.token_bytes(token_id)
        piece = self[token_id] = raw.decode("utf-8", "replace"), raw, self._tokenizer.is_special(token_id)
        return piece

    def token(self, token_id: int, logprob: float | None, top: tuple[TokenLogprob, ...], text_offset: int) -> Token:
        """Return the token with its alternatives, in the form for clients."""
        text, raw, special = self[token_id]
        others = tuple([self.token(other.token_id, other.logprob, (), text_offset) for other in top]) if top else ()
        return Token(token_id, text, raw, logprob, others, text_offset, special)


UNKNOWN = Environment(model="", fingerprint="")


class ServedModel(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model that is served under one or more names.

    Attributes:
        card: as clients know it, under its first name.
        aliases: its other names.
        eos_ids: tokens that end a generation.
        context_tokens: most tokens of prompt and output together that the engine can hold; of an output, where the
            prompt is an encoder's input. encoder: None where the model has none.
        environment: what computes it, for capsules.
        vision: what it sees images with; None: it sees none. parameters: their number. image_tokens: most tokens that
            one step reads of an image, or a prompt with images, whose tokens see later ones.
    """

    card: ModelCard
    tokenizer: Tokenizer
    template: ChatTemplate
    context_tokens: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    encoder: EncoderInfo | None = None
    environment: Environment = UNKNOWN
    vision: VisionDescription | None = None
    parameters: int = 1
    image_tokens: int = 0

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.tokenizer)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary for grammars."""
        return self.tokenizer.vocabulary(self.vocab_size, self.eos_ids)

    @cached_property
    def first_unknown(self) -> int | None:
        """Return the first id of the tokenizer that the model has no row for; None: it has one for each."""
        ids = range(self.vocab_size, self.tokenizer.vocab_size)
        return next((token_id for token_id in ids if self.tokenizer.token(token_id) is not None), None)

    def require_known(self, token_ids: Sequence[int], param: str) -> None:
        """Raise BadRequest where the tokenizer made a token of a text that the model has no row for: some tokenizers
        were given tokens that their models were not."""
        if self.first_unknown is None or not token_ids or (last := max(token_ids)) < self.vocab_size:
            return
        message = (
            f"The text has the token {self.tokenizer.token_text(last)!r}, which the model '{self.card.name}' does not"
        )
        raise BadRequest(f"{message} have: it knows {self.vocab_size} tokens, and its tokenizer more.", param=param)

    @cached_property
    def mark_texts(self) -> dict[int, str]:
        """Return the tokens that may be part of the marks of a reasoning block; of a model that is known to reason.

        Takes a second for 300,000 tokens.
        """
        blocks = self.card.reasoning
        assert blocks is not None
        return mark_texts(self.tokenizer.token_table, ReasoningMarks(blocks.opening, blocks.closing))

    @cached_property
    def cards(self) -> dict[str, ModelCard]:
        """Return the cards by name, the default one first."""
        names = dict.fromkeys((self.card.name, *self.aliases))
        return {name: msgspec.structs.replace(self.card, name=name) for name in names}

    @property
    def max_prompt_tokens(self) -> int:
        """Return the most tokens of a prompt."""
        return self.context_tokens if self.encoder is None else self.encoder.context_tokens
