"""Settings of engines that run elsewhere, and their addresses."""

from __future__ import annotations

from typing import ClassVar, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dragoman.core.errors import DragomanError

KIND = "vllm"


class RemoteEngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The vLLM servers that compute in place of the engine on this machine.

    Attributes:
        engine: vLLM server that runs the model, as vllm=http://HOST:PORT, started with --tokens-only or
            --enable-scale-out; may be given several times. MODEL then names the tokenizer's and the template's files.
        engine_model: name or path of the model as the vLLM servers list it; by default MODEL's.
        engine_priorities: the vLLM servers run with --scheduling-policy priority, which they do not tell; otherwise
            priorities are refused.
        engine_api_key: key that the vLLM servers ask for.
    """

    PANEL: ClassVar[str] = "Engine"

    engine: tuple[str, ...] = ()
    engine_model: str | None = None
    engine_priorities: bool = False
    engine_api_key: str | None = None

    def __repr__(self) -> str:
        key = "None" if self.engine_api_key is None else "<secret>"
        return f"RemoteEngineSettings(engine={self.engine!r}, engine_model={self.engine_model!r}, engine_api_key={key})"


class Address(NamedTuple):
    """Address of a vLLM server. ``path``: before every path of the server, without a slash at its end."""

    host: str
    port: int
    path: str
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"


def addresses_of(settings: RemoteEngineSettings) -> tuple[Address, ...]:
    """Return the addresses of ``--engine``. Raises DragomanError for one that is none, or is given twice."""
    key = settings.engine_api_key
    if key is not None and not (key.isascii() and key.isprintable() and key):
        raise DragomanError("--engine-api-key: a key has printable ASCII characters alone, and one at least")
    found: dict[Address, str] = {}
    for given in settings.engine:
        kind, _, url = given.partition("=")
        if kind != KIND or not url:
            raise DragomanError(f"--engine {given[:128]}: expected {KIND}=http://HOST:PORT")
        address = _address(given, url)
        if address in found:
            raise DragomanError(f"--engine {given[:128]}: this server is given twice")
        found[address] = given
    return tuple(found)


def _address(given: str, url: str) -> Address:
    message = f"--engine {given[:128]}: expected {KIND}=http://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError:
        raise DragomanError(message) from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise DragomanError(message)
    if not parts.path.isascii() or not parts.path.isprintable() or " " in parts.path:
        raise DragomanError(f"{message}, the path with %20 and the like in place of other characters than ASCII's")
    if parts.username is not None or parts.password is not None:
        raise DragomanError(f"{message}, without a user: --engine-api-key is the key")
    is_tls = parts.scheme == "https"
    return Address(host, port or (443 if is_tls else 80), parts.path.rstrip("/"), is_tls)
