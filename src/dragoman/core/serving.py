"""What the server hands to a dialect: the one way to generate, and what there is to say about the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from dragoman.core.adapters import Adapters
from dragoman.core.catalog import Catalog
from dragoman.core.events import GenerationEvent, GenerationResult, PromptToken
from dragoman.core.request import ChatPrompt, GenerationRequest, Prompt
from dragoman.core.resume import ResumeStore

LOOKED_AT_TOKENS = 65_536


class ToolCalls(msgspec.Struct, frozen=True, kw_only=True):
    """How a model calls tools.

    ``format`` is a name among ``text.tool_calls.CALL_FORMATS``; ``special_ids`` are the tokens of those of its marks
    that have no text unless a request asks to see them.
    """

    format: str
    special_ids: dict[str, int] = {}


class ReasoningBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """What a model writes around its reasoning. ``special_ids``: as for ``ToolCalls``."""

    opening: str
    closing: str
    special_ids: dict[str, int] = {}


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A served model, as clients may know it. ``created`` is a Unix time in seconds.

    ``template_variables``, ``template_members``: the names that its chat template reads, and the attributes and keys.
    ``tool_calls``: None where its chat template knows no tools, or calls them in an unknown format. ``reasoning``: None
    where it is not known to write such blocks. ``base``: of an adapter, the model that it changes; None for a model.

    ``encoder_context_tokens``: None, and ``context_tokens`` are those of prompt and output together; of an
    encoder-decoder model the most tokens of a prompt, and ``context_tokens`` those of an output.
    """

    name: str
    created: int
    context_tokens: int
    vocab_size: int
    hidden_size: int
    precision: str
    fingerprint: str
    has_chat_template: bool
    has_fill_tokens: bool
    has_bos: bool = True
    encoder_context_tokens: int | None = None
    template_variables: frozenset[str] = frozenset()
    template_members: frozenset[str] = frozenset()
    tool_calls: ToolCalls | None = None
    reasoning: ReasoningBlocks | None = None
    base: str | None = None

    @property
    def max_text_tokens(self) -> int:
        """Most tokens of a text that is only looked at: longer ones are of no use here, and cost memory."""
        return max(self.prompt_tokens, LOOKED_AT_TOKENS)

    @property
    def prompt_tokens(self) -> int:
        """Most tokens of a prompt."""
        return self.context_tokens if self.encoder_context_tokens is None else self.encoder_context_tokens

    def room(self, prompt_tokens: int, output_tokens: int = 0) -> int:
        """How many tokens can be generated behind so many of the prompt and of earlier output."""
        before = output_tokens if self.encoder_context_tokens is not None else prompt_tokens + output_tokens
        return self.context_tokens - before


class Serving(Protocol):
    """One served engine. Every method raises the errors of ``core.errors``; none blocks the event loop.

    ``continuing``: where cut generations wait for the request that goes on with them.
    """

    @property
    def continuing(self) -> ResumeStore: ...

    @property
    def catalog(self) -> Catalog:
        """Which models there are, and how to change what is served."""

    @property
    def adapters(self) -> Adapters:
        """Of the model that the running request began with."""

    def held(self) -> AbstractAsyncContextManager[None]:
        """For the time of one request: whatever model is loaded meanwhile, this task and those it starts keep the one
        that they began with. HTTP requests are held by the server; the messages of a WebSocket are each held by its
        handler. Waits while a model takes the place of another; raises Overloaded where too many wait.
        """

    def models(self) -> tuple[ModelCard, ...]:
        """All served models, the default one first; then the adapters, each under its name."""

    def model(self, name: str | None) -> ModelCard:
        """The card of the named (or default) model, or of an adapter; ModelNotFound otherwise."""

    def adapter(self, name: str) -> ModelCard:
        """The card of an adapter; requests whose ``model`` it is run with it. AdapterNotFound otherwise."""

    async def tokenize(self, prompt: Prompt, model: str | None = None, *, bounded: bool = True) -> tuple[int, ...]:
        """The token ids the prompt would be run with.

        ``bounded`` False: also of a text that is too long for the context. Raises PayloadTooLarge for one of more than
        ``ModelCard.max_text_tokens``.
        """

    async def tokenize_text(
        self, text: str, model: str | None = None, *, add_special_tokens: bool = True, bounded: bool = True
    ) -> tuple[PromptToken, ...]:
        """The tokens of a text, each with the bytes of the text that it stands for. ``bounded``: as above."""

    async def detokenize(
        self, token_ids: Sequence[int], model: str | None = None, *, skip_special_tokens: bool = False
    ) -> str:
        """The text of the tokens; BadRequest for ids outside the vocabulary."""

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        """The text that the model's chat template makes of the messages."""

    def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Generate: PromptReady, TextDelta…, GenerationDone. Closing the iterator cancels the request.

        Everything that can be refused is refused before the first event is yielded.
        """

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Generate and collect. Cancelling the awaiting task cancels the request."""
