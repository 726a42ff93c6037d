"""Running a handler without generating: what it asks of the core is recorded, and its answer is dropped.

A dialect need not know of it. It reads its request through ``RequestContext`` and generates through ``Serving``, so
both are stood in for here; what else it would do for a request, it leaves out where ``RequestContext.explains`` says
so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from dragoman.core.adapters import Adapters
from dragoman.core.batches import BatchStore
from dragoman.core.catalog import Catalog
from dragoman.core.errors import DragomanError, GenerationFailed, UnsupportedFeature
from dragoman.core.events import (
    FinishReason,
    Generation,
    GenerationDone,
    GenerationEvent,
    GenerationResult,
    PromptReady,
    PromptToken,
    TextDelta,
    Usage,
)
from dragoman.core.explanation import Explanation
from dragoman.core.images import ImageInput, ImageTiles
from dragoman.core.request import ChatPrompt, EngineRequest, GenerationRequest, Prompt
from dragoman.core.responses import ResponseStore
from dragoman.core.resume import ResumeKey, ResumeLock, ResumeStore, SavedGeneration
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Abort, KeepAlive, Operation
from dragoman.dialects.field import Reading, Table

Result = TypeVar("Result")
Check = Callable[[Table, Any], Reading]
"""Returns a body checked by a table, as the server checks it for the caller."""

MOST_REQUESTS = 256
"""Most requests of the core that are recorded of one call; further ones are only counted."""


class Asked(NamedTuple):
    """A request of the core, and whether its events are wanted one by one."""

    request: GenerationRequest
    streamed: bool


class Checked(NamedTuple):
    """A body, or a part of one, and the table that it was checked by. ``reading`` None: it did not pass."""

    table: Table
    body: Any
    reading: Reading | None


class Outer(Protocol):
    """The part that is needed of the call that asks for an explanation: its ``RequestContext``, or less."""

    request_id: str
    client: str
    tenant: str
    scopes: tuple[str, ...]
    is_strict: bool

    @property
    def not_ready(self) -> str: ...

    async def run_blocking(self, work: Callable[[], Result], pool: Literal["text", "disk"] = "text") -> Result: ...

    def keep_bytes(self, size: int) -> None: ...


class DryRun(msgspec.Struct, kw_only=True):
    """What a call would do.

    Attributes:
        asked: the requests of the core, one for each prompt. count: the number of all of them.
        checked: what was checked by tables, in order.
        error: the error that the call would be answered with; None: it would be served.
    """

    asked: list[Asked] = []
    count: int = 0
    checked: list[Checked] = []
    error: DragomanError | None = None


async def dry_run(
    operation: Operation,
    serving: Serving,
    outer: Outer,
    body: Any,
    check: Check,
    *,
    path: str = "",
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
    path_params: Mapping[str, str] | None = None,
) -> DryRun:
    """Return what the operation would do with a JSON body. ``outer``: the call that asks, whose rights hold.

    Raises what a handler raises that is no ``DragomanError``, unless all was asked by then: it got an answer without a
    token.
    """
    run = DryRun()
    context = DryContext(outer, run, operation, body, check, path, headers or {}, query or {}, path_params or {})
    try:
        await operation.handler(DryServing(serving, run), context)
    except Abort:
        pass
    except GenerationFailed as error:
        run.error = None if run.asked else error
    except DragomanError as error:
        run.error = error
    except Exception:
        if not run.asked:
            raise
    if context.fault is not None and not (run.asked and isinstance(context.fault, GenerationFailed)):
        run.error = run.error or context.fault
    return run


class DryContext:
    """``RequestContext`` of a call that is only explained."""

    def __init__(
        self,
        outer: Outer,
        run: DryRun,
        operation: Operation,
        body: Any,
        check: Check,
        path: str,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        path_params: Mapping[str, str],
    ) -> None:
        self._outer, self._run, self._check, self._body = outer, run, check, body
        self.request_id = outer.request_id
        self.method = operation.method
        self.path = path or operation.path
        self.client = outer.client
        self.headers: Mapping[str, str] = {"content-type": "application/json", **headers}
        self.path_params = path_params
        self.query = query
        self.tenant = outer.tenant
        self.scopes = outer.scopes
        self.fault: DragomanError | None = None
        self.started = False
        self.explains = True
        self.is_strict = outer.is_strict
        self.root_path = ""

    @property
    def elapsed_s(self) -> float:
        return 0.0  # limits of time are explained as at the arrival of a request

    @property
    def base_url(self) -> str:
        return f"http://{self.headers.get('host', 'localhost')}"

    @property
    def not_ready(self) -> str:
        return self._outer.not_ready

    async def read(self, table: Table, *, any_content_type: bool = False) -> Reading:
        return await self.check(table, self._body)

    async def read_json(self, *, any_content_type: bool = False) -> Any:
        return self._body

    async def check(self, table: Table, body: Any) -> Reading:
        try:
            reading = await self._outer.run_blocking(lambda: self._check(table, body))
        except DragomanError:
            self._run.checked.append(Checked(table, body, None))
            raise
        self._run.checked.append(Checked(table, body, reading))
        return reading

    def report(self, reading: Reading) -> None:
        for place, each in enumerate(self._run.checked):
            if each.table is reading.table:
                self._run.checked[place] = each._replace(reading=reading)

    async def read_body(self) -> bytes:
        return await self._outer.run_blocking(lambda: msgspec.json.encode(self._body))

    async def body_pieces(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        yield await self.read_body()

    async def run_blocking(self, work: Callable[[], Result], pool: Literal["text", "disk"] = "text") -> Result:
        return await self._outer.run_blocking(work, pool)

    def show_progress(self) -> None:
        pass

    def keep_bytes(self, size: int) -> None:
        self._outer.keep_bytes(size)

    async def unless_gone(self, work: Awaitable[Result]) -> Result:
        return await work

    async def reply(
        self,
        content: Any,
        *,
        status: int = 200,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.started = True

    async def reply_text(self, text: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.started = True

    async def stream(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        content_type: str = "",
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        at_once: bool = False,
        keep_alive: KeepAlive | None = None,
    ) -> None:
        self.started = at_once
        async with aclosing(chunks):
            async for _ in chunks:
                self.started = True


_READ_OF_CATALOG = (
    *("entries", "current", "find", "named", "is_resident", "residences"),
    *("request_loads", "memory_bytes", "asleep", "idle_s"),
)
_READ_OF_RESPONSES = (
    "is_on",
    "max_background",
    "find",
    "chain",
    "max_conversation_bytes",
    "find_conversation",
    "items",
)


class DryServing:
    """``Serving`` that describes models and reads texts as the real one does, and generates nothing."""

    def __init__(self, serving: Serving, run: DryRun) -> None:
        self._serving, self._run = serving, run

    @property
    def continuing(self) -> ResumeStore:
        return _NothingSaved()

    @property
    def responses(self) -> ResponseStore:
        found: Any = _ReadOnly(self._serving.responses, _READ_OF_RESPONSES)
        return found  # type: ignore[no-any-return]

    @property
    def batches(self) -> BatchStore:
        found: Any = _ReadOnly(self._serving.batches, ("is_on", "max_file_bytes", "file", "files", "batch", "batches"))
        return found  # type: ignore[no-any-return]

    @property
    def catalog(self) -> Catalog:
        found: Any = _ReadOnly(
            self._serving.catalog,
            (
                "entries",
                "current",
                "find",
                "named",
                "is_resident",
                "residences",
                "request_loads",
                "memory_bytes",
                "asleep",
                "idle_s",
            ),
        )
        return found  # type: ignore[no-any-return]

    @property
    def adapters(self) -> Adapters:
        found: Any = _ReadOnly(self._serving.adapters, ())
        return found  # type: ignore[no-any-return]

    def lease(self, model: str | None = None, *, wake: bool = True) -> AbstractAsyncContextManager[None]:
        return self._serving.lease(model, wake=wake)

    def models(self) -> tuple[ModelCard, ...]:
        return self._serving.models()

    def model(self, name: str | None) -> ModelCard:
        return self._serving.model(name)

    def adapter(self, name: str) -> ModelCard:
        return self._serving.adapter(name)

    async def tokenize(self, prompt: Prompt, model: str | None = None, *, bounded: bool = True) -> tuple[int, ...]:
        return await self._serving.tokenize(prompt, model, bounded=bounded)

    async def tokenize_text(
        self, text: str, model: str | None = None, *, add_special_tokens: bool = True, bounded: bool = True
    ) -> tuple[PromptToken, ...]:
        return await self._serving.tokenize_text(text, model, add_special_tokens=add_special_tokens, bounded=bounded)

    async def detokenize(
        self, token_ids: Sequence[int], model: str | None = None, *, skip_special_tokens: bool = False
    ) -> str:
        return await self._serving.detokenize(token_ids, model, skip_special_tokens=skip_special_tokens)

    async def token_bytes(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        return await self._serving.token_bytes(token_ids)

    async def render(self, prompt: ChatPrompt, model: str | None = None) -> str:
        return await self._serving.render(prompt, model)

    async def image_tiles(self, image: ImageInput, model: str | None = None, *, param: str = "messages") -> ImageTiles:
        return await self._serving.image_tiles(image, model, param=param)

    async def explain(self, request: GenerationRequest, *, streamed: bool = False) -> Explanation:
        return await self._serving.explain(request, streamed=streamed)

    async def prepare(self, request: GenerationRequest) -> EngineRequest:
        return await self._serving.prepare(request)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        self._record(request, streamed=True)
        yield PromptReady(prompt_tokens=0, cached_tokens=0, seeds=_seeds(request, request.n))
        for sequence in range(request.n):
            yield TextDelta(sequence=sequence, text="", finish=FinishReason.LENGTH)
        yield GenerationDone(usage=_NOTHING_USED)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        self._record(request, streamed=False)
        await asyncio.sleep(0)
        seeds = _seeds(request, request.n)
        return GenerationResult(
            prompt=PromptReady(
                prompt_tokens=0, cached_tokens=0, seeds=seeds, pooled=_NO_VECTOR if request.pooling else b""
            ),
            generations=tuple(
                Generation(index=index, text="", tokens=(), finish=FinishReason.LENGTH, seed=seed)
                for index, seed in enumerate(seeds)
            ),
            usage=_NOTHING_USED,
        )

    def _record(self, request: GenerationRequest, *, streamed: bool) -> None:
        self._run.count += 1
        if len(self._run.asked) < MOST_REQUESTS:
            self._run.asked.append(Asked(request, streamed))


_NO_VECTOR = bytes(8)  # two zeros: vectors and scores can be rendered from it
_NOTHING_USED = Usage(prompt_tokens=0, completion_tokens=0)


def _seeds(request: GenerationRequest, count: int) -> tuple[int, ...]:
    first = request.seeds[0] if request.seeds else 0
    return tuple((first + index) % 2**64 for index in range(count))


class _ReadOnly:
    """An object of which only some methods may be called. Others raise UnsupportedFeature."""

    def __init__(self, inner: Any, allowed: Sequence[str]) -> None:
        self._inner, self._allowed = inner, allowed

    def __getattr__(self, name: str) -> Any:
        if name not in self._allowed:
            raise UnsupportedFeature("This request would change what the server has; that is not explained.")
        return getattr(self._inner, name)


class _NothingSaved:
    """A store of cut generations that is empty, and stays so: what could be continued is explained from its prompt."""

    @asynccontextmanager
    async def hold(self, key: ResumeKey) -> AsyncIterator[ResumeLock]:
        yield _NoLock()


class _NoLock:
    saved: SavedGeneration | None = None

    async def save(self, generation: SavedGeneration) -> bool:
        return True

    async def forget(self) -> bool:
        return True
