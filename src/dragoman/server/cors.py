"""Access of web pages to the server: the Host check, origins, and the CORS protocol (Fetch standard).

A browser lets every page send requests to every address, also to this machine's own: it only keeps the answers from
the page. Where no API key is asked for, three headers that no page can forge tell whose page it is. ``Host`` says under
which name the browser found the server: a name of the page's owner means that it was rebound to this address.
``Origin`` names the page, ``Sec-Fetch-Site`` says how far it is from here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Literal, NamedTuple

from dragoman.core.errors import Forbidden
from dragoman.dialects.api import IDEMPOTENCY_KEY, REPLAY_HEADERS, Cors, Dialect
from dragoman.server.origin_patterns import DEFAULT_PORTS, host_pattern, origin_pattern
from dragoman.server.settings import BrowserSettings

MAX_CHARS = 300
"""Characters of a host or origin that are checked: the longest name of the DNS has 253."""

REMEMBERED = 1024
"""Combinations of headers whose result is cached: a check then costs less than a microsecond."""

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change and generate nothing. Browsers keep their answers from pages of other origins."""

DEFAULT_CORS = Cors(exposed=None, max_age_s=600)
"""The contract of dialects that have none, for the origins of --cors-origin."""

_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?")


class PageHeaders(NamedTuple):
    """The headers by which browsers identify the page that sends a request; None where they are absent."""

    host: bytes | None
    origin: bytes | None
    fetch_site: bytes | None


class Standing(Enum):
    """The kinds of senders that a browser's headers tell apart."""

    OWN = "own"
    """A program, or a page of this server."""
    NAMED = "named"
    """A page of an origin that the operator has named."""
    ANY = "any"
    """A page that may call because every page may."""
    FOREIGN = "foreign"
    """Any other page."""

    @property
    def is_trusted(self) -> bool:
        """Return whether the sender may do all that a program may do."""
        return self is Standing.OWN or self is Standing.NAMED


def page_headers(headers: Iterable[tuple[bytes, bytes]]) -> PageHeaders:
    """Return the page's headers from those of an ASGI scope, in one pass."""
    host = origin = fetch_site = None
    for name, value in headers:
        if name == b"host":
            host = value
        elif name == b"origin":
            origin = value
        elif name == b"sec-fetch-site":
            fetch_site = value
    return PageHeaders(host, origin, fetch_site)


def check_dialects(dialects: Iterable[Dialect]) -> None:
    """Raise DragomanError for an invalid pattern among the dialects' own."""
    for dialect in dialects:
        if (cors := dialect.cors) is not None:
            for text in cors.origins:
                origin_pattern(text, cors.origins_option)


class OriginPolicy:
    """The operator's rules for pages, for all dialects.

    ``bound_host``: the host that the server listens on. ``has_keys``: whether it asks for API keys: a browser does not
    add one by itself, as it does a cookie. Raises DragomanError for an invalid pattern.
    """

    def __init__(self, settings: BrowserSettings, *, bound_host: str = "", has_keys: bool = False) -> None:
        self._has_keys = has_keys
        self._checks_hosts = not has_keys or bool(settings.allow_host)
        self._hosts = tuple(host_pattern(text) for text in settings.allow_host)
        self._bound_host = bound_host.lower()
        self._origins = settings.cors_origin
        self.has_origins = bool(settings.cors_origin)
        for text in settings.cors_origin:
            origin_pattern(text)
        # A cache bound to the instance, and freed with it.
        self._is_known_host: Callable[[bytes], bool] = lru_cache(REMEMBERED)(self._find_host)
        self._standing: Callable[[PageHeaders, Cors | None], Standing] = lru_cache(REMEMBERED)(self._find_standing)

    def check_host(self, page: PageHeaders) -> None:
        """Raise Forbidden for a request to a name that is not this server's, where names are checked.

        Requests without a Host are not a browser's.
        """
        host = page.host
        if not self._checks_hosts or host is None:
            return
        if len(host) > MAX_CHARS or not self._is_known_host(host):
            name = _shown(host)
            raise Forbidden(
                f"This server does not answer to the name '{name}': a web page could have pointed it here. Start the "
                f"server with --allow-host {_name_of(name)} to allow the name, or ask by an IP address or as localhost."
            )

    def standing(self, page: PageHeaders, cors: Cors | None) -> Standing:
        """Return who sends the request, for a dialect with this contract."""
        if page.origin is None and page.fetch_site is None:
            return Standing.OWN
        if len(page.origin or b"") + len(page.fetch_site or b"") + len(page.host or b"") > 3 * MAX_CHARS:
            return Standing.FOREIGN
        return self._standing(page, cors)

    def check_request(
        self, page: PageHeaders, cors: Cors | None, *, method: str, scope: Literal["infer", "admin"], needs_key: bool
    ) -> Standing:
        """Return who sends the request. Raises Forbidden for a page that may not.

        ``method``: of HTTP, or "WEBSOCKET". ``scope``: what a key has to allow. ``needs_key``: whether the request
        needs a key, which is checked later.
        """
        standing = self.standing(page, cors)
        if standing.is_trusted:
            return standing
        # A contract that allows every page to call relies on the key.
        is_foreign = standing is Standing.FOREIGN or (not needs_key and "*" not in self._listed(cors))
        if scope == "admin" or (is_foreign and not needs_key and method not in SAFE_METHODS):
            raise Forbidden(_refusal(page, by_name=scope == "admin"))
        return standing

    def preflight_headers(
        self,
        page: PageHeaders,
        cors: Cors | None,
        headers: Mapping[str, str],
        *,
        scope: Literal["infer", "admin"],
    ) -> dict[str, str]:
        """Return the headers that answer a preflight request. It carries no key, and needs none. Raises Forbidden
        for a page that may not call."""
        standing = self.standing(page, cors)
        if standing is Standing.FOREIGN or (scope == "admin" and not standing.is_trusted):
            raise Forbidden(_refusal(page, by_name=scope == "admin"))
        cors = cors or DEFAULT_CORS
        methods = ",".join(cors.methods) or headers["access-control-request-method"]
        allowed = (*cors.headers, IDEMPOTENCY_KEY.name.lower()) if cors.headers else ()
        names = ",".join(allowed) or headers.get("access-control-request-headers", "")
        answer = _allowed(page, cors, Standing.NAMED if standing is Standing.OWN else standing)
        answer["access-control-allow-methods"] = methods
        if names:
            answer["access-control-allow-headers"] = names
        if cors.max_age_s is not None:
            answer["access-control-max-age"] = str(cors.max_age_s)
        if headers.get("access-control-request-private-network") == "true":
            answer["access-control-allow-private-network"] = "true"
        return answer

    def answer_headers(self, page: PageHeaders, cors: Cors | None, names: Iterable[str]) -> dict[str, str]:
        """Return the CORS headers of any other answer, which has headers of these names."""
        if cors is None:
            if not self.has_origins:
                return {}
            cors = DEFAULT_CORS
        standing = self.standing(page, cors)
        if page.origin is None and self._any_may_call(cors):
            standing = Standing.ANY
        answer = _allowed(page, cors, standing)
        # Every answer gets its id as it is sent.
        exposed = sorted({*names, "x-request-id"}) if cors.exposed is None else cors.exposed
        exposed = [*exposed, *(name for name in REPLAY_HEADERS if name in names and name not in exposed)]
        if exposed and "access-control-allow-origin" in answer:
            answer["access-control-expose-headers"] = ",".join(exposed)
        return answer

    def _listed(self, cors: Cors | None) -> tuple[str, ...]:
        """Return the patterns that the operator has given for a dialect with this contract."""
        return self._origins if cors is None else self._origins + cors.origins

    def _any_may_call(self, cors: Cors | None) -> bool:
        """Return whether pages of every origin may call. A contract that allows it is followed where pages need a
        key, and the operator has not named origins."""
        listed = self._listed(cors)
        if listed or cors is None:
            return "*" in listed
        return cors.any_origin and self._has_keys

    def _find_host(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1").lower())
        if match is None:
            return False
        if match["v6"] is not None:
            return _is_address(match["v6"])
        name = match["name"].removesuffix(".")
        if name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return True
        return bool(name) and (name == self._bound_host or any(allows(name) for allows in self._hosts))

    def _find_standing(self, page: PageHeaders, cors: Cors | None) -> Standing:
        is_elsewhere = page.fetch_site in (b"cross-site", b"same-site")
        if page.origin is None:
            return Standing.FOREIGN if is_elsewhere else Standing.OWN
        origin = page.origin.decode("latin-1").lower()
        if not is_elsewhere and page.host is not None and _is_origin_of(page.host.decode("latin-1").lower(), origin):
            return Standing.OWN
        if any(origin_pattern(text).fullmatch(origin) for text in self._listed(cors) if text != "*"):
            return Standing.NAMED
        return Standing.ANY if self._any_may_call(cors) else Standing.FOREIGN


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether the request is a browser's CORS preflight."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def _allowed(page: PageHeaders, cors: Cors, standing: Standing) -> dict[str, str]:
    """Return the headers that let a page of this kind read the answer.

    Credentials are allowed only for origins that the operator or the contract names, never for a page of any origin.
    """
    answer = {"vary": cors.vary} if cors.vary else {}
    if standing is Standing.ANY:
        answer["access-control-allow-origin"] = "*"
    elif standing is Standing.NAMED and page.origin is not None:
        answer["access-control-allow-origin"] = page.origin.decode("latin-1")
        if cors.credentials:
            answer["access-control-allow-credentials"] = "true"
    return answer


def _refusal(page: PageHeaders, *, by_name: bool) -> str:
    origin = _shown(page.origin) if page.origin is not None else "<the page's origin>"
    how = "allowed by its name" if by_name else "allowed"
    return (
        f"A web page of another server may do this only where its origin is {how}, and '{origin}' is not. Start the "
        f"server with --cors-origin {origin} to allow it."
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.replace("%25", "%"))
    except ValueError:
        return False
    return True


def _is_origin_of(host: str, origin: str) -> bool:
    """Return whether a page of the origin comes from the host; a scheme's default port may be left out of either."""
    scheme, _, place = origin.partition("://")
    port = DEFAULT_PORTS.get(scheme)
    return port is not None and place.removesuffix(port) == host.removesuffix(port) != ""


def _shown(value: bytes) -> str:
    return "".join(c if c.isalnum() or c in "-._:/[]*" else "?" for c in value[:100].decode("ascii", "replace"))


def _name_of(host: str) -> str:
    return host.rpartition(":")[0] or host if host.rpartition(":")[2].isdigit() else host
