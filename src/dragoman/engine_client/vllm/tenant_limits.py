"""How many sequences of one tenant vLLM servers compute at one time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from dragoman.core.request import EngineRequest


class TenantLimits:
    """Counts the sequences of each tenant that the servers compute; those beyond its limit wait in order of arrival."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, request: EngineRequest) -> None:
        """Wait until the tenant has room for one more."""
        limit, tenant = request.max_running, request.tenant
        if limit is None or self._running[tenant] < limit:
            self._running[tenant] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(request)
            raise

    def release(self, request: EngineRequest) -> None:
        """Let the next one have the place."""
        waiting = self._waiting.get(request.tenant)
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._waiting.pop(request.tenant, None)
        self._running[request.tenant] -= 1
        if self._running[request.tenant] <= 0:
            del self._running[request.tenant]
