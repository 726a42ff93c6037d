"""Is it alive, is it ready, and how is it doing: paths for operators, the same whatever dialect clients speak."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dragoman.server.metrics import CONTENT_TYPE, Metrics

Ready = Callable[[], str]
"""Empty when requests are taken and answered; otherwise why they are not."""


def health_routes(metrics: Metrics, ready: Ready) -> list[Route]:
    """``/livez``: the process answers. ``/readyz``, ``/health``, ``/healthcheck``: it can generate. ``/metrics``."""

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(request: Request) -> Response:
        reason = ready()
        if reason:
            return JSONResponse({"status": "unavailable", "reason": reason}, 503, {"retry-after": "1"})
        return JSONResponse({"status": "ok"})

    async def scrape(request: Request) -> Response:
        return Response(metrics.render(), media_type=None, headers={"content-type": CONTENT_TYPE})

    return [
        Route("/livez", alive),
        Route("/readyz", readiness),
        Route("/health", readiness),
        Route("/healthcheck", readiness),
        Route("/metrics", scrape),
    ]
