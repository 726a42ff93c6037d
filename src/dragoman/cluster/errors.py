"""The errors of an ingress itself, in the words of the dialect that a request is in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import Scope

from dragoman.core.errors import DragomanError
from dragoman.dialects.api import Dialect, Operation, RouteHint
from dragoman.server.exchange import error_answer

_MOST_READ = 1024 * 1024


class ErrorWriter:
    """Finds the dialect of a request by its path and, where several have that path, by its form. ``chosen``: the
    operator's choice, ``--dialect``."""

    def __init__(self, dialects: Sequence[Dialect], chosen: str) -> None:
        self._chosen = chosen
        self._by_part = {dialect.name: dialect for dialect in dialects}
        self._by_path: dict[tuple[str, str], list[tuple[Dialect, Operation]]] = {}
        ordered = sorted(dialects, key=lambda dialect: dialect.name != chosen)
        for dialect in ordered:
            for operation in dialect.operations:
                self._by_path.setdefault((operation.method, operation.path), []).append((dialect, operation))
                self._by_part.setdefault(operation.path.strip("/").partition("/")[0], dialect)
        self._worded = [
            (operation.method, compile_path(operation.path)[0], dialect.worded_for(operation))
            for dialect in ordered
            for operation in dialect.operations
            if operation.render_error is not None
        ]
        self._first = ordered[0]

    def whole(
        self, scope: Scope, body: bytes | None, error: DragomanError
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Return the status, headers and body of an answer that is this error."""
        answer = error_answer(self._dialect(scope, body), error)
        content = answer.body_of(scope.get("request_id", ""))
        data = content if isinstance(content, bytes) else b"" if content is None else msgspec.json.encode(content)
        head = {**({} if content is None else {"content-type": "application/json"}), **answer.headers}
        headers = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in head.items()]
        return answer.status, headers, data

    def event(self, scope: Scope, body: bytes | None, error: DragomanError) -> bytes | None:
        """Return the event that ends a stream with this error; None where the dialect has none."""
        dialect = self._dialect(scope, body)
        return None if dialect.stream_error is None else dialect.stream_error(error)

    def _dialect(self, scope: Scope, body: bytes | None) -> Dialect:
        path: str = scope["path"]
        for method, pattern, worded in self._worded:
            if method == scope["method"] and pattern.match(path):
                return worded
        part, _, _ = path.strip("/").partition("/")
        named = self._by_part.get(part) if (scope["method"], path) not in self._by_path else None
        if named is not None:
            return named
        candidates = self._by_path.get((scope["method"], path), [])
        if len(candidates) > 1:
            content = None
            if body and len(body) <= _MOST_READ:
                try:
                    content = msgspec.json.decode(body)
                except (ValueError, RecursionError):
                    content = None
            hint = RouteHint(headers=Headers(scope=scope), body=content, dialect=self._chosen)
            for dialect, operation in candidates:
                if operation.claims is not None and operation.claims(hint):
                    return dialect
        return candidates[0][0] if candidates else self._first
