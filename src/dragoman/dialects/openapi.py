"""The OpenAPI 3.1 document of the dialects, made from their tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dragoman.dialects.wire import Dialect, Operation


def openapi_document(dialects: Sequence[Dialect], *, version: str, prefix: str = "") -> dict[str, Any]:
    """Every operation of the dialects; where two share a path and method, the first one's, as it is served."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for dialect in dialects:
        for operation in dialect.operations:
            methods = paths.setdefault(_path(prefix + operation.path), {})
            if operation.method.lower() not in methods:
                methods[operation.method.lower()] = _described(dialect, operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Dragoman: {', '.join(dialect.title for dialect in dialects)}", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _described(dialect: Dialect, operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": [dialect.title],
        "summary": operation.summary,
        "operationId": f"{dialect.name}_{operation.handler.__name__}",
        "responses": {"200": {"description": "The answer."}, "default": {"description": "An error of the dialect."}},
    }
    names = re.findall(r"{(\w+)", operation.path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.table is not None:
        name = f"{dialect.name}.{operation.table.name.replace(' ', '_')}"
        schemas[name] = operation.table.schema()
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _path(template: str) -> str:
    """Starlette's ``{id:path}`` as OpenAPI's ``{id}``."""
    return re.sub(r"{(\w+):\w+}", r"{\1}", template)
