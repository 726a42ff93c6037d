"""API keys: who may come in, and as whom.

Only digests are kept, in memory as in the file. A key is 256 random bits, so its plain SHA-256 says nothing about it
and cannot be guessed; the slow hashes that passwords need would cost every request what they cost a guesser.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from dragoman.core.errors import DragomanError, Forbidden, Unauthorized

if TYPE_CHECKING:
    from dragoman.dialects.wire import Operation

log = logging.getLogger("dragoman.server")

Scope = Literal["infer", "admin"]
SCOPES: tuple[Scope, ...] = ("infer", "admin")

PREFIX = "dgm-"
"""Of keys made here: so that scanners of source code find one that was left lying about."""

KEY_PROTOCOL = "openai-insecure-api-key."
"""Begins the subprotocol that holds a page's key for a WebSocket: scripts in browsers can set no header of a handshake.
The name is OpenAI's."""

MIN_CHARS = 16
"""Of a key that an operator thought of. Shorter ones can be guessed."""

_LINE = re.compile(r"(?P<name>\S+)\s+(?P<scopes>[a-z,]+)\s+sha256:(?P<digest>[0-9a-f]{64})", re.ASCII)


class KeySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in.

    Attributes:
        api_key: a key that callers must present, good for everything; may be given several times. Other users of the
            machine can read command lines: prefer DRAGOMAN_API_KEY or the file.
        api_key_file: file of hashed keys with names and scopes, as `dragoman keys` writes its lines.
        insecure: serve without keys even if other machines can reach the address.
        protect_all: ask for a key everywhere but on health checks, also where a dialect's contract asks for none, such
            as GET /metrics and /info.
    """

    PANEL = "API keys"

    api_key: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    api_key_file: str | None = None
    insecure: bool = False
    protect_all: bool = False

    def __repr__(self) -> str:
        return f"KeySettings(api_key=<{len(self.api_key)}>, api_key_file={self.api_key_file!r})"


class Key(msgspec.Struct, frozen=True):
    """One key: its holder's name, what it is good for, and the SHA-256 of it in hexadecimal."""

    name: str
    scopes: tuple[Scope, ...]
    digest: str

    @property
    def line(self) -> str:
        """As the file has it."""
        return f"{self.name} {','.join(self.scopes)} sha256:{self.digest}"

    @property
    def tenant(self) -> str:
        """What stands for the holder in stores: another digest, so that a store does not hold what the file holds."""
        return hashlib.sha256(b"tenant:" + self.digest.encode()).hexdigest()[:32]


def new_key() -> str:
    """A key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(key: str, name: str, scopes: Sequence[Scope] = SCOPES) -> Key:
    """What is kept of a key."""
    return Key(name, tuple(scopes), hashlib.sha256(key.encode()).hexdigest())


class Keyring:
    """All keys of a server. Without any, everybody may come in."""

    def __init__(self, keys: Iterable[Key] = (), *, protect_all: bool = False) -> None:
        self._keys = tuple(keys)
        self._protect_all = protect_all

    def __len__(self) -> int:
        return len(self._keys)

    def is_open(self, operation: Operation) -> bool:
        """Whether the operation needs no key."""
        return operation.probe or (operation.open and not self._protect_all)

    def holder(
        self, headers: Mapping[str, str], key_headers: Sequence[str], scope: Scope, subprotocols: Sequence[str] = ()
    ) -> Key:
        """Whose key the request carries: ``Authorization: Bearer``, one of the other headers, or a subprotocol.

        Raises Unauthorized without a known key, Forbidden with one that is not good for this.
        """
        presented = _presented(headers, key_headers) or _offered(subprotocols)
        if not presented:
            raise Unauthorized("No API key was given. Send it in the header 'Authorization: Bearer <key>'.")
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for key in self._keys:  # all of them: how long it takes says nothing about which
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise Unauthorized("The API key is not known.")
        if scope not in found.scopes:
            raise Forbidden(f"The API key is not good for this: its scopes are {', '.join(found.scopes)}.")
        return found


def first_key(path: Path) -> tuple[Keyring, str | None]:
    """The keyring of a server that was given no key: the one of its first start, of which the file keeps the digest.

    Gives the key itself too when it is made now. Where no file can be kept it lasts as long as the process. Raises
    DragomanError for a file that is there and cannot be used.
    """
    if path.exists():
        return Keyring(keys_of_file(path)), None
    key = new_key()
    kept = hashed(key, "first-start")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(kept.line + "\n")
    except OSError as error:
        if path.is_file():  # two first starts at once
            return Keyring(keys_of_file(path)), None
        log.warning("the API key is not kept for the next start: %s: %s", path, error.strerror)
    return Keyring([kept]), key


def reaches_others(host: str) -> bool:
    """Whether other machines can reach a server that listens on the host."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return True  # it will not start either
    return not all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def keyring_of(settings: KeySettings) -> Keyring:
    """The keys of the options and the file. Raises DragomanError for a file or key that cannot be used."""
    keys = []
    for i, key in enumerate(settings.api_key):
        if len(key) < MIN_CHARS:
            raise DragomanError(f"--api-key: a key has at least {MIN_CHARS} characters; `dragoman keys` makes one")
        keys.append(hashed(key, f"option-{i + 1}"))
    if settings.api_key_file is not None:
        keys += keys_of_file(Path(settings.api_key_file))
    return Keyring(keys, protect_all=settings.protect_all)


def keys_of_file(path: Path) -> list[Key]:
    """One key a line: name, scopes, ``sha256:`` and digest; ``#`` begins a comment.

    Raises DragomanError that names the line, but does not repeat it: somebody may have put a key there.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DragomanError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        match = _LINE.fullmatch(text)
        scopes = tuple(scope for scope in SCOPES if match and scope in match["scopes"].split(","))
        if match is None or not scopes or set(match["scopes"].split(",")) - set(SCOPES):
            raise DragomanError(
                f"{path}, line {number}: expected a name, scopes and sha256:..., as `dragoman keys` says"
            )
        keys.append(Key(match["name"], scopes, match["digest"]))
    if not keys:
        raise DragomanError(f"{path} has no key")
    return keys


def _presented(headers: Mapping[str, str], key_headers: Sequence[str]) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return next((headers[name].strip() for name in key_headers if headers.get(name)), "")


def _offered(subprotocols: Sequence[str]) -> str:
    return next((name.removeprefix(KEY_PROTOCOL) for name in subprotocols if name.startswith(KEY_PROTOCOL)), "")
