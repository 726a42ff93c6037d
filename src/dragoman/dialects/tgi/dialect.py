"""The TGI dialect: its operations and its construction from settings."""

from __future__ import annotations

from dragoman.dialects.api import Cors, Dialect, Operation
from dragoman.dialects.tgi import chat, completions, generate, introspect, kserve
from dragoman.dialects.tgi import sagemaker_vertex as clouds
from dragoman.dialects.tgi.errors import render_error
from dragoman.dialects.tgi.generation import TgiState
from dragoman.dialects.tgi.metrics import TgiLog, TgiMetrics
from dragoman.dialects.tgi.render import COMMENT, sse_error
from dragoman.dialects.tgi.settings import TgiSettings

__all__ = ["TgiSettings", "make"]

EXPOSED = (
    "x-request-id",
    "x-compute-type",
    "x-compute-time",
    "x-compute-characters",
    "x-total-time",
    "x-validation-time",
    "x-queue-time",
    "x-inference-time",
    "x-time-per-token",
    "x-prompt-tokens",
    "x-generated-tokens",
    "x-dragoman-warnings",
)


PAYLOAD_LIMIT = 2_000_000
"""Bytes of a body in the original."""


def make(settings: TgiSettings) -> Dialect:
    """Return the dialect with these settings. Raises DragomanError where they contradict each other."""
    return Dialect(
        name="tgi",
        title="Text Generation Inference",
        operations=operations(TgiState(settings)),
        render_error=render_error,
        cors=Cors(
            origins=settings.cors_allow_origin,
            origins_option="--cors-allow-origin",
            any_origin=True,
            methods=("GET", "POST"),
            headers=("content-type", "authorization"),
            exposed=EXPOSED,
            vary="origin, access-control-request-method, access-control-request-headers",
        ),
        keep_alive=COMMENT,
        stream_error=sse_error,
        max_body_bytes=PAYLOAD_LIMIT if settings.payload_limit is None else settings.payload_limit,
        takes_image_bodies=settings.payload_limit is None,
        metrics=lambda context: TgiMetrics(settings, context).text,
        log=TgiLog,
        notes=lambda card: settings.notes(card.context_tokens, card.encoder_context_tokens),
    )


def operations(state: TgiState) -> tuple[Operation, ...]:
    """Return every operation of the route modules."""
    return (
        *introspect.operations(state),
        *generate.operations(state),
        *chat.operations(state),
        *completions.operations(state),
        *clouds.operations(state),
        *kserve.operations(state),
        *introspect.page_operations(state.settings),
    )
