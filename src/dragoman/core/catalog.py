"""Catalog of models: the served ones, and those that can be loaded instead."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Iterable
from typing import Literal, Protocol

import msgspec


class ModelState(enum.StrEnum):
    """State of a model."""

    AVAILABLE = "available"
    """Known, but not in memory."""
    LOADING = "loading"
    LOADED = "loaded"


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that this server serves, or can load.

    Attributes:
        id: the name that clients use. aliases: other names for it.
        title: readable name.
        state, progress: of loading, the share that is done, from 0 to 1.
        error: why it could not be loaded the last time; empty if it could.
        modified: Unix time of its newest file; None while it is unknown.
        parameters: number of weights. context_tokens: maximum of prompt and output. size_bytes: of its files.
            memory_bytes: of memory, loaded. None, or empty, while they are unknown.
    """

    id: str
    aliases: tuple[str, ...] = ()
    title: str = ""
    description: str = ""
    state: ModelState = ModelState.AVAILABLE
    progress: float = 0.0
    error: str = ""
    modified: float | None = None
    architecture: str = ""
    precision: str = ""
    parameters: int | None = None
    context_tokens: int | None = None
    size_bytes: int | None = None
    memory_bytes: int | None = None


class ModelResidence(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory, or on its way into it.

    Attributes:
        id: the name that clients use. is_default: it serves requests that name no model.
        state: ``queued`` for a load, ``loading``, ``loaded``, or ``leaving``: it finishes its running requests.
        progress: of its load, the share that is done. waiting: requests that wait for the load. running: requests that
            use it. idle_s: seconds since the last one.
        is_pinned: it is never unloaded for others, nor for being idle. idle_limit_s: seconds after its last request
            at which it is unloaded; None: never.
        planned_bytes: the most that it takes, by its plan. pid: of its engine's process.
    """

    id: str
    is_default: bool
    state: str
    progress: float = 1.0
    waiting: int = 0
    running: int = 0
    idle_s: float | None = None
    is_pinned: bool = False
    idle_limit_s: float | None = None
    planned_bytes: int | None = None
    pid: int | None = None


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a model that its small files show, whether or not it is loaded.

    Attributes:
        architecture: the class of its config, or GGUF's name. format: of its files, ``gguf`` or ``safetensors``.
        stored_as: type of its weights. license: its text, or its name; empty where the files name none.
        tokenizer: how it makes tokens, by GGUF's names: ``gpt2`` (merges of bytes), ``llama`` (SentencePiece), ``bert``
            (WordPiece), ``t5`` (Unigram); empty for others.
        tools, reasoning, fill: its template mentions tools, or reasoning; its tokens include the marks of gaps.
    """

    architecture: str
    format: str
    stored_as: str
    parameters: int
    context_tokens: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    license: str = ""
    chat_template: str = ""
    tokenizer: str = ""
    tools: bool = False
    reasoning: bool = False
    fill: bool = False


class FileProgress(msgspec.Struct, frozen=True):
    """How much of a model's file is on this machine, in bytes."""

    name: str
    total: int
    done: int


class Catalog(Protocol):
    """The models of this server. Several may be in memory; the current one serves requests that name none."""

    def entries(self) -> tuple[CatalogEntry, ...]:
        """Return all known models, the current one first."""

    def current(self) -> CatalogEntry | None:
        """Return the current model; None where none is loaded."""

    def find(self, name: str) -> CatalogEntry | None:
        """Find a model by id or alias, or by the last part of an id if it is unique, ignoring case."""

    def named(self, name: str) -> str | None:
        """Return the id of the model that a name means exactly: of a model in memory, its adapter, or an offered one;
        None for names of nothing."""

    def is_resident(self, id: str) -> bool:
        """Return whether a model is in memory and takes requests."""

    async def fits_in(self, id: str, unused_s: float) -> bool:
        """Return whether a model is in memory, or would fit in while none is unloaded that was used within the last
        ``unused_s`` seconds. Raises ModelNotFound, ModelError where it can never fit."""

    def residences(self) -> tuple[ModelResidence, ...]:
        """Return the models in memory and those that are waited for, the current one first."""

    @property
    def request_loads(self) -> Literal["admin", "any", "never"]:
        """Who may have a model loaded by naming it in a request: keys with the scope admin, any request, or never."""

    @property
    def memory_bytes(self) -> int | None:
        """The memory that the server and all its models share; None where there is one model for good."""

    @property
    def asleep(self) -> CatalogEntry | None:
        """The current model where it was freed, while it was idle, and is loaded again by the next request."""

    @property
    def idle_s(self) -> float | None:
        """Seconds after its last request at which the running request's model is unloaded; None: never."""

    def keep(self, idle_s: float | None, *, default: bool = False) -> None:
        """Set ``idle_s``, for as long as the model is loaded; ``default``: unless it was set without that before, and
        None then means the server's own.

        At 0 it is unloaded after its running requests. Raises Forbidden where the server always serves one model.
        """

    def pin(self, name: str, *, is_pinned: bool) -> CatalogEntry:
        """Keep a model in memory from when it is loaded, or end that. Raises ModelNotFound, Forbidden."""

    async def details(self, name: str) -> ModelDetails:
        """Return the details of a model, loaded or not. Raises ModelNotFound, ModelError."""

    async def use(self, name: str | None) -> None:
        """Have the running request answered by this model (None: the current one), which is loaded where it is not in
        memory: others that are idle make room.

        Raises ModelNotFound, LoadFailed, also where it can never fit, and Overloaded where too many wait.
        """

    async def load(self, name: str, *, wait: bool = False) -> CatalogEntry:
        """Load a model and make it the current one; returns when it can generate.

        Where it is already loading, waits for that. A failure keeps the previous model.
        Raises ModelNotFound, Conflict where another one is loading, LoadFailed; with ``wait`` it waits for that one
        first, and raises Overloaded where too many wait.
        """

    def begin_loading(self, name: str) -> CatalogEntry:
        """Start ``load`` and return. Raises ModelNotFound or Conflict."""

    def download(self, name: str) -> AsyncGenerator[FileProgress, None]:
        """Bring the files of a model to this machine, and load nothing; yield how far each is.

        What has come stays when it is closed early, and is not fetched again. Raises ModelNotFound; while it runs
        ModelError, Overloaded.
        """

    async def unload(self, name: str | None = None) -> CatalogEntry | None:
        """Free a model, by default the current one, after its running generations; returns None where it was not
        loaded.

        Raises Forbidden where the server always serves one model.
        """

    def watch(self) -> AsyncGenerator[CatalogEntry, None]:
        """Yield each change of state of any model, from now on."""


def may_have_loaded(catalog: Catalog, scopes: Iterable[str]) -> bool:
    """Return whether a request with these scopes may have an offered model loaded by naming it."""
    return catalog.request_loads == "any" or (catalog.request_loads == "admin" and "admin" in scopes)


LISTED = 8


def listed(names: Iterable[str]) -> str:
    """Return names as an error lists them: the first few."""
    found = list(names)
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return ", ".join(found[:LISTED]) + more


def without_tag(name: str) -> str:
    """Return a name as clients of Ollama have it without the tag that says nothing, ``:latest``."""
    return name.removesuffix(":latest")
