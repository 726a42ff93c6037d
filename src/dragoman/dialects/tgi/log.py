"""TGI's lines of the log: one for each request of this dialect that succeeds, or that fails."""

from __future__ import annotations

import logging
import re

from dragoman.core.errors import Cancelled, DragomanError
from dragoman.core.observer import ObservedGeneration, ObservedRequest, Observer, RequestEnd
from dragoman.dialects.tgi.errors import visible
from dragoman.dialects.tgi.metrics import COUNTED

log = logging.getLogger("dragoman.tgi")

MAX_LOGGED = 512
_QUOTED = re.compile(r'".*"', re.DOTALL)
"""What an error quotes is somebody's text."""


class TgiLog(Observer):
    """Writes the lines. Requests in other dialects have only the server's own line."""

    def finished(self, generation: ObservedGeneration) -> None:
        if generation.request.dialect == "tgi" and generation.is_complete:
            fields = _fields(generation)
            line = " ".join(f'{name}="{value}"' for name, value in fields.items())
            log.info("Success %s", line, extra={"title": "Success", "fields": fields})

    def ended(self, request: ObservedRequest, end: RequestEnd) -> None:
        if request.dialect != "tgi" or request.operation not in COUNTED:
            return
        if isinstance(end.error, DragomanError) and not isinstance(end.error, Cancelled):
            log.error("%s", _QUOTED.sub('"…"', visible(end.error))[:MAX_LOGGED])


def _fields(generation: ObservedGeneration) -> dict[str, str]:
    total_s = generation.preparation_s + generation.queue_s + generation.inference_s
    return {
        "total_time": _shown(total_s),
        "validation_time": _shown(generation.preparation_s),
        "queue_time": _shown(generation.queue_s),
        "inference_time": _shown(generation.inference_s),
        "time_per_token": _shown(generation.seconds_per_token),
        "seed": str(generation.seeds[0]) if generation.asked.sampling.temperature > 0 else "None",
    }


def _shown(seconds: float) -> str:
    """As Rust shows a duration."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s" if seconds >= 1 else f"{seconds * 1e3:.6f}ms"
