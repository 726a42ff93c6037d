"""The dialect of Hugging Face's Text Generation Inference (TGI): its native API, and its version of OpenAI's."""

from __future__ import annotations

from dragoman.dialects.tgi import generate
from dragoman.dialects.tgi.errors import render_error
from dragoman.dialects.tgi.service import Service
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.dialects.wire import Dialect, Operation


def make(settings: TgiSettings) -> Dialect:
    """The dialect with these settings. Raises DragomanError where they contradict each other."""
    service = Service(settings)
    return Dialect(name="tgi", title="TGI", operations=operations(service), render_error=render_error)


def operations(service: Service) -> tuple[Operation, ...]:
    """Every operation: each module of routes lists its own."""
    return (*generate.operations(service),)
