"""The operation that a request to explain is for, and the reasons: as routing chooses it, or by its body alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.routing import compile_path

from dragoman.core.errors import BadRequest, DragomanError, NotFound
from dragoman.dialects.api import RouteHint
from dragoman.dialects.explain_translation import generates, prompt_rows, wires_of
from dragoman.server.app_context import Endpoint

MOST_PARTS = 256
"""Most members of a body, and headers, that are tried one by one as the reason of a claim."""


class Choice(NamedTuple):
    """The operation of a request, with the reasons for it, and the parts of the path that it reads."""

    endpoint: Endpoint
    path: str
    query: Mapping[str, str]
    path_params: Mapping[str, str]
    why: tuple[str, ...]


def claiming(endpoints: Sequence[Endpoint], hint: RouteHint) -> Endpoint | None:
    """Return the first of the operations that claims a call."""
    return next((each for each in endpoints if each.operation.claims is not None and each.operation.claims(hint)), None)


def by_path(
    paths: Mapping[str, Sequence[Endpoint]], target: str, dialect: str | None, hint: RouteHint, prefixes: Iterable[str]
) -> Choice:
    """Return the operation that routing would choose for a POST to ``target``, a path or a whole address.

    ``paths``: all routes. ``dialect``: the one to choose among those that share the path. ``prefixes``: the names of
    the dialects. Raises NotFound, and BadRequest where the operation generates nothing.
    """
    parts = urlsplit(target)
    path = parts.path or "/"
    found = _matching(paths, path)
    endpoints = [each for each in found[0] if each.operation.method == "POST"]
    if not endpoints:
        raise NotFound(f"There is no POST {path[:256]}.")
    named = path.strip("/").partition("/")[0]
    if dialect is not None:
        own = [each for each in endpoints if each.dialect.name == dialect]
        if not own and named != dialect:
            return by_path(paths, f"/{dialect}{path}", None, hint, prefixes)
        why: tuple[str, ...]
        chosen, why = own[0], (f"The request says that it is of the dialect {dialect}.",)
    elif len(endpoints) == 1:
        chosen = endpoints[0]
        own_prefix = named in prefixes and named == chosen.dialect.name
        why = (
            f"The path begins with the name of the dialect {named}."
            if own_prefix
            else f"Only {chosen.dialect.name} has POST {path[:256]}.",
        )
    else:
        chosen, why = _claimed(endpoints, path, hint)
    if chosen.operation.scope != "infer":
        raise BadRequest(f"POST {path[:256]} generates nothing: it is for administrators.", param="path")
    return Choice(chosen, path, dict(parse_qsl(parts.query)), found[1], why)


def by_body(endpoints: Sequence[Endpoint], body: Any, dialect: str | None, hint: RouteHint) -> Choice:
    """Return the operation whose table knows most of a body's fields, of those that accept it where any does.

    Raises BadRequest where no table knows any of them.
    """
    possible = [each for each in endpoints if generates(each.operation) and dialect in (None, each.dialect.name)]
    names = set(body) if isinstance(body, dict) else set()
    scored = []
    for place, each in enumerate(possible):
        table = each.operation.table
        assert table is not None
        known = names & {field.name for field in table.fields}
        has_prompt = any(target in wires_of(table, body) for target in prompt_rows(each.operation))
        claims = each.operation.claims is not None and each.operation.claims(hint)
        accepts = _accepts(each, body)
        scored.append((has_prompt, accepts, len(known), claims, -place, each))
    if not scored or not (best := max(scored, key=lambda score: score[:5]))[2]:
        raise BadRequest("No operation knows a field of this body; 'path' says which one it is for.", param="path")
    chosen: Endpoint = best[5]
    count = sum(1 for score in scored if score[:3] == best[:3])
    why = [f"No path was given. {_named(chosen)} knows {best[2]} of the body's {len(names)} fields."]
    why += [f"{count - 1} other operations know as many; it comes first."] if count > 1 else []
    why += [] if best[1] else ["No operation that takes this prompt accepts the body as it is."]
    return Choice(chosen, chosen.operation.path, {}, {}, tuple(why))


def _accepts(endpoint: Endpoint, body: Any) -> bool:
    table = endpoint.operation.table
    assert table is not None
    try:
        table.read(body)
    except DragomanError:
        return False
    return True


def _named(endpoint: Endpoint) -> str:
    return f"{endpoint.dialect.name}'s {endpoint.operation.method} {endpoint.operation.path}"


def _matching(paths: Mapping[str, Sequence[Endpoint]], path: str) -> tuple[Sequence[Endpoint], Mapping[str, str]]:
    if path in paths and "{" not in path:
        return paths[path], {}
    for pattern in paths:
        if "{" in pattern and (match := compile_path(pattern)[0].match(path)) is not None:
            return paths[pattern], match.groupdict()
    return (), {}


def _claimed(endpoints: Sequence[Endpoint], path: str, hint: RouteHint) -> tuple[Endpoint, tuple[str, ...]]:
    dialects = ", ".join(each.dialect.name for each in endpoints)
    shared = f"POST {path[:256]} is shared by {dialects}."
    chosen = claiming(endpoints, hint)
    if chosen is None:
        return endpoints[0], (shared, f"None of them claims the call, and {endpoints[0].dialect.name} comes first.")
    parts = list(_deciding(chosen, hint))
    reason = f" for {', '.join(parts)}" if parts else ""
    return chosen, (shared, f"{chosen.dialect.name} claims the call{reason}.")


def _deciding(chosen: Endpoint, hint: RouteHint) -> Iterator[str]:
    """Yield the members of the body, and the headers, without which the operation would not claim the call."""
    claims = chosen.operation.claims
    assert claims is not None
    if isinstance(hint.body, dict):
        for name in list(hint.body)[:MOST_PARTS]:
            body = {key: value for key, value in hint.body.items() if key != name}
            if not claims(msgspec.structs.replace(hint, body=body)):
                yield f"its field '{name[:64]}'"
    for name in list(hint.headers)[:MOST_PARTS]:
        headers = {key: value for key, value in hint.headers.items() if key != name}
        if not claims(msgspec.structs.replace(hint, headers=headers)):
            yield f"its header '{name[:64]}'"
