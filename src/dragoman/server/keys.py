"""API keys: authentication and scopes of callers.

Only digests are kept, in memory as in the file. A key is 256 random bits, so its plain SHA-256 says nothing about it
and cannot be guessed; the slow hashes that passwords need would cost every request what they cost a guesser.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import math
import os
import secrets
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from dragoman.core.caller import NO_LIMITS, Caller, CallerLimits, network_of
from dragoman.core.errors import DragomanError, Forbidden, RateLimited, Unauthorized
from dragoman.core.regular_file import FileName, require_regular
from dragoman.core.user_folders import make_private_folder
from dragoman.server.key_file import Key, Scope, hashed, holders_of, keys_of_text, new_key

if TYPE_CHECKING:
    from dragoman.core.rate_windows import RateWindow
    from dragoman.dialects.api import Operation

log = logging.getLogger("dragoman.server")

KEY_PROTOCOL = "openai-insecure-api-key."
"""The prefix of the subprotocol that holds a page's key for a WebSocket: scripts in browsers cannot set headers of a
handshake. The name is OpenAI's."""

MIN_CHARS = 16
"""The least length of a key that an operator made up. Shorter ones can be guessed."""

LOOK_S = 2.0
"""The interval at which the file of keys is checked for a change."""


MAX_UNKNOWN_KEYS = 30
"""Unknown keys that one address may try within a minute. Further ones are answered with 429, so that a client that
repeats a wrong key waits. Known keys of the same address are accepted all the same: many clients may share an
address, and a key of 256 bits is not found by trying."""

MAX_ADDRESSES = 4096

FAILURE_REASONS = ("missing", "unknown", "expired", "scope")


class KeySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of API keys.

    Attributes:
        api_key: a key that callers must present, good for everything; may be given several times. Other users of the
            machine can read command lines: prefer DRAGOMAN_API_KEY or the file.
        api_key_file: file of hashed keys with names, scopes and limits, as `dragoman keys` writes its lines; read again
            when it changes, and on SIGHUP.
        insecure: serve without keys even if other machines can reach the address.
        protect_all: ask for a key everywhere but on health checks, also where a dialect's contract asks for none, such
            as GET /metrics and /info.
    """

    PANEL = "API keys"

    api_key: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    api_key_file: FileName | None = None
    insecure: bool = False
    protect_all: bool = False

    def __repr__(self) -> str:
        return f"KeySettings(api_key=<{len(self.api_key)}>, api_key_file={self.api_key_file!r})"


class Keyring:
    """All keys of a server. Without any, every caller is accepted.

    ``file``: more keys, which ``reload`` reads again. ``defaults``: limits of holders whose keys say nothing else, and
    of addresses where there are no keys. ``clock``: seconds of the wall clock, which keys expire by.

    Raises DragomanError for a file that cannot be used.
    """

    def __init__(
        self,
        keys: Iterable[Key] = (),
        *,
        file: Path | None = None,
        protect_all: bool = False,
        defaults: CallerLimits = NO_LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.failures = AuthFailures()
        self.defaults = defaults
        self._protect_all = protect_all
        self._clock = clock
        self._given = tuple(keys)
        self._file = file
        self._seen: object = None
        self._reading = threading.Lock()
        # Replaced as a whole, by the thread that reads the file.
        self._by_digest: Mapping[str, Key] = {}
        self._by_tenant: Mapping[str, Key] = {}
        self._hold(self._given)
        if file is not None:
            self._take(*_read(file))

    def __len__(self) -> int:
        return len(self._by_digest)

    def is_open(self, operation: Operation) -> bool:
        """Return whether the operation needs no key."""
        return operation.probe or (operation.open and not self._protect_all)

    def anybody(self, address: str, scopes: tuple[str, ...]) -> Caller:
        """Return who sends a request that needs no key."""
        return Caller(address=address, scopes=scopes, limits=self.defaults)

    def caller(
        self,
        headers: Mapping[str, str],
        key_headers: Sequence[str],
        scope: Scope,
        subprotocols: Sequence[str] = (),
        *,
        address: str = "",
        queried: str = "",
    ) -> Caller:
        """Return who sends a request from the address, by its key. ``queried``: the one in its query, if any.

        Raises as ``holder`` does, and RateLimited for an unknown key of an address that had too many of them.
        """
        with self._counted(address):
            key = self.holder(headers, key_headers, scope, subprotocols, queried)
        return key.caller(address, self.defaults)

    def known_caller(
        self, headers: Mapping[str, str], key_headers: Sequence[str], *, address: str = "", queried: str = ""
    ) -> Caller:
        """Return who sends a request, whatever scopes the key has. Raises as ``caller`` does."""
        with self._counted(address):
            key = self.known(headers, key_headers, queried=queried)
        return key.caller(address, self.defaults)

    @contextlib.contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        try:
            yield
        except (Unauthorized, Forbidden) as error:
            self.failures.count(error.reason if isinstance(error, Unauthorized) else "scope", address)
            raise

    def holder(
        self,
        headers: Mapping[str, str],
        key_headers: Sequence[str],
        scope: Scope,
        subprotocols: Sequence[str] = (),
        queried: str = "",
    ) -> Key:
        """Return the key that the request carries: in ``Authorization: Bearer``, another of the headers, a
        subprotocol, or its query.

        Raises Unauthorized without a known key, Forbidden with one that lacks the scope.
        """
        found = self.known(headers, key_headers, subprotocols, queried)
        _check_scope(found, scope)
        return found

    def known(
        self,
        headers: Mapping[str, str],
        key_headers: Sequence[str],
        subprotocols: Sequence[str] = (),
        queried: str = "",
    ) -> Key:
        """Return the key that the request carries, whatever scopes it has. Raises Unauthorized without a known one."""
        presented = _presented(headers, key_headers) or _offered(subprotocols) or queried.strip()
        if not presented:
            message = "No API key was given. Send it in the header 'Authorization: Bearer <key>'."
            raise Unauthorized(message, reason="missing")
        # Looked up by its digest: the time that takes reveals something about digests, and nothing about keys.
        digests = (hashlib.sha256(each).hexdigest() for each in _encodings(presented))
        found = next((self._by_digest[each] for each in digests if each in self._by_digest), None)
        if found is None:
            raise Unauthorized("The API key is not known.", reason="unknown")
        self._check_expiry(found)
        return found

    def renewed(self, caller: Caller, scope: Scope) -> Caller:
        """Return the caller with the current limits of its key: for a caller accepted before that asks again.

        Raises Unauthorized where the key is gone or has expired since, and Forbidden where it has lost the scope.
        """
        if not caller.tenant:
            return caller
        key = self._by_tenant.get(caller.tenant)
        if key is None:
            raise Unauthorized("The API key is not known any more.", reason="unknown")
        self._check_expiry(key)
        _check_scope(key, scope)
        # For a page the caller has fewer scopes than the key.
        scopes = tuple(scope for scope in caller.scopes if scope in key.scopes)
        return msgspec.structs.replace(key.caller(caller.address, self.defaults), scopes=scopes)

    def _check_expiry(self, key: Key) -> None:
        if key.expires is not None and self._clock() >= key.expires.timestamp():
            raise Unauthorized("The API key has expired.", reason="expired")

    # The file ---------------------------------------------------------------------------------------------------------

    @property
    def has_file(self) -> bool:
        """Return whether there is a file for ``reload`` to read."""
        return self._file is not None

    def reload(self) -> None:
        """Read the file again. Keys that are no longer in it are unknown from now on; running requests continue.

        Raises DragomanError where it cannot be used; the keys in force then stay.
        """
        if self._file is None:
            return
        if self._file.exists() and not self._file.is_file():
            raise DragomanError(f"{self._file} is not a regular file")
        with self._reading:
            self._seen, before = _state(self._file), self._by_digest
            self._take(*_read(self._file))
        new, gone = self._by_digest.keys() - before.keys(), before.keys() - self._by_digest.keys()
        holders = len(holders_of(self._by_digest.values()))
        log.info("%d API keys of %d holders: %d new, %d gone", len(self), holders, len(new), len(gone))

    def reload_if_changed(self) -> None:
        """Read the file again if it was replaced or written to. Errors are logged."""
        if self._file is None or _state(self._file) == self._seen:
            return
        try:
            self.reload()
        except DragomanError as error:
            log.error("the API keys cannot be read again, those from before stay: %s", error)

    @contextlib.contextmanager
    def watched(self, interval_s: float = LOOK_S) -> Iterator[None]:
        """For the duration, check the file at intervals, in a thread: a file system that hangs blocks no request."""
        if self._file is None or not self._file.is_file():
            yield
            return
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(interval_s):
                self.reload_if_changed()

        thread = threading.Thread(target=look, name="dragoman-keys", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(1.0)

    def _take(self, text: str, seen: object) -> None:
        self._hold((*self._given, *keys_of_text(text, self._file)))
        self._seen = seen

    def _hold(self, keys: Iterable[Key]) -> None:
        by_digest = {key.digest: key for key in keys}
        self._by_tenant = {key.tenant: key for key in by_digest.values()}
        self._by_digest = by_digest


class AuthFailures:
    """Requests that were refused for their key: counted by reason, and rate-limited by address.

    ``counts`` by reason: missing, unknown, expired, scope. ``clock`` gives seconds and never steps back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._window: RateWindow | None = None

    def count(self, reason: str, address: str) -> None:
        """Count a refusal. Raises RateLimited where the address tried too many unknown keys."""
        self.counts[reason] += 1
        if reason != "unknown":
            return
        if self._window is None:
            from dragoman.core.rate_windows import RateWindow

            self._window = RateWindow(60, self._clock, max_callers=MAX_ADDRESSES)
        network = network_of(address)
        if not self._window.take(network, MAX_UNKNOWN_KEYS):
            wait_s = math.ceil(self._window.wait_s(network, MAX_UNKNOWN_KEYS))
            message = f"Too many unknown API keys came from this address. Try again in {wait_s} s."
            raise RateLimited(message, retry_after_s=wait_s)


def first_key(
    path: Path, *, protect_all: bool = False, defaults: CallerLimits = NO_LIMITS
) -> tuple[Keyring, str | None]:
    """Return the keyring of a server that was given no key: that of its first start, whose digest the file keeps.

    Returns the key itself too when it is made now. Where no file can be written it lasts as long as the process. Raises
    DragomanError for an existing file that cannot be used.
    """
    if _is_kept(path):
        return Keyring(file=path, protect_all=protect_all, defaults=defaults), None
    key = new_key()
    kept = hashed(key, "first-start")
    try:
        make_private_folder(path.parent)
        if not _is_written_whole(path, kept.line + "\n"):  # two first starts at once
            return Keyring(file=path, protect_all=protect_all, defaults=defaults), None
    except OSError as error:
        log.warning("the API key is not kept for the next start: %s: %s", path, error.strerror)
    return Keyring([kept], protect_all=protect_all, defaults=defaults), key


def _is_kept(path: Path) -> bool:
    """Return whether a start before this one has left something there: False, not an error, in a folder that may not be
    searched. An empty file is what a power failure leaves of one."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_size > 0 or not stat.S_ISREG(found.st_mode)


def _is_written_whole(path: Path, line: str) -> bool:
    """Write the file for its owner alone, whole or not at all. Return False where another start has written it
    meanwhile. Raises OSError, and then leaves nothing behind."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, path)
        except OSError:  # there is a file, or there are no links here
            if _is_kept(path):
                return False
            os.rename(unfinished, path)
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def reaches_others(host: str) -> bool:
    """Return whether other machines can reach a server that listens on the host."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return True  # the server will not start either
    return not all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def keyring_of(settings: KeySettings, defaults: CallerLimits = NO_LIMITS) -> Keyring:
    """Return the keys of the options and the file. Raises DragomanError for a file or key that cannot be used."""
    keys = []
    for i, key in enumerate(settings.api_key):
        if len(key) < MIN_CHARS:
            raise DragomanError(f"--api-key: a key has at least {MIN_CHARS} characters; `dragoman keys` makes one")
        keys.append(hashed(key, f"option-{i + 1}"))
    file = None if settings.api_key_file is None else Path(settings.api_key_file)
    return Keyring(keys, file=file, protect_all=settings.protect_all, defaults=defaults)


def _read(path: Path) -> tuple[str, object]:
    """Return the file's text, and its state at that time. Raises DragomanError."""
    require_regular(path)
    try:
        with open(path, "rb") as file:
            seen = _state_of(os.fstat(file.fileno()))
            return file.read().decode("utf-8-sig"), seen
    except (OSError, ValueError) as error:
        raise DragomanError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def _state(path: Path) -> object:
    """Return a value that changes when the file is written to, replaced, linked to elsewhere, or removed."""
    try:
        return _state_of(os.stat(path))
    except OSError as error:
        return error.errno


def _state_of(found: os.stat_result) -> object:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_scope(key: Key, scope: Scope) -> None:
    if scope not in key.scopes:
        raise Forbidden(f"The API key is not good for this: its scopes are {', '.join(key.scopes)}.")


def _encodings(presented: str) -> Iterator[bytes]:
    """Yield a key in UTF-8: the bytes that came, one for each character, and those of a key that came in Latin-1."""
    with contextlib.suppress(UnicodeEncodeError):
        yield presented.encode("latin-1")
    if not presented.isascii():
        yield presented.encode("utf-8", "surrogateescape")


def _presented(headers: Mapping[str, str], key_headers: Sequence[str]) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return next((headers[name].strip() for name in key_headers if headers.get(name)), "")


def _offered(subprotocols: Sequence[str]) -> str:
    return next((name.removeprefix(KEY_PROTOCOL) for name in subprotocols if name.startswith(KEY_PROTOCOL)), "")
