"""The llama.cpp dialect: its operations and its construction from settings."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import Conflict, ModelNotFound
from dragoman.dialects.api import Cors, Dialect, Operation, RouteHint
from dragoman.dialects.llamacpp import embeddings, introspect, routes
from dragoman.dialects.llamacpp.errors import NotServed, render_error
from dragoman.dialects.llamacpp.fields import (
    APPLY_TEMPLATE,
    COMPLETION,
    DETOKENIZE,
    EMBEDDING,
    INFILL,
    MODEL,
    RERANK,
    TOKENIZE,
)
from dragoman.dialects.llamacpp.metrics import LlamaCppMetrics
from dragoman.dialects.llamacpp.render import fault
from dragoman.dialects.llamacpp.settings import LlamaCppSettings

__all__ = ["LlamaCppSettings", "make"]

LOCAL_ORIGINS = tuple(
    f"{scheme}://{host}:*" for scheme in ("http", "https") for host in ("localhost", "127.0.0.1", "0.0.0.0")
)


def make(settings: LlamaCppSettings) -> Dialect:
    """Return the dialect with these settings."""
    return Dialect(
        name="llamacpp",
        title="llama.cpp",
        operations=(*_generating(), *_pooling(), *_introspection(), *_loading(), *_not_served()),
        model_choice="body",
        render_error=render_error,
        cors=Cors(origins=(*LOCAL_ORIGINS, *settings.llamacpp_origins), origins_option="--llamacpp-origins"),
        key_headers=("x-api-key",),
        keep_alive=routes.COMMENT,
        stream_error=lambda error: b"".join(fault(error)),
        metrics=lambda context: LlamaCppMetrics(context).text,
    )


def _has_content(call: RouteHint) -> bool:
    """Return whether a body is one of llama.cpp's, not one of TGI's."""
    return call.has("content") and not call.has("inputs")


def _generating() -> tuple[Operation, ...]:
    return (
        *(
            Operation(
                method="POST", path=path, summary="Go on from a prompt.", handler=routes.completion, table=COMPLETION
            )
            for path in ("/completion", "/completions")
        ),
        Operation(
            method="POST",
            path="/infill",
            summary="Fill a gap in a text.",
            handler=routes.infill,
            table=INFILL,
            faults=(NotServed(routes.NO_FILL),),
        ),
    )


def _pooling() -> tuple[Operation, ...]:
    return (
        *(
            Operation(
                method="POST",
                path=path,
                summary="Return the vectors of texts.",
                handler=embeddings.embedding,
                table=EMBEDDING,
                faults=(NotServed(embeddings.NO_EMBEDDINGS),),
            )
            for path in ("/embedding", "/embeddings")
        ),
        *(
            Operation(
                method="POST",
                path=path,
                summary="Order documents by how well they fit a query.",
                handler=embeddings.rerank,
                table=RERANK,
                faults=(NotServed(embeddings.NO_RERANKING),),
            )
            for path in ("/rerank", "/reranking")
        ),
    )


def _introspection() -> tuple[Operation, ...]:
    probe: dict[str, Any] = {"open": True, "probe": True}
    return (
        Operation(
            method="POST",
            path="/tokenize",
            summary="Tokenize a text.",
            handler=introspect.tokenize,
            table=TOKENIZE,
            claims=_has_content,
        ),
        Operation(
            method="POST",
            path="/detokenize",
            summary="Return the text of tokens.",
            handler=introspect.detokenize,
            table=DETOKENIZE,
        ),
        Operation(
            method="POST",
            path="/apply-template",
            summary="Render a conversation by the model's chat template.",
            handler=introspect.apply_template,
            table=APPLY_TEMPLATE,
        ),
        Operation(method="GET", path="/props", summary="Describe the server.", handler=introspect.props),
        *(
            Operation(method="GET", path=path, summary="Say whether it is ready.", handler=introspect.health, **probe)
            for path in ("/health", "/v1/health")
        ),
        Operation(method="GET", path="/models", summary="List the models.", handler=introspect.models, open=True),
        Operation(method="GET", path="/lora-adapters", summary="List the adapters.", handler=introspect.adapters),
        Operation(
            method="POST",
            path="/lora-adapters",
            summary="Turn all adapters off, which they are.",
            handler=introspect.set_adapters,
            scope="admin",
            faults=(NotServed(introspect.LORA),),
        ),
    )


def _has_model(call: RouteHint) -> bool:
    """Return whether a body that names a model is one of llama.cpp's, not one of LocalLab's."""
    return call.has("model") and not call.has("model_id")


def _loading() -> tuple[Operation, ...]:
    rows = (
        ("/models/load", "Load a model.", introspect.load_model),
        ("/models/unload", "Unload a model.", introspect.unload_model),
    )
    return tuple(
        Operation(
            method="POST",
            path=path,
            summary=summary,
            handler=handler,
            table=MODEL,
            scope="admin",
            claims=_has_model,
            faults=(ModelNotFound("model 'x' not found"), Conflict("Another model is loading.")),
        )
        for path, summary, handler in rows
    )


def _not_served() -> tuple[Operation, ...]:
    rows = (
        ("GET", "/slots", introspect.no_slots, introspect.SLOTS),
        ("POST", "/slots/{id}", introspect.no_slots, introspect.SLOTS),
        ("POST", "/props", introspect.no_props, introspect.PROPS),
        *(
            (method, path, introspect.not_here, introspect.UNKNOWN)
            for path in ("/tools", "/cors-proxy", "/v1/stream", "/v1/stream/{id}")
            for method in ("GET", "POST")
        ),
    )
    return tuple(
        Operation(
            method=method,
            path=path,
            summary="Not available.",
            handler=handler,
            faults=(NotServed(words),),
            scope="admin",
        )
        for method, path, handler, words in rows
    )
