"""The paths of Azure OpenAI: the dialect's operations, with the model in the path where Azure has it there.

``AzureOpenAI`` of the ``openai`` package and others put the name of a *deployment* into the path, which is that of a
model here, and their key into the header ``api-key``. The parameter ``api-version`` selects nothing: fields are the
same in all versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.dialects.api import ErrorResponse, Operation
from dragoman.dialects.openai import batches
from dragoman.dialects.openai.errors import render_error

KEY_HEADER = "api-key"
V1 = "/v1"
OF_DEPLOYMENTS = ("/chat/completions", "/completions", "/embeddings")
"""Operations whose path names the model. The longer path comes first: a model's name may have slashes."""
OF_RESOURCES = ("/models", "/files", "/batches", "/responses", "/conversations")
"""Beginnings of the paths whose model, where they have one, is in the body."""

GATEWAY: dict[str, tuple[str, str]] = {
    "model_not_found": ("DeploymentNotFound", "The API deployment for this resource does not exist. "),
    "invalid_api_key": ("401", "Access denied due to invalid subscription key or wrong API endpoint. "),
    "insufficient_permissions": ("403", ""),
    "unknown_url": ("404", ""),
    "method_not_supported": ("405", ""),
    "rate_limit_exceeded": ("429", ""),
    "service_unavailable": ("503", ""),
}
"""By OpenAI's code, the errors that Azure's gateway answers: their code there, and what precedes the message."""


def render_azure_error(error: DragomanError) -> ErrorResponse:
    """Return the error as Azure words it: those of its gateway with a code and a message alone, others as OpenAI."""
    answer = render_error(error)
    known = GATEWAY.get(answer.body["error"]["code"])
    if known is None:
        return answer
    code, words = known
    return msgspec.structs.replace(answer, body={"error": {"code": code, "message": words + error.message}})


def operations_of(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return those of the operations that Azure has, at its paths."""
    by_path = {(each.method, each.path.removeprefix(V1)): each for each in operations if each.path.startswith(f"{V1}/")}
    return (*(_deployed(by_path["POST", path], path) for path in OF_DEPLOYMENTS), *_resources(by_path.values()))


def _deployed(operation: Operation, path: str) -> Operation:
    return msgspec.structs.replace(
        operation,
        path="/openai/deployments/{deployment:path}" + path,
        model_param="deployment",
        render_error=render_azure_error,
    )


def _resources(operations: Iterable[Operation]) -> Iterator[Operation]:
    for operation in operations:
        path = operation.path.removeprefix(V1)
        if any(path == begins or path.startswith(f"{begins}/") for begins in OF_RESOURCES):
            moved = msgspec.structs.replace(operation, path="/openai" + path, render_error=render_azure_error)
            if operation.table is batches.BATCH:
                own = batches.AZURE_BATCH
                moved = msgspec.structs.replace(moved, handler=partial(batches.create, table=own), table=own)
            yield moved
