"""The Ollama dialect: its operations and its construction from settings."""

from __future__ import annotations

from dragoman.dialects.api import Cors, Dialect, Operation, RouteHint
from dragoman.dialects.ollama.derived import DerivedModels
from dragoman.dialects.ollama.embeddings import Embedding
from dragoman.dialects.ollama.errors import NotServed, render_error
from dragoman.dialects.ollama.fields import CHAT, COPY, CREATE, DELETE, EMBED, GENERATE, OLD_EMBED, PULL, SHOW
from dragoman.dialects.ollama.managing import Managing
from dragoman.dialects.ollama.models import Models
from dragoman.dialects.ollama.render import NDJSON
from dragoman.dialects.ollama.routes import Answering
from dragoman.dialects.ollama.settings import OllamaSettings

__all__ = ["OllamaSettings", "make"]

AGENT = "ollama"
"""How the user agents of Ollama's own clients begin."""

LOCAL_ORIGINS = (
    *(f"{scheme}://{host}:*" for scheme in ("http", "https") for host in ("localhost", "127.0.0.1", "0.0.0.0")),
    *("app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*"),
)
"""Origins that Ollama allows as it comes; those of a port that is the scheme's own have none."""

STAINLESS = (
    *("arch", "async", "custom-poll-interval", "helper-method", "lang", "os", "package-version", "poll-helper"),
    *("retry-count", "runtime", "runtime-version", "timeout"),
)
"""What OpenAI's package for browsers says of itself with every request."""

HEADERS = (
    *("authorization", "content-type", "user-agent", "accept", "x-requested-with", "openai-beta"),
    *(f"x-stainless-{name}" for name in STAINLESS),
)


def make(settings: OllamaSettings) -> Dialect:
    """Return the dialect with these settings. Raises DragomanError for a value that is none."""
    derived = DerivedModels(settings.derived_models)
    models = Models(settings, derived)
    return Dialect(
        name="ollama",
        title="Ollama",
        clients_add="/api",
        operations=(
            *_answering(Answering(settings, derived)),
            *_embedding(Embedding(settings, derived)),
            *_models(models),
            *_managing(Managing(models, derived)),
        ),
        model_choice="handler",
        render_error=render_error,
        cors=Cors(
            origins=(*LOCAL_ORIGINS, *settings.ollama_origins), origins_option="--ollama-origins", headers=HEADERS
        ),
    )


def _has_root(call: RouteHint) -> bool:
    """Return whether ``/`` is asked for by one of Ollama's clients. Browsers get a page."""
    if "text/html" in call.headers.get("accept", ""):
        return False
    return call.dialect == "ollama" or call.headers.get("user-agent", "").lower().startswith(AGENT)


def _answering(handlers: Answering) -> tuple[Operation, ...]:
    media = ("application/json", NDJSON)
    return (
        Operation(
            method="POST",
            path="/api/generate",
            summary="Answer a prompt, fill a gap in a text, or load or unload a model.",
            handler=handlers.generate,
            table=GENERATE,
            media=media,
        ),
        Operation(
            method="POST",
            path="/api/chat",
            summary="Answer a conversation, or load or unload a model.",
            handler=handlers.chat,
            table=CHAT,
            media=media,
        ),
    )


def _embedding(handlers: Embedding) -> tuple[Operation, ...]:
    faults = (NotServed("the model does not support embeddings"),)
    return (
        Operation(
            method="POST",
            path="/api/embed",
            summary="Return the vectors of texts.",
            handler=handlers.embed,
            table=EMBED,
            faults=faults,
        ),
        Operation(
            method="POST",
            path="/api/embeddings",
            summary="Return the vector of a text, as older clients ask for it.",
            handler=handlers.old_embed,
            table=OLD_EMBED,
            faults=faults,
        ),
    )


def _managing(handlers: Managing) -> tuple[Operation, ...]:
    return (
        Operation(
            method="POST",
            path="/api/create",
            summary="Make a derived model.",
            handler=handlers.create,
            table=CREATE,
            scope="admin",
            media=("application/json", NDJSON),
        ),
        Operation(
            method="POST",
            path="/api/copy",
            summary="Give a model another name.",
            handler=handlers.copy,
            table=COPY,
            scope="admin",
            media=("text/plain",),
        ),
        Operation(
            method="DELETE",
            path="/api/delete",
            summary="Forget a derived model.",
            handler=handlers.delete,
            table=DELETE,
            scope="admin",
            media=("text/plain",),
        ),
        *(
            Operation(method="POST", path=path, summary="Refused.", handler=handlers.refuse, scope="admin")
            for path in ("/api/push", "/api/blobs/{digest}")
        ),
        Operation(method="GET", path="/api/blobs/{digest}", summary="Not there.", handler=handlers.blob, scope="admin"),
    )


def _models(handlers: Models) -> tuple[Operation, ...]:
    return (
        Operation(
            method="GET",
            path="/",
            summary="Say that it runs.",
            handler=handlers.root,
            open=True,
            claims=_has_root,
            media=("text/plain",),
        ),
        Operation(
            method="GET", path="/api/version", summary="Name a version of Ollama.", handler=handlers.version, open=True
        ),
        Operation(
            method="GET", path="/api/status", summary="Say that nothing is remote.", handler=handlers.status, open=True
        ),
        Operation(method="GET", path="/api/tags", summary="List the models.", handler=handlers.tags),
        Operation(method="GET", path="/api/ps", summary="List the loaded models.", handler=handlers.ps),
        Operation(method="POST", path="/api/show", summary="Describe a model.", handler=handlers.show, table=SHOW),
        Operation(
            method="POST",
            path="/api/pull",
            summary="Say that an offered model is there.",
            handler=handlers.pull,
            table=PULL,
            scope="admin",
            media=("application/json", NDJSON),
        ),
    )
