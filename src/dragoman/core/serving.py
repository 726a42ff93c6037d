"""Serving: the interface for dialects to generate, and to describe the model."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from dragoman.core.adapters import Adapters
from dragoman.core.batches import BatchStore
from dragoman.core.catalog import Catalog
from dragoman.core.events import GenerationEvent, GenerationResult, PromptToken
from dragoman.core.explanation import Explanation
from dragoman.core.images import ImageInfo, ImageInput, ImageTiles
from dragoman.core.pooling import PoolingInfo
from dragoman.core.request import ChatPrompt, EngineRequest, GenerationRequest, Prompt
from dragoman.core.responses import ResponseStore
from dragoman.core.resume import ResumeStore
from dragoman.core.sampling_defaults import SamplingDefaults

LOOKED_AT_TOKENS = 65_536


class ToolCalls(msgspec.Struct, frozen=True, kw_only=True):
    """How a model calls tools.

    ``format`` is a name in ``text.tool_calls.CALL_FORMATS``; ``special_ids`` are the tokens of those of its marks
    that have no text unless a request asks for it.
    """

    format: str
    special_ids: dict[str, int] = {}


class ReasoningBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Marks around a model's reasoning.

    ``special_ids``: the tokens of those of its marks that have no text unless a request asks for it; of a mark that
    only contains such tokens, theirs.
    """

    opening: str
    closing: str
    special_ids: dict[str, int] = {}

    @property
    def opening_parts(self) -> tuple[str | int, ...]:
        """The opening mark: ids of special tokens, and the texts around them."""
        marks = "|".join(map(re.escape, sorted(self.special_ids, key=len, reverse=True)))
        parts = re.split(f"({marks})", self.opening) if marks else [self.opening]
        return tuple(self.special_ids.get(part, part) for part in parts if part)


class TemplateRoles(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a chat template renders, found by trying.

    Attributes:
        system: a system message at the beginning.
        later_system: also one behind a user's turn or a tool's result, where it stands and as a turn of its own.
        tool: the calls and results of tools.
    """

    system: bool = True
    later_system: bool = False
    tool: bool = True


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a served model for clients. ``created`` is a Unix time in seconds.

    ``template_variables``, ``template_members``: the names that its chat template reads, and the attributes and
    keys. ``template_roles``: the messages that it renders. ``tool_calls``: None where its chat template does not
    support tools, or has an unknown format of calls. ``reasoning``: None where it is not known to write such blocks.
    ``chat_template``: the template's text, that which renders tools; empty where there is none.
    ``bos_token``, ``eos_token``: as its tokenizer spells them; empty where it has none.
    ``base``: of an adapter, the model that it changes; None for a model.
    ``sampling``: values for the sampling parameters that requests leave open.
    ``pooling``: how it makes vectors of texts; None: it makes none. ``generates``: it generates text.
    ``images``: None: it sees none.

    ``encoder_context_tokens``: None for decoder-only models, where ``context_tokens`` limits prompt and output
    together; of an encoder-decoder model the maximum of a prompt, where ``context_tokens`` limits the output.
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
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    encoder_context_tokens: int | None = None
    template_variables: frozenset[str] = frozenset()
    template_members: frozenset[str] = frozenset()
    template_roles: TemplateRoles = TemplateRoles()
    tool_calls: ToolCalls | None = None
    reasoning: ReasoningBlocks | None = None
    base: str | None = None
    sampling: SamplingDefaults = SamplingDefaults()
    pooling: PoolingInfo | None = None
    generates: bool = True
    images: ImageInfo | None = None

    @property
    def max_text_tokens(self) -> int:
        """Maximum tokens of a text that is only tokenized: longer ones cost memory without use."""
        return max(self.prompt_tokens, LOOKED_AT_TOKENS)

    @property
    def prompt_tokens(self) -> int:
        """Maximum tokens of a prompt."""
        return self.context_tokens if self.encoder_context_tokens is None else self.encoder_context_tokens

    def room(self, prompt_tokens: int, output_tokens: int = 0) -> int:
        """Return how many tokens can be generated after so many of the prompt and of earlier output."""
        before = output_tokens if self.encoder_context_tokens is not None else prompt_tokens + output_tokens
        return self.context_tokens - before


class Serving(Protocol):
    """One served engine. Every method raises the errors of ``core.errors``; none blocks the event loop.

    ``continuing``: store of cut generations that later requests resume.
    """

    @property
    def continuing(self) -> ResumeStore: ...

    @property
    def responses(self) -> ResponseStore:
        """The responses that are kept."""

    @property
    def batches(self) -> BatchStore:
        """The files of clients, and their batches."""

    @property
    def catalog(self) -> Catalog:
        """The models of the server, and the operations that change the served one."""

    @property
    def adapters(self) -> Adapters:
        """Adapters of the model that the running request began with."""

    def lease(self, model: str | None = None, *, wake: bool = True) -> AbstractAsyncContextManager[None]:
        """Keep a model, by its id in the catalog, or the current one for the time of one request: this task and those
        it starts use it even if another one is loaded meanwhile. The server does this for HTTP requests, a WebSocket's
        handler for each message. Waits while the model is loaded; raises Overloaded where too many wait, LoadFailed.
        Without ``wake``, a current model that is not in memory stays so until the request asks for one
        (``Catalog.use``)."""

    def models(self) -> tuple[ModelCard, ...]:
        """Return all served models, the default one first; then the adapters, each under its name."""

    def model(self, name: str | None) -> ModelCard:
        """Return the card of the named (or default) model, or of an adapter. Raises ModelNotFound."""

    def adapter(self, name: str) -> ModelCard:
        """Return the card of an adapter; a request whose ``model`` names it runs with it. Raises AdapterNotFound."""

    async def tokenize(self, prompt: Prompt, model: str | None = None, *, bounded: bool = True) -> tuple[int, ...]:
        """Return the token ids the prompt would be run with.

        ``bounded`` False: also for a text that is too long for the context. Raises PayloadTooLarge for more than
        ``ModelCard.max_text_tokens``.
        """

    async def tokenize_text(
        self, text: str, model: str | None = None, *, add_special_tokens: bool = True, bounded: bool = True
    ) -> tuple[PromptToken, ...]:
        """Return the tokens of a text, each with its bytes in the text. ``bounded``: as in ``tokenize``."""

    async def detokenize(
        self, token_ids: Sequence[int], model: str | None = None, *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of the tokens. Raises BadRequest for ids outside the vocabulary."""

    async def token_bytes(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        """Return the bytes of each token: special tokens as they are spelled, of many a part of a character only, and
        none of ids outside the vocabulary."""

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        """Return the text that the model's chat template renders from the messages."""

    async def image_tiles(self, image: ImageInput, model: str | None = None, *, param: str = "messages") -> ImageTiles:
        """Return a decoded image as the model's tower takes it, which is much smaller than a large image.

        ``param``: the wire field that has it, for errors. Raises UnsupportedFeature for a model that sees no images,
        BadRequest for an image that it cannot take, Overloaded where requests hold too many already.
        """

    async def explain(self, request: GenerationRequest, *, streamed: bool = False) -> Explanation:
        """Return what the request would be run as. Raises as ``stream`` (where ``streamed``) or ``generate`` would
        before the first event; takes no place in the queue."""

    async def prepare(self, request: GenerationRequest) -> EngineRequest:
        """Return the request as an engine would get it: token ids, the defaults of sampling, and a length that fits the
        context. Nothing runs. Refuses what ``generate`` would refuse before it asks the engine."""

    def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Generate: PromptReady, TextDelta…, GenerationDone. Closing the iterator cancels the request.

        Everything that can be refused is refused before the first event is yielded.
        """

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Generate and collect. Cancelling the awaiting task cancels the request."""
