"""Conversion of prompts of any form to token ids. Long work leaves the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

import msgspec

from dragoman.core.errors import BadRequest, ContextOverflow, PayloadTooLarge, UnsupportedFeature
from dragoman.core.events import PromptToken
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, PairPrompt, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import SamplingParams
from dragoman.serving.model import ServedModel
from dragoman.serving.worker_pool import WorkerPool, WorkerPools

Result = TypeVar("Result")
Token = TypeVar("Token")

# Tokenized in about half a millisecond: less than handing it to a thread and back may take on a busy machine.
INLINE_CHARS = 2048

SHOWN_TOKENS = 8192
"""Most tokens of a prompt that an explanation shows one by one."""


class PromptReader:
    """Tokenizes and renders for one model, in a thread where that takes long."""

    def __init__(self, model: ServedModel, pools: WorkerPools) -> None:
        self._model, self._pools = model, pools

    async def read(self, prompt: Prompt, *, bounded: bool = True) -> tuple[int, ...]:
        """Return the token ids, never empty. Raises BadRequest, UnsupportedFeature or ContextOverflow with the field's
        name.

        An empty text starts as every text does: with the BOS token, or EOS where the model has no BOS.
        """
        match prompt:
            case TextPrompt():
                special = prompt.add_special_tokens, prompt.parse_special_tokens
                ids = await self._tokenized(prompt.text, special, "prompt", bounded=bounded)
            case TokenPrompt():
                ids = self._checked(prompt.token_ids)
            case ChatPrompt() if prompt.token_ids:
                ids = self._checked(prompt.token_ids)
            case ChatPrompt():
                ids = await self._tokenized(await self.rendered(prompt), (False, True), "messages", bounded=bounded)
            case FillPrompt():
                chars = sum(map(len, (prompt.prefix, prompt.suffix, *(text for _, text in prompt.files or ()))))
                ids = await self._maybe_inline(chars, lambda: self._filled(prompt), "suffix")
            case PairPrompt():
                raise UnsupportedFeature("A query with a document is compared, and generates nothing.", param="prompt")
        ids = ids or self._beginning()
        self._model.require_known(ids, {ChatPrompt: "messages", FillPrompt: "suffix"}.get(type(prompt), "prompt"))
        return ids

    async def tokens(self, text: str, add_special_tokens: bool, *, bounded: bool = True) -> tuple[PromptToken, ...]:
        """Return the tokens of a text that is not generated from. Raises as ``read`` does."""
        most = self._model.max_prompt_tokens if bounded else self._model.card.max_text_tokens
        encode = self._model.tokenizer.encode_with_offsets
        if bounded:
            return await self._maybe_inline(len(text), lambda: encode(text, add_special_tokens, most), "prompt")
        return await self._cross_attention(len(text), lambda: encode(text, add_special_tokens, most))

    async def predicted(self, text: str, most: int) -> tuple[int, ...]:
        """Return the first ``most`` tokens of a text that is expected as the output. Raises BadRequest."""
        tokenizer, vocab_size = self._model.tokenizer, self._model.vocab_size
        text = text[: most * tokenizer.max_token_chars]

        def tokenized() -> tuple[int, ...]:
            # Tokens that were added to the tokenizer, and not to the model, are no output.
            return tuple(takewhile(lambda token_id: token_id < vocab_size, tokenizer.encode_inside(text)[:most]))

        return await self._maybe_inline(len(text), tokenized, "prediction")

    async def text(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of token ids. Raises BadRequest for ids outside the vocabulary."""
        ids = self._checked(tuple(token_ids), "tokens")
        return await self._maybe_inline(
            len(ids), lambda: self._model.tokenizer.decode(ids, skip_special_tokens), "tokens"
        )

    async def token_bytes(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        """Return the bytes of each token."""
        of = self._model.tokenizer.token_bytes
        return await self._maybe_inline(len(token_ids), lambda: tuple(map(of, token_ids)), "tokens")

    async def shown(self, request: GenerationRequest, token_ids: tuple[int, ...]) -> tuple[str | None, tuple[str, ...]]:
        """Return a request's prompt as text, and the text of each of its tokens; None and nothing where there are too
        many."""
        if len(token_ids) > SHOWN_TOKENS:
            return None, ()
        tokenizer = self._model.tokenizer
        pieces = await self._maybe_inline(
            len(token_ids), lambda: tuple(tokenizer.token_text(token_id) for token_id in token_ids), "prompt"
        )
        if request.truncate is None and isinstance(request.prompt, ChatPrompt) and request.prompt.messages:
            return await self.rendered(request.prompt), pieces
        return await self.text(token_ids, skip_special_tokens=False), pieces

    async def rendered(self, prompt: ChatPrompt) -> str:
        """Return the messages rendered by the chat template."""
        return await self._in_thread(self._pools.templates, lambda: self._model.template.render(prompt), "messages")

    async def in_thread(self, chars: int, work: Callable[[], Result], param: str) -> Result:
        """Return what work on a text of so many characters returns, in a thread where it takes long; errors name the
        field."""
        return await self._maybe_inline(chars, work, param)

    async def tokenized(self, text: str, special: tuple[bool, bool], param: str) -> tuple[int, ...]:
        """Return the tokens of a text. ``special``: whether special tokens are added, and parsed."""
        return await self._tokenized(text, special, param)

    async def _tokenized(
        self, text: str, special: tuple[bool, bool], param: str, *, bounded: bool = True
    ) -> tuple[int, ...]:
        """``special``: whether special tokens are added, and parsed."""
        most = self._model.max_prompt_tokens if bounded else self._model.card.max_text_tokens
        encode = self._model.tokenizer.encode
        if bounded:
            return await self._maybe_inline(len(text), lambda: encode(text, *special, max_tokens=most), param)
        return await self._cross_attention(len(text), lambda: encode(text, *special, max_tokens=most))

    async def _cross_attention(self, chars: int, encode: Callable[[], tuple[Token, ...]]) -> tuple[Token, ...]:
        """Return the tokens of a text that need not fit into the context. Raises PayloadTooLarge."""
        most = self._model.card.max_text_tokens
        too_many = PayloadTooLarge(f"The text has more than {most} tokens, which is the most that are looked at here.")

        def bounded() -> tuple[Token, ...]:
            try:
                tokens = encode()
            except ContextOverflow:
                raise too_many from None
            if len(tokens) > most:
                raise too_many
            return tokens

        return await self._maybe_inline(chars, bounded, "prompt")

    def _filled(self, prompt: FillPrompt) -> tuple[int, ...]:
        most = self._model.max_prompt_tokens
        ids = self._model.tokenizer.render_fill(prompt.prefix, prompt.suffix, most, prompt.files)
        if ids is None:
            message = (
                f"'suffix' is not supported: the model '{self._model.card.name}' has no fill-in-the-middle tokens."
            )
            raise UnsupportedFeature(message, param="suffix")
        return ids

    def _checked(self, token_ids: tuple[int, ...], param: str = "prompt") -> tuple[int, ...]:
        if len(token_ids) > self._model.max_prompt_tokens:
            raise overflow(self._model, f"the prompt has {len(token_ids)}", param, prompt_tokens=len(token_ids))
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._model.vocab_size:
            raise BadRequest(f"Token ids are from 0 to {self._model.vocab_size - 1}.", param=param)
        return token_ids

    def _beginning(self) -> tuple[int, ...]:
        tokenizer = self._model.tokenizer
        first = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
        if first is None:
            raise BadRequest("The prompt is empty, and the model has no token to begin with.", param="prompt")
        return (first,)

    async def _maybe_inline(self, chars: int, work: Callable[[], Result], param: str) -> Result:
        if chars > INLINE_CHARS:
            return await self._in_thread(self._pools.text, work, param)
        return self._named(work, param)

    async def _in_thread(self, pool: WorkerPool, work: Callable[[], Result], param: str) -> Result:
        return await pool.run(lambda: self._named(work, param))

    def _named(self, work: Callable[[], Result], param: str) -> Result:
        """Run the work, and add the field's name and the size of the context to its errors: the text package knows
        neither."""
        try:
            return work()
        except ContextOverflow as error:
            known = {"prompt_tokens": error.prompt_tokens, "is_exact": error.is_exact}
            raise overflow(self._model, error.message, param, **known) from None
        except BadRequest as error:
            error.param = error.param or param
            raise


def overflow(model: ServedModel, what: str, param: str, **counts: Any) -> ContextOverflow:
    """Return the error of a prompt that is too long. ``counts``: those of the error that are known."""
    context = model.max_prompt_tokens
    longest = "maximum context length is" if model.encoder is None else "encoder reads at most"
    message = f"This model's {longest} {context} tokens. However, {what}."
    return ContextOverflow(message, param=param, context_tokens=context, **counts)


_INLINE_TEXTS = 32


class BadWordsReader:
    """Tokenizes for one model, in a thread where that takes long."""

    def __init__(self, model: ServedModel, pools: WorkerPools) -> None:
        self._model, self._pools = model, pools

    async def read(self, sampling: SamplingParams) -> SamplingParams:
        """Return the parameters with tokens in place of texts. Raises BadRequest for text that is not Unicode."""
        breakers = sampling.dry_sequence_breakers if sampling.dry_multiplier else ()
        texts = (*sampling.bad_words, *breakers)
        if len(texts) > _INLINE_TEXTS or sum(map(len, texts)) > INLINE_CHARS:
            return await self._pools.text.run(lambda: self._in_tokens(sampling, breakers))
        return self._in_tokens(sampling, breakers)

    def _in_tokens(self, sampling: SamplingParams, breakers: tuple[str, ...]) -> SamplingParams:
        phrases = [self._encoded(word, "bad_words") for word in sampling.bad_words]
        phrases = [phrase for phrase in phrases if self._possible(phrase)]
        # After a letter, and the last token of it: a break between words may be one token with what precedes it.
        ends = [self._encoded(f"a{text}", "dry_sequence_breakers")[-1:] for text in breakers]
        ends = [end for end in ends if self._possible(end)]
        return msgspec.structs.replace(
            sampling,
            bad_words=(),
            banned_phrases=(*sampling.banned_phrases, *dict.fromkeys(filter(None, phrases))),
            dry_sequence_breakers=(),
            dry_breaker_ids=(*sampling.dry_breaker_ids, *(token_id for end in ends for token_id in end)),
        )

    def _possible(self, token_ids: tuple[int, ...]) -> bool:
        """Return whether the model can say the tokens: its tokenizer may have some that it has no row for."""
        return max(token_ids, default=0) < self._model.vocab_size

    def _encoded(self, text: str, param: str) -> tuple[int, ...]:
        try:
            return self._model.tokenizer.encode_inside(text)
        except BadRequest as error:
            raise BadRequest(f"'{param}': {error.message}", param=param) from None
