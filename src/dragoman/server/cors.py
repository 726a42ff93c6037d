"""What browsers are told about pages of other origins, as a dialect's ``Cors`` says (Fetch standard)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dragoman.dialects.wire import Cors


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser asks what it may do, before it does it."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def preflight_headers(cors: Cors, headers: Mapping[str, str]) -> dict[str, str]:
    """The answer to a browser's question. It carries no key, and needs none."""
    methods = ",".join(cors.methods) or headers["access-control-request-method"]
    names = ",".join(cors.headers) or headers.get("access-control-request-headers", "")
    answer = _origin(cors, headers) | {"access-control-allow-methods": methods}
    if names:
        answer["access-control-allow-headers"] = names
    if cors.max_age_s is not None:
        answer["access-control-max-age"] = str(cors.max_age_s)
    return answer


def answer_headers(cors: Cors, headers: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """What any other answer, which has headers of these names, says to a page of the request's origin."""
    answer = _origin(cors, headers)
    exposed = sorted(names) if cors.exposed is None else cors.exposed
    if exposed and "access-control-allow-origin" in answer:
        answer["access-control-expose-headers"] = ",".join(exposed)
    return answer


def _origin(cors: Cors, headers: Mapping[str, str]) -> dict[str, str]:
    answer = {"vary": cors.vary} if cors.vary else {}
    origin = headers.get("origin")
    if not cors.origins and not cors.echo_origin:
        answer["access-control-allow-origin"] = "*"
    elif origin is None or (cors.origins and origin not in cors.origins):
        return answer
    else:
        answer["access-control-allow-origin"] = origin
    if cors.credentials:
        answer["access-control-allow-credentials"] = "true"
    return answer
