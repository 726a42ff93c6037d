"""Files of clients, and batches: many requests in one file, answered in another when there is nothing else to do."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from dragoman.core.caller import Caller
from dragoman.core.errors import BadRequest, NotFound

DAY_S = 24 * 3600


class StorageFull(BadRequest):
    """There is no room for a file: the client may delete others."""


class UnknownFile(NotFound):
    """The caller has no such file."""


class UnknownBatch(NotFound):
    """The caller has no such batch."""


class BatchIsOver(BadRequest):
    """The batch has ended, and cannot be cancelled any more. ``status``: how it has ended."""

    def __init__(self, id: str, status: str) -> None:
        super().__init__(f"Batch {id[:128]} cannot be canceled: it has ended.")
        self.status = status


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file. ``number``: ascending in the order of creation. ``lines``: how many it has, at least; 0 where nobody has
    counted. ``expires_s``: Unix time; None: never."""

    id: str
    number: int = 0
    bytes: int
    lines: int = 0
    created_s: int
    expires_s: int | None
    filename: str
    purpose: str


class BatchStatus(enum.StrEnum):
    """Status of a batch, in OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (self.COMPLETED, self.FAILED, self.EXPIRED, self.CANCELLED)


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a batch's input. ``line``: from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the answered lines."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: BatchUsage) -> BatchUsage:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return BatchUsage(**dict(zip(self.__struct_fields__, map(sum, pairs), strict=True)))


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch.

    Attributes:
        number: ascending in the order of creation.
        dialect, endpoint: whose lines it has, and the path that they are for.
        tenant: who sees it and its files.
        caller: its sender: its lines are requests of this caller.
        model: the model that its lines name; empty: none, or not known yet.
        metadata: JSON of the dialect's, answered as it was sent.
        results_keep_s: seconds that result files are kept after their creation.
        window: the time for its lines, as it was asked for.
        outcome: what it becomes when its result files are written.
        total, completed, failed: number of lines, of those answered with 200, and of others that are done.
        *_s: Unix times; None: has not happened. ``expires_s``: lines that are not done then are given up.
    """

    id: str
    number: int = 0
    dialect: str
    tenant: str
    endpoint: str
    caller: Caller
    input_file: str
    window: str = ""
    metadata: dict[str, str] | None = None
    results_keep_s: int
    model: str = ""
    status: BatchStatus = BatchStatus.VALIDATING
    outcome: BatchStatus = BatchStatus.COMPLETED
    output_file: str | None = None
    error_file: str | None = None
    faults: tuple[BatchFault, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: BatchUsage = BatchUsage()
    created_s: int
    expires_s: int
    in_progress_s: int | None = None
    finalizing_s: int | None = None
    completed_s: int | None = None
    failed_s: int | None = None
    expired_s: int | None = None
    cancelling_s: int | None = None
    cancelled_s: int | None = None

    @property
    def ended_s(self) -> int | None:
        """Return when it ended; None: it has not."""
        ends = (self.completed_s, self.failed_s, self.expired_s, self.cancelled_s)
        return next((each for each in ends if each is not None), None) if self.status.is_over else None


class BatchLine(msgspec.Struct, frozen=True, array_like=True):
    """One request of a batch: its place among them, from 0, and where it is in the input file."""

    position: int
    custom_id: str
    offset: int
    length: int


class LineResult(msgspec.Struct, frozen=True):
    """The result of a line. ``text``: its line in a result file. ``is_answer``: it was answered with status 200."""

    text: bytes
    is_answer: bool
    usage: BatchUsage = BatchUsage()


class Upload(Protocol):
    """A file that is being stored. Leaving it without ``keep`` removes what was written."""

    async def write(self, data: bytes) -> None:
        """Write the next bytes. Raises PayloadTooLarge, StorageFull, GenerationFailed."""

    async def keep(self, *, filename: str, purpose: str, expires_s: int | None) -> StoredFile:
        """Make it a file of the caller's. Raises StorageFull, GenerationFailed."""


class BatchStore(Protocol):
    """Files and batches of all callers, each seen by its own tenant alone, bounded in number and size.

    ``is_on``: anything is kept. ``max_file_bytes``: the largest file. Every method raises GenerationFailed where the
    store cannot be used.
    """

    @property
    def is_on(self) -> bool: ...

    @property
    def max_file_bytes(self) -> int: ...

    def upload(self, tenant: str) -> AbstractAsyncContextManager[Upload]:
        """Return the context in which a file is stored."""

    async def file(self, tenant: str, id: str) -> StoredFile:
        """Return a file. Raises UnknownFile."""

    async def files(
        self, tenant: str, *, purpose: str | None, after: str | None, descending: bool, limit: int
    ) -> Sequence[StoredFile]:
        """Return at most ``limit`` files, those after the named one."""

    def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield the bytes of a file."""

    async def delete_file(self, tenant: str, id: str) -> None:
        """Delete a file. Raises UnknownFile, and BadRequest where an unfinished batch reads it."""

    async def create(self, batch: StoredBatch) -> StoredBatch:
        """Add a batch. Raises UnknownFile, and Overloaded where its caller has too many unfinished ones."""

    async def batch(self, tenant: str, id: str) -> StoredBatch:
        """Return a batch. Raises UnknownBatch."""

    async def batches(
        self, tenant: str, *, after: str | None, limit: int, before: str | None = None
    ) -> Sequence[StoredBatch]:
        """Return at most ``limit`` batches, the newest first: those next after the named one, or before the other."""

    async def cancel(self, tenant: str, id: str) -> StoredBatch:
        """Begin to cancel a batch, and return it. Raises UnknownBatch, and BadRequest where it is over."""

    async def delete_batch(self, tenant: str, id: str) -> None:
        """Delete a batch with its files. Raises UnknownBatch, and BadRequest where it is not over."""


class LineRequest(msgspec.Struct, frozen=True):
    """The HTTP request that a line is. ``answer``: the status and body that it gets without being run."""

    path: str
    body: bytes
    answer: tuple[int, bytes] | None = None


class ReadLine(msgspec.Struct, frozen=True):
    """What is known of a line before anything runs: its id, its model, and its fault, if it has one."""

    custom_id: str
    model: str
    fault: BatchFault | None = None


class BatchFormat(Protocol):
    """A dialect's form of a batch's lines and of their results. All are pure. ``max_lines``: most lines of a batch."""

    @property
    def max_lines(self) -> int: ...

    def read(self, raw: bytes, endpoint: str) -> ReadLine:
        """Read a line of the input."""

    def request(self, raw: bytes, batch: StoredBatch, line: BatchLine) -> LineRequest:
        """Return the request of a line that was read without a fault."""

    def answered(self, batch: StoredBatch, line: BatchLine, status: int, request_id: str, body: bytes) -> LineResult:
        """Return the result of a line that was answered."""

    def unanswered(self, batch: StoredBatch, line: BatchLine, code: str) -> LineResult:
        """Return the result of a line that was given up: ``batch_expired``, ``batch_cancelled``, ``storage_full``,
        ``model_not_loaded``, ``file_not_found``, ``file_damaged``."""
