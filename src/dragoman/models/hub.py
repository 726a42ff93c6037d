"""The Hugging Face hub: which files a repository has, and bringing them into the hub library's cache.

Small files are fetched by the hub's library. Weights are fetched here, into the place that the library has for
them: it throws away what it has of a file when it is interrupted, and a file of weights may take an hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import queue
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.core.errors import ModelError
from dragoman.core.third_party import quiet_hub
from dragoman.models.short_names import similar_names

CONNECTIONS = 4
"""Files that are fetched at a time."""
CHUNK_BYTES = 1 << 17
ATTEMPTS = 6
"""Of one file, in a row, without a byte of it."""
FREE_DISK_BYTES = 1 << 28
"""Never filled."""
_LARGEST_BYTES = 50 * 1000**3
"""The hub serves larger files in another way, which its library knows."""
_ETAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
"""What may be the name of a file in the cache. A hub that sends another one would choose where this program writes."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")


class DownloadWatcher:
    """Told of a download, in the thread that asked for it; this one does nothing. Numbers are bytes."""

    def started(self, repository: str, total: int, kept: int) -> None:
        """``kept``: so many of the ``total`` are here already."""

    def advanced(self, done: int) -> None:
        """So many of the total are here now."""

    def received(self, name: str, done: int, total: int) -> None:
        """So many of the ``total`` of this file are here now."""

    def waiting(self, name: str) -> None:
        """Another process downloads this file."""

    def retrying(self, name: str, reason: str) -> None:
        """The connection broke off; it is made again."""

    def finished(self, name: str, nbytes: int) -> None:
        """This file is here."""

    def ended(self) -> None:
        """Nothing more comes: everything is here, or something is wrong."""


UNWATCHED = DownloadWatcher()


class HubFile(NamedTuple):
    """A file of a repository. ``etag`` names its content; that of large files is their SHA-256."""

    name: str
    url: str
    etag: str
    size: int


def download_small(repository: str, revision: str | None, token: str | None, patterns: Iterable[str]) -> Path:
    """Return the folder with those of a repository's files that fit the patterns; only what is not cached is fetched.

    Raises ModelError when the hub has no such repository or revision, or cannot be reached.
    """
    # Here, not above: a quarter of a second that local models need not wait.
    quiet_hub()
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class NoBar(tqdm):  # that of whoever uses this as a library, who may not have set the environment
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": True})  # type: ignore[no-untyped-call]

    try:
        return Path(
            snapshot_download(
                repository, revision=revision, token=token, allow_patterns=list(patterns), tqdm_class=NoBar
            )
        )
    except Exception as error:
        raise hub_error(repository, revision, error) from error


def download_large(
    repository: str, folder: Path, token: str | None, names: Sequence[str], watcher: DownloadWatcher = UNWATCHED
) -> None:
    """Fetch files of the revision whose snapshot is ``folder``, each from where an earlier download ended. Raises
    ModelError."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        try:
            files = [_look_up(repository, folder.name, name, token) for name in missing]
            here = sum((folder / name).stat().st_size for name in names if name not in missing)
            _Download(repository, token, watcher).run([file for file in files if file.size <= _LARGEST_BYTES], here)
        except ModelError:
            raise
        except Exception as error:
            raise hub_error(repository, folder.name, error) from error
    # Links to what is here now, and what is too large.
    download_small(repository, folder.name, token, names)


def list_files(repository: str, revision: str | None, token: str | None) -> list[str]:
    """Return the names of a repository's files. Raises ModelError."""
    quiet_hub()
    from huggingface_hub import HfApi

    try:
        return list(HfApi(token=token).list_repo_files(repository, revision=revision))
    except Exception as error:
        raise hub_error(repository, revision, error) from error


def fetch_again(repository: str, revision: str | None, token: str | None, names: Sequence[str]) -> None:
    """Download files once more, in case what is here is damaged. Raises ModelError."""
    quiet_hub()
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(repository, revision=revision, token=token, allow_patterns=list(names), force_download=True)
    except Exception as error:
        raise hub_error(repository, revision, error) from error


def hub_error(repository: str, revision: str | None, error: Exception) -> ModelError:
    """Return what went wrong on the way to the hub, and what helps, without the queries of addresses, which hold
    signatures."""
    from huggingface_hub import constants, errors

    place = repository if revision is None else f"{repository} at revision {revision}"
    reason = _QUERY.sub(r"\1", str(error).partition("\n")[0])
    match error:
        case errors.GatedRepoError():
            return ModelError(f"{place} is gated: accept its terms on the hub, then give a token (HF_TOKEN)")
        case errors.RepositoryNotFoundError():
            return ModelError(
                f"{place} is neither a folder here nor on the hub; if it is private, give a token (HF_TOKEN)"
                f"{similar_names(repository)}"
            )
        case errors.RevisionNotFoundError():
            return ModelError(f"{repository} has no revision {revision}")
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            missing = f"{place} is no folder here and not in the hub's cache on this machine, and "
            if constants.HF_HUB_OFFLINE:
                return ModelError(f"{missing}HF_HUB_OFFLINE forbids asking the hub{similar_names(repository)}")
            return ModelError(f"{missing}the hub cannot be reached: {reason}{similar_names(repository)}")
        case OSError(filename=str(file), strerror=str(cause)):
            return ModelError(f"{place} cannot be kept: {file}: {cause}; HF_HOME names another folder")
        case OSError():
            return ModelError(f"{place} could not be downloaded: {reason}")
        case _:
            return ModelError(f"{place} could not be downloaded: {type(error).__name__}: {reason}")


def _look_up(repository: str, commit: str, name: str, token: str | None) -> HubFile:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(repository, name, revision=commit)
    found = get_hf_file_metadata(url, token=token)
    if found.etag is None or found.size is None:
        raise ModelError(f"{repository}: the hub does not say how large {name} is")
    if not _ETAG.fullmatch(found.etag):
        raise ModelError(f"{repository}: the hub sends an ETag of {name} that cannot be the name of a file")
    return HubFile(name, url, found.etag, found.size)


class _Stopped(Exception):
    """Another file failed, or nobody waits any more."""


class _Download:
    """Some files of a repository, ``CONNECTIONS`` at a time."""

    def __init__(self, repository: str, token: str | None, watcher: DownloadWatcher) -> None:
        from huggingface_hub import constants

        name = f"models--{repository.replace('/', '--')}"
        self._repository, self._token, self._watcher = repository, token, watcher
        self._blobs = Path(constants.HF_HUB_CACHE, name, "blobs")
        self._locks = Path(constants.HF_HUB_CACHE, ".locks", name)
        self._events: queue.SimpleQueue[Callable[[], None] | BaseException | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._done = 0

    def run(self, files: list[HubFile], here: int) -> None:
        """Raises what goes wrong, and KeyboardInterrupt; what has come by then stays. ``here``: bytes of files that are
        not missing."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._locks.mkdir(parents=True, exist_ok=True)
        self._done = kept = here + sum(self._bytes_here(file) for file in files)
        total = here + sum(file.size for file in files)
        self._require_room(total - kept)
        self._watcher.started(self._repository, total, kept)
        waiting = iter(files)
        lock = threading.Lock()

        def work() -> None:
            try:
                while True:
                    with lock:
                        file = next(waiting, None)
                    if file is None:
                        break
                    self._fetch(file)
                self._events.put(None)
            except BaseException as error:
                self._events.put(error)

        started = 0
        try:
            for number in range(min(CONNECTIONS, len(files))):
                # Daemons: who is interrupted leaves at once. A file that is cut off is the beginning of a whole one.
                try:
                    threading.Thread(target=work, name=f"download-{number}", daemon=True).start()
                except RuntimeError:  # the system starts no more: those there are bring all files
                    if not started:
                        raise
                    break
                started += 1
            self._hear(started)
        finally:
            self._stopped.set()
            self._watcher.ended()

    def _hear(self, workers: int) -> None:
        while workers:
            event = self._events.get()
            if event is None:
                workers -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                event()

    def _count(self, file: HubFile, nbytes: int, done: int) -> None:
        self._done += nbytes
        self._watcher.advanced(self._done)
        self._watcher.received(file.name, done, file.size)

    def _bytes_here(self, file: HubFile) -> int:
        if (self._blobs / file.etag).exists():
            return file.size
        with contextlib.suppress(OSError):
            return min(file.size, self._part(file).stat().st_size)
        return 0

    def _part(self, file: HubFile) -> Path:
        """Named as the hub's library names what is not whole, so that ``models clean`` knows it."""
        return self._blobs / f"{file.etag}.incomplete"

    def _require_room(self, nbytes: int) -> None:
        free = shutil.disk_usage(self._blobs).free - FREE_DISK_BYTES
        if nbytes > free:
            raise ModelError(
                f"{self._repository}: {nbytes / 1e9:.1f} GB are to be downloaded and {self._blobs} has room for "
                f"{max(0, free) / 1e9:.1f} GB; `dragoman models remove` makes room, HF_HOME names another folder"
            )

    def _fetch(self, file: HubFile) -> None:
        with self._locked(file):
            if not (self._blobs / file.etag).exists():
                is_joined = self._receive(file)
                if is_joined and _SHA256.fullmatch(file.etag) and _sha256(self._part(file)) != file.etag:
                    self._part(file).unlink()
                    raise ModelError(f"{self._repository}: {file.name} came damaged; the same command fetches it again")
                self._part(file).replace(self._blobs / file.etag)
            self._events.put(partial(self._watcher.finished, file.name, file.size))

    @contextlib.contextmanager
    def _locked(self, file: HubFile) -> Iterator[None]:
        """As the hub's library locks a file that it writes."""
        opened = os.open(self._locks / f"{file.etag}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._events.put(partial(self._watcher.waiting, file.name))
                fcntl.flock(opened, fcntl.LOCK_EX)
            yield
        finally:
            os.close(opened)

    def _receive(self, file: HubFile) -> bool:
        """Fill the file's part. Returns whether it is joined from several answers."""
        with open(os.open(self._part(file), os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as part:
            if part.seek(0, os.SEEK_END) > file.size:
                self._empty(file, part, file.size)
            is_joined, failures = part.tell() > 0, 0
            while (begun := part.tell()) < file.size:
                is_joined = is_joined or begun > 0
                try:
                    self._append(file, part, begun)
                    reason = "the connection was closed"
                except (_Stopped, ModelError):
                    raise
                except Exception as error:
                    if not _may_pass(error):
                        raise
                    reason = _QUERY.sub(r"\1", f"{type(error).__name__}: {error}")
                if part.tell() >= file.size:
                    break
                failures = 0 if part.tell() > begun else failures + 1
                if failures == ATTEMPTS:
                    raise ModelError(f"{self._repository}: {file.name} could not be downloaded: {reason}")
                self._events.put(partial(self._watcher.retrying, file.name, reason))
                self._stopped.wait(min(2**failures, 30) / 2)
            if part.tell() != file.size:
                part.truncate(0)
                raise ModelError(f"{self._repository}: {file.name} is larger than the hub said")
        return is_joined

    def _append(self, file: HubFile, part: FileIO, begun: int) -> None:
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = {**build_hf_headers(token=self._token), "Accept-Encoding": "identity"}
        if begun:
            headers["Range"] = f"bytes={begun}-"
        with _opened(file.url, headers) as (status, chunks):
            if begun and status != 206:  # the whole file comes
                self._empty(file, part, begun)
            for chunk in chunks:
                if self._stopped.is_set():
                    raise _Stopped
                try:
                    written = part.write(chunk)
                    while written < len(chunk):
                        written += part.write(chunk[written:])
                except OSError as error:
                    raise ModelError(f"{self._part(file)}: {error.strerror}; HF_HOME names another folder") from None
                self._events.put(partial(self._count, file, len(chunk), part.tell()))

    def _empty(self, file: HubFile, part: FileIO, counted: int) -> None:
        part.seek(0)
        part.truncate()
        self._events.put(partial(self._count, file, -counted, 0))


@contextlib.contextmanager
def _opened(url: str, headers: dict[str, str]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The status and the content of an answer, through the session of the hub's library, which knows of proxies and
    certificates: of httpx, or in its versions before 1.0 of requests. Raises what the library raises."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

    session: Any = get_session()
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if hasattr(session, "stream") and not hasattr(session, "mount"):
        with session.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as answer:
            hf_raise_for_status(answer)
            yield answer.status_code, answer.iter_bytes(CHUNK_BYTES)
    else:
        with session.get(url, headers=headers, timeout=timeout, stream=True) as answer:
            hf_raise_for_status(answer)
            yield answer.status_code, answer.iter_content(CHUNK_BYTES)


def _may_pass(error: Exception) -> bool:
    """Whether to try again: after what befell the connection, or an answer that says to come back."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status in (408, 429) or status >= 500


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
