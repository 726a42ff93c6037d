"""Detokenizer: token ids to text, one at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dragoman.text.tokenizer import Tokenizer

# Number of prompt tokens given to the decoder: more than any decoder in use looks back.
_CONTEXT_TOKENS = 8
# Stands for earlier text: nothing joins with it, and what follows is not the beginning of the text.
_EARLIER_TEXT = "\ufffd"


class Detokenizer:
    """The text of one generation as its tokens arrive.

    A character (a Unicode code point: whether a combining mark follows is unknown) is released when all its bytes
    have arrived, never in part. All pieces and ``flush()`` together are exactly the generation's part of
    ``tokenizer.decode(prompt_ids + generated_ids)``: what it has beyond the prompt's whole characters.
    So a first token such as ``▁word`` keeps its space after a prompt and loses it without one, and a character begun
    by the prompt's last bytes is released whole.

    ``shown_ids`` are special tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
    ) -> None:
        self._token = tokenizer.token
        self._skipped = tokenizer.special_ids.difference(shown_ids) if skip_special_tokens else frozenset[int]()
        self._decoder = tokenizer.decoder.start()
        for token in self._tail(tokenizer, prompt_ids):
            self._decoder.push(token)
        self._decoder.settle()

    def push(self, token_id: int) -> str:
        """Return the text released by one more token; empty while it is held back, or when the token has none."""
        token = None if token_id in self._skipped else self._token(token_id)
        return "" if token is None else self._decoder.push(token)

    def flush(self) -> str:
        """Return the text still held, when no token follows: an unfinished character is U+FFFD."""
        return self._decoder.flush()

    def _tail(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> list[str]:
        """Return the last tokens of the prompt: as few as leave the decoder in the state that all of them would."""
        tail: list[str] = []
        for token_id in reversed(prompt_ids):
            if token_id in self._skipped or (token := self._token(token_id)) is None:
                continue
            tail.append(token)
            if len(tail) > _CONTEXT_TOKENS and tokenizer.decoder.begins_character(tail[-2]):
                tail[-1] = _EARLIER_TEXT
                break
        return tail[::-1]
