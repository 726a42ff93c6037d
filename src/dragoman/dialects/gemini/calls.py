"""What of a call is not in its body: parameters of the query, and headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.dialects.api import RequestContext, RequestHeader

OF_EVERY_CALL = ("alt", "$alt", "key", "prettyPrint", "$prettyPrint", "quotaUser")
OF_LISTS = ("pageSize", "page_size", "pageToken", "page_token")
MASKS = ("fields", "$fields")
MASK_HEADER = "x-goog-fieldmask"

SERVER_TIMEOUT = RequestHeader(
    name="X-Server-Timeout",
    note="Seconds in which the answer has to be complete: the client's own timeout.",
    pattern=r"[0-9]{1,9}",
)


def asked_form(context: RequestContext, *, streams: bool = False, allowed: Sequence[str] = ()) -> str:
    """Return in which form the answer is wanted, ``json`` or ``sse``. Raises BadRequest, UnsupportedFeature for other
    forms, and for what would change the answer."""
    query = context.query
    masks = [name for name in MASKS if name in query] + [MASK_HEADER] * (MASK_HEADER in context.headers)
    if masks:
        raise UnsupportedFeature(f"'{masks[0]}' is not supported: answers are given whole.", param=masks[0])
    for name in query:
        if name not in OF_EVERY_CALL and name not in allowed:
            shown = name[:64]
            message = f'Invalid JSON payload received. Unknown name "{shown}": Cannot bind query parameter.'
            raise BadRequest(message, param=shown)
    # Older packages ask for numbers in place of names, ``json;enum-encoding=int``, and read names too.
    form = query.get("alt", query.get("$alt", "json")).lower().removesuffix(";enum-encoding=int")
    known = ("json", "sse") if streams else ("json",)
    if form not in known:
        raise BadRequest(f"Invalid value at 'alt': expected one of {', '.join(known)}.", param="alt")
    return form


def timeout_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the answer may take; None: as long as the server allows. Raises BadRequest."""
    given = headers.get(SERVER_TIMEOUT.name.lower())
    if given is None:
        return None
    if not re.fullmatch(SERVER_TIMEOUT.pattern, given) or not int(given):
        name = SERVER_TIMEOUT.name
        raise BadRequest(f"Invalid value at '{name}': expected a whole number of seconds, at least 1.", param=name)
    return float(given)
