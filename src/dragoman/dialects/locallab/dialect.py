"""The LocalLab dialect: its operations and its construction from settings."""

from __future__ import annotations

import time

from dragoman.core.user_folders import expand_user
from dragoman.dialects.api import Cors, Dialect, Operation, RouteHint, SocketOperation
from dragoman.dialects.locallab import models
from dragoman.dialects.locallab.errors import TooOften, render_error
from dragoman.dialects.locallab.fields import BATCH, CHAT, GENERATE, INSTRUCTIONS, LOAD
from dragoman.dialects.locallab.generation import Generating, Limiter
from dragoman.dialects.locallab.instructions import Instructions
from dragoman.dialects.locallab.models import updates
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.dialects.locallab.system import System

LIMITED = TooOften(1.0, {})


def make(settings: LocalLabSettings) -> Dialect:
    """Return the dialect with the operator's settings."""
    instructions = Instructions(expand_user(settings.locallab_folder), settings.locallab_instructions)
    limiter = Limiter(settings.locallab_rate_limit, settings.locallab_burst, time.monotonic)
    system = System(instructions)
    return Dialect(
        name="locallab",
        title="LocalLab",
        operations=(
            *_generating(Generating(settings, instructions, limiter)),
            *MODELS,
            *_system(system),
        ),
        sockets=(SocketOperation(path="/ws", summary="Tell when models come and go.", handler=updates),),
        model_choice="handler",
        render_error=render_error,
        cors=Cors(
            origins=settings.locallab_cors_origins,
            origins_option="--locallab-cors-origins",
            any_origin=True,
            credentials=True,
            max_age_s=600,
            preflight_body="OK",
        ),
        headers=system.headers,
        max_body_bytes=settings.locallab_max_body_bytes,
        key_headers=("x-api-key",),
        page_paths=("/redoc",),
    )


def _is_prompt(call: RouteHint) -> bool:
    return call.has("prompt") and not call.has("inputs")


def _generating(handlers: Generating) -> tuple[Operation, ...]:
    return (
        Operation(
            method="POST",
            path="/generate",
            summary="Answer a prompt.",
            handler=handlers.generate,
            faults=(LIMITED,),
            table=GENERATE,
            claims=_is_prompt,
        ),
        Operation(
            method="POST",
            path="/generate/stream",
            summary="Answer a prompt as plain text while it is written.",
            handler=handlers.generate_stream,
            faults=(LIMITED,),
            table=GENERATE,
            media=("text/plain", "text/event-stream"),
        ),
        Operation(
            method="POST",
            path="/generate/batch",
            summary="Answer several prompts.",
            handler=handlers.batch,
            faults=(LIMITED,),
            table=BATCH,
        ),
        Operation(
            method="POST",
            path="/chat",
            summary="Answer a conversation.",
            handler=handlers.chat,
            table=CHAT,
            faults=(LIMITED,),
        ),
        Operation(
            method="POST",
            path="/chat/stream",
            summary="Answer a conversation while the answer is written.",
            handler=handlers.chat_stream,
            faults=(LIMITED,),
            table=CHAT,
            media=("text/event-stream", "text/plain"),
        ),
    )


MODELS = (
    Operation(method="GET", path="/models", summary="List the models, in all forms.", handler=models.by_id),
    Operation(method="GET", path="/models/available", summary="List the models.", handler=models.available),
    Operation(method="GET", path="/models/list", summary="List the models.", handler=models.available),
    Operation(method="GET", path="/models/current", summary="Describe the current model.", handler=models.current),
    Operation(
        method="GET", path="/models/status/{id:path}", summary="Say whether a model is loaded.", handler=models.status
    ),
    Operation(
        method="POST",
        path="/models/load",
        summary="Load a model, and answer when it is there.",
        handler=models.load,
        table=LOAD,
        scope="admin",
    ),
    Operation(
        method="POST",
        path="/models/load/{id:path}",
        summary="Begin to load a model.",
        handler=models.begin_loading,
        scope="admin",
    ),
    Operation(
        method="POST",
        path="/models/unload",
        summary="Free the current model.",
        handler=models.unload,
        scope="admin",
    ),
)


def _has_root(call: RouteHint) -> bool:
    """Return whether LocalLab answers ``/``: only where its clients are expected, and not for browsers, which get a
    page."""
    return call.dialect == "locallab" and "text/html" not in call.headers.get("accept", "")


def _system(handlers: System) -> tuple[Operation, ...]:
    return (
        Operation(method="GET", path="/", summary="Say what runs here.", handler=handlers.root, claims=_has_root),
        Operation(
            method="GET",
            path="/health",
            summary="Say whether it can generate.",
            handler=handlers.health,
            open=True,
            probe=True,
        ),
        Operation(
            method="GET",
            path="/startup-status",
            summary="Say whether a model is being loaded.",
            handler=handlers.startup,
            open=True,
        ),
        Operation(method="GET", path="/system/info", summary="Measure the machine.", handler=handlers.info),
        Operation(method="GET", path="/resources", summary="Measure the machine.", handler=handlers.resources),
        Operation(method="GET", path="/system/resources", summary="Measure the machine.", handler=handlers.resources),
        Operation(method="GET", path="/network", summary="List network addresses.", handler=handlers.network),
        Operation(
            method="GET",
            path="/system/instructions",
            summary="Show what models are told first.",
            handler=handlers.instructions,
        ),
        Operation(
            method="POST",
            path="/system/instructions",
            summary="Store what models are told first.",
            handler=handlers.store_instructions,
            table=INSTRUCTIONS,
            scope="admin",
        ),
        Operation(
            method="POST",
            path="/system/instructions/reset",
            summary="Forget what models are told first.",
            handler=handlers.reset_instructions,
            scope="admin",
        ),
    )


__all__ = ["LocalLabSettings", "make"]
