"""The attributes of requests and WebSockets that their ASGI scope holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from dragoman.core.caller import Caller

Ready = Callable[[], str]
"""Returns an empty string when requests are accepted and answered; otherwise why they are not."""


ACCEPTED_CALLER = "accepted_caller"
"""In a scope that the server itself has made: who its request is of, without a key in it."""


PROXIED_PREFIX = "proxied_prefix"
"""In ``scope``: the path that a trusted proxy has taken off the client's."""


class ScopeReader:
    """The attributes of a request or a WebSocket that its ASGI scope holds. ``not_ready``: why it cannot be served now,
    empty if it can."""

    def __init__(self, scope: Scope, ready: Ready) -> None:
        self.request_id: str = scope["request_id"]
        self.path: str = scope["path"]
        self.scheme: str = scope.get("scheme", "http")
        self.root_path: str = scope.get(PROXIED_PREFIX, "")
        self.client: str = (scope.get("client") or ("",))[0]
        self.headers: Mapping[str, str] = Headers(scope=scope)
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.tenant = ""
        self.accepted_caller: Caller | None = scope.get(ACCEPTED_CALLER)
        self._query_string: bytes = scope.get("query_string", b"")
        self._ready = ready

    @cached_property
    def query(self) -> Mapping[str, str]:
        return QueryParams(self._query_string)

    @property
    def base_url(self) -> str:
        return f"{self.scheme}://{self.headers.get('host', 'localhost')}{self.root_path}"

    @property
    def not_ready(self) -> str:
        return self._ready()
